# Writes a header that names the commit of the sources, and only when it has changed: run at every build.
# usage: cmake -DSOURCE=<source folder> -DOUTPUT=<header> -P commit.cmake
# "unknown" without git, and in an unpacked archive, also one that lies inside of somebody else's repository.
set(commit "unknown")
find_program(GIT git)
if(GIT)
  # Whoever builds need not own the sources, as in a container.
  set(git ${CMAKE_COMMAND} -E env --unset=GIT_DIR --unset=GIT_WORK_TREE ${GIT} -c safe.directory=* -C ${SOURCE})
  execute_process(COMMAND ${git} rev-parse --show-cdup OUTPUT_VARIABLE up RESULT_VARIABLE failed ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed AND up STREQUAL "")
    execute_process(COMMAND ${git} rev-parse --short=12 HEAD OUTPUT_VARIABLE head RESULT_VARIABLE failed ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed)
      set(commit ${head})
      execute_process(COMMAND ${git} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
      if(changes)
        string(APPEND commit ", changed")
      endif()
    endif()
  endif()
endif()
set(text "// Made by cmake/commit.cmake.\n#define SIXFOLD_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} ${text})
endif()

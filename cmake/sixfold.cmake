# Helpers that every module's CMakeLists.txt uses. One static library and one test binary a module.
include_guard(GLOBAL)

set(SIXFOLD_SANITIZE "" CACHE STRING "address (with undefined behaviour), thread, or empty")

add_library(sixfold_options INTERFACE)
target_compile_features(sixfold_options INTERFACE cxx_std_20)
target_include_directories(sixfold_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -ffp-contract=off: a fused operation is written as such, so that every ISA gives the same bits.
target_compile_options(sixfold_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers
                       "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-restrict>" -ffp-contract=off -fno-math-errno)
if(SIXFOLD_WERROR)
  target_compile_options(sixfold_options INTERFACE -Werror)
endif()
if(SIXFOLD_SANITIZE STREQUAL "address")
  target_compile_options(sixfold_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                         -fno-omit-frame-pointer)
  target_link_options(sixfold_options INTERFACE -fsanitize=address,undefined)
elseif(SIXFOLD_SANITIZE STREQUAL "thread")
  target_compile_options(sixfold_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(sixfold_options INTERFACE -fsanitize=thread)
elseif(NOT SIXFOLD_SANITIZE STREQUAL "")
  message(FATAL_ERROR "SIXFOLD_SANITIZE is '${SIXFOLD_SANITIZE}'; it may be address, thread or empty")
endif()
if(SIXFOLD_SANITIZE)
  target_compile_definitions(sixfold_options INTERFACE SIXFOLD_SANITIZED)  # base/testing/cases.h
endif()

# Modules whose code no parser of foreign bytes runs: counters there would slow their tests and tell the fuzzer nothing.
set(SIXFOLD_WITHOUT_COVERAGE tensor kernels comm moe kv sched engine)

# sixfold_library(NAME SOURCES a.cc ... DEPS sixfold::base ... PRIVATE_DEPS fmt::fmt ...)
function(sixfold_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(sixfold_${name} STATIC ${ARG_SOURCES})
  add_library(sixfold::${name} ALIAS sixfold_${name})
  target_link_libraries(sixfold_${name} PUBLIC sixfold_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  # Libraries carry the counters; only the fuzz programs link the driver, so tests link the same libraries.
  if(SIXFOLD_FUZZ AND NOT name IN_LIST SIXFOLD_WITHOUT_COVERAGE)
    target_compile_options(sixfold_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# A test of many processes or spinning ranks has the machine for itself; tools/test.sh runs the others side by side.
function(sixfold_test_alone_when_labelled name)
  if("mpi" IN_LIST ARGN OR "ranks" IN_LIST ARGN)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# sixfold_test(NAME SOURCES a_test.cc ... DEPS ... LABELS unit). The test runs in the source root.
function(sixfold_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1500)
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE sixfold_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  sixfold_test_alone_when_labelled(${name} ${ARG_LABELS})
endfunction()

# sixfold_fuzzer(NAME SOURCES x_fuzz.cc DEPS ... CORPUS dir). A test <NAME>_corpus that feeds every committed seed to the
# target's function, in every build; with SIXFOLD_FUZZ also the libFuzzer program <NAME>_fuzz that tools/test.sh runs for a
# bounded time.
function(sixfold_fuzzer name)
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;DEPS" ${ARGN})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_CORPUS})
  if(SIXFOLD_FUZZ)
    set(program ${name}_fuzz)
    add_executable(${program} ${ARG_SOURCES})
    target_compile_options(${program} PRIVATE -fsanitize=fuzzer)
    target_link_options(${program} PRIVATE -fsanitize=fuzzer)
    set(arguments -runs=0 ${corpus})
    file(APPEND ${CMAKE_BINARY_DIR}/fuzzers.txt "${program} ${corpus}\n")
  elseif(BUILD_TESTING)
    set(program ${name}_corpus_test)
    add_executable(${program} ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/src/base/testing/corpus_main.cc)
    set(arguments ${corpus})
  else()
    return()
  endif()
  target_link_libraries(${program} PRIVATE sixfold_options ${ARG_DEPS})
  if(BUILD_TESTING)
    add_test(NAME ${name}_corpus COMMAND ${program} ${arguments})
    set_tests_properties(${name}_corpus PROPERTIES LABELS "unit" TIMEOUT 300)
  endif()
endfunction()

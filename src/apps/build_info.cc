#include "apps/build_info.h"

#include <fmt/format.h>

#include "comm/mpi/mpi_world.h"
#include "commit.h"
#include "kernels/numerics.h"

namespace sixfold::apps {

BuildInfo GetBuildInfo() {
  return {.version = SIXFOLD_VERSION,
          .commit = SIXFOLD_COMMIT,
          .type = SIXFOLD_BUILD_TYPE,
          .compiler = SIXFOLD_COMPILER,
          .mpi = MpiLibraryVersion(),
          .isa = std::string(NameOf(DetectIsa()))};
}

std::string VersionText() {
  const BuildInfo info = GetBuildInfo();
  return fmt::format(
      "sixfold {}\ncommit:   {}\nbuild:    {}\ncompiler: {}\nMPI:      {}\nISA:      {}\n",
      info.version, info.commit, info.type, info.compiler,
      info.mpi.empty() ? "not built in" : info.mpi, info.isa);
}

}  // namespace sixfold::apps

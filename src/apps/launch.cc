#include "apps/launch.h"

#include <fmt/format.h>

#include <chrono>

#include "apps/option_sources.h"
#include "base/machine.h"
#include "base/plural.h"

namespace sixfold::apps {

Result<Launch> JoinLaunch(const Options& options) {
  Launch launch;
  const bool laid_out = (LaidOutCommands() >> static_cast<int>(options.command()) & 1) != 0;
  if (!laid_out || options.command() == CommandId::kLayout) return launch;
  // All processes must have come before any joins.
  launch.available_bytes = AvailableMemoryBytes();
  if (!LaunchedByMpi()) return launch;
  const double seconds = options.MaybeReal("comm-timeout").value_or(30);
  SF_ASSIGN_OR_RETURN(
      launch.mpi,
      MpiWorld::Start({.timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)),
                       .threads_per_rank =
                           static_cast<int>(options.MaybeInteger("threads").value_or(1))}));
  if (launch.mpi->world() == 1) {
    SF_RETURN_IF_ERROR(launch.mpi->Finalize());
    launch.mpi.reset();
  }
  return launch;
}

int Launch::ThreadsOfRank(int world) const {
  const CoreLimits cores = ReadCoreLimits();
  return mpi != nullptr ? cores.Share(mpi->ranks_on_cores(), mpi->ranks_on_host())
                        : cores.Share(world, world);
}

Status CheckLaunch(const Launch& launch, const Mesh& mesh) {
  if (launch.mpi == nullptr || launch.mpi->world() == mesh.world()) return OkStatus();
  return InvalidArgument(
      fmt::format("{} launched and the mesh {} has {}: start as many as it "
                  "has, or give a mesh of {}, such as --mesh tp{}",
                  Plural(launch.mpi->world(), "process was", "processes were"), mesh.ToString(),
                  Plural(mesh.world(), "rank"), launch.mpi->world(),
                  launch.mpi->world()));
}

Status CheckLinks(const Options& options, const Launch& launch) {
  if (launch.mpi == nullptr || !options.Flag("emulate-links")) return OkStatus();
  return InvalidArgument(
      "--emulate-links: links are emulated between ranks that are threads of one process; start without mpirun or srun, "
      "then the ranks are threads, or leave it out and use the links there are");
}

}  // namespace sixfold::apps

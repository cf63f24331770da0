// How this process was started: alone, or as one of many by mpirun or srun.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/options.h"
#include "base/status.h"
#include "comm/mpi/mpi_world.h"
#include "mesh/axes.h"

namespace sixfold::apps {

struct Launch {
  std::unique_ptr<MpiWorld> mpi;  // null: ranks are threads of this process
  // Of this machine, read before any process of the launch could load a thing; 0: not known.
  int64_t available_bytes = 0;

  bool follower() const { return mpi != nullptr && mpi->rank() > 0; }
  // Ranks of a world that share this machine's memory.
  int RanksHere(int world) const { return mpi != nullptr ? mpi->ranks_on_host() : world; }
  // Threads for each rank of a world on the cores that there are.
  int ThreadsOfRank(int world) const;
};

// Joins the other processes when a launcher started more than this one and the command takes a
// layout.
Result<Launch> JoinLaunch(const Options& options);

// kInvalidArgument when the mesh has another number of ranks than there are processes.
Status CheckLaunch(const Launch& launch, const Mesh& mesh);
// kInvalidArgument for --emulate-links when ranks are processes: they have links of their own.
Status CheckLinks(const Options& options, const Launch& launch);

}  // namespace sixfold::apps

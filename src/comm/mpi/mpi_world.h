// Ranks as processes that mpirun or srun has started: the same Transport over MPI. A build without
// MPI has these functions too; Start then says how to get it.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "comm/transport.h"

namespace sixfold {

// Whether mpirun or srun started this process (OMPI_COMM_WORLD_SIZE, PMIX_RANK, PMI_RANK or
// PMI_SIZE is set). True for one rank as well.
bool LaunchedByMpi();
// Whether this build can talk MPI.
bool BuiltWithMpi();
// "Open MPI v4.1.4", as the library calls itself; "" for a build without MPI. Needs no launch.
std::string MpiLibraryVersion();

struct MpiWorldOptions {
  std::chrono::milliseconds timeout{30000};  // as LocalWorldOptions::timeout
  int threads_per_rank = 1;                  // as there, with the ranks of one host
  // How long Kill on other ranks leaves rank 0 to answer its clients: the launcher ends all at
  // once.
  std::chrono::milliseconds leader_grace{2000};
};

// One a process and once in its life. Thread rule: the transport as transport.h says; Finalize and
// the destructor on the thread that called Start, Kill on any.
class MpiWorld {
 public:
  // Initialises MPI (collective over all processes). kUnavailable: a build without MPI, or a
  // process that no launcher started; kInternal: MPI refused.
  static Result<std::unique_ptr<MpiWorld>> Start(const MpiWorldOptions& options = {});
  // Finalizes, unless the transport has failed: then peers may be gone and only Kill ends well.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const;
  int world() const;
  int ranks_on_host() const;   // that share this one's memory
  int ranks_on_cores() const;  // of those, that may run on a core that this one may run on
  Transport& transport();

  // The ordinary end; collective, once. After a failure it does nothing and returns the failure.
  Status Finalize();
  // The end after a failure: ends this process and, through the launcher, all others, also stopped
  // ones; ranks but 0 wait leader_grace before. exit_code is what the launcher reports (not 0).
  [[noreturn]] void Kill(int exit_code);

 private:
  struct Impl;
  explicit MpiWorld(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold

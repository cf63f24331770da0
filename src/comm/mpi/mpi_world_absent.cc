// A build without MPI.
#include <cstdlib>

#include "comm/mpi/mpi_world.h"

namespace sixfold {

struct MpiWorld::Impl {};

bool BuiltWithMpi() { return false; }

std::string MpiLibraryVersion() { return ""; }

Result<std::unique_ptr<MpiWorld>> MpiWorld::Start(const MpiWorldOptions&) {
  return Status(StatusCode::kUnavailable,
                "this build cannot talk MPI: apt-get install libopenmpi-dev openmpi-bin and "
                "configure again (-DSIXFOLD_MPI=ON tells at once when it is missing)");
}

// Start makes no MpiWorld here, so nobody calls these.
MpiWorld::MpiWorld(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MpiWorld::~MpiWorld() = default;
int MpiWorld::rank() const { return 0; }
int MpiWorld::world() const { return 1; }
int MpiWorld::ranks_on_host() const { return 1; }
int MpiWorld::ranks_on_cores() const { return 1; }
Transport& MpiWorld::transport() { std::abort(); }
Status MpiWorld::Finalize() { return OkStatus(); }
void MpiWorld::Kill(int exit_code) { std::_Exit(exit_code); }

}  // namespace sixfold

#include "comm/mpi/mpi_world.h"

#include <algorithm>

#include "comm/mpi/mpi_transport.h"
#include "comm/mpi/wires.h"

namespace sixfold {

struct MpiWorld::Impl {
  Impl(std::unique_ptr<mpi::Wires> w, const MpiWorldOptions& o)
      : options(o), wires(std::move(w)), transport(*wires, options) {}

  const MpiWorldOptions options;
  std::unique_ptr<mpi::Wires> wires;
  mpi::MpiTransport transport;
  bool finalized = false;
};

bool BuiltWithMpi() { return true; }

std::string MpiLibraryVersion() {
  // Open MPI lists package, revision and date behind commas; MPICH has a line for each.
  std::string version = mpi::LibraryVersion();
  version.resize(std::min(version.find_first_of(",\n"), version.size()));
  std::string words;
  for (const char c : version) {
    const bool space = c == ' ' || c == '\t' || c == '\0';
    if (!space) words += c;
    if (space && !words.empty() && words.back() != ' ') words += ' ';
  }
  return words;
}

Result<std::unique_ptr<MpiWorld>> MpiWorld::Start(const MpiWorldOptions& options) {
  if (!LaunchedByMpi()) {
    return Status(StatusCode::kUnavailable,
                  "no mpirun or srun started this process: ranks as processes need one");
  }
  SF_ASSIGN_OR_RETURN(std::unique_ptr<mpi::Wires> wires, mpi::Wires::Open());
  return std::unique_ptr<MpiWorld>(new MpiWorld(std::make_unique<Impl>(std::move(wires), options)));
}

MpiWorld::MpiWorld(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MpiWorld::~MpiWorld() { static_cast<void>(Finalize().ok()); }

int MpiWorld::rank() const { return impl_->wires->rank(); }
int MpiWorld::world() const { return impl_->wires->world(); }
int MpiWorld::ranks_on_host() const { return impl_->wires->ranks_on_host(); }
int MpiWorld::ranks_on_cores() const { return impl_->wires->ranks_on_cores(); }
Transport& MpiWorld::transport() { return impl_->transport; }

Status MpiWorld::Finalize() {
  SF_RETURN_IF_ERROR(impl_->transport.Failed());
  if (std::exchange(impl_->finalized, true)) return OkStatus();
  return impl_->wires->Finalize();
}

void MpiWorld::Kill(int exit_code) {
  // The launcher ends everybody at once; the leader may still have clients to answer.
  if (rank() != 0) impl_->transport.Linger(impl_->options.leader_grace);
  impl_->wires->Abort(exit_code);
}

}  // namespace sixfold

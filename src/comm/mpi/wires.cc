#include "comm/mpi/wires.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/machine.h"
#include "comm/watch.h"

namespace sixfold::mpi {

namespace {

constexpr size_t kPiece = size_t{1} << 30;  // MPI counts in int

std::string ErrorText(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(error, text.data(), &length) != MPI_SUCCESS)
    return fmt::format("error {}", error);
  return std::string(text.data(), static_cast<size_t>(length));
}

Status Check(int error, const char* call) {
  if (error == MPI_SUCCESS) return OkStatus();
  return Internal(fmt::format("{}: {}", call, ErrorText(error)));
}

bool IsTruncation(int error) {
  int error_class = 0;
  return error != MPI_SUCCESS && MPI_Error_class(error, &error_class) == MPI_SUCCESS &&
         error_class == MPI_ERR_TRUNCATE;
}

// Collective over the ranks of a host: how many of them, this one among them, may run on a core
// that this one may run on. mpirun and srun may bind each to cores of its own.
int CountSharing(MPI_Comm host, int ranks) {
  using Mask = std::array<uint64_t, 64>;
  Mask own{};
  for (const int cpu : ReadCoreLimits().allowed_cpus)
    own[static_cast<size_t>(cpu) / 64 % own.size()] |= uint64_t{1} << (cpu % 64);
  std::vector<Mask> all(static_cast<size_t>(ranks));
  const int words = static_cast<int>(own.size());
  if (MPI_Allgather(own.data(), words, MPI_UINT64_T, all.data(), words, MPI_UINT64_T, host) !=
      MPI_SUCCESS)
    return ranks;
  const auto meets_own = [&own](const Mask& mask) {
    for (size_t i = 0; i < own.size(); ++i) {
      if ((own[i] & mask[i]) != 0) return true;
    }
    return false;
  };
  // Nobody is met where the cores are not known: then all may share them.
  const auto sharing = static_cast<int>(std::count_if(all.begin(), all.end(), meets_own));
  return sharing > 0 ? sharing : ranks;
}

}  // namespace

struct Wires::Impl {
  int rank = 0, world = 1, ranks_on_host = 1, ranks_on_cores = 1, tag_max = 32767;
  std::array<MPI_Comm, kLanes> lanes{MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};
  std::vector<std::string> processes;  // [world]
  bool finalized = false;
};

std::string LibraryVersion() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown";
  return std::string(text.data(), static_cast<size_t>(length));
}

namespace {

// Every rank's host and pid, for messages: whoever reads that a rank is stuck has to find it.
Status GatherProcesses(int world, std::vector<std::string>* processes) {
  constexpr size_t kBytes = 128;
  std::string own = ThisProcess();
  if (own.size() >= kBytes) own = own.substr(0, kBytes / 2) + "…" + own.substr(own.size() - kBytes / 4);
  own.resize(kBytes);
  std::vector<char> all(kBytes * static_cast<size_t>(world));
  SF_RETURN_IF_ERROR(Check(MPI_Allgather(own.data(), kBytes, MPI_CHAR, all.data(), kBytes, MPI_CHAR, MPI_COMM_WORLD),
                           "MPI_Allgather"));
  for (int rank = 0; rank < world; ++rank)
    processes->emplace_back(all.data() + kBytes * static_cast<size_t>(rank), ::strnlen(all.data() + kBytes * static_cast<size_t>(rank), kBytes));
  return OkStatus();
}

}  // namespace

Wires::Wires(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Wires::~Wires() = default;

Result<std::unique_ptr<Wires>> Wires::Open() {
  // mpirun sets it for itself when ranks share cores, srun does not; MPI's own waits (start, end)
  // spin without it, so that 8 ranks on 2 cores take milliseconds for each message.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  int level = MPI_THREAD_SINGLE;
  SF_RETURN_IF_ERROR(
      Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread"));
  if (level < MPI_THREAD_SERIALIZED)
    return Internal("this MPI lets one thread only make calls; MPI_THREAD_SERIALIZED is needed");
  auto impl = std::make_unique<Impl>();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &impl->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &impl->world);
  for (MPI_Comm& lane : impl->lanes) {
    SF_RETURN_IF_ERROR(Check(MPI_Comm_dup(MPI_COMM_WORLD, &lane), "MPI_Comm_dup"));
    MPI_Comm_set_errhandler(lane, MPI_ERRORS_RETURN);
  }
  MPI_Comm host = MPI_COMM_NULL;
  SF_RETURN_IF_ERROR(Check(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, impl->rank, MPI_INFO_NULL, &host),
      "MPI_Comm_split_type"));
  MPI_Comm_size(host, &impl->ranks_on_host);
  impl->ranks_on_cores = CountSharing(host, impl->ranks_on_host);
  MPI_Comm_free(&host);
  int* tag_max = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&tag_max), &found);
  if (found != 0) impl->tag_max = *tag_max;
  SF_RETURN_IF_ERROR(GatherProcesses(impl->world, &impl->processes));
  return std::unique_ptr<Wires>(new Wires(std::move(impl)));
}

int Wires::rank() const { return impl_->rank; }
int Wires::world() const { return impl_->world; }
int Wires::ranks_on_host() const { return impl_->ranks_on_host; }
int Wires::ranks_on_cores() const { return impl_->ranks_on_cores; }
const std::string& Wires::ProcessOf(int rank) const { return impl_->processes.at(static_cast<size_t>(rank)); }
int Wires::tag_max() const { return impl_->tag_max; }

bool Wires::Probe(Lane lane, int peer, int tag, Arrival* arrival) {
  int found = 0;
  MPI_Status status{};
  const int error =
      MPI_Iprobe(peer == kAny ? MPI_ANY_SOURCE : peer, tag == kAny ? MPI_ANY_TAG : tag,
                 impl_->lanes[static_cast<size_t>(lane)], &found, &status);
  if (error != MPI_SUCCESS || found == 0) return false;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  *arrival = {.peer = status.MPI_SOURCE, .tag = status.MPI_TAG, .bytes = bytes};
  return true;
}

Status Wires::ReceiveNow(Lane lane, const Arrival& arrival, std::vector<std::byte>* data) {
  data->resize(static_cast<size_t>(arrival.bytes));
  return Check(MPI_Recv(data->data(), static_cast<int>(arrival.bytes), MPI_BYTE, arrival.peer,
                        arrival.tag, impl_->lanes[static_cast<size_t>(lane)], MPI_STATUS_IGNORE),
               "MPI_Recv");
}

Status Wires::Finalize() {
  if (std::exchange(impl_->finalized, true)) return OkStatus();
  for (MPI_Comm& lane : impl_->lanes) MPI_Comm_free(&lane);
  return Check(MPI_Finalize(), "MPI_Finalize");
}

void Wires::Abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

struct RequestSet::Impl {
  struct Part {
    int peer = 0;
    bool receives = false;
    int64_t bytes = 0;
  };

  Wires::Impl* wires = nullptr;
  // Requests that are done become MPI_REQUEST_NULL; when all are, the lists start anew.
  std::vector<MPI_Request> requests;
  std::vector<Part> parts;  // [requests]
  size_t pending = 0;
  std::vector<int> finished;         // scratch of Poll, [requests]
  std::vector<MPI_Status> statuses;  // scratch of Poll, [requests]
  std::vector<WrongSize> wrong_sizes;

  void StartAnewIfDone() {
    if (pending > 0) return;
    requests.clear();
    parts.clear();
  }
  template <typename Bytes, typename Start>
  Status StartPieces(int peer, bool receives, Bytes data, const char* what, Start start);
  void Finish(size_t index, const MPI_Status& status, bool truncated);
};

RequestSet::RequestSet(Wires& wires) : impl_(std::make_unique<Impl>()) {
  impl_->wires = wires.impl_.get();
}
RequestSet::~RequestSet() = default;

// Calls start(bytes of a piece, its request) for each piece that one MPI call takes.
template <typename Bytes, typename Start>
Status RequestSet::Impl::StartPieces(int peer, bool receives, Bytes data, const char* what,
                                     Start start) {
  StartAnewIfDone();
  while (!data.empty()) {
    const auto piece = data.first(std::min(data.size(), kPiece));
    data = data.subspan(piece.size());
    MPI_Request request = MPI_REQUEST_NULL;
    SF_RETURN_IF_ERROR(Check(start(piece.data(), static_cast<int>(piece.size()), &request), what));
    requests.push_back(request);
    parts.push_back({peer, receives, static_cast<int64_t>(piece.size())});
    ++pending;
  }
  return OkStatus();
}

Status RequestSet::Send(Lane lane, int peer, int tag, std::span<const std::byte> data) {
  MPI_Comm comm = impl_->wires->lanes[static_cast<size_t>(lane)];
  return impl_->StartPieces(peer, false, data, "MPI_Isend",
                            [&](const std::byte* bytes, int count, MPI_Request* request) {
                              return MPI_Isend(bytes, count, MPI_BYTE, peer, tag, comm, request);
                            });
}

Status RequestSet::Receive(Lane lane, int peer, int tag, std::span<std::byte> data) {
  MPI_Comm comm = impl_->wires->lanes[static_cast<size_t>(lane)];
  return impl_->StartPieces(peer, true, data, "MPI_Irecv",
                            [&](std::byte* bytes, int count, MPI_Request* request) {
                              return MPI_Irecv(bytes, count, MPI_BYTE, peer, tag, comm, request);
                            });
}

void RequestSet::Impl::Finish(size_t index, const MPI_Status& status, bool truncated) {
  --pending;
  const Part& part = parts[index];
  if (!part.receives) return;
  int bytes = -1;
  if (!truncated) MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes != part.bytes) wrong_sizes.push_back({part.peer, part.bytes, bytes});
}

Status RequestSet::Poll() {
  if (impl_->pending == 0) return OkStatus();
  const size_t count = impl_->requests.size();
  impl_->finished.resize(count);
  impl_->statuses.resize(count);
  int done = 0;
  const int error = MPI_Testsome(static_cast<int>(count), impl_->requests.data(), &done,
                                 impl_->finished.data(), impl_->statuses.data());
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) return Check(error, "MPI_Testsome");
  for (int i = 0; i < done; ++i) {
    const MPI_Status& status = impl_->statuses[static_cast<size_t>(i)];
    // MPI sets the field only when it says that it did.
    const int own_error = error == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    const bool truncated = IsTruncation(own_error);
    impl_->Finish(static_cast<size_t>(impl_->finished[static_cast<size_t>(i)]), status, truncated);
    if (!truncated) SF_RETURN_IF_ERROR(Check(own_error, "MPI_Testsome"));
  }
  return OkStatus();
}

bool RequestSet::done() const { return impl_->pending == 0; }

void RequestSet::AppendPeers(std::vector<int>* peers) const {
  for (size_t i = 0; i < impl_->requests.size(); ++i) {
    if (impl_->requests[i] != MPI_REQUEST_NULL) peers->push_back(impl_->parts[i].peer);
  }
}

bool RequestSet::Receiving(int peer) const {
  for (size_t i = 0; i < impl_->requests.size(); ++i) {
    const Impl::Part& part = impl_->parts[i];
    if (impl_->requests[i] != MPI_REQUEST_NULL && part.receives && part.peer == peer) return true;
  }
  return false;
}

const std::vector<WrongSize>& RequestSet::wrong_sizes() const { return impl_->wrong_sizes; }

void RequestSet::GiveUp() {
  for (size_t i = 0; i < impl_->requests.size(); ++i) {
    MPI_Request& request = impl_->requests[i];
    if (request == MPI_REQUEST_NULL) continue;
    if (impl_->parts[i].receives) MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  impl_->requests.clear();
  impl_->parts.clear();
  impl_->pending = 0;
}

}  // namespace sixfold::mpi

#include "weights/weights_hash.h"

#include <sched.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "weights/mapped_file.h"
#include "weights/weight_store.h"
#include "weights/weights_hash_cache.h"

namespace sixfold {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;  // of the tree: another size is another hash
constexpr size_t kLookBytes = size_t{256} << 10;     // between looks whether to give up
constexpr std::chrono::milliseconds kTickPeriod{10};
constexpr int kThreadsMax = 16;  // that wait; more than any storage or memory can feed

// What a hash is of, so that none can stand for another.
enum class Node : uint8_t { kPiece, kTensor, kRoot };

Sha256& Begin(Sha256& sha, Node node) {
  const auto byte = static_cast<std::byte>(node);
  return sha.Add(std::span(&byte, 1));
}

Digest256 RandomToken() {
  Digest256 token{};
  if (::getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()))
    return token;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return Sha256().Add(static_cast<uint64_t>(now)).Add(reinterpret_cast<uintptr_t>(&token)).Finish();
}

// Unequal on any two machines that run at the same time.
std::string BootId() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const auto canonical = std::filesystem::canonical(path, error);
  return error ? std::filesystem::absolute(path, error).string() : canonical.string();
}

FileKey KeyOf(const MappedFile& file) {
  const FileIdentity& identity = file.identity();
  return {.path = CanonicalPath(file.path()),
          .bytes = identity.bytes,
          .mtime_ns = identity.mtime_ns,
          .inode = identity.inode};
}

void RunOnlyWhereNothingElseWantsTheCore() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_IDLE, &none);  // 0: this thread. Refused: ordinary priority
}

}  // namespace

WeightsHash::WeightsHash(const WeightStore& store) : store_(store), token_(RandomToken()) {}

WeightsHash::~WeightsHash() {
  stop_ = true;
  for (std::thread& thread : background_) thread.join();
}

// Units are the same in every process that has the same files.
void WeightsHash::Plan() const {
  const std::lock_guard lock(mutex_);
  if (planned_) return;
  planned_ = true;
  const auto tensors = store_.tensors();
  uint64_t unit_bytes = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    first_piece_.push_back(static_cast<uint32_t>(pieces_.size()));
    for (uint64_t at = 0; at < tensors[t].bytes; at += kPieceBytes) {
      const uint64_t bytes = std::min(kPieceBytes, tensors[t].bytes - at);
      if (units_.empty() || unit_bytes + bytes > kPieceBytes) {
        units_.push_back({.first = static_cast<uint32_t>(pieces_.size())});
        unit_bytes = 0;
      }
      pieces_.push_back({.tensor = static_cast<uint32_t>(t), .offset = at, .bytes = bytes});
      ++units_.back().count;
      unit_bytes += bytes;
    }
  }
  first_piece_.push_back(static_cast<uint32_t>(pieces_.size()));
  digests_.resize(pieces_.size());
  states_.assign(units_.size(), State::kFree);
  cached_.resize(tensors.size());
}

void WeightsHash::Start(const HashOptions& options) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(started_, true)) return;
    options_ = options;
  }
  Plan();
  if (!options.cache.empty()) TakeFromCache();
  CompleteIfDone();
  const std::lock_guard lock(mutex_);
  if (root_) return;
  cursor_ = units_.size() * static_cast<size_t>(options.share) /
            static_cast<size_t>(std::max(1, options.shares));
  for (int i = 0; i < options.threads; ++i) AddBackgroundThread(Priority::kIdle);
}

void WeightsHash::Hurry() {
  Plan();
  const std::lock_guard lock(mutex_);
  if (root_ || std::exchange(hurried_, true)) return;
  AddBackgroundThread(Priority::kOrdinary);
}

void WeightsHash::AddBackgroundThread(Priority priority) {
  try {
    background_.emplace_back([this, priority] {
      if (priority == Priority::kIdle) RunOnlyWhereNothingElseWantsTheCore();
      const Claim claim = priority == Priority::kIdle ? Claim::kFree : Claim::kFreeOrBegun;
      Sha256 sha;
      while (const auto unit = Next(claim)) HashUnit(*unit, &sha);
      CompleteIfDone();
    });
  } catch (const std::system_error&) {
    // No thread to be had: whoever waits does the work.
  }
}

std::optional<Result<Digest256>> WeightsHash::Poll() const {
  const std::lock_guard lock(mutex_);
  return root_;
}

double WeightsHash::progress() const {
  const std::lock_guard lock(mutex_);
  return units_.empty() ? 0.0 : static_cast<double>(done_) / static_cast<double>(units_.size());
}

size_t WeightsHash::units_read() const {
  const std::lock_guard lock(mutex_);
  return units_read_;
}

size_t WeightsHash::unit_count() const {
  Plan();
  const std::lock_guard lock(mutex_);
  return units_.size();
}

std::optional<uint32_t> WeightsHash::Next(Claim claim) {
  const std::lock_guard lock(mutex_);
  if (stop_ || done_ == units_.size()) return std::nullopt;
  // Each unit is passed once: claimed units never become free again.
  for (; passed_ < units_.size(); ++passed_) {
    const size_t unit = (cursor_ + passed_) % units_.size();
    if (states_[unit] != State::kFree) continue;
    states_[unit] = State::kClaimed;
    return static_cast<uint32_t>(unit);
  }
  if (claim == Claim::kFree) return std::nullopt;
  for (size_t i = 0; i < units_.size(); ++i) {
    redo_cursor_ = (redo_cursor_ + 1) % units_.size();
    if (states_[redo_cursor_] == State::kClaimed) return static_cast<uint32_t>(redo_cursor_);
  }
  return std::nullopt;
}

void WeightsHash::HashUnit(uint32_t number, Sha256* sha) {
  const Unit unit = units_[number];  // the plan does not change
  {
    const std::lock_guard lock(mutex_);
    ++units_read_;
  }
  std::vector<Digest256> digests;
  for (uint32_t p = unit.first; p < unit.first + unit.count; ++p) {
    const Piece& piece = pieces_[p];
    const auto bytes =
        store_.Bytes(store_.tensors()[piece.tensor]).subspan(piece.offset, piece.bytes);
    Begin(*sha, Node::kPiece);
    for (size_t at = 0; at < bytes.size() && !stop_; at += kLookBytes) {
      sha->Add(bytes.subspan(at, std::min(kLookBytes, bytes.size() - at)));
    }
    digests.push_back(sha->Finish());
    if (stop_) return;
    store_.DropPages(bytes);
  }
  Put(number, digests);
  CompleteIfDone();
}

void WeightsHash::Put(uint32_t number, std::span<const Digest256> digests) {
  const std::lock_guard lock(mutex_);
  if (states_[number] == State::kDone) return;
  std::copy(digests.begin(), digests.end(), digests_.begin() + units_[number].first);
  states_[number] = State::kDone;
  ++done_;
}

Status WeightsHash::RunWith(int threads, const Tick& tick,
                            const std::function<std::optional<uint32_t>()>& next) {
  std::atomic<bool> give_up = false;
  const auto work = [&](const Tick& each) -> Status {
    Sha256 sha;
    while (!give_up) {
      const std::optional<uint32_t> unit = next();
      if (!unit) break;
      HashUnit(*unit, &sha);
      if (each) SF_RETURN_IF_ERROR(each());
    }
    return OkStatus();
  };
  std::vector<std::thread> helpers;
  try {
    while (static_cast<int>(helpers.size()) + 1 < std::min(threads, kThreadsMax)) {
      helpers.emplace_back([&work] { (void)work({}); });
    }
  } catch (const std::system_error&) {
    // Fewer helpers.
  }
  const Status status = work(tick);
  give_up = !status.ok();
  for (std::thread& helper : helpers) helper.join();
  return status;
}

Result<Digest256> WeightsHash::Wait(int threads, const Tick& tick) {
  Plan();
  SF_RETURN_IF_ERROR(RunWith(threads, tick, [this] { return Next(Claim::kFreeOrBegun); }));
  CompleteIfDone();
  std::unique_lock lock(mutex_);
  while (!root_) {
    changed_.wait_for(lock, kTickPeriod);
    if (!tick || root_) continue;
    lock.unlock();
    SF_RETURN_IF_ERROR(tick());
    lock.lock();
  }
  return *root_;
}

Status WeightsHash::HashUnits(std::span<const uint32_t> units, int threads, const Tick& tick) {
  Plan();
  std::atomic<size_t> next = 0;
  return RunWith(threads, tick, [&]() -> std::optional<uint32_t> {
    for (size_t i = next++; i < units.size(); i = next++) {
      const std::lock_guard lock(mutex_);
      if (states_[units[i]] == State::kDone) continue;
      states_[units[i]] = State::kClaimed;
      return units[i];
    }
    return std::nullopt;
  });
}

std::vector<std::byte> WeightsHash::Known(std::span<const uint32_t> units) const {
  Plan();
  const std::lock_guard lock(mutex_);
  std::vector<std::byte> out;
  const auto append = [&out](const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    out.insert(out.end(), from, from + bytes);
  };
  for (const uint32_t unit : units) {
    if (states_[unit] != State::kDone || digests_[units_[unit].first] == Digest256{})
      continue;  // or known from the cache alone
    append(&unit, sizeof unit);
    append(digests_.data() + units_[unit].first, units_[unit].count * sizeof(Digest256));
  }
  return out;
}

Status WeightsHash::Add(std::span<const std::byte> known, std::vector<uint32_t>* which) {
  Plan();
  while (!known.empty()) {
    uint32_t unit = 0;
    if (known.size() < sizeof unit) return Internal("hashes of weights arrived damaged");
    std::memcpy(&unit, known.data(), sizeof unit);
    known = known.subspan(sizeof unit);
    const size_t bytes = unit < units_.size() ? units_[unit].count * sizeof(Digest256) : 0;
    if (bytes == 0 || known.size() < bytes) return Internal("hashes of weights arrived damaged");
    std::vector<Digest256> digests(units_[unit].count);
    std::memcpy(digests.data(), known.data(), bytes);
    known = known.subspan(bytes);
    Put(unit, digests);
    which->push_back(unit);
  }
  CompleteIfDone();
  return OkStatus();
}

Digest256 WeightsHash::FilesIdentity() const {
  Sha256 sha;
  sha.Add(store_.file_count());
  for (size_t i = 0; i < store_.file_count(); ++i) {
    const MappedFile& file = store_.file(i);
    const FileKey key = KeyOf(file);
    sha.AddSized(key.path).Add(key.bytes).Add(static_cast<uint64_t>(key.mtime_ns)).Add(key.inode);
    // A local file is another one on every machine; a network file system shows all machines the
    // same.
    if (!file.identity().on_network) sha.AddSized(BootId()).Add(file.identity().device);
  }
  return sha.Finish();
}

void WeightsHash::CompleteIfDone() {
  {
    const std::lock_guard lock(mutex_);
    if (!planned_ || done_ < units_.size() || std::exchange(completing_, true)) return;
  }
  // All hashes are in place and change no more.
  const Status unchanged = CheckUnchanged();
  Result<Digest256> root =
      unchanged.ok() ? Result<Digest256>(Root()) : Result<Digest256>(unchanged);
  if (root.ok() && !options_.cache.empty() && options_.share == 0) WriteToCache();
  const std::lock_guard lock(mutex_);
  root_ = std::move(root);
  changed_.notify_all();
}

Digest256 WeightsHash::TensorHash(size_t tensor) const {
  if (cached_[tensor]) return *cached_[tensor];
  Sha256 sha;
  Begin(sha, Node::kTensor).Add(store_.tensors()[tensor].bytes);
  for (uint32_t p = first_piece_[tensor]; p < first_piece_[tensor + 1]; ++p) sha.Add(digests_[p]);
  return sha.Finish();
}

Digest256 WeightsHash::Root() const {
  const auto tensors = store_.tensors();
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  Sha256 sha;
  Begin(sha, Node::kRoot).Add(order.size());
  for (const size_t i : order) {
    sha.AddSized(tensors[i].name).AddSized(NameOf(tensors[i].dtype)).Add(tensors[i].shape.size());
    for (const int64_t extent : tensors[i].shape) sha.Add(static_cast<uint64_t>(extent));
    sha.Add(TensorHash(i));
  }
  if (const GgufMetadata* gguf = store_.gguf()) {
    for (const GgufEntry& entry : gguf->entries())
      sha.AddSized(entry.key).AddSized(gguf->Raw(entry));
  }
  return sha.Finish();
}

// A file that was replaced by renaming is still mapped as it was; one that was written to is
// neither the old nor the new one.
Status WeightsHash::CheckUnchanged() const {
  for (size_t i = 0; i < store_.file_count(); ++i) {
    const MappedFile& file = store_.file(i);
    const std::optional<FileIdentity> now = FileIdentity::Of(file.path());
    const FileIdentity& opened = file.identity();
    if (!now || now->inode != opened.inode || now->device != opened.device) continue;
    if (now->bytes == opened.bytes && now->mtime_ns == opened.mtime_ns) continue;
    return InvalidFile(
        file.path() +
        ": was written to while it was in use; load the model again, and replace weight files by "
        "renaming");
  }
  return OkStatus();
}

void WeightsHash::TakeFromCache() {
  const auto tensors = store_.tensors();
  size_t t = 0;  // tensors are in the order of their data, file by file
  for (uint32_t f = 0; f < store_.file_count(); ++f) {
    const std::vector<CachedHash> cached = ReadHashCache(options_.cache, KeyOf(store_.file(f)));
    const std::lock_guard lock(mutex_);
    size_t c = 0;
    for (; t < tensors.size() && tensors[t].file == f; ++t) {
      while (c < cached.size() && std::pair(cached[c].offset, cached[c].bytes) <
                                      std::pair(tensors[t].offset, tensors[t].bytes))
        ++c;
      if (c < cached.size() && cached[c].offset == tensors[t].offset &&
          cached[c].bytes == tensors[t].bytes) {
        cached_[t] = cached[c].digest;
      }
    }
  }
  const std::lock_guard lock(mutex_);
  for (size_t u = 0; u < units_.size(); ++u) {
    const auto first = pieces_.begin() + units_[u].first;
    const bool all = std::all_of(first, first + units_[u].count,
                                 [&](const Piece& p) { return cached_[p.tensor].has_value(); });
    if (!all || states_[u] == State::kDone) continue;
    states_[u] = State::kDone;
    ++done_;
  }
}

void WeightsHash::WriteToCache() const {
  const auto tensors = store_.tensors();
  for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    std::vector<CachedHash> hashes;
    bool all_cached = true;
    for (; end < tensors.size() && tensors[end].file == tensors[begin].file; ++end) {
      all_cached = all_cached && cached_[end].has_value();
      hashes.push_back(
          {.offset = tensors[end].offset, .bytes = tensors[end].bytes, .digest = TensorHash(end)});
    }
    const MappedFile& file = store_.file(tensors[begin].file);
    if (!all_cached && file.identity().settled) WriteHashCache(options_.cache, KeyOf(file), hashes);
  }
}

}  // namespace sixfold

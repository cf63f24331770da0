// A cryptographic hash over every byte of a model's tensors: SHA-256 as a tree, so that threads and
// ranks share the work.
//
// A piece is up to 4 MiB of one tensor. The hash of a tensor is that of its pieces' hashes; the
// root covers names, types, shapes and hashes of all tensors in order of name, and the metadata of
// a GGUF file. Sharding, data order and the place of the files do not change it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"

namespace sixfold {

class WeightStore;

struct HashOptions {
  int threads = 1;  // in the background, which runs only where nothing else wants the core
  std::filesystem::path cache;  // folder that keeps hashes of files between processes; empty: none
  // Ranks of one machine begin at unequal places: `share` of `shares`. Share 0 writes the cache.
  int share = 0, shares = 1;
};

// Belongs to a WeightStore and reads through its mapping, a few MiB at a time. Nothing is read
// before one of Start, Wait and HashUnits is called. Thread rule: any thread.
class WeightsHash {
 public:
  // Called between pieces by the thread that waits; a failure ends the wait with it.
  using Tick = std::function<Status()>;

  explicit WeightsHash(const WeightStore& store);
  ~WeightsHash();  // gives up what is not done
  WeightsHash(const WeightsHash&) = delete;
  WeightsHash& operator=(const WeightsHash&) = delete;

  // Takes from the cache what it has and hashes the rest in the background. The first call counts.
  void Start(const HashOptions& options);
  // The root; nullopt while it is not known. kInvalidFile: a file was written to after it was
  // opened.
  std::optional<Result<Digest256>> Poll() const;
  // The root. The calling thread and threads - 1 others help at their ordinary priority, and take
  // over what a thread in the background has begun and does not come to.
  Result<Digest256> Wait(int threads, const Tick& tick = {});
  // Somebody waits elsewhere: one thread at ordinary priority, once.
  void Hurry();
  double progress() const;    // 0 to 1
  size_t units_read() const;  // by this object

  // For ranks that share the work. Stores are equal when their files are the same ones: of one
  // machine, or of one network file system.
  Digest256 FilesIdentity() const;
  // Unequal for any two stores: equal ones are the same object.
  const Digest256& token() const { return token_; }
  size_t unit_count() const;
  // Hashes those that are not known.
  Status HashUnits(std::span<const uint32_t> units, int threads, const Tick& tick = {});
  // Those of `units` that are known, as Add takes them.
  std::vector<std::byte> Known(std::span<const uint32_t> units) const;
  // From an equal store; adds the units to *which. kInternal: damaged.
  Status Add(std::span<const std::byte> known, std::vector<uint32_t>* which);

 private:
  struct Piece {
    uint32_t tensor = 0;  // index into the store's tensors
    uint64_t offset = 0, bytes = 0;
  };
  // Pieces that are hashed in one go: one, or many small ones.
  struct Unit {
    uint32_t first = 0, count = 0;  // pieces
  };
  enum class State : uint8_t { kFree, kClaimed, kDone };
  enum class Claim : uint8_t { kFree, kFreeOrBegun };

  void Plan() const;
  void TakeFromCache();
  void WriteToCache() const;
  Digest256 TensorHash(size_t tensor) const;
  Digest256 Root() const;
  Status CheckUnchanged() const;
  std::optional<uint32_t> Next(Claim claim);
  void HashUnit(uint32_t unit, Sha256* sha);
  void Put(uint32_t unit, std::span<const Digest256> digests);
  void CompleteIfDone();
  // Hashes what `next` gives in `threads` threads, this one included, which ticks.
  Status RunWith(int threads, const Tick& tick,
                 const std::function<std::optional<uint32_t>()>& next);
  enum class Priority : uint8_t { kIdle, kOrdinary };
  void AddBackgroundThread(Priority priority);

  const WeightStore& store_;
  const Digest256 token_;
  HashOptions options_;
  std::atomic<bool> stop_ = false;

  mutable std::mutex mutex_;  // of all below
  mutable std::condition_variable changed_;
  mutable bool planned_ = false;
  mutable std::vector<Piece> pieces_;
  mutable std::vector<Unit> units_;
  mutable std::vector<uint32_t> first_piece_;             // [tensors + 1]
  mutable std::vector<Digest256> digests_;                // [pieces]
  mutable std::vector<State> states_;                     // [units]
  mutable std::vector<std::optional<Digest256>> cached_;  // [tensors]
  size_t units_read_ = 0, cursor_ = 0, passed_ = 0, redo_cursor_ = 0, done_ = 0;
  bool started_ = false, hurried_ = false, completing_ = false;
  std::optional<Result<Digest256>> root_;
  std::vector<std::thread> background_;
};

}  // namespace sixfold

// The hash of the weights over all ranks of an instance, whose work ranks with the same files
// share.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace sixfold {

class WeightsHash;

// One per rank, over all ranks. Thread rule: as Communicator.
class SharedHash {
 public:
  // Hashes in `threads` threads; the transport hears of the progress.
  SharedHash(WeightsHash& hash, Communicator& world, Transport& transport, int threads)
      : hash_(hash), world_(world), transport_(transport), threads_(threads) {}

  // Collective. The hash of this rank's own files, of which another rank may have read a part;
  // nullopt when all ranks are threads of one process and read one mapping, which nobody has to
  // hash.
  Result<std::optional<Digest256>> Run();

 private:
  // Each rank's bytes, in order of ranks.
  Result<std::vector<std::vector<std::byte>>> GatherFromAll(std::span<const std::byte> mine);
  // Exchanges what is known of `units` with the ranks of the group; every unit that any of them had
  // is counted in *known.
  Status Exchange(std::span<const uint32_t> units, std::vector<bool>* known);
  Status ShareWork();

  WeightsHash& hash_;
  Communicator& world_;
  Transport& transport_;
  const int threads_;
  std::vector<int> group_;  // ranks with the same files that have work to do, this one included
};

}  // namespace sixfold

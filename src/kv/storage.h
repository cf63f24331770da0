// The memory behind the blocks of one rank.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/ops.h"
#include "kv/geometry.h"
#include "tensor/buffer.h"

namespace sixfold {

// Layer l: K pages of all blocks, then V pages of all blocks (none when V is a prefix of K); pages lie as kernels/ops.h reads them. Zero at start, so
// an unused slot always holds finite values. Thread rule: written by the rank's step only.
class KvStorage {
 public:
  // kOutOfMemory names the flag that shrinks it.
  static Result<KvStorage> Create(const KvGeometry& geometry, int32_t blocks);

  KvLayerView Layer(int layer);
  const KvGeometry& geometry() const { return geometry_; }
  int32_t blocks() const { return blocks_; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  KvGeometry geometry_;
  int32_t blocks_ = 0;
  Buffer memory_;
};

}  // namespace sixfold

#include "comm/mpi/tags.h"

#include <algorithm>

#include "base/check.h"

namespace sixfold::mpi {

namespace {

constexpr int kOpBits = 4;
static_assert(static_cast<int>(CommOp::kBarrier) < 1 << kOpBits);

}  // namespace

Tags::Tags(int tag_max) {
  SF_CHECK_GE(tag_max, 32767);
  int bits = 15;
  while (bits < 31 && tag_max >> bits != 0) ++bits;
  group_bits_ = std::min(12, (bits - kOpBits) / 2 - 1);
  sequence_bits_ = bits - kOpBits - group_bits_;
}

int Tags::Of(const Operation& operation) const {
  const uint64_t group = static_cast<uint64_t>(operation.group) & ((1U << group_bits_) - 1);
  const uint64_t sequence = operation.sequence & ((uint64_t{1} << sequence_bits_) - 1);
  return static_cast<int>(
      (static_cast<uint64_t>(operation.op) << group_bits_ | group) << sequence_bits_ | sequence);
}

Operation Tags::Read(int tag, const Operation& near) const {
  const auto bits = static_cast<uint64_t>(tag);
  const uint64_t sequences = uint64_t{1} << sequence_bits_;
  const uint64_t groups = uint64_t{1} << group_bits_;
  Operation operation{.op = static_cast<CommOp>(bits >> (sequence_bits_ + group_bits_)),
                      .group = static_cast<int>(bits >> sequence_bits_ & (groups - 1)),
                      .sequence = bits & (sequences - 1)};
  if ((static_cast<uint64_t>(near.group) & (groups - 1)) ==
      static_cast<uint64_t>(operation.group)) {
    operation.group = near.group;
    operation.axis = near.axis;
    operation.sequence |= near.sequence & ~(sequences - 1);
  }
  return operation;
}

}  // namespace sixfold::mpi

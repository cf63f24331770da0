// Distinct integer types, so that a block number is never passed where a request number is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace sixfold {

template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const StrongId&) const = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }

 private:
  Rep value_ = 0;
};

using RankId = StrongId<struct RankTag, int32_t>;
using BlockId = StrongId<struct BlockTag, int32_t>;
using ExpertId = StrongId<struct ExpertTag, int32_t>;
using RequestId = StrongId<struct RequestTag, uint64_t>;
using TokenId = int32_t;  // crosses every format and the wire as a plain number

}  // namespace sixfold

template <typename Tag, typename Rep>
struct std::hash<sixfold::StrongId<Tag, Rep>> {
  size_t operator()(sixfold::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>()(id.value()); }
};

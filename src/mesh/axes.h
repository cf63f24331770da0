// Axis sizes and their order: which rank stands where, and who its neighbours along each axis are.
// Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sixfold {

// What is cut: weights inside a layer (tp), tokens outside the tensor-parallel regions (sp, over
// the tp group), context positions (cp), requests (dp), experts (ep), layers (pp). etp cuts one
// expert, edp copies all experts.
enum class Axis : uint8_t { kTp, kSp, kCp, kDp, kEp, kPp, kEtp, kEdp };
inline constexpr int kAxisCount = 8;
std::string_view NameOf(Axis axis);  // "tp"
std::optional<Axis> AxisFromName(std::string_view name);

struct AxisSize {
  Axis axis = Axis::kTp;
  int size = 1;
  bool operator==(const AxisSize&) const = default;
};

// Ranks 0 to world-1 over tp, cp, dp and pp in any order; the first axis counts fastest. A value.
class Mesh {
 public:
  // Sizes in the order in which ranks count. kInvalidArgument: an axis twice, an axis that a mesh
  // has not (sp, ep), a size below 1, more than 65,536 ranks. Axes that are not named have size 1.
  static Result<Mesh> Make(std::span<const AxisSize> sizes);
  // "tp2,cp2,dp4,pp2".
  static Result<Mesh> Parse(std::string_view text);
  Mesh();  // one rank

  int world() const { return world_; }
  int size(Axis axis) const { return size_[static_cast<int>(axis)]; }
  int Coordinate(int rank, Axis axis) const;
  // The rank that has `rank`'s coordinates but `coordinate` on `axis`.
  int Neighbour(int rank, Axis axis, int coordinate) const;
  // Ranks that differ from `rank` on `axes` alone, in ascending order of coordinates, the first of
  // `axes` fastest.
  std::vector<int> Group(int rank, std::span<const Axis> axes) const;
  std::vector<int> Group(int rank, Axis axis) const { return Group(rank, std::span(&axis, 1)); }
  // All groups along `axes`, by their lowest rank.
  std::vector<std::vector<int>> Groups(std::span<const Axis> axes) const;
  std::span<const AxisSize> order() const { return order_; }  // all four axes
  std::string ToString() const;  // "tp2,cp2,dp4,pp2"; axes of size 1 left out, "tp1" if all are
  bool operator==(const Mesh&) const = default;

 private:
  std::vector<AxisSize> order_;
  std::array<int, kAxisCount> size_{};
  std::array<int, kAxisCount> stride_{};
  int world_ = 1;
};

// Shares of `units` things among `parts`: sizes differ by at most one, the larger ones first.
struct Share {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Share&) const = default;
};
Share ShareOf(int64_t units, int parts, int part);

}  // namespace sixfold

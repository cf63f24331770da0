#include "mesh/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace sixfold {

namespace {

constexpr std::string_view kAxisNames[kAxisCount] = {"tp", "sp", "cp",  "dp",
                                                     "ep", "pp", "etp", "edp"};
constexpr Axis kMeshAxes[] = {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp};
constexpr int64_t kWorldMax = 65536;

bool IsMeshAxis(Axis axis) {
  return std::find(std::begin(kMeshAxes), std::end(kMeshAxes), axis) != std::end(kMeshAxes);
}

}  // namespace

std::string_view NameOf(Axis axis) { return kAxisNames[static_cast<int>(axis)]; }

std::optional<Axis> AxisFromName(std::string_view name) {
  for (int i = 0; i < kAxisCount; ++i) {
    if (kAxisNames[i] == name) return static_cast<Axis>(i);
  }
  return std::nullopt;
}

Mesh::Mesh() {
  size_.fill(1);
  stride_.fill(1);
  for (const Axis axis : kMeshAxes) order_.push_back({axis, 1});
}

Result<Mesh> Mesh::Make(std::span<const AxisSize> sizes) {
  Mesh mesh;
  mesh.order_.clear();
  const auto named = [&](Axis axis) {
    return std::any_of(mesh.order_.begin(), mesh.order_.end(),
                       [&](const AxisSize& s) { return s.axis == axis; });
  };
  int64_t world = 1;
  for (const AxisSize& s : sizes) {
    if (!IsMeshAxis(s.axis)) {
      return InvalidArgument(fmt::format(
          "a mesh has the axes tp, cp, dp and pp, not {}; {}", NameOf(s.axis),
          s.axis == Axis::kSp ? "sp is --sequence-parallel" : "experts have --ep and --etp"));
    }
    if (named(s.axis))
      return InvalidArgument(fmt::format("the mesh names {} twice", NameOf(s.axis)));
    if (s.size < 1)
      return InvalidArgument(fmt::format("{} is {}; it must be 1 or more", NameOf(s.axis), s.size));
    mesh.stride_[static_cast<int>(s.axis)] = static_cast<int>(world);
    mesh.size_[static_cast<int>(s.axis)] = s.size;
    mesh.order_.push_back(s);
    world *= s.size;
    if (world > kWorldMax)
      return InvalidArgument(fmt::format("the mesh has more than {} ranks", kWorldMax));
  }
  for (const Axis axis : kMeshAxes) {
    if (named(axis)) continue;
    mesh.stride_[static_cast<int>(axis)] = static_cast<int>(world);
    mesh.order_.push_back({axis, 1});
  }
  mesh.world_ = static_cast<int>(world);
  return mesh;
}

Result<Mesh> Mesh::Parse(std::string_view text) {
  std::vector<AxisSize> sizes;
  const std::string whole(text);
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const size_t digit = part.find_first_of("0123456789");
    const std::optional<Axis> axis = AxisFromName(part.substr(0, digit));
    int size = 0;
    const char* end = part.data() + part.size();
    const bool number =
        digit != std::string_view::npos &&
        std::from_chars(part.data() + digit, end, size) == std::from_chars_result{end, std::errc()};
    if (!axis || !number) {
      return InvalidArgument(fmt::format(
          "'{}' is no mesh: expected axes with sizes, the fastest first, as in tp2,cp2,dp4,pp2",
          whole));
    }
    sizes.push_back({*axis, size});
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return Make(sizes);
}

int Mesh::Coordinate(int rank, Axis axis) const {
  return rank / stride_[static_cast<int>(axis)] % size_[static_cast<int>(axis)];
}

int Mesh::Neighbour(int rank, Axis axis, int coordinate) const {
  SF_CHECK_LT(coordinate, size(axis));
  return rank + (coordinate - Coordinate(rank, axis)) * stride_[static_cast<int>(axis)];
}

std::vector<int> Mesh::Group(int rank, std::span<const Axis> axes) const {
  std::vector<int> members = {rank};
  for (const Axis axis : axes) members[0] = Neighbour(members[0], axis, 0);
  for (const Axis axis : axes) {
    const size_t before = members.size();
    for (int c = 1; c < size(axis); ++c) {
      for (size_t i = 0; i < before; ++i) members.push_back(Neighbour(members[i], axis, c));
    }
  }
  return members;
}

std::vector<std::vector<int>> Mesh::Groups(std::span<const Axis> axes) const {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world_; ++rank) {
    std::vector<int> group = Group(rank, axes);
    if (group.front() == rank) groups.push_back(std::move(group));
  }
  return groups;
}

std::string Mesh::ToString() const {
  std::string text;
  for (const AxisSize& s : order_) {
    if (s.size > 1) text += fmt::format("{}{}{}", text.empty() ? "" : ",", NameOf(s.axis), s.size);
  }
  return text.empty() ? "tp1" : text;
}

Share ShareOf(int64_t units, int parts, int part) {
  SF_CHECK_GE(part, 0);
  SF_CHECK_LT(part, parts);
  const int64_t each = units / parts, more = units % parts;
  const int64_t begin = part * each + std::min<int64_t>(part, more);
  return {begin, begin + each + (part < more ? 1 : 0)};
}

}  // namespace sixfold

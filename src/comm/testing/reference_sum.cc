#include "comm/testing/reference_sum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

namespace sixfold {

namespace {

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Numbers of very different sizes, so that every order of additions rounds differently.
float Spread(uint64_t bits) {
  const uint32_t exponent = 120 + static_cast<uint32_t>(bits >> 32) % 14;
  return std::bit_cast<float>(static_cast<uint32_t>(bits & 0x807fffff) | exponent << 23);
}

uint16_t RoundToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t below = bits & 0xffff;
  uint32_t upper = bits >> 16;
  if (below > 0x8000 || (below == 0x8000 && (upper & 1) != 0)) ++upper;
  return static_cast<uint16_t>(upper);
}

// How each type draws, adds and stores.
struct F32 {
  using Value = float;
  static Value Draw(uint64_t bits) { return Spread(bits); }
  static Value Add(Value a, Value b) { return a + b; }
  static float Stored(Value v) { return v; }
};
struct F64 {
  using Value = double;
  static Value Draw(uint64_t bits) { return Spread(bits) * (1 + Spread(Mix(bits)) * 1e-9); }
  static Value Add(Value a, Value b) { return a + b; }
  static double Stored(Value v) { return v; }
};
struct BF16 {
  using Value = float;
  static Value Draw(uint64_t bits) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(Spread(bits)) & 0xffff0000);
  }
  static Value Add(Value a, Value b) { return a + b; }
  static uint16_t Stored(Value v) { return RoundToBF16(v); }
};
struct I32 {
  using Value = uint32_t;
  static Value Draw(uint64_t bits) { return static_cast<Value>(bits); }
  static Value Add(Value a, Value b) { return a + b; }
  static uint32_t Stored(Value v) { return v; }
};
struct I64 {
  using Value = uint64_t;
  static Value Draw(uint64_t bits) { return bits; }
  static Value Add(Value a, Value b) { return a + b; }
  static uint64_t Stored(Value v) { return v; }
};

template <typename Kind>
struct Recursion {
  const ReferenceSum& sum;
  std::set<std::pair<int, int>> stops;  // nodes whose values are drawn

  typename Kind::Value Node(int begin, int end, int64_t element) const {
    if (end - begin == 1 || stops.count({begin, end}) != 0) {
      const auto key = static_cast<uint64_t>(begin) << 20 | static_cast<uint64_t>(end);
      return Kind::Draw(Mix(Mix(sum.seed ^ key) + static_cast<uint64_t>(element)));
    }
    int half =
        1;  // the left child has a power of two of leaves, the largest that leaves a right one
    while (half * 2 < end - begin) half *= 2;
    return Kind::Add(Node(begin, begin + half, element), Node(begin + half, end, element));
  }

  void Append(int begin, int end, std::vector<std::byte>* out) const {
    for (int64_t e = 0; e < sum.elements; ++e) {
      const auto stored = Kind::Stored(Node(begin, end, e));
      const size_t at = out->size();
      out->resize(at + sizeof(stored));
      std::memcpy(out->data() + at, &stored, sizeof(stored));
    }
  }
};

template <typename Kind>
std::vector<std::byte> Values(const ReferenceSum& sum, const std::vector<TreeNode>& nodes) {
  Recursion<Kind> recursion{sum, {}};
  if (sum.type == ReduceType::kBF16) {
    for (const auto& of_member : sum.cut.nodes)
      for (const TreeNode& node : of_member) recursion.stops.insert({node.begin, node.end});
  }
  std::vector<std::byte> out;
  for (const TreeNode& node : nodes) recursion.Append(node.begin, node.end, &out);
  return out;
}

std::vector<std::byte> ValuesOf(const ReferenceSum& sum, const std::vector<TreeNode>& nodes) {
  switch (sum.type) {
    case ReduceType::kF32: return Values<F32>(sum, nodes);
    case ReduceType::kF64: return Values<F64>(sum, nodes);
    case ReduceType::kBF16: return Values<BF16>(sum, nodes);
    case ReduceType::kI32: return Values<I32>(sum, nodes);
    case ReduceType::kI64: return Values<I64>(sum, nodes);
  }
  return {};
}

}  // namespace

std::vector<std::byte> ReferenceSum::NodesOf(int member) const {
  return ValuesOf(*this, cut.nodes[member]);
}

std::vector<std::byte> ReferenceSum::Total() const { return ValuesOf(*this, {{0, cut.leaves}}); }

}  // namespace sixfold

// The numeric contract: one order of operations for every result, whatever the ISA, batch, chunking or layout.
//
// Dot product over K elements. K is padded with zeros to blocks of 32; the blocks are taken in ascending order:
//     e = fma chain over the even k of the block, ascending, from +0
//     o = fma chain over the odd  k of the block, ascending, from +0
//     c = c + (e + o)
// in fp32, round to nearest even, denormals flushed (FTZ and DAZ). This is the order of the AMX instruction TDPBF16PS,
// and plain loops with std::fma, AVX2 and AVX-512 follow it, for bf16 and for fp32 operands alike.
//
// Grouped dot product (block-quantised and F8 weights): the weight of group g is code * scale_g (+ min_g). For each
// group of 16 or 32 codes, ascending:
//     p = (e + o) of the group, codes as exact small floats
//     c = fma(p, scale_g, c);  if the type has minima: c = fma(s_g, min_g, c), s_g = (e + o) of the activations alone
// MXFP4's codes are the E2M1 values themselves, its scale is 2^(e - 127) as fp32: 0 for e = 0 (a denormal), infinite for 255.
// With int8 activations p and s_g are exact (integers; halves for MXFP4) and scale_g, min_g are multiplied by the activation scale first.
//
// A reduction that tp may cut is a binary tree over leaves (mesh/reduction.h): each leaf is its own chain from +0, and
// node(level j, i) adds node(j-1, 2i) + node(j-1, 2i+1); an absent right child means: copy the left one.
//
// Source of the rules and their measured prices: docs/decisions/0002-reproducible-numerics.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace sixfold {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAmx };
std::string_view NameOf(Isa isa);                      // "scalar", "avx2", "avx512", "amx"
std::optional<Isa> IsaFromName(std::string_view name);
// The widest ISA that this CPU and kernel allow. Asks the kernel for permission to use the tile registers once.
Isa DetectIsa();

// Arithmetic of activations in matrix products and attention; sums are fp32 in all three.
enum class ActDType : uint8_t { kF32, kBF16, kInt8 };
std::string_view NameOf(ActDType dtype);

// Mode of --numerics. kReproducible: the contract above. kFast: sums that a layout cuts are added as the layout likes.
enum class Numerics : uint8_t { kReproducible, kFast };

// Call at the start of every thread that computes: sets flush-to-zero and denormals-are-zero.
void SetFloatMode();

// Leaves of one reduction: leaf v covers k in [begin[v], begin[v+1]). Always begin.front() = 0, begin.back() = K.
// A reduction that is never cut has one leaf.
struct Leaves {
  std::vector<int64_t> begin;

  static Leaves Whole(int64_t k) { return Leaves{{0, k}}; }
  int count() const { return static_cast<int>(begin.size()) - 1; }
  int64_t k() const { return begin.back(); }
  bool operator==(const Leaves&) const = default;
};

}  // namespace sixfold

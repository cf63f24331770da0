// Tensors of a file, counted by what they are for and by type, and listed with their layers folded
// together.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/weight_store.h"

namespace sixfold::apps {

// "embedding", "output head", "attention", "ffn", "experts", "router", "norm" or "other", by the
// names that Hugging Face and GGUF use.
std::string_view KindOf(std::string_view tensor_name);

struct Tally {
  int64_t tensors = 0;
  int64_t elements = 0;
  uint64_t bytes = 0;
};

struct TensorSummary {
  Tally total;
  std::map<std::string, Tally> by_kind;
  std::map<std::string, Tally> by_dtype;
};
TensorSummary Summarise(std::span<const TensorInfo> tensors);

// Tensors whose names differ in numbers only and that agree in type and shape:
// "blk.*.attn_q.weight", 30 of them.
struct TensorPattern {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t count = 0;
};
// In order of first appearance; at most `patterns_max`, of the rest only the number is counted in
// `left_out`.
std::vector<TensorPattern> FoldLayers(std::span<const TensorInfo> tensors, size_t patterns_max,
                                      int64_t* left_out);

}  // namespace sixfold::apps

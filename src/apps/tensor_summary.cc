#include "apps/tensor_summary.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>

#include "tensor/dtype.h"

namespace sixfold::apps {
namespace {

struct KindRule {
  std::string_view part;
  std::string_view kind;
};

// The first rule whose part is in the name decides.
constexpr KindRule kKindRules[] = {
    {"norm", "norm"},
    {"ffn_gate_inp", "router"},
    {"mlp.gate.", "router"},
    {"block_sparse_moe.gate.", "router"},
    {"router", "router"},
    {"exps.", "experts"},
    {"expert", "experts"},
    {"token_embd", "embedding"},
    {"embed", "embedding"},
    {"wte.", "embedding"},
    {"lm_head", "output head"},
    {"attn", "attention"},
    {"attention", "attention"},
    {"ffn", "ffn"},
    {"mlp", "ffn"},
    {"feed_forward", "ffn"},
};

std::string FoldNumbers(std::string_view name) {
  std::string folded;
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    if (begin > 0) folded += '.';
    folded += number ? "*" : part;
    begin = end + 1;
  }
  return folded;
}

}  // namespace

std::string_view KindOf(std::string_view tensor_name) {
  for (const KindRule& rule : kKindRules) {
    if (tensor_name.find(rule.part) != std::string_view::npos) return rule.kind;
  }
  return tensor_name == "output.weight" ? "output head" : "other";
}

TensorSummary Summarise(std::span<const TensorInfo> tensors) {
  TensorSummary summary;
  for (const TensorInfo& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t dimension : tensor.shape) elements *= dimension;
    for (Tally* tally : {&summary.total, &summary.by_kind[std::string(KindOf(tensor.name))],
                         &summary.by_dtype[std::string(NameOf(tensor.dtype))]}) {
      tally->tensors += 1;
      tally->elements += elements;
      tally->bytes += tensor.bytes;
    }
  }
  return summary;
}

std::vector<TensorPattern> FoldLayers(std::span<const TensorInfo> tensors, size_t patterns_max,
                                      int64_t* left_out) {
  std::vector<TensorPattern> patterns;
  std::unordered_map<std::string, size_t> index;
  *left_out = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string name = FoldNumbers(tensor.name);
    const std::string key =
        name + " " + DescribeTensor({.name = "", .dtype = tensor.dtype, .shape = tensor.shape});
    const auto found = index.find(key);
    if (found != index.end()) {
      patterns[found->second].count += 1;
    } else if (patterns.size() < patterns_max) {
      index.emplace(key, patterns.size());
      patterns.push_back({name, tensor.dtype, tensor.shape, 1});
    } else {
      *left_out += 1;
    }
  }
  return patterns;
}

}  // namespace sixfold::apps

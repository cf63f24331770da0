#include "model/inventory.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "model/expert_tensors.h"

namespace sixfold {

TensorNames NamesFor(const WeightStore& store, const ModelConfig& config) {
  const Family* family = FamilyByName(config.family);
  SF_CHECK(family != nullptr);
  if (store.format() != WeightStore::Format::kGguf) return family->hf_names;
  TensorNames names = family->gguf_names;
  names.split_kv_b = store.Find(FillName(names.k_b, 0) + names.weight) != nullptr;
  return names;
}

namespace {

// Calls `visit` for every tensor that a model of this config has, and stops at the first failure: a config that claims
// millions of experts costs nothing beyond the first one that the files lack.
class Inventory {
 public:
  Inventory(const WeightStore& store, const ModelConfig& config, const TensorNames& names, TensorVisit visit)
      : c_(config), n_(names), experts_(store, config, names), visit_(std::move(visit)) {}

  Status Run() {
    SF_RETURN_IF_ERROR(Weight(n_.embedding, {c_.vocab, c_.hidden}));
    SF_RETURN_IF_ERROR(Weight(n_.final_norm, {c_.hidden}));
    if (!c_.tied_embeddings) SF_RETURN_IF_ERROR(Weight(n_.head, {c_.vocab, c_.hidden}));
    for (int l = 0; l < static_cast<int>(c_.layers.size()); ++l) {
      SF_RETURN_IF_ERROR(Attention(l));
      SF_RETURN_IF_ERROR(c_.layers[l].sparse ? Experts(l) : DenseFfn(l));
    }
    return OkStatus();
  }

 private:
  Status Weight(const std::string& base, const std::vector<int64_t>& shape) {
    return visit_(base + n_.weight, shape, {});
  }

  Status Linear(const std::string& base, int64_t rows, int64_t cols, bool bias) {
    SF_RETURN_IF_ERROR(Weight(base, {rows, cols}));
    return bias ? visit_(base + n_.bias, {rows}, {}) : OkStatus();
  }

  Status Attention(int l) {
    SF_RETURN_IF_ERROR(Weight(FillName(n_.attention_norm, l), {c_.hidden}));
    SF_RETURN_IF_ERROR(Weight(FillName(n_.ffn_norm, l), {c_.hidden}));
    if (c_.latent.used()) return LatentAttention(l);
    const int64_t q = int64_t{c_.heads} * c_.head_dim;
    const int64_t kv = int64_t{c_.kv_heads} * c_.head_dim;
    SF_RETURN_IF_ERROR(Linear(FillName(n_.q, l), q, c_.hidden, c_.qkv_bias));
    SF_RETURN_IF_ERROR(Linear(FillName(n_.k, l), kv, c_.hidden, c_.qkv_bias));
    SF_RETURN_IF_ERROR(Linear(FillName(n_.v, l), kv, c_.hidden, c_.qkv_bias));
    SF_RETURN_IF_ERROR(Linear(FillName(n_.o, l), c_.hidden, q, c_.o_bias));
    if (c_.attention_sinks) SF_RETURN_IF_ERROR(visit_(FillName(n_.sinks, l), {c_.heads}, {}));
    if (c_.qk_norm == QkNorm::kNone) return OkStatus();
    const bool whole = c_.qk_norm == QkNorm::kWholeVector;
    SF_RETURN_IF_ERROR(Weight(FillName(n_.q_norm, l), {whole ? q : c_.head_dim}));
    return Weight(FillName(n_.k_norm, l), {whole ? kv : c_.head_dim});
  }

  Status LatentAttention(int l) {
    const LatentConfig& m = c_.latent;
    const int64_t heads = c_.heads;
    if (m.q_rank > 0) {
      SF_RETURN_IF_ERROR(Linear(FillName(n_.q_a, l), m.q_rank, c_.hidden, m.a_bias));
      SF_RETURN_IF_ERROR(Weight(FillName(n_.q_a_norm, l), {m.q_rank}));
      SF_RETURN_IF_ERROR(Weight(FillName(n_.q_b, l), {heads * c_.head_dim, m.q_rank}));
    } else {
      SF_RETURN_IF_ERROR(Weight(FillName(n_.q, l), {heads * c_.head_dim, c_.hidden}));
    }
    SF_RETURN_IF_ERROR(Linear(FillName(n_.kv_a, l), m.kv_rank + m.rope_dim, c_.hidden, m.a_bias));
    SF_RETURN_IF_ERROR(Weight(FillName(n_.kv_a_norm, l), {m.kv_rank}));
    if (n_.split_kv_b) {
      SF_RETURN_IF_ERROR(Weight(FillName(n_.k_b, l), {heads, m.kv_rank, m.nope_dim}));
      SF_RETURN_IF_ERROR(Weight(FillName(n_.v_b, l), {heads, m.v_dim, m.kv_rank}));
    } else {
      SF_RETURN_IF_ERROR(Weight(FillName(n_.kv_b, l), {heads * (m.nope_dim + m.v_dim), m.kv_rank}));
    }
    return Linear(FillName(n_.o, l), c_.hidden, heads * m.v_dim, c_.o_bias);
  }

  Status DenseFfn(int l) {
    SF_RETURN_IF_ERROR(Linear(FillName(n_.gate, l), c_.intermediate, c_.hidden, c_.mlp_bias));
    SF_RETURN_IF_ERROR(Linear(FillName(n_.up, l), c_.intermediate, c_.hidden, c_.mlp_bias));
    return Linear(FillName(n_.down, l), c_.hidden, c_.intermediate, c_.mlp_bias);
  }

  Status Experts(int l) {
    SF_RETURN_IF_ERROR(Linear(FillName(n_.router, l), c_.moe.experts, c_.hidden, c_.moe.router_bias));
    if (c_.moe.choice_bias) SF_RETURN_IF_ERROR(visit_(FillName(n_.choice_bias, l), {c_.moe.experts}, {}));
    if (c_.moe.shared_intermediate > 0) {
      SF_RETURN_IF_ERROR(Weight(FillName(n_.shared_gate, l), {c_.moe.shared_intermediate, c_.hidden}));
      SF_RETURN_IF_ERROR(Weight(FillName(n_.shared_up, l), {c_.moe.shared_intermediate, c_.hidden}));
      SF_RETURN_IF_ERROR(Weight(FillName(n_.shared_down, l), {c_.hidden, c_.moe.shared_intermediate}));
    }
    return experts_.Visit(l, visit_);
  }

  const ModelConfig& c_;
  const TensorNames& n_;
  const ExpertTensors experts_;
  TensorVisit visit_;
};

// "model.layers.61.…" in a model of 61 layers.
bool IsOfFurtherLayer(const ModelConfig& config, std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return false;
  int layer = -1;
  const char* digits = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(digits, name.data() + name.size(), layer);
  return error == std::errc() && end != digits && layer >= static_cast<int>(config.layers.size());
}

bool Ignorable(const WeightStore& store, const ModelConfig& config, const TensorNames& names, const std::string& name) {
  if (store.format() == WeightStore::Format::kGguf) return name == "rope_freqs.weight";
  if (config.tied_embeddings && name == names.head + names.weight) return true;
  const Family* family = FamilyByName(config.family);
  if (family->ignores_further_layers && IsOfFurtherLayer(config, name)) return true;
  return std::any_of(family->ignorable_suffixes.begin(), family->ignorable_suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

Status CheckTensor(const WeightStore& store, const ModelConfig& config, const std::string& name,
                   const std::vector<int64_t>& shape, std::optional<DType> type) {
  const TensorInfo* t = store.Find(name);
  if (t == nullptr) {
    return InvalidFile(fmt::format("{}: tensor '{}' {} is missing; a {} model of this config needs it", store.path(), name,
                                   ShapeText(shape), config.family));
  }
  if (t->shape != shape) {
    return InvalidFile(fmt::format("{}: {}: expected shape {} from the config, got {}", store.FileName(*t),
                                   DescribeTensor(*t), ShapeText(shape), ShapeText(t->shape)));
  }
  if (type && t->dtype != *type) {
    return InvalidFile(fmt::format("{}: {}: expected type {}, got {}", store.FileName(*t), DescribeTensor(*t), NameOf(*type),
                                   NameOf(t->dtype)));
  }
  if (!type && !CanDequantize(t->dtype)) {
    return InvalidFile(fmt::format("{}: {}: expected a type that can be computed with (F32, F16, BF16, F8_E4M3, Q4_0, "
                                   "Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4), got {}", store.FileName(*t),
                                   DescribeTensor(*t), NameOf(t->dtype)));
  }
  return OkStatus();
}

Status CheckInventory(const WeightStore& store, const ModelConfig& config, const TensorNames& names) {
  std::set<std::string> wanted;
  const auto visit = [&](const std::string& name, const std::vector<int64_t>& shape, std::optional<DType> type) {
    SF_RETURN_IF_ERROR(CheckTensor(store, config, name, shape, type));
    wanted.insert(name);
    if (store.Find(name)->dtype == DType::kF8E4M3) wanted.insert(name + "_scale_inv");
    return OkStatus();
  };
  SF_RETURN_IF_ERROR(Inventory(store, config, names, visit).Run());
  for (const TensorInfo& t : store.tensors()) {
    // What the index of the shards leaves out may be anything, an optimizer's state or a copy.
    if (!t.listed || wanted.contains(t.name) || Ignorable(store, config, names, t.name)) continue;
    return InvalidFile(fmt::format("{}: {}: expected no such tensor in a {} model of this config", store.FileName(t),
                                   DescribeTensor(t), config.family));
  }
  return OkStatus();
}

}  // namespace

Status CheckTensors(const WeightStore& store, const ModelConfig& config) {
  return CheckInventory(store, config, NamesFor(store, config));
}

}  // namespace sixfold

#include "model/loader.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "mesh/reduction.h"
#include "model/arch/family.h"
#include "weights/tensor_reader.h"

namespace sixfold {

namespace {

std::string Fill(std::string pattern, int layer, int expert = 0) {
  for (const auto& [mark, value] : {std::pair<std::string_view, int>{"{l}", layer}, {"{e}", expert}}) {
    const size_t at = pattern.find(mark);
    if (at != std::string::npos) pattern.replace(at, mark.size(), std::to_string(value));
  }
  return pattern;
}

// Calls `visit` for every tensor that a model of this config has, and stops at the first failure: a config that claims
// millions of experts costs nothing beyond the first one that the files lack.
class Inventory {
 public:
  using Visit = std::function<Status(const std::string& name, const std::vector<int64_t>& shape)>;
  Inventory(const ModelConfig& config, const TensorNames& names, Visit visit)
      : c_(config), n_(names), visit_(std::move(visit)) {}

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
  Status Weight(const std::string& base, const std::vector<int64_t>& shape) { return visit_(base + n_.weight, shape); }

  Status Linear(const std::string& base, int64_t rows, int64_t cols, bool bias) {
    SF_RETURN_IF_ERROR(Weight(base, {rows, cols}));
    return bias ? visit_(base + n_.bias, {rows}) : OkStatus();
  }

  Status Attention(int l) {
    const int64_t q = int64_t{c_.heads} * c_.head_dim;
    const int64_t kv = int64_t{c_.kv_heads} * c_.head_dim;
    SF_RETURN_IF_ERROR(Weight(Fill(n_.attention_norm, l), {c_.hidden}));
    SF_RETURN_IF_ERROR(Linear(Fill(n_.q, l), q, c_.hidden, c_.qkv_bias));
    SF_RETURN_IF_ERROR(Linear(Fill(n_.k, l), kv, c_.hidden, c_.qkv_bias));
    SF_RETURN_IF_ERROR(Linear(Fill(n_.v, l), kv, c_.hidden, c_.qkv_bias));
    SF_RETURN_IF_ERROR(Linear(Fill(n_.o, l), c_.hidden, q, c_.o_bias));
    SF_RETURN_IF_ERROR(Weight(Fill(n_.ffn_norm, l), {c_.hidden}));
    if (c_.qk_norm == QkNorm::kNone) return OkStatus();
    const bool whole = c_.qk_norm == QkNorm::kWholeVector;
    SF_RETURN_IF_ERROR(Weight(Fill(n_.q_norm, l), {whole ? q : c_.head_dim}));
    return Weight(Fill(n_.k_norm, l), {whole ? kv : c_.head_dim});
  }

  Status DenseFfn(int l) {
    SF_RETURN_IF_ERROR(Linear(Fill(n_.gate, l), c_.intermediate, c_.hidden, c_.mlp_bias));
    SF_RETURN_IF_ERROR(Linear(Fill(n_.up, l), c_.intermediate, c_.hidden, c_.mlp_bias));
    return Linear(Fill(n_.down, l), c_.hidden, c_.intermediate, c_.mlp_bias);
  }

  Status Experts(int l) {
    const int64_t width = c_.moe.intermediate;
    SF_RETURN_IF_ERROR(Weight(Fill(n_.router, l), {c_.moe.experts, c_.hidden}));
    if (n_.stacked_experts) {
      SF_RETURN_IF_ERROR(Weight(Fill(n_.expert_gate, l), {c_.moe.experts, width, c_.hidden}));
      SF_RETURN_IF_ERROR(Weight(Fill(n_.expert_up, l), {c_.moe.experts, width, c_.hidden}));
      return Weight(Fill(n_.expert_down, l), {c_.moe.experts, c_.hidden, width});
    }
    for (int e = 0; e < c_.moe.experts; ++e) {
      SF_RETURN_IF_ERROR(Weight(Fill(n_.expert_gate, l, e), {width, c_.hidden}));
      SF_RETURN_IF_ERROR(Weight(Fill(n_.expert_up, l, e), {width, c_.hidden}));
      SF_RETURN_IF_ERROR(Weight(Fill(n_.expert_down, l, e), {c_.hidden, width}));
    }
    return OkStatus();
  }

  const ModelConfig& c_;
  const TensorNames& n_;
  Visit visit_;
};

TensorNames NamesFor(const WeightStore& store, const ModelConfig& config) {
  if (store.format() == WeightStore::Format::kGguf) return GgufNames();
  const Family* family = FamilyByName(config.family);
  SF_CHECK(family != nullptr);
  return family->hf_names;
}

bool Ignorable(const WeightStore& store, const ModelConfig& config, const TensorNames& names, const std::string& name) {
  if (store.format() == WeightStore::Format::kGguf) return name == "rope_freqs.weight";
  if (config.tied_embeddings && name == names.head + names.weight) return true;
  const Family* family = FamilyByName(config.family);
  return std::any_of(family->ignorable_suffixes.begin(), family->ignorable_suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

Status CheckTensor(const WeightStore& store, const ModelConfig& config, const std::string& name,
                   const std::vector<int64_t>& shape) {
  const TensorInfo* t = store.Find(name);
  if (t == nullptr) {
    return InvalidFile(fmt::format("{}: tensor '{}' {} is missing; a {} model of this config needs it", store.path(), name,
                                   ShapeText(shape), config.family));
  }
  if (t->shape != shape) {
    return InvalidFile(fmt::format("{}: {}: expected shape {} from the config, got {}", store.FileName(*t),
                                   DescribeTensor(*t), ShapeText(shape), ShapeText(t->shape)));
  }
  if (!CanDequantize(t->dtype)) {
    return InvalidFile(fmt::format("{}: {}: expected a type that can be computed with (F32, F16, BF16, F8_E4M3, Q4_0, "
                                   "Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K), got {}", store.FileName(*t),
                                   DescribeTensor(*t), NameOf(t->dtype)));
  }
  return OkStatus();
}

Status CheckInventory(const WeightStore& store, const ModelConfig& config, const TensorNames& names) {
  std::set<std::string> wanted;
  Inventory inventory(config, names, [&](const std::string& name, const std::vector<int64_t>& shape) {
    SF_RETURN_IF_ERROR(CheckTensor(store, config, name, shape));
    wanted.insert(name);
    if (store.Find(name)->dtype == DType::kF8E4M3) wanted.insert(name + "_scale_inv");
    return OkStatus();
  });
  SF_RETURN_IF_ERROR(inventory.Run());
  for (const TensorInfo& t : store.tensors()) {
    if (wanted.contains(t.name) || Ignorable(store, config, names, t.name)) continue;
    return InvalidFile(fmt::format("{}: {}: expected no such tensor in a {} model of this config", store.FileName(t),
                                   DescribeTensor(t), config.family));
  }
  return OkStatus();
}

// Reads and packs one model; counts bytes for progress.
class Packer {
 public:
  Packer(const WeightStore& store, const ModelConfig& c, const ModelOptions& options, const TensorNames& names,
         ThreadPool& pool)
      : store_(store), c_(c), o_(options), n_(names), pool_(pool) {
    for (const TensorInfo& t : store.tensors()) bytes_total_ += t.bytes;
    if (!c.permuted_qk) return;
    for (int32_t n = 0; n < c.heads * c.head_dim; ++n) {
      const int32_t in_head = n % c.head_dim;
      const int32_t half = in_head / (c.head_dim / 2);
      const int32_t pair = in_head % (c.head_dim / 2);
      row_order_.push_back(n - in_head + 2 * pair + half);
    }
  }

  Result<ModelWeights> Run() {
    ModelWeights w;
    SF_ASSIGN_OR_RETURN(const TensorInfo* embedding, store_.Require(n_.embedding + n_.weight));
    SF_ASSIGN_OR_RETURN(w.embedding, store_.Matrix(*embedding));
    SF_ASSIGN_OR_RETURN(w.final_norm, Vector(n_.final_norm + n_.weight));
    const std::string head = (c_.tied_embeddings ? n_.embedding : n_.head) + n_.weight;
    SF_RETURN_IF_ERROR(Pack(head, Leaves::Whole(c_.hidden), &w.head));
    w.layers.resize(c_.layers.size());
    for (int l = 0; l < static_cast<int>(c_.layers.size()); ++l) SF_RETURN_IF_ERROR(Layer(l, &w.layers[l]));
    w.packed_bytes = packed_bytes_;
    return w;
  }

 private:
  Result<std::vector<float>> Vector(const std::string& name) {
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    return ReadAll(store_, *t);
  }

  // Bias of a linear layer, or nothing; q and k biases follow the order of their rows.
  Status Bias(const std::string& base, bool present, std::span<const int32_t> order, std::vector<float>* out) {
    if (!present) return OkStatus();
    SF_ASSIGN_OR_RETURN(std::vector<float> stored, Vector(base + n_.bias));
    *out = stored;
    for (size_t i = 0; i < order.size(); ++i) (*out)[i] = stored[order[i]];
    return OkStatus();
  }

  std::span<const int32_t> OrderFor(int heads) const {
    return std::span(row_order_).first(row_order_.empty() ? 0 : static_cast<size_t>(heads) * c_.head_dim);
  }

  static int BlockOf(DType dtype) { return dtype == DType::kF8E4M3 ? 32 : InfoOf(dtype).block_elements; }

  Result<Leaves> LeavesOf(const std::string& name, int64_t k, int heads) const {
    if (o_.numerics == Numerics::kFast) return Leaves::Whole(k);
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    const int block = BlockOf(t->dtype);
    return heads > 0 ? OutputProjectionLeaves(heads, static_cast<int>(k / heads), o_.reduction_leaves, block)
                     : DownProjectionLeaves(k, o_.reduction_leaves, block);
  }

  Status PackView(const MatrixView& view, const PackOptions& options, uint64_t bytes, PackedMatrix* out) {
    SF_ASSIGN_OR_RETURN(*out, PackMatrix(view, options, pool_));
    packed_bytes_ += static_cast<int64_t>(out->stream.size());
    bytes_done_ += bytes;
    if (o_.on_progress) {
      o_.on_progress(std::min(1.0, static_cast<double>(bytes_done_) / static_cast<double>(bytes_total_)));
    }
    return OkStatus();
  }

  Status Pack(const std::string& name, const Leaves& leaves, PackedMatrix* out,
              std::span<const int32_t> order = {}, std::optional<ActDType> act = {}) {
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    SF_ASSIGN_OR_RETURN(const MatrixView view, store_.Matrix(*t));
    const PackOptions options{.act = act.value_or(o_.act), .leaves = leaves, .row_order = order};
    return PackView(view, options, t->bytes, out);
  }

  Status PackExpert(const std::string& pattern, int l, int e, const Leaves& leaves, PackedMatrix* out) {
    const std::string name = Fill(pattern, l, e) + n_.weight;
    if (!n_.stacked_experts) return Pack(name, leaves, out);
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    SF_ASSIGN_OR_RETURN(const MatrixView view, store_.Slice(*t, e));
    return PackView(view, {.act = o_.act, .leaves = leaves}, t->bytes / c_.moe.experts, out);
  }

  Status Attention(int l, LayerWeights* w) {
    const Leaves whole = Leaves::Whole(c_.hidden);
    const std::string q = Fill(n_.q, l), k = Fill(n_.k, l), v = Fill(n_.v, l), o = Fill(n_.o, l);
    SF_RETURN_IF_ERROR(Pack(q + n_.weight, whole, &w->q, OrderFor(c_.heads)));
    SF_RETURN_IF_ERROR(Pack(k + n_.weight, whole, &w->k, OrderFor(c_.kv_heads)));
    SF_RETURN_IF_ERROR(Pack(v + n_.weight, whole, &w->v));
    SF_ASSIGN_OR_RETURN(const Leaves leaves, LeavesOf(o + n_.weight, int64_t{c_.heads} * c_.head_dim, c_.heads));
    SF_RETURN_IF_ERROR(Pack(o + n_.weight, leaves, &w->o));
    SF_RETURN_IF_ERROR(Bias(q, c_.qkv_bias, OrderFor(c_.heads), &w->q_bias));
    SF_RETURN_IF_ERROR(Bias(k, c_.qkv_bias, OrderFor(c_.kv_heads), &w->k_bias));
    SF_RETURN_IF_ERROR(Bias(v, c_.qkv_bias, {}, &w->v_bias));
    SF_RETURN_IF_ERROR(Bias(o, c_.o_bias, {}, &w->o_bias));
    if (c_.qk_norm == QkNorm::kNone) return OkStatus();
    SF_ASSIGN_OR_RETURN(w->q_norm, Vector(Fill(n_.q_norm, l) + n_.weight));
    SF_ASSIGN_OR_RETURN(w->k_norm, Vector(Fill(n_.k_norm, l) + n_.weight));
    return OkStatus();
  }

  Status DenseFfn(int l, LayerWeights* w) {
    const Leaves whole = Leaves::Whole(c_.hidden);
    const std::string gate = Fill(n_.gate, l), up = Fill(n_.up, l), down = Fill(n_.down, l);
    SF_RETURN_IF_ERROR(Pack(gate + n_.weight, whole, &w->gate));
    SF_RETURN_IF_ERROR(Pack(up + n_.weight, whole, &w->up));
    SF_ASSIGN_OR_RETURN(const Leaves leaves, LeavesOf(down + n_.weight, c_.intermediate, 0));
    SF_RETURN_IF_ERROR(Pack(down + n_.weight, leaves, &w->down));
    SF_RETURN_IF_ERROR(Bias(gate, c_.mlp_bias, {}, &w->gate_bias));
    SF_RETURN_IF_ERROR(Bias(up, c_.mlp_bias, {}, &w->up_bias));
    return Bias(down, c_.mlp_bias, {}, &w->down_bias);
  }

  Status SparseFfn(int l, LayerWeights* w) {
    const Leaves whole = Leaves::Whole(c_.hidden);
    // The gate decides which weights a token meets: it is computed in fp32 whatever --dtype says.
    SF_RETURN_IF_ERROR(Pack(Fill(n_.router, l) + n_.weight, whole, &w->router, {}, ActDType::kF32));
    // One set of leaves for all experts of a layer, from the first one's type.
    SF_ASSIGN_OR_RETURN(const Leaves leaves, LeavesOf(Fill(n_.expert_down, l) + n_.weight, c_.moe.intermediate, 0));
    w->experts.resize(c_.moe.experts);
    for (int e = 0; e < c_.moe.experts; ++e) {
      SF_RETURN_IF_ERROR(PackExpert(n_.expert_gate, l, e, whole, &w->experts[e].gate));
      SF_RETURN_IF_ERROR(PackExpert(n_.expert_up, l, e, whole, &w->experts[e].up));
      SF_RETURN_IF_ERROR(PackExpert(n_.expert_down, l, e, leaves, &w->experts[e].down));
    }
    return OkStatus();
  }

  Status Layer(int l, LayerWeights* w) {
    SF_ASSIGN_OR_RETURN(w->attention_norm, Vector(Fill(n_.attention_norm, l) + n_.weight));
    SF_ASSIGN_OR_RETURN(w->ffn_norm, Vector(Fill(n_.ffn_norm, l) + n_.weight));
    SF_RETURN_IF_ERROR(Attention(l, w));
    return c_.layers[l].sparse ? SparseFfn(l, w) : DenseFfn(l, w);
  }

  const WeightStore& store_;
  const ModelConfig& c_;
  const ModelOptions& o_;
  const TensorNames& n_;
  ThreadPool& pool_;
  std::vector<int32_t> row_order_;   // for the longest of q and k; empty when rows stand in order
  uint64_t bytes_total_ = 0, bytes_done_ = 0;
  int64_t packed_bytes_ = 0;
};

}  // namespace

Status CheckTensors(const WeightStore& store, const ModelConfig& config) {
  return CheckInventory(store, config, NamesFor(store, config));
}

Result<ModelWeights> LoadWeights(const WeightStore& store, const ModelConfig& config, const ModelOptions& options,
                                 ThreadPool& pool) {
  const TensorNames names = NamesFor(store, config);
  SF_RETURN_IF_ERROR(CheckInventory(store, config, names));
  return Packer(store, config, options, names, pool).Run();
}

}  // namespace sixfold

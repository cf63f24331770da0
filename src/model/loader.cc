#include "model/loader.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "kernels/dequantize.h"
#include "kernels/math.h"
#include "model/arch/family.h"
#include "model/expert_tensors.h"
#include "model/inventory.h"
#include "weights/tensor_reader.h"

namespace sixfold {

namespace {

std::string Fill(const std::string& pattern, int layer) { return FillName(pattern, layer); }

// Reads and packs one rank's share of a model; without a pool it only adds up what that would take.
class Packer {
 public:
  Packer(const WeightStore& store, const ModelConfig& c, const ModelOptions& options, const Layout& layout, int rank,
         ThreadPool* pool)
      : store_(store), c_(c), o_(options), n_(NamesFor(store, c)), experts_(store, c_, n_), layout_(layout),
        own_(layout.Shard(rank)), pool_(pool) {
    if (!c.permuted_qk && !(c.latent.used() && c.latent.interleaved)) return;
    for (int32_t h = 0; h < c.heads; ++h) AddPairOrder(h * c.head_dim, c.head_dim, &row_order_);
    if (c.latent.used()) AddPairOrder(0, c.k_dim(), &kv_a_order_);
  }

  Result<ModelWeights> Run() {
    ModelWeights w;
    if (own_.first_stage) {
      SF_ASSIGN_OR_RETURN(w.embedding, EmbeddingOf(store_, c_));
    }
    if (own_.last_stage) {
      SF_ASSIGN_OR_RETURN(w.final_norm, Vector(n_.final_norm + n_.weight));
      const std::string head = (c_.tied_embeddings ? n_.embedding : n_.head) + n_.weight;
      SF_RETURN_IF_ERROR(PackRows(head, own_.vocab, &w.head));
    }
    w.layers.resize(own_.layers.size());
    for (size_t i = 0; i < w.layers.size(); ++i) {
      SF_RETURN_IF_ERROR(Layer(static_cast<int>(own_.layers.begin + static_cast<int64_t>(i)), &w.layers[i]));
      if (o_.on_progress) o_.on_progress(static_cast<double>(i + 1) / static_cast<double>(w.layers.size()));
    }
    w.packed_bytes = bytes_.packed;
    return w;
  }

  const ShardBytes& bytes() const { return bytes_; }

 private:
  // Rows [begin, begin + size), the last rotary_dim of which hold rotation pairs side by side: first their first halves, then
  // their second.
  void AddPairOrder(int32_t begin, int32_t size, std::vector<int32_t>* order) const {
    const int32_t rotary = c_.rotary_dim(), half = rotary / 2, plain = size - rotary;
    for (int32_t i = 0; i < plain; ++i) order->push_back(begin + i);
    for (int32_t i = 0; i < rotary; ++i) order->push_back(begin + plain + 2 * (i % half) + i / half);
  }

  Result<std::vector<float>> Vector(const std::string& name) {
    SF_ASSIGN_OR_RETURN(std::vector<float> all, ReadVector(name));
    Count(all);
    return all;
  }

  Result<std::vector<float>> ReadVector(const std::string& name) {
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    if (pool_ == nullptr) return std::vector<float>(TensorRows(*t) * TensorCols(*t));
    return ReadAll(store_, *t);
  }

  void Count(const std::vector<float>& v) { bytes_.vectors += static_cast<int64_t>(v.size() * sizeof(float)); }

  // Elements [share) of a vector, rearranged by `order` (which counts from the share's start).
  Result<std::vector<float>> VectorShare(const std::string& name, Share share, std::span<const int32_t> order = {}) {
    SF_ASSIGN_OR_RETURN(const std::vector<float> stored, ReadVector(name));
    std::vector<float> out(stored.begin() + share.begin, stored.begin() + share.end);
    Count(out);
    for (size_t i = 0; i < order.size(); ++i) out[i] = stored[share.begin + order[i]];
    return out;
  }

  // Bias of a linear layer, or nothing; q and k biases follow the order of their rows.
  Status Bias(const std::string& base, bool present, Share share, std::vector<float>* out,
              std::span<const int32_t> order = {}) {
    if (!present) return OkStatus();
    SF_ASSIGN_OR_RETURN(*out, VectorShare(base + n_.bias, share, order));
    return OkStatus();
  }

  std::span<const int32_t> OrderFor(Share heads) const {
    return std::span(row_order_).first(row_order_.empty() ? 0 : static_cast<size_t>(heads.size()) * c_.head_dim);
  }
  Share Elements(Share heads) const { return {heads.begin * c_.head_dim, heads.end * c_.head_dim}; }

  int64_t CountPacked(DType dtype, const PackOptions& options, int64_t n) {
    const int64_t packed = PackedBytes(dtype, options.act, n, options.leaves);
    bytes_.packed += packed;
    bytes_.mapped += static_cast<int64_t>(Buffer::MappedBytes(static_cast<size_t>(packed)));
    return packed;
  }

  void CountRead(const MatrixView& view, int64_t rows) {
    const DTypeInfo& type = InfoOf(view.dtype);
    bytes_.read += rows * (view.cols / type.block_elements) * type.block_bytes;
  }

  Status PackView(const MatrixView& view, PackOptions options, PackedMatrix* out) {
    const int64_t n = options.row_order.empty() ? view.rows : static_cast<int64_t>(options.row_order.size());
    const int64_t packed = CountPacked(view.dtype, options, n);
    CountRead(view, n);
    if (pool_ == nullptr) return OkStatus();
    // What has been copied is given back on the way: a matrix may be large beside what else the rank holds.
    if (view.col_stride_bytes == 0) {
      options.on_rows = [&](int64_t begin, int64_t end) {
        store_.DropPages({view.data + begin * view.row_stride_bytes,
                          static_cast<size_t>((end - begin) * view.row_stride_bytes)});
      };
    }
    SF_ASSIGN_OR_RETURN(*out, PackMatrix(view, options, *pool_));
    SF_CHECK_EQ(static_cast<int64_t>(out->stream.size()), packed);
    return OkStatus();
  }

  struct RowOptions {
    std::span<const int32_t> order = {};
    std::optional<ActDType> act = {};
  };

  // Rows `share` of a matrix whose reduction is never cut.
  Status PackRows(const MatrixView& view, Share share, const RowOptions& options, PackedMatrix* out) {
    if (share.size() == 0) return OkStatus();
    return PackView(view.Rows(share.begin, share.end),
                    {.act = options.act.value_or(o_.act), .leaves = Leaves::Whole(view.cols), .row_order = options.order},
                    out);
  }
  Status PackRows(const std::string& name, Share share, PackedMatrix* out) { return PackRows(name, share, {}, out); }
  Status PackRows(const std::string& name, Share share, const RowOptions& options, PackedMatrix* out) {
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    SF_ASSIGN_OR_RETURN(const MatrixView view, store_.Matrix(*t));
    SF_RETURN_IF_ERROR(PackRows(view, share, options, out));
    Drop(*t);
    return OkStatus();
  }

  // Columns of this rank's nodes of a cut reduction.
  Status PackCut(const MatrixView& view, const KCut& cut, int member, CutMatrix* out) {
    const std::vector<Share>& nodes = cut.node_k[member];
    out->resize(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      SF_RETURN_IF_ERROR(PackView(view.Cols(nodes[i].begin, nodes[i].end),
                                  {.act = o_.act, .leaves = cut.node_leaves[member][i]}, &(*out)[i]));
    }
    return OkStatus();
  }
  Status PackCut(const std::string& name, const KCut& cut, CutMatrix* out) {
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    SF_ASSIGN_OR_RETURN(const MatrixView view, store_.Matrix(*t));
    SF_RETURN_IF_ERROR(PackCut(view, cut, own_.tp, out));
    Drop(*t);
    return OkStatus();
  }

  void Drop(const TensorInfo& tensor) {
    if (pool_ != nullptr) store_.DropPages(tensor);
  }

  // The transpose of a part of a stored matrix, which no packing reads as it lies: it is written out first, as bf16 where
  // that loses nothing or activations are rounded anyway, else as fp32.
  Status PackTransposed(const MatrixView& view, PackedMatrix* out) {
    const bool wide = o_.act == ActDType::kF32 && view.dtype != DType::kBF16;
    const PackOptions options{.act = o_.act, .leaves = Leaves::Whole(view.rows)};
    const DType dtype = wide ? DType::kF32 : DType::kBF16;
    CountPacked(dtype, options, view.cols);
    CountRead(view, view.rows);
    if (pool_ == nullptr) return OkStatus();
    std::vector<float> row(view.cols), floats(wide ? view.rows * view.cols : 0);
    std::vector<uint16_t> halves(wide ? 0 : view.rows * view.cols);
    for (int64_t r = 0; r < view.rows; ++r) {
      DequantizeRow(view, r, row.data());
      for (int64_t n = 0; n < view.cols; ++n) {
        if (wide) {
          floats[n * view.rows + r] = row[n];
        } else {
          halves[n * view.rows + r] = Bf16FromFloat(row[n]);
        }
      }
    }
    const void* data = wide ? static_cast<const void*>(floats.data()) : halves.data();
    const MatrixView transposed{.dtype = dtype,
                                .data = static_cast<const std::byte*>(data),
                                .rows = view.cols,
                                .cols = view.rows,
                                .row_stride_bytes = view.rows * (wide ? 4 : 2)};
    SF_ASSIGN_OR_RETURN(*out, PackMatrix(transposed, options, *pool_));
    return OkStatus();
  }

  // One matrix a head, each a slice of a stack.
  Status HeadSlices(const std::string& name, std::vector<PackedMatrix>* out) {
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    out->resize(own_.heads.size());
    for (int64_t h = own_.heads.begin; h < own_.heads.end; ++h) {
      SF_ASSIGN_OR_RETURN(const MatrixView view, store_.Slice(*t, h));
      SF_RETURN_IF_ERROR(PackRows(view, {0, view.rows}, {}, &(*out)[h - own_.heads.begin]));
    }
    return OkStatus();
  }

  // kv_b holds, head by head, nope_dim rows that make keys of the latent and v_dim rows that make values.
  Status AbsorbedHeads(const std::string& name, LayerWeights* w) {
    const LatentConfig& m = c_.latent;
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
    SF_ASSIGN_OR_RETURN(const MatrixView view, store_.Matrix(*t));
    w->absorb_k.resize(own_.heads.size());
    w->absorb_v.resize(own_.heads.size());
    for (int64_t h = own_.heads.begin; h < own_.heads.end; ++h) {
      const int64_t keys = h * (m.nope_dim + m.v_dim), values = keys + m.nope_dim;
      const int64_t i = h - own_.heads.begin;
      SF_RETURN_IF_ERROR(PackTransposed(view.Rows(keys, values), &w->absorb_k[i]));
      SF_RETURN_IF_ERROR(PackRows(view, {values, values + m.v_dim}, {}, &w->absorb_v[i]));
    }
    Drop(*t);
    return OkStatus();
  }

  Status LatentAttention(int l, LayerWeights* w) {
    const LatentConfig& m = c_.latent;
    const std::string q = Fill(m.q_rank > 0 ? n_.q_b : n_.q, l), o = Fill(n_.o, l), kv_a = Fill(n_.kv_a, l);
    const Share kv_rows = {0, c_.k_dim()};
    if (m.q_rank > 0) {
      const std::string q_a = Fill(n_.q_a, l);
      SF_RETURN_IF_ERROR(PackRows(q_a + n_.weight, {0, m.q_rank}, &w->q_a));
      SF_RETURN_IF_ERROR(Bias(q_a, m.a_bias, {0, m.q_rank}, &w->q_a_bias));
      SF_ASSIGN_OR_RETURN(w->q_a_norm, Vector(Fill(n_.q_a_norm, l) + n_.weight));
    }
    SF_RETURN_IF_ERROR(PackRows(q + n_.weight, Elements(own_.heads), {.order = OrderFor(own_.heads)}, &w->q));
    SF_RETURN_IF_ERROR(PackRows(kv_a + n_.weight, kv_rows, {.order = kv_a_order_}, &w->kv_a));
    SF_RETURN_IF_ERROR(Bias(kv_a, m.a_bias, kv_rows, &w->kv_a_bias, kv_a_order_));
    SF_ASSIGN_OR_RETURN(w->kv_a_norm, Vector(Fill(n_.kv_a_norm, l) + n_.weight));
    if (n_.split_kv_b) {
      SF_RETURN_IF_ERROR(HeadSlices(Fill(n_.k_b, l) + n_.weight, &w->absorb_k));
      SF_RETURN_IF_ERROR(HeadSlices(Fill(n_.v_b, l) + n_.weight, &w->absorb_v));
    } else {
      SF_RETURN_IF_ERROR(AbsorbedHeads(Fill(n_.kv_b, l) + n_.weight, w));
    }
    SF_RETURN_IF_ERROR(PackCut(o + n_.weight, layout_.output_cut(), &w->o));
    return Bias(o, c_.o_bias, {0, c_.hidden}, &w->o_bias);
  }

  Status Attention(int l, LayerWeights* w) {
    if (c_.latent.used()) return LatentAttention(l, w);
    const std::string q = Fill(n_.q, l), k = Fill(n_.k, l), v = Fill(n_.v, l), o = Fill(n_.o, l);
    const Share heads = Elements(own_.heads), kv = Elements(own_.kv_heads);
    SF_RETURN_IF_ERROR(PackRows(q + n_.weight, heads, {.order = OrderFor(own_.heads)}, &w->q));
    SF_RETURN_IF_ERROR(PackRows(k + n_.weight, kv, {.order = OrderFor(own_.kv_heads)}, &w->k));
    SF_RETURN_IF_ERROR(PackRows(v + n_.weight, kv, &w->v));
    SF_RETURN_IF_ERROR(PackCut(o + n_.weight, layout_.output_cut(), &w->o));
    SF_RETURN_IF_ERROR(Bias(q, c_.qkv_bias, heads, &w->q_bias, OrderFor(own_.heads)));
    SF_RETURN_IF_ERROR(Bias(k, c_.qkv_bias, kv, &w->k_bias, OrderFor(own_.kv_heads)));
    SF_RETURN_IF_ERROR(Bias(v, c_.qkv_bias, kv, &w->v_bias));
    SF_RETURN_IF_ERROR(Bias(o, c_.o_bias, {0, c_.hidden}, &w->o_bias));
    if (c_.attention_sinks) {
      SF_ASSIGN_OR_RETURN(w->sinks, VectorShare(Fill(n_.sinks, l), own_.heads));
    }
    if (c_.qk_norm == QkNorm::kNone) return OkStatus();
    const bool whole = c_.qk_norm == QkNorm::kWholeVector;
    const Share one = {0, c_.head_dim};
    SF_ASSIGN_OR_RETURN(w->q_norm, VectorShare(Fill(n_.q_norm, l) + n_.weight, whole ? heads : one));
    SF_ASSIGN_OR_RETURN(w->k_norm, VectorShare(Fill(n_.k_norm, l) + n_.weight, whole ? kv : one));
    return OkStatus();
  }

  Status DenseFfn(int l, LayerWeights* w) {
    const std::string gate = Fill(n_.gate, l), up = Fill(n_.up, l), down = Fill(n_.down, l);
    SF_RETURN_IF_ERROR(PackRows(gate + n_.weight, own_.intermediate, &w->gate));
    SF_RETURN_IF_ERROR(PackRows(up + n_.weight, own_.intermediate, &w->up));
    SF_RETURN_IF_ERROR(PackCut(down + n_.weight, layout_.down_cut(), &w->down));
    SF_RETURN_IF_ERROR(Bias(gate, c_.mlp_bias, own_.intermediate, &w->gate_bias));
    SF_RETURN_IF_ERROR(Bias(up, c_.mlp_bias, own_.intermediate, &w->up_bias));
    return Bias(down, c_.mlp_bias, {0, c_.hidden}, &w->down_bias);
  }

  Status SparseFfn(int l, LayerWeights* w) {
    // The gate decides which weights a token meets: it is computed in fp32 whatever --dtype says.
    SF_RETURN_IF_ERROR(
        PackRows(Fill(n_.router, l) + n_.weight, {0, c_.moe.experts}, {.act = ActDType::kF32}, &w->router));
    SF_RETURN_IF_ERROR(Bias(Fill(n_.router, l), c_.moe.router_bias, {0, c_.moe.experts}, &w->router_bias));
    if (c_.moe.choice_bias) {
      SF_ASSIGN_OR_RETURN(w->choice_bias, Vector(Fill(n_.choice_bias, l)));
    }
    if (c_.moe.shared_intermediate > 0) SF_RETURN_IF_ERROR(SharedExperts(l, w));
    w->expert_ids = layout_.ExpertsAt(l, own_.ep);
    w->experts.resize(w->expert_ids.size());
    for (size_t i = 0; i < w->experts.size(); ++i) {
      const int e = w->expert_ids[i];
      ExpertWeights& expert = w->experts[i];
      SF_ASSIGN_OR_RETURN(const ExpertViews views, experts_.Views(l, e));
      SF_RETURN_IF_ERROR(PackRows(views.gate, own_.expert_intermediate, {}, &expert.gate));
      SF_RETURN_IF_ERROR(PackRows(views.up, own_.expert_intermediate, {}, &expert.up));
      SF_RETURN_IF_ERROR(PackCut(views.down, layout_.expert_down_cut(), own_.etp, &expert.down));
      SF_RETURN_IF_ERROR(ExpertBias(l, e, &expert));
      if (pool_ == nullptr) continue;
      for (const std::span<const std::byte> bytes : experts_.StridedBytes(l, e)) store_.DropPages(bytes);
    }
    return DropExpertPages(l, w->expert_ids);
  }

  Status SharedExperts(int l, LayerWeights* w) {
    SF_RETURN_IF_ERROR(PackRows(Fill(n_.shared_gate, l) + n_.weight, own_.shared_intermediate, &w->shared_gate));
    SF_RETURN_IF_ERROR(PackRows(Fill(n_.shared_up, l) + n_.weight, own_.shared_intermediate, &w->shared_up));
    return PackCut(Fill(n_.shared_down, l) + n_.weight, layout_.shared_down_cut(), &w->shared_down);
  }

  Status ExpertBias(int l, int e, ExpertWeights* w) {
    if (!c_.moe.bias) return OkStatus();
    const Share rows = own_.expert_intermediate;
    ExpertBiases biases;
    if (pool_ != nullptr) {
      SF_ASSIGN_OR_RETURN(biases, experts_.Biases(l, e, rows));
    } else {
      biases.gate.resize(rows.size());
      biases.up.resize(rows.size());
      biases.down.resize(c_.hidden);
    }
    for (const auto* part : {&biases.gate, &biases.up, &biases.down}) Count(*part);
    w->gate_bias = std::move(biases.gate);
    w->up_bias = std::move(biases.up);
    w->down_bias = std::move(biases.down);
    return OkStatus();
  }

  // Experts of their own tensors; of a stacked tensor other ranks may be reading theirs.
  Status DropExpertPages(int l, const std::vector<int>& experts) {
    if (n_.stacked_experts || !n_.expert_gate_up.empty()) return OkStatus();
    for (const std::string& pattern : {n_.expert_gate, n_.expert_up, n_.expert_down}) {
      for (const int e : experts) {
        SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(FillName(pattern, l, e) + n_.weight));
        Drop(*t);
      }
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
  const TensorNames n_;
  const ExpertTensors experts_;
  const Layout& layout_;
  const RankShard own_;
  ThreadPool* pool_;
  std::vector<int32_t> row_order_;   // for the longest of q and k; empty when rows stand in order
  std::vector<int32_t> kv_a_order_;  // latent attention: the same for the latent and its rotated key
  ShardBytes bytes_;
};

}  // namespace

Result<ModelWeights> LoadWeights(const WeightStore& store, const ModelConfig& config, const ModelOptions& options,
                                 const Layout& layout, int rank, ThreadPool& pool) {
  SF_RETURN_IF_ERROR(CheckTensors(store, config));
  return Packer(store, config, options, layout, rank, &pool).Run();
}

Result<MatrixView> EmbeddingOf(const WeightStore& store, const ModelConfig& config) {
  const TensorNames names = NamesFor(store, config);
  SF_ASSIGN_OR_RETURN(const TensorInfo* embedding, store.Require(names.embedding + names.weight));
  return store.Matrix(*embedding);
}

Result<ShardBytes> MeasureShard(const WeightStore& store, const ModelConfig& config, const ModelOptions& options,
                                const Layout& layout, int rank) {
  ModelOptions quiet = options;
  quiet.on_progress = {};
  Packer packer(store, config, quiet, layout, rank, nullptr);
  SF_RETURN_IF_ERROR(packer.Run().status());
  return packer.bytes();
}

}  // namespace sixfold

#include "model/arch/common.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "kernels/ops.h"

namespace sixfold {

namespace {

// Bounds that no real model passes; they keep products of sizes far from overflow.
constexpr int64_t kMaxWidth = int64_t{1} << 22;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxContext = int64_t{1} << 30;
constexpr int kMaxLayers = 4096;
constexpr int kMaxHeads = 65536;
constexpr int kMaxExperts = 16384;
constexpr double kHuge = 1e12;

Status CheckHeads(const Fields& fields, const ModelConfig& c) {
  if (c.heads % c.kv_heads != 0) {
    return InvalidFile(fmt::format("{}: {} query heads are not a multiple of {} key-value heads", fields.source(),
                                   c.heads, c.kv_heads));
  }
  if (c.head_dim % 2 != 0) {
    return InvalidFile(fmt::format("{}: head_dim {} is odd; rotary embedding needs an even one", fields.source(),
                                   c.head_dim));
  }
  return OkStatus();
}

Result<RopeScaling> ScalingByName(const Fields& fields, std::string_view key, const std::string& name) {
  if (name == "default" || name == "none") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "yarn") return RopeScaling::kYarn;
  return fields.Wrong(key, "one of default, linear, llama3, yarn (other rope scalings are not implemented)");
}

Status ReadYarn(Fields& f, const std::string& prefix, ModelConfig* c) {
  RopeConfig& r = c->rope;
  SF_RETURN_IF_ERROR(f.ReadInt(prefix + "original_max_position_embeddings", c->max_positions, 1, kMaxContext,
                               &r.original_max_position));
  const double ratio = static_cast<double>(c->max_positions) / static_cast<double>(r.original_max_position);
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "factor", std::max(ratio, 1.0), 1.0, kHuge, &r.factor));
  double fast = 0, slow = 0;
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "beta_fast", 0.0, 0.0, kHuge, &fast));
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "beta_slow", 0.0, 0.0, kHuge, &slow));
  r.beta_fast = fast > 0 ? fast : 32.0;  // zero and null mean the default, as the reference reads them
  r.beta_slow = slow > 0 ? slow : 1.0;
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "attention_factor", 0.0, 0.0, kHuge, &r.attention_factor));
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "mscale", 0.0, 0.0, kHuge, &r.mscale));
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "mscale_all_dim", 0.0, 0.0, kHuge, &r.mscale_all_dim));
  return f.ReadBool(prefix + "truncate", true, &r.truncate);
}

Status ReadLlama3(Fields& f, const std::string& prefix, ModelConfig* c) {
  RopeConfig& r = c->rope;
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "factor", {}, 1.0, kHuge, &r.factor));
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "low_freq_factor", {}, 1e-6, kHuge, &r.low_freq_factor));
  SF_RETURN_IF_ERROR(f.ReadNumber(prefix + "high_freq_factor", {}, 1e-6, kHuge, &r.high_freq_factor));
  SF_RETURN_IF_ERROR(
      f.ReadInt(prefix + "original_max_position_embeddings", {}, 1, kMaxContext, &r.original_max_position));
  if (r.high_freq_factor <= r.low_freq_factor) {
    return f.Wrong(prefix + "high_freq_factor", fmt::format("above low_freq_factor {}", r.low_freq_factor));
  }
  return OkStatus();
}

Status ReadGgufHeads(Fields& f, ModelConfig* c) {
  const int own_default = std::max<int>(1, static_cast<int>(c->hidden / c->heads));
  SF_RETURN_IF_ERROR(f.ReadInt32("attention.key_length", own_default, 1, 8192, &c->head_dim));
  int v_dim = 0;
  SF_RETURN_IF_ERROR(f.ReadInt32("attention.value_length", c->head_dim, 1, 8192, &v_dim));
  if (v_dim != c->head_dim) return f.Wrong("attention.value_length", fmt::format("the key length {}", c->head_dim));
  int rotated = 0;
  SF_RETURN_IF_ERROR(f.ReadInt32("rope.dimension_count", c->head_dim, 1, 8192, &rotated));
  if (rotated != c->head_dim) {
    return f.Wrong("rope.dimension_count", fmt::format("the head size {} (partial rotation is not implemented)", c->head_dim));
  }
  return OkStatus();
}

}  // namespace

Status ReadHfCommon(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(f.ReadInt("hidden_size", {}, 1, kMaxWidth, &c->hidden));
  SF_RETURN_IF_ERROR(f.ReadInt("intermediate_size", {}, 1, kMaxWidth, &c->intermediate));
  SF_RETURN_IF_ERROR(f.ReadInt("vocab_size", {}, 1, kMaxVocab, &c->vocab));
  int layers = 0;
  SF_RETURN_IF_ERROR(f.ReadInt32("num_hidden_layers", {}, 1, kMaxLayers, &layers));
  c->layers.resize(layers);
  SF_RETURN_IF_ERROR(f.ReadInt32("num_attention_heads", {}, 1, kMaxHeads, &c->heads));
  SF_RETURN_IF_ERROR(f.ReadInt32("num_key_value_heads", c->kv_heads != 0 ? c->kv_heads : c->heads, 1, kMaxHeads, &c->kv_heads));
  if (!f.Has("head_dim") && c->head_dim == 0 && c->hidden % c->heads != 0) {
    return InvalidFile(fmt::format("{}: hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not "
                                   "given", f.source(), c->hidden, c->heads));
  }
  const int own_default = c->head_dim != 0 ? c->head_dim : std::max<int>(1, static_cast<int>(c->hidden / c->heads));
  SF_RETURN_IF_ERROR(f.ReadInt32("head_dim", own_default, 1, 8192, &c->head_dim));
  SF_RETURN_IF_ERROR(f.ReadInt("max_position_embeddings", c->max_positions != 0 ? c->max_positions : 2048, 1, kMaxContext, &c->max_positions));
  double eps = 0;
  SF_RETURN_IF_ERROR(f.ReadNumber("rms_norm_eps", c->norm_eps, 0.0, 1.0, &eps));
  c->norm_eps = static_cast<float>(eps);
  SF_RETURN_IF_ERROR(f.ReadBool("tie_word_embeddings", false, &c->tied_embeddings));
  return CheckHeads(f, *c);
}

Status ReadHfRope(Fields& f, double default_theta, ModelConfig* c) {
  const bool v5 = f.HasPrefix("rope_parameters.");
  const std::string prefix = v5 ? "rope_parameters." : "rope_scaling.";
  const bool top_theta = f.Has("rope_theta") && !f.Has("rope_parameters.rope_theta");
  SF_RETURN_IF_ERROR(f.ReadNumber(top_theta ? "rope_theta" : "rope_parameters.rope_theta", default_theta, 1e-3, kHuge,
                                  &c->rope.theta));
  f.MarkUsed("rope_theta");
  f.MarkUsed("rope_parameters");
  f.MarkUsed("rope_scaling");
  const std::string type_key = prefix + (f.Has(prefix + "rope_type") ? "rope_type" : "type");
  SF_ASSIGN_OR_RETURN(const auto type, f.String(type_key));
  f.MarkUsed(prefix + "type");
  SF_ASSIGN_OR_RETURN(c->rope.scaling, ScalingByName(f, type_key, type.value_or("default")));
  double partial = 1.0;
  for (const std::string& key : {std::string("partial_rotary_factor"), prefix + "partial_rotary_factor"}) {
    SF_RETURN_IF_ERROR(f.ReadNumber(key, 1.0, 0.0, 1.0, &partial));
    if (partial != 1.0) return f.Wrong(key, "1.0 (partial rotation is not implemented)");
  }
  switch (c->rope.scaling) {
    case RopeScaling::kNone: return OkStatus();
    case RopeScaling::kLinear: return f.ReadNumber(prefix + "factor", {}, 1e-6, kHuge, &c->rope.factor);
    case RopeScaling::kLlama3: return ReadLlama3(f, prefix, c);
    case RopeScaling::kYarn: return ReadYarn(f, prefix, c);
  }
  return OkStatus();
}

void SetWindow(ModelConfig* c, int64_t window) {
  for (LayerConfig& layer : c->layers) layer.window = window;
}

Status ReadQwenWindow(Fields& f, ModelConfig* c) {
  bool use = false;
  SF_RETURN_IF_ERROR(f.ReadBool("use_sliding_window", false, &use));
  int64_t window = 0;
  SF_RETURN_IF_ERROR(f.ReadInt("sliding_window", use && !f.HasKey("sliding_window") ? 4096 : 0, 0, kMaxContext, &window));
  int64_t first = 28;
  SF_RETURN_IF_ERROR(f.ReadInt("max_window_layers", 28, 0, kMaxContext, &first));
  if (!use) window = 0;
  SF_ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(f, *c));
  for (size_t l = 0; l < c->layers.size(); ++l) {
    const bool slides = types.empty() ? static_cast<int64_t>(l) >= first : types[l];
    c->layers[l].window = slides ? window : 0;
  }
  return OkStatus();
}

Result<std::vector<bool>> ReadLayerTypes(Fields& f, const ModelConfig& c) {
  std::vector<bool> slides;
  SF_ASSIGN_OR_RETURN(const auto types, f.Strings("layer_types", kMaxLayers));
  if (!types) return slides;
  if (types->size() != c.layers.size()) {
    return f.Wrong("layer_types", fmt::format("one entry for each of {} layers", c.layers.size()));
  }
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const std::string& type = (*types)[l];
    if (type != "full_attention" && type != "sliding_attention") {
      return InvalidFile(fmt::format("{}: layer_types[{}] is \"{}\"; full_attention and sliding_attention are "
                                     "implemented", f.source(), l, type));
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

Status ReadHfExperts(Fields& f, std::string_view intermediate_key, ModelConfig* c) {
  std::string key = "num_experts";
  for (const char* name : {"num_local_experts", "num_experts"}) {
    if (f.Has(name)) key = name;
  }
  f.MarkUsed("num_experts");
  f.MarkUsed("num_local_experts");
  SF_RETURN_IF_ERROR(f.ReadInt32(key, {}, 1, kMaxExperts, &c->moe.experts));
  SF_RETURN_IF_ERROR(f.ReadInt32("num_experts_per_tok", {}, 1, c->moe.experts, &c->moe.top_k));
  return f.ReadInt(intermediate_key, {}, 1, kMaxWidth, &c->moe.intermediate);
}

Status ReadSparseLayers(Fields& f, ModelConfig* c) {
  int step = 1;
  SF_RETURN_IF_ERROR(f.ReadInt32("decoder_sparse_step", 1, 1, kMaxLayers, &step));
  SF_ASSIGN_OR_RETURN(const auto dense, f.Ints("mlp_only_layers", kMaxLayers));
  for (size_t l = 0; l < c->layers.size(); ++l) {
    const bool listed = dense && std::find(dense->begin(), dense->end(), static_cast<int64_t>(l)) != dense->end();
    c->layers[l].sparse = !listed && (l + 1) % step == 0;
  }
  return OkStatus();
}

Status ReadGgufCommon(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(f.ReadInt("embedding_length", {}, 1, kMaxWidth, &c->hidden));
  int layers = 0;
  SF_RETURN_IF_ERROR(f.ReadInt32("block_count", {}, 1, kMaxLayers, &layers));
  c->layers.resize(layers);
  SF_RETURN_IF_ERROR(f.ReadInt32("attention.head_count", {}, 1, kMaxHeads, &c->heads));
  SF_RETURN_IF_ERROR(f.ReadInt32("attention.head_count_kv", c->heads, 1, kMaxHeads, &c->kv_heads));
  SF_RETURN_IF_ERROR(f.ReadInt("feed_forward_length", 0, 0, kMaxWidth, &c->intermediate));
  SF_RETURN_IF_ERROR(f.ReadInt("context_length", {}, 1, kMaxContext, &c->max_positions));
  if (!f.Has("attention.kv_lora_rank")) SF_RETURN_IF_ERROR(ReadGgufHeads(f, c));
  double eps = 0;
  SF_RETURN_IF_ERROR(f.ReadNumber("attention.layer_norm_rms_epsilon", {}, 0.0, 1.0, &eps));
  c->norm_eps = static_cast<float>(eps);
  SF_RETURN_IF_ERROR(f.ReadNumber("rope.freq_base", 10000.0, 1e-3, kHuge, &c->rope.theta));
  SF_ASSIGN_OR_RETURN(const auto scaling, f.String("rope.scaling.type"));
  SF_ASSIGN_OR_RETURN(c->rope.scaling, ScalingByName(f, "rope.scaling.type", scaling.value_or("none")));
  double old_linear = 1.0;
  SF_RETURN_IF_ERROR(f.ReadNumber("rope.scale_linear", 1.0, 1e-6, kHuge, &old_linear));
  SF_RETURN_IF_ERROR(f.ReadNumber("rope.scaling.factor", old_linear, 1e-6, kHuge, &c->rope.factor));
  if (old_linear != 1.0 && c->rope.scaling == RopeScaling::kNone) c->rope.scaling = RopeScaling::kLinear;
  SF_RETURN_IF_ERROR(f.ReadInt("rope.scaling.original_context_length", c->max_positions, 1, kMaxContext,
                               &c->rope.original_max_position));
  if (c->rope.scaling == RopeScaling::kYarn) {
    double factor = 1.0;
    SF_RETURN_IF_ERROR(f.ReadNumber("rope.scaling.attn_factor", 1.0, 1e-6, kHuge, &factor));
    // There the factor multiplies yarn's own magnitude correction.
    const double own = c->rope.factor > 1 ? 0.1 * LogD(c->rope.factor) + 1.0 : 1.0;
    c->rope.attention_factor = factor * own;
    SF_RETURN_IF_ERROR(f.ReadNumber("rope.scaling.yarn_beta_fast", 32.0, 0.0, kHuge, &c->rope.beta_fast));
    SF_RETURN_IF_ERROR(f.ReadNumber("rope.scaling.yarn_beta_slow", 1.0, 0.0, kHuge, &c->rope.beta_slow));
  }
  int64_t window = 0;
  SF_RETURN_IF_ERROR(f.ReadInt("attention.sliding_window", 0, 0, kMaxContext, &window));
  SetWindow(c, window);
  return CheckHeads(f, *c);
}

Status ReadGgufExperts(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(f.ReadInt32("expert_count", {}, 1, kMaxExperts, &c->moe.experts));
  SF_RETURN_IF_ERROR(f.ReadInt32("expert_used_count", {}, 1, c->moe.experts, &c->moe.top_k));
  SF_RETURN_IF_ERROR(f.ReadInt("expert_feed_forward_length", c->intermediate, 1, kMaxWidth, &c->moe.intermediate));
  return OkStatus();
}

}  // namespace sixfold

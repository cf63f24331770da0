// DeepSeek-V2 and V3: latent attention, experts in groups beside shared ones, dense first layers. Both read fields as
// transformers 5 does, where the checkpoints' own code of transformers 4 differs:
// - V2 never divides the chosen probabilities by their sum, whatever norm_topk_prob says, and always applies
//   routed_scaling_factor; experts start at first_k_dense_replace in every layer (moe_layer_freq must be 1).
// - The softmax scale is multiplied by the square of yarn's magnitude for mscale_all_dim in V2 as in V3.
#include <fmt/format.h>

#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 22;
constexpr int kMaxDim = 8192;
constexpr int kMaxLayers = 4096;

// What the two classes take for a field that is absent.
struct Defaults {
  int experts = 0, top_k = 0, shared = 0, first_sparse = 0, groups = 0, groups_taken = 0;
  int64_t expert_intermediate = 0;
  double scale = 1.0;
};
constexpr Defaults kV2 = {.experts = 64, .top_k = 0, .shared = 2, .first_sparse = 0, .groups = 0, .groups_taken = 0,
                          .expert_intermediate = 1407, .scale = 1.0};
constexpr Defaults kV3 = {.experts = 256, .top_k = 8, .shared = 1, .first_sparse = 3, .groups = 8, .groups_taken = 4,
                          .expert_intermediate = 2048, .scale = 2.5};

std::optional<int> Known(int value) { return value > 0 ? std::optional<int>(value) : std::nullopt; }

Status ReadLatent(Fields& f, ModelConfig* c) {
  LatentConfig& l = c->latent;
  if (c->kv_heads != c->heads) {
    return f.Wrong("num_key_value_heads",
                   fmt::format("num_attention_heads, {}: latent attention gives every head its own", c->heads));
  }
  SF_RETURN_IF_ERROR(f.ReadInt32("kv_lora_rank", 512, 1, kMaxDim, &l.kv_rank));
  SF_RETURN_IF_ERROR(f.ReadInt32("q_lora_rank", f.HasKey("q_lora_rank") ? 0 : 1536, 0, 1 << 20, &l.q_rank));
  SF_RETURN_IF_ERROR(f.ReadInt32("qk_nope_head_dim", 128, 1, kMaxDim, &l.nope_dim));
  SF_RETURN_IF_ERROR(f.ReadInt32("qk_rope_head_dim", 64, 2, kMaxDim, &l.rope_dim));
  if (l.rope_dim % 2 != 0) return f.Wrong("qk_rope_head_dim", "even");
  SF_RETURN_IF_ERROR(f.ReadInt32("v_head_dim", 128, 1, kMaxDim, &l.v_dim));
  SF_RETURN_IF_ERROR(f.ReadBool("attention_bias", false, &l.a_bias));
  c->o_bias = l.a_bias;
  c->kv_heads = 1;
  c->head_dim = l.nope_dim + l.rope_dim;
  f.MarkUsed("qk_head_dim");  // always the sum of the two
  return OkStatus();
}

Status ReadExperts(Fields& f, const Defaults& defaults, ModelConfig* c) {
  MoeConfig& moe = c->moe;
  std::string key = "n_routed_experts";
  for (const char* name : {"num_local_experts", "num_experts"}) {
    if (!f.Has("n_routed_experts") && f.Has(name)) key = name;
    f.MarkUsed(name);
  }
  SF_RETURN_IF_ERROR(f.ReadInt32(key, defaults.experts, 1, 16384, &moe.experts));
  SF_RETURN_IF_ERROR(f.ReadInt32("num_experts_per_tok", Known(defaults.top_k), 1, moe.experts, &moe.top_k));
  SF_RETURN_IF_ERROR(f.ReadInt("moe_intermediate_size", defaults.expert_intermediate, 1, kMaxWidth, &moe.intermediate));
  int shared = 0;
  const bool no_shared = f.HasKey("n_shared_experts") && !f.Has("n_shared_experts");
  SF_RETURN_IF_ERROR(f.ReadInt32("n_shared_experts", no_shared ? 0 : defaults.shared, 0, 1024, &shared));
  moe.shared_intermediate = shared * moe.intermediate;
  double scale = 1.0;
  SF_RETURN_IF_ERROR(f.ReadNumber("routed_scaling_factor", defaults.scale, 0.0, 1e6, &scale));
  moe.scale = static_cast<float>(scale);
  int first = 0;
  SF_RETURN_IF_ERROR(f.ReadInt32("first_k_dense_replace", defaults.first_sparse, 0, kMaxLayers, &first));
  for (size_t l = 0; l < c->layers.size(); ++l) c->layers[l].sparse = static_cast<int>(l) >= first;
  return OkStatus();
}

// Group sizes and what is taken of them must leave top_k experts to choose from.
struct GroupKeys {
  std::string_view groups = "n_group", taken = "topk_group", top_k = "num_experts_per_tok";
};

Status ReadGroups(Fields& f, const GroupKeys& keys, const Defaults& defaults, ModelConfig* c) {
  MoeConfig& moe = c->moe;
  SF_RETURN_IF_ERROR(f.ReadInt32(keys.groups, Known(defaults.groups), 1, kGateGroupsMax, &moe.groups));
  if (moe.experts % moe.groups != 0) {
    return f.Wrong(keys.groups, fmt::format("a divisor of the {} routed experts", moe.experts));
  }
  const int size = moe.experts / moe.groups;
  if (moe.group_score == GroupScore::kBestTwo && size < 2) {
    return f.Wrong(keys.groups, fmt::format("at most {}: a group is worth its best two experts", moe.experts / 2));
  }
  SF_RETURN_IF_ERROR(f.ReadInt32(keys.taken, Known(defaults.groups_taken), 1, moe.groups, &moe.groups_taken));
  if (moe.top_k > moe.groups_taken * size) {
    return f.Wrong(keys.top_k, fmt::format("at most {}, the experts of {} = {} groups of {}", moe.groups_taken * size,
                                           keys.taken, moe.groups_taken, size));
  }
  return OkStatus();
}

Status ReadHfV2(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  SF_RETURN_IF_ERROR(ReadLatent(f, c));
  SF_RETURN_IF_ERROR(ReadExperts(f, kV2, c));
  bool ignored = false;
  SF_RETURN_IF_ERROR(f.ReadBool("norm_topk_prob", false, &ignored));
  SF_ASSIGN_OR_RETURN(const auto method, f.String("topk_method"));
  if (f.HasKey("topk_method") && method != "greedy" && method != "group_limited_greedy") {
    return f.Wrong("topk_method", "\"greedy\" or \"group_limited_greedy\" in a deepseek_v2 model");
  }
  if (method == "group_limited_greedy") return ReadGroups(f, {}, kV2, c);
  f.MarkUsed("n_group");
  f.MarkUsed("topk_group");
  return OkStatus();
}

Status ReadHfV3(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  SF_RETURN_IF_ERROR(ReadLatent(f, c));
  const bool no_interleave = f.HasKey("rope_interleave") && !f.Has("rope_interleave");
  SF_RETURN_IF_ERROR(f.ReadBool("rope_interleave", !no_interleave, &c->latent.interleaved));
  SF_RETURN_IF_ERROR(ReadExperts(f, kV3, c));
  c->moe.score = GateScore::kSigmoid;
  c->moe.group_score = GroupScore::kBestTwo;
  c->moe.choice_bias = true;
  SF_RETURN_IF_ERROR(f.ReadBool("norm_topk_prob", true, &c->moe.renormalize));
  SF_ASSIGN_OR_RETURN(const auto method, f.String("topk_method"));
  if (method.value_or("noaux_tc") != "noaux_tc") return f.Wrong("topk_method", "\"noaux_tc\" in a deepseek_v3 model");
  SF_ASSIGN_OR_RETURN(const auto scoring, f.String("scoring_func"));
  if (scoring.value_or("sigmoid") != "sigmoid") return f.Wrong("scoring_func", "\"sigmoid\" in a deepseek_v3 model");
  return ReadGroups(f, {}, kV3, c);
}

// llama.cpp's deepseek2 is both. Newer files count one K/V head and say the sizes of a head apart ("…_mla"); their key and
// value lengths are a cached row's.
Status ReadGgufLatent(Fields& f, ModelConfig* c) {
  LatentConfig& l = c->latent;
  SF_RETURN_IF_ERROR(f.ReadInt32("attention.kv_lora_rank", {}, 1, kMaxDim, &l.kv_rank));
  SF_RETURN_IF_ERROR(f.ReadInt32("attention.q_lora_rank", 0, 0, 1 << 20, &l.q_rank));
  const bool apart = f.Has("attention.key_length_mla");
  SF_RETURN_IF_ERROR(f.ReadInt32(apart ? "attention.key_length_mla" : "attention.key_length", {}, 2, kMaxDim, &c->head_dim));
  SF_RETURN_IF_ERROR(f.ReadInt32(apart ? "attention.value_length_mla" : "attention.value_length", {}, 1, kMaxDim, &l.v_dim));
  SF_RETURN_IF_ERROR(f.ReadInt32("rope.dimension_count", {}, 2, c->head_dim - 1, &l.rope_dim));
  if (l.rope_dim % 2 != 0) return f.Wrong("rope.dimension_count", "even");
  l.nope_dim = c->head_dim - l.rope_dim;
  f.MarkUsed("attention.key_length");
  f.MarkUsed("attention.value_length");
  c->kv_heads = 1;
  double log_multiplier = 0, factor = 1;
  SF_RETURN_IF_ERROR(f.ReadNumber("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e6, &log_multiplier));
  SF_RETURN_IF_ERROR(f.ReadNumber("rope.scaling.attn_factor", 1.0, 0.0, 1e6, &factor));
  if (factor != 1.0) return f.Wrong("rope.scaling.attn_factor", "1 in a deepseek2 model");
  c->rope.attention_factor = 1.0;  // its runtime takes mscale and mscale_all_dim for equal
  c->rope.mscale_all_dim = 10.0 * log_multiplier;
  return OkStatus();
}

Status ReadGguf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadGgufLatent(f, c));
  f.MarkUsed("leading_dense_block_count");  // the tensors say it too
  MoeConfig& moe = c->moe;
  int64_t experts = 0;
  SF_RETURN_IF_ERROR(f.ReadInt("expert_count", 0, 0, 1 << 20, &experts));
  if (experts == 0) return OkStatus();
  SF_RETURN_IF_ERROR(ReadGgufExperts(f, c));
  int shared = 0, gating = 1;
  SF_RETURN_IF_ERROR(f.ReadInt32("expert_shared_count", 0, 0, 1024, &shared));
  moe.shared_intermediate = shared * moe.intermediate;
  SF_RETURN_IF_ERROR(f.ReadInt32("expert_gating_func", 1, 0, 2, &gating));
  if (gating == 2) {
    c->family = "deepseek_v3";
    moe.score = GateScore::kSigmoid;
    moe.group_score = GroupScore::kBestTwo;
    moe.choice_bias = true;
  }
  SF_RETURN_IF_ERROR(f.ReadBool("expert_weights_norm", false, &moe.renormalize));
  double scale = 1.0;
  SF_RETURN_IF_ERROR(f.ReadNumber("expert_weights_scale", 1.0, 0.0, 1e6, &scale));
  moe.scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);  // older files write 0 for none
  return ReadGroups(f, {.groups = "expert_group_count", .taken = "expert_group_used_count", .top_k = "expert_used_count"},
                    {.groups = 1, .groups_taken = 1}, c);
}

}  // namespace

Family DeepseekV2Family() {
  return {.name = "deepseek_v2",
          .hf_architectures = {"DeepseekV2ForCausalLM"},
          .gguf_architectures = {"deepseek2"},
          .read_hf = ReadHfV2,
          .read_gguf = ReadGguf,
          .hf_names = HfNames(),
          .ignorable_suffixes = {".rotary_emb.inv_freq"}};
}

Family DeepseekV3Family() {
  return {.name = "deepseek_v3",
          .hf_architectures = {"DeepseekV3ForCausalLM"},
          .read_hf = ReadHfV3,
          .hf_names = HfNames(),
          .ignorable_suffixes = {".rotary_emb.inv_freq"},
          .ignores_further_layers = true};
}

}  // namespace sixfold

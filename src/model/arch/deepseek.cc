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
  int experts, top_k, shared, first_sparse, groups, groups_taken;
  int64_t expert_intermediate;
  double scale;
};
constexpr Defaults kV2 = {.experts = 64, .top_k = 0, .shared = 2, .first_sparse = 0, .groups = 0, .groups_taken = 0,
                          .expert_intermediate = 1407, .scale = 1.0};
constexpr Defaults kV3 = {.experts = 256, .top_k = 8, .shared = 1, .first_sparse = 3, .groups = 8, .groups_taken = 4,
                          .expert_intermediate = 2048, .scale = 2.5};

std::optional<int> Known(int value) { return value > 0 ? std::optional<int>(value) : std::nullopt; }

Status ReadLatent(Fields& f, ModelConfig* c) {
  LatentConfig& l = c->latent;
  if (c->kv_heads != c->heads) {
    return f.Wrong("num_key_value_heads", fmt::format("num_attention_heads, {}: latent attention gives every head its own", c->heads));
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
Status ReadGroups(Fields& f, const Defaults& defaults, ModelConfig* c) {
  MoeConfig& moe = c->moe;
  SF_RETURN_IF_ERROR(f.ReadInt32("n_group", Known(defaults.groups), 1, kGateGroupsMax, &moe.groups));
  if (moe.experts % moe.groups != 0) {
    return f.Wrong("n_group", fmt::format("a divisor of the {} routed experts", moe.experts));
  }
  const int size = moe.experts / moe.groups;
  if (moe.group_score == GroupScore::kBestTwo && size < 2) {
    return f.Wrong("n_group", fmt::format("at most {}: a group is worth its best two experts", moe.experts / 2));
  }
  SF_RETURN_IF_ERROR(f.ReadInt32("topk_group", Known(defaults.groups_taken), 1, moe.groups, &moe.groups_taken));
  if (moe.top_k > moe.groups_taken * size) {
    return f.Wrong("num_experts_per_tok", fmt::format("at most {}, the experts of topk_group = {} groups of {}",
                                                      moe.groups_taken * size, moe.groups_taken, size));
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
  if (method == "group_limited_greedy") return ReadGroups(f, kV2, c);
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
  return ReadGroups(f, kV3, c);
}

}  // namespace

Family DeepseekV2Family() {
  return {.name = "deepseek_v2",
          .hf_architectures = {"DeepseekV2ForCausalLM"},
          .read_hf = ReadHfV2,
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

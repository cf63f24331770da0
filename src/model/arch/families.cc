#include <array>
#include <utility>

#include "model/arch/family.h"

namespace sixfold {

std::string FillName(std::string pattern, int layer, int expert) {
  for (const auto& [mark, value] : {std::pair<std::string_view, int>{"{l}", layer}, {"{e}", expert}}) {
    const size_t at = pattern.find(mark);
    if (at != std::string::npos) pattern.replace(at, mark.size(), std::to_string(value));
  }
  return pattern;
}

TensorNames HfNames() {
  const std::string layer = "model.layers.{l}.";
  return {.embedding = "model.embed_tokens",
          .final_norm = "model.norm",
          .head = "lm_head",
          .attention_norm = layer + "input_layernorm",
          .q = layer + "self_attn.q_proj",
          .k = layer + "self_attn.k_proj",
          .v = layer + "self_attn.v_proj",
          .o = layer + "self_attn.o_proj",
          .q_norm = layer + "self_attn.q_norm",
          .k_norm = layer + "self_attn.k_norm",
          .q_a = layer + "self_attn.q_a_proj",
          .q_a_norm = layer + "self_attn.q_a_layernorm",
          .q_b = layer + "self_attn.q_b_proj",
          .kv_a = layer + "self_attn.kv_a_proj_with_mqa",
          .kv_a_norm = layer + "self_attn.kv_a_layernorm",
          .kv_b = layer + "self_attn.kv_b_proj",
          .ffn_norm = layer + "post_attention_layernorm",
          .gate = layer + "mlp.gate_proj",
          .up = layer + "mlp.up_proj",
          .down = layer + "mlp.down_proj",
          .router = layer + "mlp.gate",
          .choice_bias = layer + "mlp.gate.e_score_correction_bias",
          .expert_gate = layer + "mlp.experts.{e}.gate_proj",
          .expert_up = layer + "mlp.experts.{e}.up_proj",
          .expert_down = layer + "mlp.experts.{e}.down_proj",
          .shared_gate = layer + "mlp.shared_experts.gate_proj",
          .shared_up = layer + "mlp.shared_experts.up_proj",
          .shared_down = layer + "mlp.shared_experts.down_proj"};
}

TensorNames GgufNames() {
  const std::string layer = "blk.{l}.";
  return {.embedding = "token_embd",
          .final_norm = "output_norm",
          .head = "output",
          .attention_norm = layer + "attn_norm",
          .q = layer + "attn_q",
          .k = layer + "attn_k",
          .v = layer + "attn_v",
          .o = layer + "attn_output",
          .q_norm = layer + "attn_q_norm",
          .k_norm = layer + "attn_k_norm",
          .q_a = layer + "attn_q_a",
          .q_a_norm = layer + "attn_q_a_norm",
          .q_b = layer + "attn_q_b",
          .kv_a = layer + "attn_kv_a_mqa",
          .kv_a_norm = layer + "attn_kv_a_norm",
          .kv_b = layer + "attn_kv_b",
          .k_b = layer + "attn_k_b",
          .v_b = layer + "attn_v_b",
          .ffn_norm = layer + "ffn_norm",
          .gate = layer + "ffn_gate",
          .up = layer + "ffn_up",
          .down = layer + "ffn_down",
          .router = layer + "ffn_gate_inp",
          .choice_bias = layer + "exp_probs_b.bias",
          .expert_gate = layer + "ffn_gate_exps",
          .expert_up = layer + "ffn_up_exps",
          .expert_down = layer + "ffn_down_exps",
          .shared_gate = layer + "ffn_gate_shexp",
          .shared_up = layer + "ffn_up_shexp",
          .shared_down = layer + "ffn_down_shexp",
          .stacked_experts = true};
}

std::span<const Family> FamilyTable() {
  static const std::array kFamilies = {LlamaFamily(),   MistralFamily(),  Qwen2Family(), Qwen3Family(),
                                       MixtralFamily(), Qwen3MoeFamily(), OlmoeFamily(), DeepseekV2Family(),
                                       DeepseekV3Family(), GptOssFamily()};
  return kFamilies;
}

const Family* FamilyByName(std::string_view name) {
  for (const Family& family : FamilyTable()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

}  // namespace sixfold

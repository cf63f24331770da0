// Qwen3-MoE: Qwen3's attention; experts in the layers that decoder_sparse_step and mlp_only_layers leave.
#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

Status ReadHf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  SF_RETURN_IF_ERROR(f.ReadBool("attention_bias", false, &c->qkv_bias));
  c->o_bias = c->qkv_bias;
  c->qk_norm = QkNorm::kPerHead;
  bool use_window = false;
  SF_RETURN_IF_ERROR(f.ReadBool("use_sliding_window", false, &use_window));
  int64_t window = 0;
  SF_RETURN_IF_ERROR(f.ReadInt("sliding_window", f.HasKey("sliding_window") ? 0 : 4096, 0, int64_t{1} << 30, &window));
  f.MarkUsed("max_window_layers");  // the reference slides in every layer or in none
  SetWindow(c, use_window ? window : 0);
  SF_RETURN_IF_ERROR(ReadHfExperts(f, "moe_intermediate_size", c));
  SF_RETURN_IF_ERROR(f.ReadBool("norm_topk_prob", false, &c->moe.renormalize));
  return ReadSparseLayers(f, c);
}

Status ReadGguf(Fields& f, ModelConfig* c) {
  c->qk_norm = QkNorm::kPerHead;
  c->moe.renormalize = true;
  return ReadGgufExperts(f, c);
}

}  // namespace

Family Qwen3MoeFamily() {
  return {.name = "qwen3_moe",
          .hf_architectures = {"Qwen3MoeForCausalLM"},
          .gguf_architectures = {"qwen3moe"},
          .read_hf = ReadHf,
          .read_gguf = ReadGguf,
          .hf_names = HfNames()};
}

}  // namespace sixfold

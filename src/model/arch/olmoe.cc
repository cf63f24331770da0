// OLMoE: q and k normed over the whole vector, q, k and v clamped after it, experts in every layer.
#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

Status ReadHf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  SF_RETURN_IF_ERROR(f.ReadBool("attention_bias", false, &c->qkv_bias));
  c->o_bias = c->qkv_bias;
  c->qk_norm = QkNorm::kWholeVector;
  double clip = 0;
  SF_RETURN_IF_ERROR(f.ReadNumber("clip_qkv", 0.0, 0.0, 1e30, &clip));
  c->clip_qkv = static_cast<float>(clip);
  SF_RETURN_IF_ERROR(ReadHfExperts(f, "intermediate_size", c));
  SF_RETURN_IF_ERROR(f.ReadBool("norm_topk_prob", false, &c->moe.renormalize));
  for (LayerConfig& layer : c->layers) layer.sparse = true;
  return OkStatus();
}

Status ReadGguf(Fields& f, ModelConfig* c) {
  c->qk_norm = QkNorm::kWholeVector;
  double clip = 0;
  SF_RETURN_IF_ERROR(f.ReadNumber("attention.clamp_kqv", 0.0, 0.0, 1e30, &clip));
  c->clip_qkv = static_cast<float>(clip);
  return ReadGgufExperts(f, c);
}

}  // namespace

Family OlmoeFamily() {
  return {.name = "olmoe",
          .hf_architectures = {"OlmoeForCausalLM"},
          .gguf_architectures = {"olmoe"},
          .read_hf = ReadHf,
          .read_gguf = ReadGguf,
          .hf_names = HfNames()};
}

}  // namespace sixfold

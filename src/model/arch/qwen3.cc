// Qwen3: RMS norms over each query and key head before the rotation.
#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

Status ReadHf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  SF_RETURN_IF_ERROR(f.ReadBool("attention_bias", false, &c->qkv_bias));
  c->o_bias = c->qkv_bias;
  c->qk_norm = QkNorm::kPerHead;
  return ReadQwenWindow(f, c);
}

Status ReadGguf(Fields&, ModelConfig* c) {
  c->qk_norm = QkNorm::kPerHead;
  return OkStatus();
}

}  // namespace

Family Qwen3Family() {
  return {.name = "qwen3",
          .hf_architectures = {"Qwen3ForCausalLM"},
          .gguf_architectures = {"qwen3"},
          .read_hf = ReadHf,
          .read_gguf = ReadGguf,
          .hf_names = HfNames()};
}

}  // namespace sixfold

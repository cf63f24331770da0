// Qwen2 and 2.5: biases on q, k and v; a window in the upper layers when the config turns it on.
#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

Status ReadHf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  c->qkv_bias = true;
  return ReadQwenWindow(f, c);
}

Status ReadGguf(Fields&, ModelConfig* c) {
  c->qkv_bias = true;
  return OkStatus();
}

}  // namespace

Family Qwen2Family() {
  return {.name = "qwen2",
          .hf_architectures = {"Qwen2ForCausalLM"},
          .gguf_architectures = {"qwen2"},
          .read_hf = ReadHf,
          .read_gguf = ReadGguf,
          .hf_names = HfNames(),
          .ignorable_suffixes = {".rotary_emb.inv_freq"}};
}

}  // namespace sixfold

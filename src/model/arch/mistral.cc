// Mistral: Llama without biases, with a sliding window in every layer.
#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

Status ReadHf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  int64_t window = 0;
  // An absent key means the class default; null means none.
  SF_RETURN_IF_ERROR(f.ReadInt("sliding_window", f.HasKey("sliding_window") ? 0 : 4096, 0, int64_t{1} << 30, &window));
  SetWindow(c, window);
  return OkStatus();
}

}  // namespace

Family MistralFamily() {
  return {.name = "mistral",
          .hf_architectures = {"MistralForCausalLM"},
          .read_hf = ReadHf,
          .hf_names = HfNames(),
          .ignorable_suffixes = {".rotary_emb.inv_freq"}};
}

}  // namespace sixfold

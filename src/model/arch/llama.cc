// Llama 2 and 3, and every checkpoint of the same arithmetic (SmolLM, TinyLlama, Yi). GGUF's "llama" is also what Mistral
// and Mixtral files call themselves: experts decide.
#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

Status ReadHf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 10000.0, c));
  SF_RETURN_IF_ERROR(f.ReadBool("attention_bias", false, &c->qkv_bias));
  c->o_bias = c->qkv_bias;
  return f.ReadBool("mlp_bias", false, &c->mlp_bias);
}

Status ReadGguf(Fields& f, ModelConfig* c) {
  c->permuted_qk = true;
  if (!f.Has("expert_count")) return OkStatus();
  int64_t experts = 0;
  SF_RETURN_IF_ERROR(f.ReadInt("expert_count", 0, 0, 1 << 20, &experts));
  f.MarkUsed("expert_used_count");
  if (experts == 0) return OkStatus();
  c->family = "mixtral";
  c->moe.renormalize = true;
  return ReadGgufExperts(f, c);
}

}  // namespace

Family LlamaFamily() {
  return {.name = "llama",
          .hf_architectures = {"LlamaForCausalLM"},
          .gguf_architectures = {"llama"},
          .read_hf = ReadHf,
          .read_gguf = ReadGguf,
          .hf_names = HfNames(),
          .ignorable_suffixes = {".rotary_emb.inv_freq"}};
}

}  // namespace sixfold

// Mixtral: Mistral with experts in every layer; the chosen probabilities are divided by their sum.
#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

Status ReadHf(Fields& f, ModelConfig* c) {
  SF_RETURN_IF_ERROR(ReadHfRope(f, 1e6, c));
  int64_t window = 0;
  SF_RETURN_IF_ERROR(f.ReadInt("sliding_window", 0, 0, int64_t{1} << 30, &window));
  SetWindow(c, window);
  SF_RETURN_IF_ERROR(ReadHfExperts(f, "intermediate_size", c));
  c->moe.renormalize = true;
  for (LayerConfig& layer : c->layers) layer.sparse = true;
  return OkStatus();
}

TensorNames Names() {
  TensorNames n = HfNames();
  n.router = "model.layers.{l}.block_sparse_moe.gate";
  n.expert_gate = "model.layers.{l}.block_sparse_moe.experts.{e}.w1";
  n.expert_up = "model.layers.{l}.block_sparse_moe.experts.{e}.w3";
  n.expert_down = "model.layers.{l}.block_sparse_moe.experts.{e}.w2";
  return n;
}

}  // namespace

Family MixtralFamily() {
  return {.name = "mixtral",
          .hf_architectures = {"MixtralForCausalLM"},
          .read_hf = ReadHf,
          .hf_names = Names(),
          .ignorable_suffixes = {".rotary_emb.inv_freq"}};
}

}  // namespace sixfold

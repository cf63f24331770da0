// GPT-OSS: a sink beside every head's keys, windows in every second layer, biases everywhere, experts with a clamped SwiGLU
// of their own, mostly stored as MXFP4 blocks. arXiv:2508.10925; the reference is transformers' modeling_gpt_oss.py.
#include <fmt/format.h>

#include "model/arch/common.h"
#include "model/arch/family.h"

namespace sixfold {

namespace {

// What the class takes where a config says nothing.
constexpr double kTheta = 150000.0;
constexpr int64_t kWindow = 128;
constexpr double kAlpha = 1.702, kLimit = 7.0;
constexpr double kLargest = 1e30;

RopeConfig DefaultRope(double theta) {
  return {.theta = theta, .scaling = RopeScaling::kYarn, .factor = 32.0, .original_max_position = 4096, .truncate = false};
}

void SetArithmetic(ModelConfig* c) {
  c->attention_sinks = true;
  c->moe.score = GateScore::kChosenSoftmax;
  c->moe.router_bias = true;
  c->moe.bias = true;
  c->moe.swiglu_alpha = static_cast<float>(kAlpha);
  c->moe.swiglu_limit = static_cast<float>(kLimit);
  for (LayerConfig& layer : c->layers) layer.sparse = true;
}

Status ReadWindows(Fields& f, ModelConfig* c) {
  int64_t window = kWindow;
  SF_RETURN_IF_ERROR(f.ReadInt("sliding_window", f.HasKey("sliding_window") ? 0 : kWindow, 0, int64_t{1} << 30, &window));
  SF_ASSIGN_OR_RETURN(const auto slides, ReadLayerTypes(f, *c));
  for (size_t l = 0; l < c->layers.size(); ++l) {
    const bool slide = slides.empty() ? l % 2 == 0 : slides[l];
    if (slide && window == 0) {
      return f.Wrong("sliding_window", fmt::format("a positive integer, since layer {} slides", l));
    }
    c->layers[l].window = slide ? window : 0;
  }
  return OkStatus();
}

Status ReadHf(Fields& f, ModelConfig* c) {
  SetArithmetic(c);
  SF_RETURN_IF_ERROR(ReadHfRope(f, kTheta, c));
  if (!f.HasPrefix("rope_parameters.") && !f.HasPrefix("rope_scaling.")) c->rope = DefaultRope(c->rope.theta);
  SF_RETURN_IF_ERROR(f.ReadBool("attention_bias", true, &c->qkv_bias));
  c->o_bias = c->qkv_bias;
  SF_RETURN_IF_ERROR(ReadWindows(f, c));
  SF_RETURN_IF_ERROR(ReadHfExperts(f, "intermediate_size", c));
  double alpha = 0, limit = 0;
  SF_RETURN_IF_ERROR(f.ReadNumber("swiglu_alpha", kAlpha, -kLargest, kLargest, &alpha));
  SF_RETURN_IF_ERROR(f.ReadNumber("swiglu_limit", kLimit, 1e-6, kLargest, &limit));
  c->moe.swiglu_alpha = static_cast<float>(alpha);
  c->moe.swiglu_limit = static_cast<float>(limit);
  // Old names, which nothing reads beside the ones above.
  f.MarkUsed("experts_per_token");
  f.MarkUsed("initial_context_length");
  return OkStatus();
}

// GGUF files say neither alpha and limit nor which layers slide; the rotation is the model's own, without rounded corrections.
Status ReadGguf(Fields& f, ModelConfig* c) {
  SetArithmetic(c);
  c->rope.truncate = false;
  for (size_t l = 1; l < c->layers.size(); l += 2) c->layers[l].window = 0;
  return ReadGgufExperts(f, c);
}

TensorNames Names() {
  TensorNames n = HfNames();
  n.sinks = "model.layers.{l}.self_attn.sinks";
  n.router = "model.layers.{l}.mlp.router";
  n.expert_gate_up = "model.layers.{l}.mlp.experts.gate_up_proj";
  n.expert_gate = n.expert_up = "";
  n.expert_down = "model.layers.{l}.mlp.experts.down_proj";
  return n;
}

TensorNames NamesInGguf() {
  TensorNames n = GgufNames();
  n.sinks = "blk.{l}.attn_sinks.weight";
  n.ffn_norm = "blk.{l}.post_attention_norm";
  return n;
}

}  // namespace

Family GptOssFamily() {
  return {.name = "gpt_oss",
          .hf_architectures = {"GptOssForCausalLM"},
          .gguf_architectures = {"gpt-oss"},
          .read_hf = ReadHf,
          .read_gguf = ReadGguf,
          .hf_names = Names(),
          .gguf_names = NamesInGguf()};
}

}  // namespace sixfold

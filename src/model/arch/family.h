// What a family of models adds: which fields of config.json or GGUF metadata it has, and what its tensors are called.
// One file a family; the table of all of them is FamilyTable().
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/arch/fields.h"
#include "model/config.h"

namespace sixfold {

// Names of a model's tensors; "{l}" stands for the layer, "{e}" for the expert. Empty: the family has none.
struct TensorNames {
  std::string embedding, final_norm, head;
  std::string attention_norm, q, k, v, o, q_norm, k_norm;
  std::string q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b;  // latent attention; q where there is no q_a
  std::string k_b, v_b;  // kv_b as two stacks of matrices, one of each a head, K's transposed
  bool split_kv_b = false;
  std::string ffn_norm, gate, up, down;
  std::string sinks;                                                     // the whole name
  std::string router, choice_bias, expert_gate, expert_up, expert_down;  // choice_bias: the whole name
  std::string shared_gate, shared_up, shared_down;
  // GPT-OSS: gate and up of all experts in one tensor, rows by turns; this and expert_down are whole names, to which
  // _bias, _blocks and _scales are added.
  std::string expert_gate_up;
  bool stacked_experts = false;  // one [experts, rows, cols] tensor instead of one an expert
  std::string weight = ".weight", bias = ".bias";
};

// `pattern` with its marks replaced.
std::string FillName(std::string pattern, int layer, int expert = 0);

TensorNames HfNames();    // model.layers.{l}.self_attn.q_proj …
TensorNames GgufNames();  // blk.{l}.attn_q …

struct Family {
  std::string_view name;
  std::vector<std::string_view> hf_architectures;    // entries of config.json's "architectures"
  std::vector<std::string_view> gguf_architectures;  // general.architecture
  // Fill what is this family's own; the common fields are read before. Errors name the field.
  Status (*read_hf)(Fields& fields, ModelConfig* config) = nullptr;
  Status (*read_gguf)(Fields& fields, ModelConfig* config) = nullptr;
  TensorNames hf_names;
  TensorNames gguf_names = GgufNames();
  // Endings of tensor names that a checkpoint may carry and nothing needs.
  std::vector<std::string_view> ignorable_suffixes;
  // Layers beyond the config's are further predictors (multi-token prediction), which nothing needs.
  bool ignores_further_layers = false;
};

std::span<const Family> FamilyTable();
const Family* FamilyByName(std::string_view name);

Family LlamaFamily();
Family MistralFamily();
Family Qwen2Family();
Family Qwen3Family();
Family MixtralFamily();
Family Qwen3MoeFamily();
Family OlmoeFamily();
Family DeepseekV2Family();
Family DeepseekV3Family();
Family GptOssFamily();

}  // namespace sixfold

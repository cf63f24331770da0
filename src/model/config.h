// What a model's arithmetic is, read from HF config.json or GGUF metadata into one value. Families differ only here and
// in the names of their tensors (arch/).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "moe/gate.h"
#include "tensor/dtype.h"

namespace sixfold {

class WeightStore;

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position = 0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;        // llama3
  double beta_fast = 32.0, beta_slow = 1.0;                    // yarn
  double attention_factor = 0.0;                               // yarn; 0: 0.1 ln(factor) + 1
  double mscale = 0.0, mscale_all_dim = 0.0;                   // yarn, as some checkpoints spell it
  bool truncate = true;                                        // yarn: correction range rounded to whole dimensions
  std::vector<float> freq_factors;                             // GGUF rope_freqs.weight: frequencies are divided by these
};

enum class QkNorm : uint8_t { kNone, kPerHead, kWholeVector };

struct MoeConfig : GateConfig {
  int64_t intermediate = 0;         // width of one expert
  int64_t shared_intermediate = 0;  // width of all shared experts together, which every token meets; 0: none
  bool choice_bias = false;         // the gate has a bias for the choice alone (e_score_correction_bias)
  bool router_bias = false;         // of the logits themselves
  bool bias = false;                // of the experts' matrices
  // Of the experts' activation: 0: silu(gate) * up; else (clamp(up) + 1) * g * sigmoid(alpha * g), g = min(gate, limit).
  float swiglu_limit = 0.0f, swiglu_alpha = 0.0f;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): K and V of all heads are one latent vector a token, beside
// one rotated key; queries may go through a narrow layer of their own.
struct LatentConfig {
  int kv_rank = 0;                // width of the latent; 0: ordinary attention
  int q_rank = 0;                 // 0: queries come straight from the hidden state
  int nope_dim = 0;               // of a query head: what meets the latent
  int rope_dim = 0;               // and what meets the rotated key
  int v_dim = 0;                  // of a head's output
  bool interleaved = true;        // rotation pairs stand side by side in the files
  bool a_bias = false;            // biases on the two narrow projections

  bool used() const { return kv_rank > 0; }
};

struct LayerConfig {
  int64_t window = 0;             // 0: full attention
  bool sparse = false;            // experts instead of a dense FFN
};

struct ModelConfig {
  std::string architecture;       // "LlamaForCausalLM" or GGUF's "llama", as the file spells it
  std::string family;             // our name: llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe, deepseek_v2, gpt_oss …
  int64_t hidden = 0;
  int64_t intermediate = 0;       // dense FFN
  int64_t vocab = 0;
  int heads = 0;
  int kv_heads = 0;               // as they are cached: 1 under latent attention
  int head_dim = 0;               // of a query; nope_dim + rope_dim under latent attention
  LatentConfig latent;
  int64_t max_positions = 0;      // context that the model was made for
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool attention_sinks = false;   // one logit a query head that takes part in its softmax
  QkNorm qk_norm = QkNorm::kNone;
  float clip_qkv = 0.0f;          // 0: none
  RopeConfig rope;
  MoeConfig moe;
  std::vector<LayerConfig> layers;
  bool fp8_blocks = false;                   // linear weights may be F8_E4M3 with 128x128 scales
  bool mxfp4_experts = false;                // experts may be MXFP4 blocks and scales
  DType file_dtype = DType::kBF16;           // of the bulk of the weights, decides --dtype auto
  bool permuted_qk = false;                  // GGUF llama: rows of q and k hold rotation pairs side by side
  uint64_t source_hash = 0;                  // of config.json, whatever its layout; a GGUF file's metadata are the store's
  std::vector<std::string> unknown_fields;   // fields that no family knows; `inspect` lists them

  std::vector<TokenId> eos_ids;              // from config / generation_config / GGUF
  int64_t bos_id = -1;

  int rotary_dim() const { return latent.used() ? latent.rope_dim : head_dim; }
  int v_head_dim() const { return latent.used() ? latent.v_dim : head_dim; }  // of a head's output
  // Of a cached row of one K/V head. Under latent attention the value is a prefix of the key.
  int k_dim() const { return latent.used() ? latent.kv_rank + latent.rope_dim : head_dim; }
  int v_dim() const { return latent.used() ? latent.kv_rank : head_dim; }
};

// What sampling parameters may be, whether a request, an option or a model's file gives them. A
// repetition penalty divides logits in fp32, where subnormal numbers count as zero.
inline constexpr double kTemperatureMax = 2.0;
inline constexpr double kRepetitionPenaltyMin = std::numeric_limits<float>::min();
inline constexpr double kRepetitionPenaltyMax = std::numeric_limits<float>::max();

// Sampling defaults of generation_config.json; a negative value means "not given".
struct GenerationDefaults {
  double temperature = -1, top_p = -1, min_p = -1, repetition_penalty = -1;
  int64_t top_k = -1, max_new_tokens = -1;
  std::vector<TokenId> eos_ids;
  // One line that names all advice of the file which cannot be followed; "" when there is none.
  std::string warning;
};

// Folder with config.json. kInvalidFile: not JSON, wrong types, unknown architecture (lists the known ones), a field
// that changes the arithmetic and is not implemented.
Result<ModelConfig> ConfigFromHf(const std::filesystem::path& config_json);
// The same over a config.json's text; `name` stands in messages.
Result<ModelConfig> ConfigFromHfText(std::string_view text, const std::string& name);
// From a GGUF file's metadata, and from which optional tensors it holds (biases, a separate head, expert layers).
Result<ModelConfig> ConfigFromGguf(const WeightStore& store);
// The one of the two that fits: `model` is a folder or a .gguf file, `store` is opened on it.
Result<ModelConfig> ConfigFor(const WeightStore& store, const std::filesystem::path& model);
// Never an error: what the file advises is no part of the model. Advice that is out of range, of
// another type or unreadable counts as not given and is named in `warning`.
GenerationDefaults GenerationDefaultsFromHf(const std::filesystem::path& generation_config_json);
GenerationDefaults GenerationDefaultsFromHfText(std::string_view text, const std::string& name);

}  // namespace sixfold

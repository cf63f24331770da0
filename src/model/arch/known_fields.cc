#include "model/arch/known_fields.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

namespace sixfold {

namespace {

// Training, bookkeeping, generation defaults, or settings of other runtimes.
constexpr auto kHfNeutral = std::to_array<std::string_view>({
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures", "aux_loss_alpha",
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "auto_map",
    "bad_words_ids", "begin_suppress_tokens", "bos_token", "bos_token_id",
    "chunk_size_feed_forward", "classifier_dropout", "cls_token_id", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "embd_pdrop",
    "encoder_no_repeat_ngram_size", "eos_token", "eos_token_id", "ep_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob",
    "id2label", "initializer_range", "label2id", "length_penalty", "max_length",
    "max_sequence_length", "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_labels", "num_mtp_layers", "num_nextn_predict_layers", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "remove_invalid_values",
    "repetition_penalty", "resid_pdrop", "residual_dropout", "return_dict",
    "return_dict_in_generate", "router_aux_loss_coef", "router_jitter_noise",
    "router_z_loss_coef", "sep_token_id", "seq_aux", "suppress_tokens", "task_specific_params",
    "temperature", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "typical_p", "unk_token_id",
    "unsloth_fixed", "unsloth_version", "use_cache", "use_return_dict"});

// What a field must say for the arithmetic to stay what is implemented.
struct Neutral {
  std::string_view key;
  enum class Kind { kNumber, kFalse, kText, kNone } kind;
  double number = 0;
  std::string_view text = "";
};

constexpr std::array kChanging = {
    Neutral{"hidden_act", Neutral::Kind::kText, 0, "silu"},
    Neutral{"hidden_activation", Neutral::Kind::kText, 0, "silu"},
    Neutral{"attention_bias", Neutral::Kind::kFalse},
    Neutral{"mlp_bias", Neutral::Kind::kFalse},
    Neutral{"lm_head_bias", Neutral::Kind::kFalse},
    Neutral{"use_bias", Neutral::Kind::kFalse},
    Neutral{"bias", Neutral::Kind::kFalse},
    Neutral{"qkv_bias", Neutral::Kind::kFalse},
    Neutral{"use_sliding_window", Neutral::Kind::kFalse},
    Neutral{"sliding_window", Neutral::Kind::kNone},
    Neutral{"layer_types", Neutral::Kind::kNone},
    Neutral{"clip_qkv", Neutral::Kind::kNone},
    Neutral{"use_qk_norm", Neutral::Kind::kFalse},
    Neutral{"qk_layernorm", Neutral::Kind::kFalse},
    Neutral{"attn_logit_softcapping", Neutral::Kind::kNone},
    Neutral{"final_logit_softcapping", Neutral::Kind::kNone},
    Neutral{"logit_scale", Neutral::Kind::kNumber, 1},
    Neutral{"logits_scaling", Neutral::Kind::kNumber, 1},
    Neutral{"embedding_multiplier", Neutral::Kind::kNumber, 1},
    Neutral{"residual_multiplier", Neutral::Kind::kNumber, 1},
    Neutral{"attention_multiplier", Neutral::Kind::kNone},
    Neutral{"query_pre_attn_scalar", Neutral::Kind::kNone},
    Neutral{"scale_emb", Neutral::Kind::kNumber, 1},
    Neutral{"scale_depth", Neutral::Kind::kNone},
    Neutral{"dim_model_base", Neutral::Kind::kNone},
    Neutral{"scale_attn_weights", Neutral::Kind::kNone},
    Neutral{"mup_width_multiplier", Neutral::Kind::kNone},
    Neutral{"alibi", Neutral::Kind::kFalse},
    Neutral{"use_alibi", Neutral::Kind::kFalse},
    Neutral{"parallel_attn", Neutral::Kind::kFalse},
    Neutral{"use_parallel_residual", Neutral::Kind::kFalse},
    Neutral{"add_cross_attention", Neutral::Kind::kFalse},
    Neutral{"is_encoder_decoder", Neutral::Kind::kFalse},
    Neutral{"is_decoder", Neutral::Kind::kFalse},
    Neutral{"cross_attention_hidden_size", Neutral::Kind::kNone},
    Neutral{"pruned_heads", Neutral::Kind::kNone},
    Neutral{"attention_chunk_size", Neutral::Kind::kNone},
    Neutral{"no_rope_layers", Neutral::Kind::kNone},
    Neutral{"no_rope_layer_interval", Neutral::Kind::kNone},
    Neutral{"rope_local_base_freq", Neutral::Kind::kNone},
    Neutral{"rope_interleave", Neutral::Kind::kFalse},
    Neutral{"rope_interleaved", Neutral::Kind::kFalse},
    Neutral{"swiglu_limit", Neutral::Kind::kNone},
    Neutral{"swiglu_alpha", Neutral::Kind::kNone},
    Neutral{"n_shared_experts", Neutral::Kind::kNumber, 0},
    Neutral{"num_shared_experts", Neutral::Kind::kNumber, 0},
    Neutral{"shared_expert_intermediate_size", Neutral::Kind::kNumber, 0},
    Neutral{"shared_intermediate_size", Neutral::Kind::kNumber, 0},
    Neutral{"moe_layer_freq", Neutral::Kind::kNumber, 1},
    Neutral{"first_k_dense_replace", Neutral::Kind::kNumber, 0},
    Neutral{"routed_scaling_factor", Neutral::Kind::kNumber, 1},
    Neutral{"scoring_func", Neutral::Kind::kText, 0, "softmax"},
    Neutral{"topk_method", Neutral::Kind::kText, 0, "greedy"},
    Neutral{"n_group", Neutral::Kind::kNumber, 1},
    Neutral{"topk_group", Neutral::Kind::kNumber, 1},
    Neutral{"norm_topk_prob", Neutral::Kind::kFalse},
    Neutral{"num_experts", Neutral::Kind::kNumber, 0},
    Neutral{"num_local_experts", Neutral::Kind::kNumber, 0},
    Neutral{"n_routed_experts", Neutral::Kind::kNumber, 0},
    Neutral{"kv_lora_rank", Neutral::Kind::kNone},
    Neutral{"q_lora_rank", Neutral::Kind::kNone},
    Neutral{"norm_type", Neutral::Kind::kText, 0, "rmsnorm"},
    Neutral{"position_embedding_type", Neutral::Kind::kText, 0, "rope"},
    Neutral{"vision_config", Neutral::Kind::kNone},
    Neutral{"text_config", Neutral::Kind::kNone},
    Neutral{"audio_config", Neutral::Kind::kNone},
};

// The same for GGUF, behind the architecture's prefix.
constexpr std::array kGgufChanging = {
    Neutral{"attn_logit_softcapping", Neutral::Kind::kNone},
    Neutral{"final_logit_softcapping", Neutral::Kind::kNone},
    Neutral{"logit_scale", Neutral::Kind::kNumber, 1},
    Neutral{"residual_scale", Neutral::Kind::kNumber, 1},
    Neutral{"embedding_scale", Neutral::Kind::kNumber, 1},
    Neutral{"attention.scale", Neutral::Kind::kNone},
    Neutral{"attention.clamp_kqv", Neutral::Kind::kNumber, 0},
    Neutral{"attention.max_alibi_bias", Neutral::Kind::kNumber, 0},
    Neutral{"use_parallel_residual", Neutral::Kind::kFalse},
    Neutral{"expert_count", Neutral::Kind::kNumber, 0},
    Neutral{"expert_shared_count", Neutral::Kind::kNumber, 0},
    Neutral{"expert_weights_scale", Neutral::Kind::kNumber, 1},
    Neutral{"expert_gating_func", Neutral::Kind::kNumber, 1},
    Neutral{"expert_group_count", Neutral::Kind::kNumber, 1},
    Neutral{"leading_dense_block_count", Neutral::Kind::kNumber, 0},
    Neutral{"attention.kv_lora_rank", Neutral::Kind::kNone},
    Neutral{"attention.layer_norm_epsilon", Neutral::Kind::kNone},
    Neutral{"attention.sliding_window_pattern", Neutral::Kind::kNone},
    Neutral{"rope.scaling.yarn_log_multiplier", Neutral::Kind::kNumber, 0},
    Neutral{"rope.scaling.yarn_ext_factor", Neutral::Kind::kNumber, 1},
    Neutral{"swiglu_clamp_exp", Neutral::Kind::kNone},
};
constexpr auto kGgufNeutral = std::to_array<std::string_view>(
    {"vocab_size", "rope.scaling.finetuned", "attention.causal", "tensor_data_layout", "expert_used_count",
     "rope.scaling.attn_factor", "feed_forward_length", "nextn_predict_layers", "expert_feed_forward_length"});

bool IsNeutral(const Neutral& rule, const FieldValue& value) {
  if (std::holds_alternative<FieldNull>(value)) return true;
  switch (rule.kind) {
    case Neutral::Kind::kNone: return false;
    case Neutral::Kind::kFalse: {
      const bool* b = std::get_if<bool>(&value);
      return b != nullptr && !*b;
    }
    case Neutral::Kind::kText: {
      const std::string* s = std::get_if<std::string>(&value);
      return s != nullptr && *s == rule.text;
    }
    case Neutral::Kind::kNumber: {
      if (const int64_t* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i) == rule.number;
      if (const double* d = std::get_if<double>(&value)) return *d == rule.number;
      return false;
    }
  }
  return false;
}

// {} and [] change nothing, whatever the field means.
bool IsEmptyContainer(const FieldValue& value) {
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) return v->empty();
  const auto* o = std::get_if<FieldOther>(&value);
  return o != nullptr && o->type == "an empty object";
}

std::string NeutralText(const Neutral& rule) {
  switch (rule.kind) {
    case Neutral::Kind::kNone: return "absent or null";
    case Neutral::Kind::kFalse: return "false";
    case Neutral::Kind::kText: return fmt::format("\"{}\"", rule.text);
    case Neutral::Kind::kNumber: return fmt::format("{}", rule.number);
  }
  return "";
}

std::string_view FirstPart(std::string_view key) { return key.substr(0, key.find('.')); }

template <size_t N>
const Neutral* FindRule(const std::array<Neutral, N>& rules, std::string_view key) {
  const auto it = std::find_if(rules.begin(), rules.end(), [&](const Neutral& r) { return r.key == key; });
  return it == rules.end() ? nullptr : &*it;
}

Status Refuse(const Fields& fields, const Neutral& rule, const ModelConfig& c) {
  return fields.Wrong(rule.key, fmt::format("{} in a {} model: another value changes the arithmetic and is not "
                                            "implemented", NeutralText(rule), c.family));
}

bool AllFullAttention(const FieldValue& value) {
  const auto* types = std::get_if<std::vector<std::string>>(&value);
  return types != nullptr &&
         std::all_of(types->begin(), types->end(), [](const std::string& t) { return t == "full_attention"; });
}

}  // namespace

Status CheckUnreadHfFields(const Fields& fields, ModelConfig* config) {
  for (const std::string& key : fields.Unused()) {
    const FieldValue& value = fields.values().at(key);
    const std::string_view top = FirstPart(key);
    if (const Neutral* rule = FindRule(kChanging, top)) {
      const bool neutral = IsNeutral(*rule, value) || IsEmptyContainer(value) ||
                           (top == "layer_types" && AllFullAttention(value));
      if (!neutral) return Refuse(fields, *rule, *config);
      continue;
    }
    if (std::find(kHfNeutral.begin(), kHfNeutral.end(), top) != kHfNeutral.end()) continue;
    config->unknown_fields.push_back(key);
  }
  return OkStatus();
}

Status CheckUnreadGgufFields(const Fields& fields, ModelConfig* config) {
  for (const std::string& key : fields.Unused()) {
    if (const Neutral* rule = FindRule(kGgufChanging, key)) {
      if (!IsNeutral(*rule, fields.values().at(key))) return Refuse(fields, *rule, *config);
      continue;
    }
    if (std::find(kGgufNeutral.begin(), kGgufNeutral.end(), key) != kGgufNeutral.end()) continue;
    config->unknown_fields.push_back(key);
  }
  return OkStatus();
}

}  // namespace sixfold

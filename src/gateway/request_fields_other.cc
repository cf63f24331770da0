// The rows of what is not served.
#include "gateway/request_fields.h"

namespace sixfold::gateway {
namespace {

bool NoPenalty(const ApiRequest& request) {
  return request.sampling.repetition_penalty == 1 && request.sampling.presence_penalty == 0 &&
         request.sampling.frequency_penalty == 0;
}
bool Greedy(const ApiRequest& request) { return request.sampling.temperature == 0; }

constexpr Refused::Idle kWithoutPenalty{NoPenalty, "no penalty is asked for"};
constexpr Refused::Idle kWhenGreedy{Greedy, "`temperature` is 0"};

constexpr const char* kConstrained = "constrained output is not served yet";
constexpr const char* kTools = "tool calling is not served yet";
constexpr const char* kTextOnly = "this server takes and gives text only";
constexpr const char* kSampler =
    "this sampler is not served; use temperature, top_p, top_k, min_p and the penalties";
constexpr const char* kBeams = "there is no beam search; use 'n' with sampling";
constexpr const char* kAllPenalised = "penalties are over the whole prompt and answer";
constexpr const char* kExtraOutput = "the answer has no such part";
constexpr const char* kLora = "adapters are not served; merge the adapter into the weights";
constexpr const char* kCut = "prompts are not cut; send one that fits the context";
constexpr const char* kTemplateChosen =
    "the template is chosen when the server starts (--chat-template)";
constexpr const char* kThinking =
    "pass what the model's template reads in 'chat_template_kwargs', for example "
    "{\"enable_thinking\": false}, or 'reasoning_effort'";
constexpr const char* kThinkingBudget = "thinking has no budget of its own; use 'max_tokens'";
constexpr const char* kTopLevel = "give its members as fields of the body itself";
constexpr const char* kBans = "use 'logit_bias' of -100 for the token ids";
constexpr const char* kTextIn = "send 'messages', or 'prompt' to /v1/completions";
constexpr const char* kSplitServers = "prefill and decode on different servers is not served";
constexpr const char* kTimeLimit = "there is no time limit on an answer; use 'max_tokens'";
constexpr const char* kOtherLength = "servers count it in different ways; use 'max_tokens'";

constexpr Field kOther[] = {
    // Tools and constrained output.
    {"tools", kOnChat, Refused{"[[]]", kTools, {"tool_choice", "[\"none\"]"}}},
    {"tool_choice", kOnChat, Refused{"[\"none\", \"auto\"]", kTools}},
    {"functions", kOnChat, Refused{"[[]]", kTools, {"function_call", "[\"none\"]"}}},
    {"function_call", kOnChat, Refused{"[\"none\", \"auto\"]", kTools}},
    {"response_format", kOnBoth, Refused{"[{\"type\": \"text\"}]", kConstrained}},
    {"structured_outputs", kOnBoth, Refused{"[]", kConstrained}},
    {"structural_tag", kOnBoth, Refused{"[]", kConstrained}},
    {"guided_*", kOnBoth, Refused{"[]", kConstrained}},
    {"grammar", kOnBoth, Refused{"[\"\"]", kConstrained}},
    {"grammar_*", kOnBoth, Refused{"[\"\", false, []]", kConstrained}},
    {"json_schema", kOnBoth, Refused{"[]", kConstrained}},
    {"regex", kOnBoth, Refused{"[\"\"]", kConstrained}},
    {"regex_pattern", kOnBoth, Refused{"[\"\"]", kConstrained}},
    {"ebnf", kOnBoth, Refused{"[\"\"]", kConstrained}},
    {"format", kOnBoth, Refused{"[\"\"]", kConstrained}, "Ollama"},

    // Samplers.
    {"typical_p", kOnBoth, Refused{"[1]", kSampler}},
    {"typical", kOnBoth, Refused{"[1]", kSampler}},
    {"typ_p", kOnBoth, Refused{"[1]", kSampler}},
    {"tfs_z", kOnBoth, Refused{"[1]", kSampler}},
    {"tfs", kOnBoth, Refused{"[1]", kSampler}},
    {"top_a", kOnBoth, Refused{"[0]", kSampler}},
    {"epsilon_cutoff", kOnBoth, Refused{"[0]", kSampler}},
    {"eta_cutoff", kOnBoth, Refused{"[0]", kSampler}},
    {"top_n_sigma", kOnBoth, Refused{"[0, -1]", kSampler}},
    {"nsigma", kOnBoth, Refused{"[0, -1]", kSampler}},
    {"mirostat", kOnBoth, Refused{"[0]", kSampler}},
    {"mirostat_mode", kOnBoth, Refused{"[0]", kSampler}},
    {"mirostat_*", kOnBoth, Refused{"[]", kSampler, {"mirostat", "[0]", "mirostat_mode"}}},
    {"dry_multiplier", kOnBoth, Refused{"[0]", kSampler}},
    {"dry_*", kOnBoth, Refused{"[]", kSampler, {"dry_multiplier", "[0]"}}},
    {"xtc_probability", kOnBoth, Refused{"[0]", kSampler}},
    {"xtc_*", kOnBoth, Refused{"[]", kSampler, {"xtc_probability", "[0]"}}},
    {"dynamic_temperature", kOnBoth, Refused{"[false]", kSampler}},
    {"dynatemp_range", kOnBoth, Refused{"[0]", kSampler}},
    {"dynatemp_*", kOnBoth,
     Refused{"[]", kSampler, {"dynatemp_range", "[0, false]", "dynamic_temperature"}}},
    {"min_temp", kOnBoth, Refused{"[1]", kSampler}},
    {"max_temp", kOnBoth, Refused{"[1]", kSampler}},
    {"temp_exponent", kOnBoth, Refused{"[1]", kSampler}},
    {"temperature_last", kOnBoth, Refused{"[false]", kSampler}},
    {"smoothing_factor", kOnBoth, Refused{"[0]", kSampler}},
    {"smoothing_curve", kOnBoth, Refused{"[1]", kSampler, {"smoothing_factor", "[0]"}}},
    {"adaptive_target", kOnBoth, Refused{"[-1]", kSampler}},
    {"adaptive_decay", kOnBoth, Refused{"[]", kSampler, {"adaptive_target", "[-1]"}}},
    {"skew", kOnBoth, Refused{"[0]", kSampler}},
    {"min_keep", kOnBoth, Refused{"[0, 1]", kSampler}},
    {"penalty_alpha", kOnBoth, Refused{"[0]", kSampler}},
    {"guidance_scale", kOnBoth, Refused{"[1]", kSampler}},
    {"cfg_scale", kOnBoth, Refused{"[1]", kSampler}},
    {"top_p_min", kOnBoth, Refused{"[0]", kSampler}},
    {"top_p_decay", kOnBoth, Refused{"[1]", kSampler}},
    {"negative_prompt", kOnBoth, Refused{"[\"\"]", kSampler}},
    {"samplers", kOnBoth, Refused{"[[], \"\"]", "the order of the samplers is fixed"}},
    {"sampler_*", kOnBoth, Refused{"[[], \"\"]", "the order of the samplers is fixed"}},
    {"do_sample", kOnBoth,
     Refused{"[true]", "use 'temperature' 0 for the most likely tokens", {}, kWhenGreedy}},
    {"watermark", kOnBoth, Refused{"[false]", "answers carry no watermark"}},
    {"watermarking", kOnBoth, Refused{"[false]", "answers carry no watermark"}},
    {"logits_processors", kOnBoth, Refused{"[[]]", "use 'logit_bias'"}},
    {"sequence_bias", kOnBoth, Refused{"[[], {}]", "use 'logit_bias'"}},
    {"custom_logit_processor", kOnBoth, Refused{"[\"\", []]", "use 'logit_bias'"}},
    {"custom_params", kOnBoth, Refused{"[{}]", "they are of custom logit processors"}},
    {"vllm_xargs", kOnBoth, Refused{"[{}]", "there are no extensions"}},

    // Penalties.
    {"repeat_last_n", kOnBoth, Refused{"[-1]", kAllPenalised, {}, kWithoutPenalty}},
    {"repetition_penalty_range", kOnBoth, Refused{"[0, -1]", kAllPenalised, {}, kWithoutPenalty}},
    {"penalty_range", kOnBoth, Refused{"[0, -1]", kAllPenalised, {}, kWithoutPenalty}},
    {"repetition_range", kOnBoth, Refused{"[0, -1]", kAllPenalised, {}, kWithoutPenalty}},
    {"rep_pen_range", kOnBoth, Refused{"[0, -1]", kAllPenalised, {}, kWithoutPenalty}},
    {"rep_pen_slope", kOnBoth, Refused{"[0, 1]", kAllPenalised, {}, kWithoutPenalty}},
    {"prompt_ignore_length", kOnBoth, Refused{"[0]", kAllPenalised, {}, kWithoutPenalty}},
    {"repetition_decay", kOnBoth, Refused{"[0]", kAllPenalised, {}, kWithoutPenalty}},
    {"penalize_nl", kOnBoth, Refused{"[true]", kAllPenalised, {}, kWithoutPenalty}},
    {"penalize_newline", kOnBoth, Refused{"[true]", kAllPenalised, {}, kWithoutPenalty}},
    {"encoder_repetition_penalty", kOnBoth, Refused{"[1]", "use 'repetition_penalty'"}},
    {"no_repeat_ngram_size", kOnBoth, Refused{"[0]", "use the penalties"}},
    {"repetition_detection", kOnBoth, Refused{"[]", "use the penalties"}},

    // Search.
    {"use_beam_search", kOnBoth, Refused{"[false]", kBeams}},
    {"num_beams", kOnBoth, Refused{"[1]", kBeams}},
    {"num_beam_groups", kOnBoth, Refused{"[1]", kBeams}},
    {"diversity_penalty", kOnBoth, Refused{"[0]", kBeams}},
    {"length_penalty", kOnBoth, Refused{"[1]", kBeams}},
    {"early_stopping", kOnBoth, Refused{"[false]", kBeams}},

    // Where an answer ends, and which tokens it may have.
    {"force_words_ids", kOnBoth, Refused{"[[]]", kBeams}},
    {"stop_regex", kOnBoth, Refused{"[\"\", []]", "use 'stop' or 'stop_token_ids'"}},
    {"no_stop_trim", kOnBoth, Refused{"[false]", "use 'include_stop_str_in_output'"}},
    {"ban_eos_token", kOnBoth, Refused{"[false]", "use 'min_tokens' or 'ignore_eos'"}},
    {"eos_token_id", kOnBoth, Refused{"[]", "use 'stop_token_ids'"}},
    {"min_length", kOnBoth, Refused{"[0]", "servers count it in different ways; use 'min_tokens'"}},
    {"max_length", kOnBoth, Refused{"[]", kOtherLength}},
    {"max_time", kOnBoth, Refused{"[]", kTimeLimit}},
    {"t_max_predict_ms", kOnBoth, Refused{"[0, -1]", kTimeLimit}},
    {"t_max_prompt_ms", kOnBoth, Refused{"[0, -1]", kTimeLimit}},
    {"n_indent", kOnBoth, Refused{"[0]", "the form of an answer cannot be bounded"}},
    {"bad_words", kOnBoth, Refused{"[[]]", kBans}},
    {"bad_words_ids", kOnBoth, Refused{"[[]]", kBans}},
    {"suppress_tokens", kOnBoth, Refused{"[[]]", kBans}},
    {"begin_suppress_tokens", kOnBoth, Refused{"[[]]", kBans}},
    {"allowed_token_ids", kOnBoth, Refused{"[]", kBans}},
    {"banned_tokens", kOnBoth, Refused{"[[], \"\"]", kBans}},
    {"banned_strings", kOnBoth, Refused{"[[], \"\"]", kBans}},
    {"custom_token_bans", kOnBoth, Refused{"[[], \"\"]", kBans}},

    // The prompt.
    {"suffix", kOnCompletions,
     Refused{"[\"\"]", "nothing is filled in; write the model's own markers into 'prompt'"}},
    {"input_prefix", kOnBoth, Refused{"[\"\"]", "write the model's own markers into 'prompt'"}},
    {"input_suffix", kOnBoth, Refused{"[\"\"]", "write the model's own markers into 'prompt'"}},
    {"input_extra", kOnBoth, Refused{"[[]]", "write the model's own markers into 'prompt'"}},
    {"echo", kOnBoth, Refused{"[false]", "the answer does not repeat the prompt"}},
    {"return_full_text", kOnBoth, Refused{"[false]", "the answer does not repeat the prompt"}},
    {"prompt_embeds", kOnBoth, Refused{"[[]]", "prompts are text or token ids"}},
    {"input_embeds", kOnBoth, Refused{"[[]]", "prompts are text or token ids"}},
    {"input_ids", kOnBoth, Refused{"[]", "send token ids as 'prompt' to /v1/completions"}},
    {"prompt_token_ids", kOnBoth, Refused{"[]", "send token ids as 'prompt' to /v1/completions"}},
    {"truncate_prompt_tokens", kOnBoth, Refused{"[]", kCut}},
    {"truncate", kOnBoth, Refused{"[]", kCut}},
    {"truncation_length", kOnBoth, Refused{"[0]", kCut}},
    {"transforms", kOnBoth, Refused{"[[]]", kCut}, "OpenRouter"},
    {"token_healing", kOnBoth, Refused{"[false]", "prompts are taken as they are"}},
    {"memory", kOnBoth, Refused{"[\"\"]", "write it into the prompt"}, "KoboldAI"},
    {"do_preprocess", kOnBoth, Refused{"[true]", "send text without a template to /v1/completions"},
     "LMDeploy"},
    {"add_bos_token", kOnBoth, Refused{"[true]", "use 'add_special_tokens' of /v1/completions"}},
    {"add_special_tokens", kOnChat,
     Refused{"[false]", "the chat template writes the special tokens"}},
    {"system", kOnChat, Refused{"[\"\"]", "send it as a message of role system"}},
    {"safe_prompt", kOnChat, Refused{"[false]", "send it as a message of role system"}},
    {"chat_template", kOnChat, Refused{"[]", kTemplateChosen}},
    {"template", kOnChat, Refused{"[\"\"]", kTemplateChosen}, "Ollama"},
    {"instruction_template*", kOnChat, Refused{"[\"\"]", kTemplateChosen}},
    {"mode", kOnChat, Refused{"[\"instruct\"]", kTemplateChosen}, "text-generation-webui"},
    {"character", kOnChat, Refused{"[\"\"]", "send it as a message of role system"}},
    {"continue_final_message", kOnChat,
     Refused{"[false]", "render the chat yourself and send it to /v1/completions"}},
    {"documents", kOnChat, Refused{"[[]]", "write them into a message"}},
    {"task", kOnChat, Refused{"[]", "write it into a message"}, "SGLang"},
    {"web_search_options", kOnChat, Refused{"[]", "there is no web search"}},
    {"data_sources", kOnChat, Refused{"[[]]", "there is no search"}},
    {"plugins", kOnChat, Refused{"[[]]", "there are no plugins"}},
    {"verbosity", kOnChat, Refused{"[\"medium\"]", "ask for it in a message"}},
    {"inputs", kOnBoth, Refused{"[]", kTextIn}, "text-generation-inference"},

    // Thinking.
    {"enable_thinking", kOnChat, Refused{"[]", kThinking}},
    {"thinking", kOnChat, Refused{"[]", kThinking}},
    {"think", kOnChat, Refused{"[]", kThinking}, "Ollama"},
    {"reasoning", kOnChat, Refused{"[{}]", kThinking}, "OpenRouter"},
    {"include_reasoning", kOnChat, Refused{"[true]", "thinking is part of the text"}},
    {"reasoning_format", kOnChat, Refused{"[\"none\", \"auto\"]", "thinking is part of the text"},
     "llama.cpp"},
    {"reasoning_budget*", kOnChat, Refused{"[-1]", kThinkingBudget}},
    {"thinking_budget", kOnChat, Refused{"[-1]", kThinkingBudget}},
    {"thinking_token_budget", kOnBoth, Refused{"[-1]", kThinkingBudget}},
    {"thinking_forced_open", kOnChat, Refused{"[false]", kThinking}},

    // Other media.
    {"audio", kOnChat, Refused{"[]", kTextOnly}},
    {"modalities", kOnChat, Refused{"[[], [\"text\"]]", kTextOnly}},
    {"images", kOnBoth, Refused{"[[]]", kTextOnly}},
    {"image_data", kOnBoth, Refused{"[[]]", kTextOnly}},
    {"use_audio_in_video", kOnChat, Refused{"[false]", kTextOnly}},
    {"mm_processor_kwargs", kOnChat, Refused{"[{}]", kTextOnly}},

    // What the answer holds.
    {"top_logprobs", kOnCompletions, Refused{"[0]", "use 'logprobs' with the number"}},
    {"n_probs", kOnBoth, Refused{"[0]", "use 'logprobs' (and 'top_logprobs' in a chat)"}},
    {"top_n_tokens", kOnBoth, Refused{"[0]", "use 'logprobs' (and 'top_logprobs' in a chat)"}},
    {"prompt_logprobs", kOnBoth, Refused{"[]", "logprobs are of the answer only"}},
    {"logprob_token_ids", kOnBoth, Refused{"[]", "use 'logprobs' (and 'top_logprobs' in a chat)"}},
    {"post_sampling_probs", kOnBoth,
     Refused{"[false]", "logprobs are of the model's distribution"}},
    {"decoder_input_details", kOnBoth, Refused{"[false]", kExtraOutput}},
    {"detokenize", kOnBoth, Refused{"[true]", "answers are text"}},
    {"return_*", kOnBoth, Refused{"[false]", kExtraOutput}},
    {"response_fields", kOnBoth, Refused{"[[]]", "answers have all their fields"}, "llama.cpp"},

    // Which model, and where.
    {"lora", kOnBoth, Refused{"[[]]", kLora}},
    {"lora_*", kOnBoth, Refused{"[\"\", []]", kLora}},
    {"adapter_id", kOnBoth, Refused{"[\"\"]", kLora}},
    {"adapter_name", kOnBoth, Refused{"[\"\"]", kLora}},
    {"preset", kOnBoth, Refused{"[\"\", \"None\"]", "give the sampling parameters themselves"}},
    {"kv_transfer_params", kOnBoth, Refused{"[{}]", kSplitServers}},
    {"ec_transfer_params", kOnBoth, Refused{"[{}]", kSplitServers}},
    {"disaggregated_params", kOnBoth, Refused{"[{}]", kSplitServers}},
    {"bootstrap_*", kOnBoth, Refused{"[]", kSplitServers}, "SGLang"},
    {"session_params", kOnBoth,
     Refused{"[{}]", "send the whole conversation; its prefix is reused"}},
    {"previous_response_id", kOnBoth, Refused{"[\"\"]", "send the whole conversation"}},

    // Objects that hold fields in the APIs of others.
    {"extra_body", kOnBoth, Refused{"[{}]", kTopLevel}},
    {"options", kOnBoth, Refused{"[{}]", kTopLevel}, "Ollama"},
    {"parameters", kOnBoth, Refused{"[{}]", kTopLevel}, "text-generation-inference"},
    {"nvext", kOnBoth, Refused{"[{}]", kTopLevel}, "Dynamo"},
    {"sampling_params", kOnBoth, Refused{"[{}]", kTopLevel}, "SGLang"},
    {"generation_config", kOnBoth, Refused{"[{}]", kTopLevel}, "transformers"},

    // Harmless.
    {"user", kOnBoth, NoEffect{}, "who asks"},
    {"safety_identifier", kOnBoth, NoEffect{}, "who asks"},
    {"metadata", kOnBoth, NoEffect{}, "nothing is stored"},
    {"store", kOnBoth, NoEffect{}, "nothing is stored"},
    {"custom_labels", kOnBoth, NoEffect{}, "nothing is stored"},
    {"service_tier", kOnBoth, NoEffect{}, "all requests are served alike"},
    {"priority", kOnBoth, NoEffect{}, "all requests are served alike"},
    {"request_id", kOnBoth, NoEffect{}, "the header `x-request-id` names a request"},
    {"rid", kOnBoth, NoEffect{}, "the header `x-request-id` names a request"},
    {"session_id", kOnBoth, NoEffect{}, "requests stand alone"},
    {"prediction", kOnChat, NoEffect{}, "about speed"},
    {"speculative*", kOnBoth, NoEffect{}, "about speed"},
    {"backend_sampling", kOnBoth, NoEffect{}, "about speed"},
    {"stream_interval", kOnBoth, NoEffect{}, "about the size of chunks"},
    {"sse_ping_interval", kOnBoth, NoEffect{}, "silent streams get a comment every 15 s"},
    {"stream_options.include_obfuscation", kOnBoth, NoEffect{}, "chunks are not padded"},
    {"prompt_cache_*", kOnBoth, NoEffect{}, "about caching, which no answer depends on"},
    {"cache_*", kOnBoth, NoEffect{}, "about caching, which no answer depends on"},
    {"extra_key", kOnBoth, NoEffect{}, "about caching, which no answer depends on"},
    {"n_cache_reuse", kOnBoth, NoEffect{}, "about caching, which no answer depends on"},
    {"n_keep", kOnBoth, NoEffect{}, "the context never shifts"},
    {"n_discard", kOnBoth, NoEffect{}, "the context never shifts"},
    {"id_slot", kOnBoth, NoEffect{}, "about placement"},
    {"routed_dp_rank", kOnBoth, NoEffect{}, "about placement"},
    {"data_parallel_rank", kOnBoth, NoEffect{}, "about placement"},
    {"disagg_prefill_dp_rank", kOnBoth, NoEffect{}, "about placement"},
    {"routed_experts_*", kOnBoth, NoEffect{}, "of an output that is not there"},
    {"return_mm_kwargs", kOnBoth, NoEffect{}, "of an output that is not there"},
    {"parallel_tool_calls", kOnChat, NoEffect{}, "there are no tool calls"},
    {"parse_tool_calls", kOnChat, NoEffect{}, "there are no tool calls"},
    {"separate_reasoning", kOnChat, NoEffect{}, "thinking is part of the text"},
    {"stream_reasoning", kOnChat, NoEffect{}, "thinking is part of the text"},
    {"reasoning_control", kOnChat, NoEffect{}, "thinking is part of the text"},
    {"spaces_between_special_tokens", kOnBoth, NoEffect{}, "texts are the tokenizer's own"},
    {"truncation_side", kOnBoth, NoEffect{}, "prompts are not cut"},
};

}  // namespace

std::span<const Field> OtherFields() { return kOther; }

}  // namespace sixfold::gateway

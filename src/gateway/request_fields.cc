#include "gateway/request_fields.h"

#include <limits>
#include <type_traits>
#include <unordered_map>

namespace sixfold::gateway {
namespace {

template <auto kMember>
auto& At(ApiRequest& request) {
  if constexpr (std::is_invocable_v<decltype(kMember), SamplingParams&>) {
    return request.sampling.*kMember;
  } else {
    return request.*kMember;
  }
}

using Low = NumberRange::Low;
using Params = SamplingParams;
using Model = GenerationDefaults;

constexpr const char* kNoLimitValues = "[-1, -2]";

constexpr Field kServed[] = {
    {"model", kOnBoth, StringField{At<&ApiRequest::model>},
     "a name that the server answers to; others are 404", "the served model"},
    {"messages", kOnChat, MessagesField{At<&ApiRequest::messages_json>},
     "content is text: a string, text parts, or null", "required"},
    {"prompt", kOnCompletions, PromptsField{kChoicesMax, At<&ApiRequest::prompts>},
     "their number times `n` has the same bound", "required"},
    {"add_generation_prompt", kOnChat, BoolField{At<&ApiRequest::add_generation_prompt>},
     "the template ends with the start of an assistant's turn"},
    {"reasoning_effort", kOnChat, StringField{At<&ApiRequest::reasoning_effort>},
     "reaches the chat template under this name", "none"},
    {"chat_template_kwargs", kOnChat, ObjectField{At<&ApiRequest::template_kwargs_json>},
     "variables of the chat template, for example `{\"enable_thinking\": false}`"},
    {"add_special_tokens", kOnCompletions, BoolField{At<&ApiRequest::add_special_tokens>},
     "the tokenizer's BOS and EOS around prompts that are text"},

    {"temperature", kOnBoth,
     NumberField{{0, kTemperatureMax}, At<&Params::temperature>, &Model::temperature},
     "0 takes the most likely token"},
    {"top_p", kOnBoth, NumberField{{0, 1, Low::kExcluded}, At<&Params::top_p>, &Model::top_p}},
    {"top_k", kOnBoth, IntField<int64_t>{{-1}, At<&Params::top_k>, &Model::top_k},
     "0 and -1: all tokens"},
    {"min_p", kOnBoth, NumberField{{0, 1}, At<&Params::min_p>, &Model::min_p}},
    {"repetition_penalty", kOnBoth,
     NumberField{{kRepetitionPenaltyMin, kRepetitionPenaltyMax},
                 At<&Params::repetition_penalty>,
                 &Model::repetition_penalty},
     "what fp32 can divide by, over prompt and answer; 1: none"},
    {"repeat_penalty", kOnBoth, Alias{"repetition_penalty"}, "llama.cpp, Ollama"},
    {"rep_pen", kOnBoth, Alias{"repetition_penalty"}, "KoboldAI, TabbyAPI"},
    {"presence_penalty", kOnBoth, NumberField{{-2, 2}, At<&Params::presence_penalty>},
     "over the answer"},
    {"frequency_penalty", kOnBoth, NumberField{{-2, 2}, At<&Params::frequency_penalty>},
     "over the answer"},
    {"logit_bias", kOnBoth, TokenBiasField{{-100, 100}, At<&Params::logit_bias>},
     "token ids as keys"},
    {"seed", kOnBoth, SeedField{At<&Params::seed>},
     "equal seeds give equal answers; negative ones are values like others",
     "drawn for each request"},
    {"random_seed", kOnBoth, Alias{"seed"}, "Mistral"},
    {"sampling_seed", kOnBoth, Alias{"seed"}, "SGLang's router"},
    {"n", kOnBoth, IntField<int>{{1, 128}, At<&Params::n>}, "answers to each prompt"},
    {"n_cmpl", kOnBoth, Alias{"n"}, "llama.cpp"},
    {"num_return_sequences", kOnBoth, Alias{"n"}, "transformers"},
    {"best_of", kOnBoth, IntField<int64_t>{{1, 128}, At<&ApiRequest::best_of>},
     "at most `n`: answers are not ranked", "`n`"},

    {"max_completion_tokens", kOnChat,
     IntField<int64_t>{
         {1}, At<&Params::max_tokens>, &Model::max_new_tokens, std::numeric_limits<int64_t>::max()},
     "prompt and answer must fit the context together; the model's is `max_new_tokens`",
     "what the context leaves"},
    {"max_completion_tokens", kOnCompletions, IntField<int64_t>{{1}, At<&Params::max_tokens>},
     "prompt and answer must fit the context together"},
    {"max_tokens", kOnBoth, Alias{"max_completion_tokens", true}, "OpenAI's older name"},
    {"n_predict", kOnBoth, Alias{"max_completion_tokens", false, kNoLimitValues},
     "llama.cpp; -1 and -2: what the context leaves"},
    {"num_predict", kOnBoth, Alias{"max_completion_tokens", false, kNoLimitValues},
     "Ollama; -1 and -2: what the context leaves"},
    {"max_new_tokens", kOnBoth, Alias{"max_completion_tokens"},
     "transformers, text-generation-inference, SGLang"},
    {"max_output_tokens", kOnBoth, Alias{"max_completion_tokens"}, "OpenAI's Responses API"},
    {"max_tokens_to_sample", kOnBoth, Alias{"max_completion_tokens"}, "Anthropic's older API"},
    {"min_tokens", kOnBoth, IntField<int64_t>{{0}, At<&Params::min_tokens>},
     "at most `max_tokens`; before it no end of sequence and no stop token is sampled"},
    {"min_new_tokens", kOnBoth, Alias{"min_tokens"}, "transformers, SGLang"},
    {"stop", kOnBoth, StringsField{kStopStringsMax, kStopStringBytesMax, At<&ApiRequest::stop>},
     "the answer ends before the first of them"},
    {"stop_sequences", kOnBoth, Alias{"stop"}, "Anthropic, Cohere"},
    {"stop_sequence", kOnBoth, Alias{"stop"}, "KoboldAI, TabbyAPI"},
    {"stop_strings", kOnBoth, Alias{"stop"}, "transformers"},
    {"include_stop_str_in_output", kOnBoth, BoolField{At<&ApiRequest::include_stop>}},
    {"stop_token_ids", kOnBoth, TokenIdsField{1024, At<&Params::stop_token_ids>}},
    {"ignore_eos", kOnBoth, BoolField{At<&Params::ignore_eos>},
     "the end of sequence does not end the answer"},
    {"skip_special_tokens", kOnBoth, BoolField{At<&ApiRequest::skip_special_tokens>}},

    {"logprobs", kOnChat, BoolField{At<&ApiRequest::chat_logprobs>}},
    {"top_logprobs", kOnChat,
     IntField<int64_t>{{0, kTopLogprobsMax}, At<&ApiRequest::top_logprobs>}, "needs `logprobs`"},
    {"logprobs", kOnCompletions, IntField<int>{{0, kTopLogprobsMax}, At<&Params::logprobs>},
     "of the sampled token and so many of the most likely", "none"},
    {"stream", kOnBoth, BoolField{At<&ApiRequest::stream>}, "server-sent events"},
    {"stream_options", kOnBoth, MembersField{}, "only with `stream`", "none"},
    {"stream_options.include_usage", kOnBoth, BoolField{At<&ApiRequest::include_usage>},
     "a last chunk with `usage` and no choices"},
    {"stream_options.continuous_usage_stats", kOnBoth, BoolField{At<&ApiRequest::continuous_usage>},
     "`usage` in every chunk"},
};

// Both tables by name, for one endpoint.
struct Index {
  std::unordered_map<std::string_view, const Field*> rows;
  std::vector<const Field*> prefixes;
  std::unordered_map<std::string_view, std::vector<const Field*>> aliases;

  void Add(const Field& field) {
    const std::string_view name = field.name;
    if (name.ends_with('*')) {
      prefixes.push_back(&field);
    } else {
      rows.emplace(name, &field);
    }
    if (const auto* alias = std::get_if<Alias>(&field.rule)) aliases[alias->of].push_back(&field);
  }

  explicit Index(Endpoint endpoint) {
    for (const auto& table : {ServedFields(), OtherFields()}) {
      for (const Field& field : table) {
        if (field.on & EndpointBit(endpoint)) Add(field);
      }
    }
  }
};

const Index& IndexOf(Endpoint endpoint) {
  static const Index chat(Endpoint::kChat), completions(Endpoint::kCompletions);
  return endpoint == Endpoint::kChat ? chat : completions;
}

}  // namespace

std::span<const Field> ServedFields() { return kServed; }

const Field* FindField(Endpoint endpoint, std::string_view name) {
  const Index& index = IndexOf(endpoint);
  if (const auto it = index.rows.find(name); it != index.rows.end()) return it->second;
  const Field* best = nullptr;
  size_t best_size = 0;
  for (const Field* field : index.prefixes) {
    std::string_view prefix = field->name;
    prefix.remove_suffix(1);
    if (!name.starts_with(prefix) || prefix.size() < best_size) continue;
    best = field;
    best_size = prefix.size();
  }
  return best;
}

std::span<const Field* const> AliasesOf(Endpoint endpoint, std::string_view name) {
  const auto& aliases = IndexOf(endpoint).aliases;
  const auto it = aliases.find(name);
  return it == aliases.end() ? std::span<const Field* const>() : it->second;
}

}  // namespace sixfold::gateway

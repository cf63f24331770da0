#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "weights/testing/gguf_writer.h"
#include "weights/testing/temp_dir.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

using ::testing::HasSubstr;

// A small valid config with `extra` put before the closing brace.
std::string Config(const std::string& architecture, const std::string& extra) {
  return R"({"architectures": [")" + architecture + R"("], "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2)" + (extra.empty() ? "" : ", ") + extra + "}";
}

Result<ModelConfig> Parse(const std::string& text) { return ConfigFromHfText(text, "dir/config.json"); }

struct Refusal {
  const char* architecture;
  const char* extra;
  const char* message;
};

class RefusedConfig : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfig, NamesTheFieldAndTheWayOut) {
  const auto config = Parse(Config(GetParam().architecture, GetParam().extra));
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidFile);
  EXPECT_THAT(config.status().message(), HasSubstr("dir/config.json"));
  EXPECT_THAT(config.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedConfig,
    ::testing::Values(
        Refusal{"GPT2LMHeadModel", "", "architecture 'GPT2LMHeadModel' is not supported; supported are LlamaForCausalLM"},
        Refusal{"LlamaForCausalLM", R"("hidden_act": "gelu")", "'hidden_act' must be \"silu\""},
        Refusal{"LlamaForCausalLM", R"("final_logit_softcapping": 30.0)", "'final_logit_softcapping' must be absent or null"},
        Refusal{"MistralForCausalLM", R"("attention_bias": true)", "'attention_bias' must be false"},
        Refusal{"LlamaForCausalLM", R"("sliding_window": 128)", "'sliding_window' must be absent or null"},
        Refusal{"LlamaForCausalLM", R"("rope_scaling": {"type": "dynamic", "factor": 2.0})", "linear, llama3, yarn"},
        Refusal{"LlamaForCausalLM", R"("rope_scaling": {"type": "linear"})", "'rope_scaling.factor' must be a number"},
        Refusal{"LlamaForCausalLM", R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})",
                "partial rotation is not implemented"},
        Refusal{"LlamaForCausalLM", R"("quantization_config": {"quant_method": "awq"})", "must be \"fp8\""},
        Refusal{"LlamaForCausalLM", R"("quantization_config": {"quant_method": "mxfp4"})", "in a gpt_oss model"},
        Refusal{"GptOssForCausalLM", R"("num_local_experts": 4, "num_experts_per_tok": 2, "quantization_config": {"quant_method": "awq"})",
                "must be \"fp8\", or \"mxfp4\""},
        Refusal{"GptOssForCausalLM", R"("num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": null)",
                "since layer 0 slides"},
        Refusal{"GptOssForCausalLM", R"("num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "gelu")",
                "'hidden_act' must be \"silu\""},
        Refusal{"LlamaForCausalLM", R"("swiglu_limit": 7.0)", "'swiglu_limit' must be absent or null"},
        Refusal{"LlamaForCausalLM", R"("head_dim": 15)", "head_dim 15 is odd"},
        Refusal{"LlamaForCausalLM", R"("rms_norm_eps": "small")", "'rms_norm_eps' must be a number"},
        Refusal{"LlamaForCausalLM", R"("num_experts": 4)", "'num_experts' must be 0"},
        Refusal{"Qwen2ForCausalLM", R"("layer_types": ["full_attention"])", "one entry for each of 4 layers"},
        Refusal{"Qwen2ForCausalLM", R"("layer_types": ["full_attention", "linear_attention", "full_attention", "full_attention"])",
                "layer_types[1] is \"linear_attention\""},
        Refusal{"Qwen3MoeForCausalLM", R"("num_experts": 4, "num_experts_per_tok": 5, "moe_intermediate_size": 32)",
                "'num_experts_per_tok' must be an integer from 1 to 4"},
        Refusal{"LlamaForCausalLM", R"("tie_word_embeddings": 1)", "'tie_word_embeddings' must be true or false"}));

TEST(Config, ALyingSizeIsRefused) {
  EXPECT_THAT(Parse(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 1152921504606846976})").status().message(),
              HasSubstr("'hidden_size' must be an integer from 1 to"));
  EXPECT_THAT(Parse(R"({"architectures": ["LlamaForCausalLM"]})").status().message(), HasSubstr("got nothing"));
  const std::string heads = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 1,
    "vocab_size": 1, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 3})";
  EXPECT_THAT(Parse(heads).status().message(), HasSubstr("4 query heads are not a multiple of 3"));
}

TEST(Config, DamagedJsonIsAnErrorThatSaysWhere) {
  EXPECT_FALSE(Parse("").ok());
  EXPECT_FALSE(Parse("[]").ok());
  EXPECT_FALSE(Parse("{\"a\": ").ok());
  EXPECT_FALSE(Parse(std::string(1000, '[')).ok());
  EXPECT_FALSE(Parse("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}").ok());
  EXPECT_THAT(Parse(Config("LlamaForCausalLM", R"("vocab_size": 5)")).status().message(), HasSubstr("'vocab_size' stands twice"));
}

TEST(Config, UnknownFieldsAreListedAndNeutralOnesAreNot) {
  const auto config = Parse(Config("LlamaForCausalLM", R"("my_note": 1, "attention_dropout": 0.1, "hidden_act": "silu",
    "quantization_config": null, "layer_types": ["full_attention"], "rope_scaling": null)"));
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->unknown_fields, std::vector<std::string>{"my_note"});
}

TEST(Config, BothSpellingsOfRopeAgree) {
  const auto old_one = Parse(Config("LlamaForCausalLM", R"("rope_theta": 5e5, "max_position_embeddings": 4096,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024})"));
  const auto new_one = Parse(Config("LlamaForCausalLM", R"("max_position_embeddings": 4096, "rope_parameters":
    {"rope_theta": 500000.0, "rope_type": "yarn", "factor": null, "original_max_position_embeddings": 1024, "beta_fast": null})"));
  ASSERT_TRUE(old_one.ok()) << old_one.status().ToString();
  ASSERT_TRUE(new_one.ok()) << new_one.status().ToString();
  EXPECT_EQ(old_one->rope.theta, new_one->rope.theta);
  EXPECT_EQ(old_one->rope.factor, new_one->rope.factor);
  EXPECT_EQ(new_one->rope.beta_fast, 32.0);
}

// As published, with the fields that only other runtimes read.
TEST(Config, GptOssTakesItsClassDefaultsAndItsLayersSlideByTurns) {
  const auto c = Parse(R"({"architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201088,
    "num_hidden_layers": 4, "num_attention_heads": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
    "initial_context_length": 4096, "swiglu_limit": 7.0, "hidden_act": "silu", "rope_theta": 150000,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  EXPECT_TRUE(c->unknown_fields.empty());
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_EQ(c->kv_heads, 8);
  EXPECT_EQ(c->max_positions, 131072);
  EXPECT_EQ(c->norm_eps, 1e-5f);
  EXPECT_EQ(c->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(c->rope.factor, 32.0);
  EXPECT_FALSE(c->rope.truncate);
  EXPECT_TRUE(c->qkv_bias && c->o_bias && c->attention_sinks && c->mxfp4_experts);
  EXPECT_EQ(c->moe.score, GateScore::kChosenSoftmax);
  EXPECT_EQ(c->moe.swiglu_alpha, 1.702f);
  EXPECT_EQ(c->layers[0].window, 128);
  EXPECT_EQ(c->layers[1].window, 0);
  EXPECT_EQ(c->layers[2].window, 128);
}

TEST(Config, EndOfSequenceMayBeOneOrSeveral) {
  EXPECT_EQ(Parse(Config("LlamaForCausalLM", R"("eos_token_id": 2)"))->eos_ids, std::vector<TokenId>{2});
  EXPECT_EQ(Parse(Config("LlamaForCausalLM", R"("eos_token_id": [2, 7])"))->eos_ids, (std::vector<TokenId>{2, 7}));
  EXPECT_TRUE(Parse(Config("LlamaForCausalLM", R"("eos_token_id": null)"))->eos_ids.empty());
  EXPECT_FALSE(Parse(Config("LlamaForCausalLM", R"("eos_token_id": "x")")).ok());
}

TEST(GenerationDefaults, AbsentFieldsStayUnset) {
  const auto d = GenerationDefaultsFromHfText(R"({"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]})", "g.json");
  EXPECT_EQ(d.temperature, 0.6);
  EXPECT_EQ(d.top_k, 20);
  EXPECT_EQ(d.eos_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_LT(d.top_p, 0);
  EXPECT_EQ(d.warning, "");
}

struct AdviceCase {
  const char* field;
  std::vector<const char*> followed, passed_over;  // JSON values
};

TEST(GenerationDefaults, AdviceThatCannotBeFollowedIsNamedAndPassedOver) {
  const auto read = [](const std::string& field, const std::string& value) {
    return GenerationDefaultsFromHfText("{\"" + field + "\": " + value + R"(, "max_length": "x"})",
                                        "g.json");
  };
  const auto number = [](const GenerationDefaults& d, const std::string& field) {
    return field == "temperature"      ? d.temperature
           : field == "top_p"          ? d.top_p
           : field == "min_p"          ? d.min_p
           : field == "top_k"          ? static_cast<double>(d.top_k)
           : field == "max_new_tokens" ? static_cast<double>(d.max_new_tokens)
                                       : d.repetition_penalty;
  };
  const AdviceCase cases[] = {
      {"temperature",
       {"0", "2", "0.7"},
       {"2.5", "-4", "\"0.7\"", "true", "[1]", "{\"a\": 1}", "{}"}},
      {"top_p", {"1", "1e-9"}, {"0", "1.01", "\"1\""}},
      {"min_p", {"0", "1"}, {"-0.1", "2"}},
      {"repetition_penalty",
       {"2.5", "0.1", "1e-37", "3e38"},
       {"0", "-1", "1e-40", "1e39", "\"1.1\""}},
      {"top_k", {"0", "50", "5.0"}, {"-2", "1.5", "\"50\"", "99999999999"}},
      {"max_new_tokens", {"1", "2048"}, {"0", "-1", "\"20\"", "2.5"}},
  };
  for (const AdviceCase& c : cases) {
    for (const char* value : c.followed) {
      const GenerationDefaults d = read(c.field, value);
      EXPECT_EQ(number(d, c.field), std::stod(value)) << c.field << value;
      EXPECT_EQ(d.warning, "") << c.field << value;
    }
    for (const char* value : c.passed_over) {
      const GenerationDefaults d = read(c.field, value);
      EXPECT_LT(number(d, c.field), 0) << c.field << value;
      EXPECT_THAT(d.warning, ::testing::AllOf(HasSubstr("g.json: passed over: "),
                                              HasSubstr(c.field), HasSubstr("is expected")));
    }
    EXPECT_EQ(read(c.field, "null").warning, "");
  }
}

TEST(GenerationDefaults, OneWarningNamesAllAndAnUnreadableFileBlocksNothing) {
  const auto d = GenerationDefaultsFromHfText(
      R"({"temperature": 2.5, "max_new_tokens": 0, "top_k": 7, "eos_token_id": "2", "repetition_penalty": "1\u001b[1m"})",
      "g.json");
  EXPECT_EQ(d.top_k, 7);
  EXPECT_TRUE(d.eos_ids.empty());
  EXPECT_EQ(d.warning,
            "g.json: passed over: temperature 2.5 (a number from 0 to 2 is expected), "
            "repetition_penalty '1\\x1b[1m' (a positive "
            "number that fp32 holds is expected), max_new_tokens 0 (an integer of at least 1 is "
            "expected), eos_token_id '2' (a token "
            "id or a list of them is expected)");
  for (const char* text :
       {"", "{", "[]", "{\"top_k\": NaN}", "{\"top_k\": 1, \"top_k\": 2}", "{\"top_k\": 1e999}"}) {
    const auto damaged = GenerationDefaultsFromHfText(text, "g.json");
    EXPECT_LT(damaged.top_k, 0) << text;
    EXPECT_THAT(damaged.warning, HasSubstr("passed over: g.json: ")) << text;
  }
  EXPECT_THAT(GenerationDefaultsFromHf("/").warning, HasSubstr("passed over: /: "));
}

// A DeepSeek config: fields of `extra` replace those of the base.
std::string Deepseek(const std::string& architecture, const std::map<std::string, std::string>& extra) {
  std::map<std::string, std::string> fields = {
      {"architectures", "[\"" + architecture + "\"]"}, {"hidden_size", "64"}, {"intermediate_size", "128"},
      {"vocab_size", "100"}, {"num_hidden_layers", "4"}, {"num_attention_heads", "6"}, {"num_key_value_heads", "6"},
      {"kv_lora_rank", "24"}, {"q_lora_rank", "null"}, {"qk_nope_head_dim", "12"}, {"qk_rope_head_dim", "8"},
      {"v_head_dim", "10"}, {"moe_intermediate_size", "20"}, {"n_routed_experts", "12"}, {"num_experts_per_tok", "3"},
      {"n_group", "3"}, {"topk_group", "2"}, {"first_k_dense_replace", "1"}};
  for (const auto& [key, value] : extra) fields[key] = value;
  std::string out;
  for (const auto& [key, value] : fields) out += (out.empty() ? "{\"" : ", \"") + key + "\": " + value;
  return out + "}";
}

TEST(DeepseekConfig, ReadsBothSpellings) {
  // As the published files of transformers 4 have it.
  const auto v4 = Parse(Deepseek("DeepseekV3ForCausalLM",
                                 {{"scoring_func", "\"sigmoid\""}, {"topk_method", "\"noaux_tc\""}, {"moe_layer_freq", "1"},
                                  {"ep_size", "1"}, {"rope_theta", "10000"}, {"num_nextn_predict_layers", "1"},
                                  {"rope_scaling", R"({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                                    "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1})"}}));
  ASSERT_TRUE(v4.ok()) << v4.status().ToString();
  EXPECT_TRUE(v4->unknown_fields.empty());
  EXPECT_EQ(v4->kv_heads, 1);
  EXPECT_EQ(v4->head_dim, 20);
  EXPECT_EQ(v4->k_dim(), 32);
  EXPECT_EQ(v4->v_dim(), 24);
  EXPECT_EQ(v4->latent.q_rank, 0);
  EXPECT_EQ(v4->moe.scale, 2.5f);
  EXPECT_TRUE(v4->moe.renormalize);
  EXPECT_FALSE(v4->layers[0].sparse);
  EXPECT_TRUE(v4->layers[1].sparse);
  const auto v5 = Parse(Deepseek("DeepseekV2ForCausalLM", {{"topk_method", "\"group_limited_greedy\""}, {"head_dim", "8"},
                                                           {"qk_head_dim", "20"}, {"n_shared_experts", "null"},
                                                           {"rope_parameters", R"({"rope_type": "default"})"}}));
  ASSERT_TRUE(v5.ok()) << v5.status().ToString();
  EXPECT_EQ(v5->moe.groups, 3);
  EXPECT_EQ(v5->moe.shared_intermediate, 0);
  EXPECT_FALSE(v5->moe.choice_bias);
}

TEST(DeepseekConfig, WhatCannotBeIsRefusedByName) {
  struct Wrong {
    const char *architecture, *key, *value, *message;
  };
  const char *v2 = "DeepseekV2ForCausalLM", *v3 = "DeepseekV3ForCausalLM";
  for (const Wrong& wrong : {
           Wrong{v3, "n_group", "5", "'n_group' must be a divisor of the 12 routed experts"},
           Wrong{v3, "n_group", "12", "'n_group' must be at most 6"},
           Wrong{v3, "topk_group", "4", "'topk_group' must be an integer from 1 to 3"},
           Wrong{v3, "num_experts_per_tok", "9", "'num_experts_per_tok' must be at most 8"},
           Wrong{v3, "topk_method", "\"greedy\"", "'topk_method' must be \"noaux_tc\""},
           Wrong{v3, "scoring_func", "\"softmax\"", "'scoring_func' must be \"sigmoid\""},
           Wrong{v3, "num_key_value_heads", "2", "'num_key_value_heads' must be num_attention_heads, 6"},
           Wrong{v3, "qk_rope_head_dim", "7", "'qk_rope_head_dim' must be even"},
           Wrong{v3, "kv_lora_rank", "0", "'kv_lora_rank' must be an integer"},
           Wrong{v3, "mlp_bias", "true", "'mlp_bias' must be false"},
           Wrong{v2, "topk_method", "\"noaux_tc\"", "\"group_limited_greedy\" in a deepseek_v2 model"},
           Wrong{v2, "topk_method", "null", "'topk_method' must be"},
           Wrong{v2, "num_experts_per_tok", "null", "'num_experts_per_tok' must be an integer"},
           Wrong{v2, "moe_layer_freq", "2", "'moe_layer_freq' must be 1"},
           Wrong{v2, "scoring_func", "\"sigmoid\"", "'scoring_func' must be \"softmax\""},
       }) {
    const auto config = Parse(Deepseek(wrong.architecture, {{wrong.key, wrong.value}}));
    ASSERT_FALSE(config.ok()) << wrong.key << " " << wrong.value;
    EXPECT_THAT(config.status().message(), HasSubstr(wrong.message));
  }
}

// A deepseek2 file; scale empty: the key is absent.
GgufWriter DeepseekFile(std::optional<float> scale) {
  GgufWriter writer;
  const auto number = [&](const std::string& key, uint32_t value) { writer.U32("deepseek2." + key, value); };
  const auto real = [&](const std::string& key, float value) { writer.Value("deepseek2." + key, GgufType::kF32, Le(value)); };
  writer.String("general.architecture", "deepseek2");
  for (const auto& [key, value] : std::map<std::string, uint32_t>{
           {"block_count", 2}, {"context_length", 128}, {"embedding_length", 64}, {"feed_forward_length", 128},
           {"vocab_size", 100}, {"attention.head_count", 4}, {"attention.head_count_kv", 1}, {"attention.kv_lora_rank", 24},
           {"attention.key_length", 32}, {"attention.value_length", 24}, {"attention.key_length_mla", 20},
           {"attention.value_length_mla", 10}, {"rope.dimension_count", 8}, {"leading_dense_block_count", 1},
           {"expert_count", 8}, {"expert_used_count", 2}, {"expert_feed_forward_length", 20}}) {
    number(key, value);
  }
  real("attention.layer_norm_rms_epsilon", 1e-6f);
  if (scale) real("expert_weights_scale", *scale);
  writer.Tensor({.name = "token_embd.weight", .dims = {64, 100}, .data = std::string(64 * 100 * 4, '\0')});
  return writer;
}

TEST(GgufConfig, AScaleOfZeroOrNoneMeansOne) {
  for (const auto& [written, read] : {std::pair<std::optional<float>, float>{0.0f, 1.0f}, {std::nullopt, 1.0f}, {1.0f, 1.0f}, {2.5f, 2.5f}}) {
    const TempDir folder;
    const auto path = folder.Write("model.gguf", DeepseekFile(written).Build());
    const auto store = WeightStore::Open(path);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto config = ConfigFromGguf(**store);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_EQ(config->moe.scale, read);
  }
}

}  // namespace
}  // namespace sixfold

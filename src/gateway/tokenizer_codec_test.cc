// The text module through the gateway's interface, with a tokenizer of one token a byte: where it
// and the test codec must agree they are each other's oracle.
#include "gateway/tokenizer_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "gateway/json_writer.h"
#include "gateway/openai_schema.h"
#include "gateway/testing/byte_codec.h"

namespace sixfold::gateway {
namespace {

using ::testing::HasSubstr;

void AppendCodePoint(int c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

// A byte-level BPE without merges, ids as in ByteCodec. GPT-2 writes bytes that do not print as
// U+0100 and up.
std::unique_ptr<Tokenizer> ByteTokenizer() {
  JsonWriter out;
  out.BeginObject().Key("version").String("1.0").Key("added_tokens").BeginArray();
  for (const TokenId id : {kByteBos, kByteEos, kByteTurn}) {
    out.BeginObject()
        .Key("id")
        .Int(id)
        .Key("content")
        .String(ByteCodec().TokenBytes(id))
        .Key("single_word")
        .Bool(false);
    out.Key("lstrip")
        .Bool(false)
        .Key("rstrip")
        .Bool(false)
        .Key("normalized")
        .Bool(false)
        .Key("special")
        .Bool(true);
    out.EndObject();
  }
  out.EndArray().Key("normalizer").Null();
  const char* level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
  out.Key("pre_tokenizer").Raw(level).Key("post_processor").Null().Key("decoder").Raw(level);
  out.Key("model").BeginObject().Key("type").String("BPE").Key("vocab").BeginObject();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    std::string name;
    AppendCodePoint(prints ? byte : next++, name);
    out.Key(name).Int(byte);
  }
  out.EndObject().Key("merges").BeginArray().EndArray().EndObject().EndObject();
  auto tokenizer = Tokenizer::FromHfJson(out.text());
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.status().message();
    return nullptr;
  }
  return std::move(tokenizer).value();
}

TEST(TokenizerCodec, EncodesAsTheTestCodecDoes) {
  const auto tokenizer = ByteTokenizer();
  ASSERT_TRUE(tokenizer);
  const TokenizerCodec codec(*tokenizer, "");
  const std::string text = "naïve 🙂\n\"x\"";
  EXPECT_EQ(*codec.Encode(text, SpecialTokens::kNone),
            *ByteCodec().Encode(text, SpecialTokens::kNone));
  EXPECT_EQ(*codec.Encode("a<turn>", SpecialTokens::kNone), (std::vector<TokenId>{'a', kByteTurn}));
  EXPECT_FALSE(codec.Encode("\xff", SpecialTokens::kNone).ok());
  for (TokenId id = 0; id < kByteVocab; ++id) {
    EXPECT_EQ(codec.TokenBytes(id), ByteCodec().TokenBytes(id)) << id;
    EXPECT_EQ(codec.IsSpecial(id), id != kByteUnused && ByteCodec().IsSpecial(id)) << id;
  }
}

// Random pieces of a small alphabet, so that characters, broken characters and stop strings all
// occur.
TEST(TokenizerCodec, DecodersAgreeOnRandomStreams) {
  const auto tokenizer = ByteTokenizer();
  ASSERT_TRUE(tokenizer);
  const TokenizerCodec codec(*tokenizer, "");
  const std::string pieces[] = {"a", "b", "c", "é", "🙂", "ab", "日", "\xf0\x9f"};
  int stopped = 0;
  for (uint32_t round = 0; round < 400; ++round) {
    DecoderOptions options{.stop = {"abc", "é🙂", "ca"}};
    if (round % 3 == 1) options.stop_string = DecoderOptions::Stop::kInclude;
    const auto ours = codec.NewDecoder(options), fake = ByteCodec().NewDecoder(options);
    std::string our_text, fake_text, raw;
    bool valid = true;
    for (uint32_t i = 0; i < 12; ++i) {
      const auto random = RandomBits({.seed = 3, .choice = round, .position = i});
      for (const unsigned char byte : pieces[random[0] % std::size(pieces)]) {
        our_text += ours->Push(byte, TextDecoder::StopCheck::kYes);
        fake_text += fake->Push(byte, TextDecoder::StopCheck::kYes);
        raw += static_cast<char>(byte);
      }
    }
    our_text += ours->Finish();
    fake_text += fake->Finish();
    for (size_t at = 0; at < fake_text.size();) {
      const size_t length = Utf8SequenceLength(std::string_view(fake_text).substr(at));
      valid = valid && length > 0;
      at += std::max<size_t>(length, 1);
    }
    // The fake leaves broken characters as they are, so texts are compared where there are none.
    if (!valid) continue;
    EXPECT_EQ(our_text, fake_text) << raw;
    if (fake->stop_string()) {
      ++stopped;
      ASSERT_TRUE(ours->stop_string()) << raw;
      EXPECT_EQ(*ours->stop_string(), *fake->stop_string()) << raw;
    }
  }
  EXPECT_GT(stopped, 100);
}

TEST(TokenizerCodec, RendersTheTemplate) {
  const auto tokenizer = ByteTokenizer();
  ASSERT_TRUE(tokenizer);
  const std::string messages = R"([{"role":"user","content":"hi"}])";
  const TokenizerCodec without(*tokenizer, "");
  EXPECT_THAT(without.RenderChat(messages, "{}", true).status().message(),
              HasSubstr("--chat-template"));
  const TokenizerCodec codec(
      *tokenizer,
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<bot>{% endif %}{{ extra }}"
      "{% if messages[0].content == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}");
  EXPECT_EQ(*codec.RenderChat(messages, R"({"extra":"!"})", true), "<user>hi<bot>!");
  EXPECT_EQ(*codec.RenderChat(messages, "{}", false), "<user>hi");
  const Status refused =
      codec.RenderChat(R"([{"role":"user","content":"bad"}])", "{}", true).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("no bad words"));
}

// From a body to the prompt: what transformers' apply_chat_template writes for these messages.
TEST(TokenizerCodec, KeysRolesAndNullReachTheTemplate) {
  const auto tokenizer = ByteTokenizer();
  ASSERT_TRUE(tokenizer);
  const auto prompt = [&](const std::string& source, const std::string& body) -> std::string {
    auto parsed = ParseApiRequest(Endpoint::kChat, body, {.vocab = kByteVocab});
    if (auto* error = std::get_if<ApiError>(&parsed)) return error->message;
    const auto& request = std::get<ApiRequest>(parsed);
    const TokenizerCodec codec(*tokenizer, source);
    auto text = codec.RenderChat(request.messages_json, request.template_kwargs_json, false);
    if (text.ok()) return *text;
    EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument) << "a 400, not a 500";
    return text.status().message();
  };
  const std::string call =
      R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":)"
      R"({"name":"f","arguments":"{\"zip\":1,\"city\":{\"z\":2,\"a\":3}}"}}]},{"role":"ipython","content":"ok"}],)"
      R"("chat_template_kwargs":{"y":1,"b":2}})";
  EXPECT_EQ(
      prompt("{{ messages[0].tool_calls[0].function.arguments|tojson }}{{ messages[0].content }}"
             "{{ messages[1].role }}{{ {'y': y, 'b': b} }}",
             call),
      R"({"zip": 1, "city": {"z": 2, "a": 3}}Noneipython{'y': 1, 'b': 2})");
  EXPECT_EQ(prompt("{{ messages[0].role + messages[0].content }}", call), "assistant");
  EXPECT_EQ(prompt("{{ messages[1:][::-1][0].content }}{{ messages[2:][::-1] }}", call), "ok[]");
  EXPECT_THAT(prompt("{{ messages[1].content + 1 }}", call), HasSubstr("can only concatenate str"));
}

TEST(TokenizerCodec, ToolsChooseTheTemplateForThem) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("sixfold_tokenizer_codec_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json")
      << R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"x":0},"unk_token":"x"}})";
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"chat_template":[{"name":"default","template":"plain"},)"
      << R"({"name":"tool_use","template":"with {{ tools[0].name }}"}]})";
  const auto tokenizer = Tokenizer::FromHfFolder(folder.string());
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::string messages = R"([{"role":"user","content":"hi"}])";
  const std::string tools = R"({"tools":[{"name":"hammer"}]})";
  const TokenizerCodec own(**tokenizer, "");
  EXPECT_EQ(*own.RenderChat(messages, "{}", true), "plain");
  EXPECT_EQ(*own.RenderChat(messages, R"({"tools":[]})", true), "plain");
  EXPECT_EQ(*own.RenderChat(messages, tools, true), "with hammer");
  EXPECT_EQ(*TokenizerCodec(**tokenizer, "given").RenderChat(messages, tools, true), "given");
}

}  // namespace
}  // namespace sixfold::gateway

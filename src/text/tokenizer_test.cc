#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "text/testing/fixtures.h"

namespace sixfold {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

std::unique_ptr<Tokenizer> TinyBpe() {
  auto made = Tokenizer::FromHfFolder("src/text/testdata/tiny_bpe");
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

Ids IdsOf(const Tokenizer& tokenizer, std::string_view text, AddSpecial add = AddSpecial::kNo,
          ParseSpecial parse = ParseSpecial::kYes) {
  auto ids = tokenizer.Encode(text, add, parse);
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : Ids();
}

TEST(Tokenizer, GivesTheIdsOfHfWithoutTruncationAndPadding) {
  const auto tokenizer = TinyBpe();
  const auto rows = testing::ReadTokenizerRows("tiny_bpe_expected.json");
  ASSERT_GT(rows.size(), 50u);
  for (const auto& row : rows) {
    EXPECT_EQ(IdsOf(*tokenizer, row.text, AddSpecial::kYes), row.ids) << row.text;
    EXPECT_EQ(IdsOf(*tokenizer, row.text), row.plain) << row.text;
    EXPECT_EQ(tokenizer->Decode(row.plain, SkipSpecial::kNo), row.text);
  }
}

TEST(Tokenizer, DecodesAnyIdsAsHfDoes) {
  const auto tokenizer = TinyBpe();
  uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    for (int i = 0; i < 1 + round % 9; ++i) {
      state = state * 1664525u + 1013904223u;
      ids.push_back(static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(tokenizer->vocab_size() + 5)));
    }
    for (const SkipSpecial skip : {SkipSpecial::kNo, SkipSpecial::kYes}) {
      auto want = tokenizer->ReferenceDecode(ids, skip);
      ASSERT_TRUE(want.ok());
      EXPECT_EQ(tokenizer->Decode(ids, skip), *want);
    }
  }
}

TEST(Tokenizer, ReadsOrLeavesSpecialTokensInText) {
  const auto tokenizer = TinyBpe();
  const std::string text = "<|im_start|>hi<tool><|im_end|>";
  const TokenId start = *tokenizer->FindToken("<|im_start|>");
  const TokenId tool = *tokenizer->FindToken("<tool>");
  EXPECT_THAT(IdsOf(*tokenizer, text), ::testing::Contains(start));
  const Ids literal = IdsOf(*tokenizer, text, AddSpecial::kNo, ParseSpecial::kNo);
  EXPECT_THAT(literal, ::testing::Not(::testing::Contains(start)));
  EXPECT_THAT(literal, ::testing::Contains(tool));  // an added token, but not a special one
  EXPECT_EQ(tokenizer->Decode(literal, SkipSpecial::kYes), text);
  EXPECT_EQ(tokenizer->Decode(IdsOf(*tokenizer, text), SkipSpecial::kYes), "hi<tool>");
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = TinyBpe();
  EXPECT_EQ(tokenizer->bos_id(),
            tokenizer->FindToken("</s>"));  // special_tokens_map's, not the config's
  EXPECT_EQ(tokenizer->eos_id(), tokenizer->FindToken("<|im_end|>"));
  EXPECT_EQ(tokenizer->eos_ids(), Ids{*tokenizer->FindToken("<|im_end|>")});
  EXPECT_TRUE(tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(*tokenizer->FindToken("<tool>")));
  const TokenId space_t = *tokenizer->FindToken("Ġt");
  EXPECT_EQ(tokenizer->TokenBytes(space_t), " t");
  EXPECT_EQ(tokenizer->TokenText(space_t), "Ġt");
  for (const TokenId id : {-1, tokenizer->vocab_size(), 1 << 30}) {
    EXPECT_FALSE(tokenizer->HasToken(id));
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    EXPECT_EQ(tokenizer->TokenText(id), "");
  }
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  auto ids = TinyBpe()->Encode("ok \xFF", AddSpecial::kNo);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ids.status().message(), HasSubstr("byte 3"));
}

TEST(Tokenizer, ServesSeveralThreads) {
  const auto tokenizer = TinyBpe();
  const auto rows = testing::ReadTokenizerRows("tiny_bpe_expected.json");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const auto& row : rows) {
        EXPECT_EQ(IdsOf(*tokenizer, row.text), row.plain);
        IdsOf(*tokenizer, row.text, AddSpecial::kYes, ParseSpecial::kNo);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GgufTokenizer, GivesTheIdsOfSentencePiece) {
  for (const char* file : {"tiny_spm_bpe.json", "tiny_spm_unigram.json"}) {
    const auto rows = testing::ReadTokenizerRows(file);
    auto made = Tokenizer::FromGguf(testing::ReadGgufVocab(file));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    ASSERT_GT(rows.size(), 50u);
    for (const auto& row : rows) {
      EXPECT_EQ(IdsOf(**made, row.text), row.ids) << file << ": " << row.text;
      EXPECT_EQ((*made)->Decode(row.ids, SkipSpecial::kNo), row.decoded) << file << ": " << row.text;
    }
  }
}

TEST(GgufTokenizer, SplitsDigitsAsItsPreTokenizerSays) {
  const std::vector<std::string> merges = {"1 2", "12 3"};
  const auto tokens_of = [&](const std::string& pre) {
    auto made = Tokenizer::FromGguf(testing::ByteVocab(pre, merges, {}));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    std::string out;
    for (const TokenId id : IdsOf(**made, "1231")) out += (*made)->TokenText(id) + "|";
    return out;
  };
  EXPECT_EQ(tokens_of("gpt-2"), "123|1|");
  EXPECT_EQ(tokens_of("llama-bpe"), "123|1|");
  EXPECT_EQ(tokens_of("deepseek-v3"), "123|1|");
  EXPECT_EQ(tokens_of("gpt-4o"), "123|1|");
  for (const char* alone : {"smollm", "qwen2", "deepseek-llm", "deepseek-coder", "tekken"}) {
    EXPECT_EQ(tokens_of(alone), "1|2|3|1|") << alone;
  }
}

TEST(GgufTokenizer, AddsBosAndEosAsTheFileSays) {
  GgufVocab vocab = testing::ByteVocab("llama-bpe", {}, {"<bos>", "<eos>", "<eot>"});
  vocab.bos_id = 256;
  vocab.eos_id = 257;
  vocab.eot_id = 258;
  const TokenId a = 'a';
  const auto ids = [&] { return IdsOf(**Tokenizer::FromGguf(vocab), "a", AddSpecial::kYes); };
  EXPECT_EQ(ids(), (Ids{256, a}));  // Llama 3's default
  vocab.add_bos = false;
  vocab.add_eos = true;
  EXPECT_EQ(ids(), (Ids{a, 257}));
  vocab.pre = "qwen2";
  vocab.add_bos.reset();
  vocab.add_eos.reset();
  EXPECT_EQ(ids(), (Ids{a}));
  auto made = Tokenizer::FromGguf(vocab);
  EXPECT_EQ((*made)->eos_ids(), (Ids{257, 258}));
  EXPECT_EQ(IdsOf(**made, "<eot>a"), (Ids{258, a}));
}

TEST(GgufTokenizer, SaysWhatIsWrong) {
  const auto message = [](const GgufVocab& vocab) {
    auto made = Tokenizer::FromGguf(vocab);
    EXPECT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidFile);
    return made.ok() ? "" : made.status().message();
  };
  const GgufVocab good = testing::ByteVocab("gpt-2", {"a b"}, {"<s>"});
  GgufVocab bad = good;
  bad.pre = "viking";
  EXPECT_THAT(message(bad), ::testing::AllOf(HasSubstr("'viking'"), HasSubstr("llama-bpe"), HasSubstr("smollm")));
  bad = good;
  bad.model = "rwkv";
  EXPECT_THAT(message(bad), HasSubstr("'rwkv'"));
  bad = good;
  bad.merges.push_back("ab");
  EXPECT_THAT(message(bad), HasSubstr("merge 1"));
  bad = good;
  bad.merges.push_back("xx yy");
  EXPECT_THAT(message(bad), HasSubstr("xx"));
  bad = good;
  bad.token_types.pop_back();
  EXPECT_THAT(message(bad), HasSubstr("token types"));
  bad = good;
  bad.tokens[7] = "\xFF";
  EXPECT_THAT(message(bad), HasSubstr("token 7"));
  bad = good;
  bad.tokens[7] = std::string(2000, 'x');
  EXPECT_THAT(message(bad), HasSubstr("token 7"));
  bad = good;
  bad.unk_id = 1 << 20;
  EXPECT_THAT(message(bad), HasSubstr("1048576"));
  EXPECT_THAT(message(GgufVocab{.model = "gpt2"}), HasSubstr("0 tokens"));
}

TEST(GgufTokenizer, IsRefusedWithoutWhatDecidesIds) {
  const auto message = [](const GgufVocab& vocab) {
    auto made = Tokenizer::FromGguf(vocab);
    EXPECT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidFile);
    return made.ok() ? "" : made.status().message();
  };
  const auto names = [](const char* key) {
    return ::testing::AllOf(HasSubstr(key), HasSubstr("missing"), HasSubstr("--tokenizer"));
  };
  GgufVocab bytes = testing::ByteVocab("gpt-2", {"a b"}, {"<s>"});
  bytes.merges.clear();
  EXPECT_THAT(message(bytes), names("tokenizer.ggml.merges"));
  bytes = testing::ByteVocab("gpt-2", {"a b"}, {"<s>"});
  bytes.token_types.clear();
  EXPECT_THAT(message(bytes), names("tokenizer.ggml.token_type"));
  bytes = testing::ByteVocab("gpt-2", {"a b"}, {"<s>"});
  bytes.add_bos = true;
  EXPECT_THAT(message(bytes), names("tokenizer.ggml.bos_token_id"));
  bytes.add_bos.reset();
  bytes.add_eos = true;
  EXPECT_THAT(message(bytes), names("tokenizer.ggml.eos_token_id"));
  for (const char* file : {"tiny_spm_bpe.json", "tiny_spm_unigram.json"}) {
    const GgufVocab good = testing::ReadGgufVocab(file);
    GgufVocab bad = good;
    bad.scores.clear();
    EXPECT_THAT(message(bad), names("tokenizer.ggml.scores")) << file;
    bad = good;
    bad.token_types.clear();
    EXPECT_THAT(message(bad), names("tokenizer.ggml.token_type")) << file;
    // Neither bytes nor an unknown token: what has no token of its own would vanish.
    bad = good;
    bad.unk_id.reset();
    for (size_t i = 0; i < bad.tokens.size(); ++i) {
      if (bad.tokens[i].rfind("<0x", 0) == 0) bad.tokens[i] = "gone" + std::to_string(i);
      if (bad.token_types[i] == 6 || bad.token_types[i] == 2) bad.token_types[i] = 5;
    }
    EXPECT_THAT(message(bad), names("tokenizer.ggml.unknown_token_id")) << file;
  }
}

TEST(GgufTokenizer, WarnsOnceOfWhatHadToBeGuessed) {
  GgufVocab vocab = testing::ByteVocab("", {"a b"}, {"<s>"});
  auto made = Tokenizer::FromGguf(vocab);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_THAT((*made)->warnings(),
              ::testing::ElementsAre(HasSubstr("tokenizer.ggml.pre is missing")));
  vocab.pre = "gpt-2";
  EXPECT_TRUE((*Tokenizer::FromGguf(vocab))->warnings().empty());
  vocab = testing::ReadGgufVocab("tiny_spm_bpe.json");
  EXPECT_TRUE((*Tokenizer::FromGguf(vocab))->warnings().empty());
  vocab.bos_id.reset();
  vocab.add_bos.reset();
  EXPECT_THAT((*Tokenizer::FromGguf(vocab))->warnings(),
              ::testing::ElementsAre(HasSubstr("tokenizer.ggml.bos_token_id")));
}

// A vocabulary of single bytes has nothing to merge.
TEST(GgufTokenizer, NeedsNoMergesWhereNoTokenIsMadeOfOthers) {
  EXPECT_TRUE(Tokenizer::FromGguf(testing::ByteVocab("gpt-2", {}, {"<s>"})).ok());
}

// Each was refused with a reason, not a crash; the sizes are those that a damaged or hostile file might claim.
TEST(HostileTokenizerJson, IsRefused) {
  const std::string model = R"("model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]})";
  const auto with = [&](const std::string& more) { return R"({"version":"1.0",)" + more + model + "}"; };
  std::string doubling;
  for (int i = 0; i < 60; ++i) {
    doubling += std::string(i == 0 ? "" : ",") + R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  }
  const std::vector<std::string> files = {
      "", "{", "null", "[]", "\"x\"", std::string(10 << 20, '['), std::string(10 << 20, 'x'), std::string(1000, '{'),
      R"({"model":)" + std::string(5000, '[') + std::string(5000, ']') + "}",
      R"({"model":{"type":"BPE","vocab":{"a":4294967295},"merges":[]}})",
      R"({"model":{"type":"BPE","vocab":{"a":1152921504606846976},"merges":[]}})",
      R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})",
      R"({"model":{"type":"BPE","vocab":{"a":"0"},"merges":[]}})",
      R"({"model":{"type":"BPE","vocab":{"\ud800":0},"merges":[]}})",
      R"({"model":{"type":"BPE","vocab":{},"merges":[]}})",
      R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","z"]]}})",
      R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[5]}})",
      R"({"model":{"type":"Unigram","vocab":[["a",0.0]],"unk_id":9}})",
      R"({"model":{"type":"Nonsense"}})",
      with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated","invert":false},)"),
      with(R"("decoder":{"type":"CTC","pad_token":"a","word_delimiter_token":"|","cleanup":true},)"),
      with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"!!"},)"),
      with(R"("normalizer":{"type":"Sequence","normalizers":[)" + doubling + "]},"),
      with(R"("added_tokens":7,)"),
  };
  for (const std::string& file : files) {
    auto made = Tokenizer::FromHfJson(file);
    ASSERT_FALSE(made.ok()) << file.substr(0, 200);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidFile) << file.substr(0, 200);
    EXPECT_FALSE(made.status().message().empty());
  }
}

TEST(HostileTokenizerJson, MayFailWhenUsedButNotCrash) {
  // A pattern that backtracks for ever on this text: the regex engine gives up.
  const std::string json =
      R"({"version":"1.0","pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a*)*(a*)*(a*)*b"},"behavior":"Isolated",)"
      R"("invert":false},"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})";
  auto made = Tokenizer::FromHfJson(json);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  (void)(*made)->Encode(std::string(200, 'a') + "c", AddSpecial::kNo);
}

}  // namespace
}  // namespace sixfold

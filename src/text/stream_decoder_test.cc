#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/testing/fixtures.h"

namespace sixfold {
namespace {

using Ids = std::vector<TokenId>;

// One token a byte, and two special tokens.
class ByteStream : public ::testing::Test {
 protected:
  ByteStream() {
    auto made = Tokenizer::FromGguf(testing::ByteVocab("gpt-2", {}, {"<s>", "</s>"}));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    tokenizer_ = std::move(made).value();
  }

  static Ids BytesOf(std::string_view text) {
    Ids ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  // The deltas of a stream over one token a byte.
  std::vector<std::string> Deltas(std::string_view text, StreamOptions options, StreamDecoder** kept = nullptr) {
    decoder_ = std::make_unique<StreamDecoder>(tokenizer_.get(), std::move(options));
    std::vector<std::string> deltas;
    for (const TokenId id : BytesOf(text)) decoder_->Append(id, &deltas.emplace_back());
    decoder_->Finish(&deltas.emplace_back());
    if (kept != nullptr) *kept = decoder_.get();
    return deltas;
  }

  static std::string Join(const std::vector<std::string>& parts) {
    std::string all;
    for (const std::string& part : parts) all += part;
    return all;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<StreamDecoder> decoder_;
};

TEST_F(ByteStream, ShowsACharacterOnlyWhenItIsWhole) {
  const auto deltas = Deltas("a\xF0\x9F\x9A\x80" "b", {});
  EXPECT_EQ(deltas, (std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x9A\x80", "b", ""}));
}

TEST_F(ByteStream, ReplacesBytesOnceTheyAreCertainlyWrong) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(Deltas("\xE2\x82" "b\xE2", {}), (std::vector<std::string>{"", "", r + "b", "", r}));
}

TEST_F(ByteStream, HoldsBackOnlyWhatAStopStringCouldNeed) {
  StreamDecoder* decoder = nullptr;
  const auto deltas = Deltas("ab\n\nUse", {.stop = {"\n\nUser:"}}, &decoder);
  EXPECT_EQ(deltas, (std::vector<std::string>{"a", "b", "", "", "", "", "", "\n\nUse"}));
  EXPECT_FALSE(decoder->stopped());
  EXPECT_EQ(Deltas("aab", {.stop = {"ac"}}), (std::vector<std::string>{"", "a", "ab", ""}));
}

TEST_F(ByteStream, EndsAtTheFirstStopString) {
  StreamDecoder* decoder = nullptr;
  EXPECT_EQ(Join(Deltas("one STOP two", {.stop = {"two", "STOP"}}, &decoder)), "one ");
  ASSERT_TRUE(decoder->stopped());
  EXPECT_EQ(*decoder->stop_string(), "STOP");
  std::string more;
  decoder->Append('x', &more);
  EXPECT_EQ(more, "");
  EXPECT_EQ(Join(Deltas("one STOP two", {.stop = {"STOP"}, .include_stop = IncludeStop::kYes})), "one STOP");
  // Two that end at the same character: the longer one began first.
  EXPECT_EQ(Join(Deltas("xabc", {.stop = {"bc", "abc"}})), "x");
  EXPECT_EQ(Join(Deltas("abc", {.stop = {""}})), "abc");
  EXPECT_EQ(Join(Deltas("aaab", {.stop = {"aab"}})), "a");
}

TEST_F(ByteStream, StopStringsMayHoldReplacedBytes) {
  StreamDecoder* decoder = nullptr;
  EXPECT_EQ(Join(Deltas("a\xE2", {.stop = {std::string(kReplacementCharacter)}}, &decoder)), "a");
  EXPECT_TRUE(decoder->stopped());
}

TEST_F(ByteStream, IgnoresStopStringsWhileToldTo) {
  StreamDecoder decoder(tokenizer_.get(), {.stop = {"ab"}});
  std::string text;
  for (const char c : std::string("abab")) {
    decoder.Append(c, &text, text.size() < 2 ? StopCheck::kNo : StopCheck::kYes);
  }
  EXPECT_EQ(text, "ab");
  EXPECT_TRUE(decoder.stopped());
}

TEST_F(ByteStream, LeavesSpecialTokensOutIfAsked) {
  const TokenId bos = *tokenizer_->FindToken("<s>");
  for (const SkipSpecial skip : {SkipSpecial::kYes, SkipSpecial::kNo}) {
    StreamDecoder decoder(tokenizer_.get(), {.skip_special = skip, .stop = {}});
    std::string text;
    for (const TokenId id : {bos, TokenId{'a'}, TokenId{-1}, TokenId{1 << 29}}) decoder.Append(id, &text);
    decoder.Finish(&text);
    EXPECT_EQ(text, skip == SkipSpecial::kYes ? "a" : "<s>a");
  }
}

// The deltas add up to Decode, for every kind of decoder and any ids.
TEST(StreamDecoder, DeltasAddUpToTheDecodedText) {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (const char* file : {"tiny_spm_bpe.json", "tiny_spm_unigram.json"}) {
    tokenizers.push_back(Tokenizer::FromGguf(testing::ReadGgufVocab(file)).value());
  }
  tokenizers.push_back(Tokenizer::FromHfFolder("src/text/testdata/tiny_bpe").value());
  for (const char* decoder :
       {R"({"type":"WordPiece","prefix":"##","cleanup":true})", "null",
        R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true})"}) {
    const std::string json = R"({"version":"1.0","decoder":)" + std::string(decoder) +
                             R"(,"model":{"type":"WordLevel","vocab":{"▁a":0,"##b":1,"▁":2,"c":3,".":4,"n't":5},"unk_token":"c"}})";
    auto made = Tokenizer::FromHfJson(json);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    tokenizers.push_back(std::move(made).value());
  }
  uint32_t state = 9;
  for (const auto& tokenizer : tokenizers) {
    for (int round = 0; round < 200; ++round) {
      Ids ids;
      for (int i = 0; i < 1 + round % 13; ++i) {
        state = state * 1664525u + 1013904223u;
        ids.push_back(static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(tokenizer->vocab_size())));
      }
      StreamDecoder decoder(tokenizer.get(), {.skip_special = SkipSpecial::kNo, .stop = {}});
      std::string text;
      for (const TokenId id : ids) {
        decoder.Append(id, &text);
        EXPECT_TRUE(IsValidUtf8(text));
      }
      decoder.Finish(&text);
      EXPECT_EQ(text, tokenizer->Decode(ids, SkipSpecial::kNo));
      // HF spoils valid characters beside invalid byte tokens (ByteFallback); elsewhere its text is ours.
      if (tokenizer->utf8_repair() == Utf8Repair::kPerPart) {
        EXPECT_EQ(text, *tokenizer->ReferenceDecode(ids, SkipSpecial::kNo));
      }
    }
  }
}

}  // namespace
}  // namespace sixfold

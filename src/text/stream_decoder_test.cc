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

TEST_F(ByteStream, FindsStopStringsInSpecialTokensThatAreLeftOut) {
  const TokenId bos = *tokenizer_->FindToken("<s>"), eos = *tokenizer_->FindToken("</s>");
  struct Case {
    std::string stop;
    Ids ids;
    std::string shown, left_in;  // texts with special tokens left out, and with them
  };
  const Case cases[] = {
      {"<s>", {'a', bos, 'b'}, "a", "a"},
      {"a<s>", {'x', 'a', bos, 'b'}, "x", "x"},  // over the borders of tokens
      {"<s>b", {'x', bos, 'b', 'c'}, "x", "x"},
      {"<s></s>", {'x', bos, bos, eos, 'c'}, "x", "x<s>"},
      {"s>b", {'x', bos, 'b', 'c'}, "x", "x<"},  // begins inside a special token
      {"a<", {'x', 'a', bos, 'c'}, "x", "x"},    // ends inside one
      {"<s>", {bos}, "", ""},
      {"ab", {'x', 'a', bos, 'b', 'c'}, "x", "xa<s>bc"},  // only in the text as it is shown
  };
  for (const Case& c : cases) {
    for (const SkipSpecial skip : {SkipSpecial::kYes, SkipSpecial::kNo}) {
      for (const IncludeStop include : {IncludeStop::kNo, IncludeStop::kYes}) {
        StreamDecoder decoder(
            tokenizer_.get(),
            {.skip_special = skip, .stop = {"zzz", c.stop}, .include_stop = include});
        std::string text;
        for (const TokenId id : c.ids) decoder.Append(id, &text);
        decoder.Finish(&text);
        const bool found = skip == SkipSpecial::kYes || c.stop != "ab";
        EXPECT_EQ(decoder.stopped(), found) << c.stop;
        EXPECT_EQ(text, (skip == SkipSpecial::kYes ? c.shown : c.left_in) +
                            (found && include == IncludeStop::kYes ? c.stop : ""));
        if (found && decoder.stopped()) {
          EXPECT_EQ(*decoder.stop_string(), c.stop);
        }
      }
    }
  }
}

TEST_F(ByteStream, AStopStringMayBeginBeforeTheTokensThatCount) {
  for (const std::string stop : {"ab", "a<s>"}) {
    const TokenId last = stop == "ab" ? TokenId{'b'} : *tokenizer_->FindToken("<s>");
    StreamDecoder decoder(tokenizer_.get(), {.stop = {stop}});
    std::string text;
    decoder.Append('a', &text, StopCheck::kNo);
    decoder.Append(last, &text, StopCheck::kNo);  // whole, but it does not count yet
    decoder.Append('a', &text, StopCheck::kNo);
    EXPECT_FALSE(decoder.stopped());
    const std::string before = text;
    decoder.Append(last, &text);
    EXPECT_TRUE(decoder.stopped());
    EXPECT_EQ(text, stop == "ab" ? "ab" : "a");
    EXPECT_EQ(text, before);
  }
}

// Hidden tokens without end, which a client can ask for by logit_bias, cost no more than others.
TEST_F(ByteStream, KeepsNoMoreThanAStopStringOfHiddenTokens) {
  const TokenId bos = *tokenizer_->FindToken("<s>");
  StopSearch search;
  const std::vector<std::string> stop = {"a<s>b<s>c"};
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(search.Append(stop, i % 5 == 0 ? "a" : "<s>", StopCheck::kYes));
    EXPECT_LT(search.size() - search.tail_begin(), 9);
  }
  StreamDecoder decoder(tokenizer_.get(), {.stop = stop});
  std::string text;
  decoder.Append('a', &text);
  EXPECT_EQ(text, "");
  decoder.Append(bos, &text);
  EXPECT_EQ(text, "");
  decoder.Append('c', &text);
  EXPECT_EQ(text, "ac");  // as soon as no stop string can come of it
}

// What StreamDecoder does, on whole texts: after each token, the match in the new piece that ends
// first, then the longest.
struct Reference {
  std::string shown, written;
  std::vector<size_t> shown_before;  // [bytes of written]
  std::optional<std::string> stop;

  void Append(std::string_view piece, bool hidden, const std::vector<std::string>& stops,
              bool counts) {
    if (stop) return;
    for (size_t i = 0; i < piece.size(); ++i)
      shown_before.push_back(shown.size() + (hidden ? 0 : i));
    written += piece;
    if (!hidden) shown += piece;
    for (size_t left = piece.size(); counts && left-- > 0;) {
      std::optional<size_t> cut;
      for (const std::string& s : stops) {
        const auto try_at = [&](const std::string& text, auto place) {
          if (text.size() - left < s.size() ||
              text.compare(text.size() - left - s.size(), s.size(), s) != 0)
            return;
          const size_t begin = place(text.size() - left - s.size());
          if (cut && (begin > *cut || (begin == *cut && s.size() <= stop->size()))) return;
          cut = begin;
          stop = s;
        };
        try_at(written, [&](size_t at) { return shown_before[at]; });
        if (!hidden) try_at(shown, [](size_t at) { return at; });
      }
      if (!cut) continue;
      shown.resize(*cut);
      return;
    }
  }
};

TEST_F(ByteStream, AgreesWithASearchOfWholeTexts) {
  const Ids alphabet = {
      'a', 'b', '<', 's', '>', *tokenizer_->FindToken("<s>"), *tokenizer_->FindToken("</s>")};
  const std::vector<std::string> pool = {"ab",  "b<s>",  "<s>a",   "s>", "<s></s>", "a<s>b",
                                         "aab", "</s>b", "aa</s>", "<<", "ba<"};
  uint32_t state = 7;
  const auto draw = [&](size_t below) {
    return (state = state * 1664525u + 1013904223u, (state >> 8) % below);
  };
  int stopped = 0;
  for (int round = 0; round < 5000; ++round) {
    StreamOptions options{.skip_special = draw(3) == 0 ? SkipSpecial::kNo : SkipSpecial::kYes};
    for (size_t i = draw(3) + 1; i > 0; --i) options.stop.push_back(pool[draw(pool.size())]);
    options.include_stop = draw(2) == 0 ? IncludeStop::kNo : IncludeStop::kYes;
    const size_t min_tokens = draw(2) == 0 ? 0 : draw(6);
    StreamDecoder decoder(tokenizer_.get(), options);
    Reference reference;
    std::string text, ids;
    for (size_t i = 1; i <= 12; ++i) {
      const TokenId id = alphabet[draw(alphabet.size())];
      ids += std::to_string(id) + " ";
      const bool counts = i >= min_tokens;
      decoder.Append(id, &text, counts ? StopCheck::kYes : StopCheck::kNo);
      const bool hidden = tokenizer_->IsSpecial(id) && options.skip_special == SkipSpecial::kYes;
      reference.Append(tokenizer_->TokenBytes(id), hidden, options.stop, counts);
      ASSERT_EQ(decoder.stopped(), reference.stop.has_value()) << ids << options.stop[0];
    }
    decoder.Finish(&text);
    ASSERT_EQ(decoder.stopped(), reference.stop.has_value()) << ids;
    if (reference.stop) {
      ++stopped;
      ASSERT_EQ(*decoder.stop_string(), *reference.stop) << ids;
      if (options.include_stop == IncludeStop::kYes) reference.shown += *reference.stop;
    }
    ASSERT_EQ(text, reference.shown) << ids << options.stop[0];
  }
  EXPECT_GT(stopped, 1000);
  EXPECT_LT(stopped, 4900);
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

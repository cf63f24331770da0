#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sixfold {
namespace {

TEST(Utf8, KnowsTheStandardsBorders) {
  for (const char* good : {"", "a", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2 ", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xEF\xBF",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
  EXPECT_EQ(ValidUtf8Prefix("ab\xC3\xA9\xFF"), 4u);
}

// Expected texts were made with bytes.decode("utf-8", "replace") of Python 3.11.
TEST(Utf8, ReplacesWhatPythonReplaces) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(ReplaceInvalidUtf8("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82"), r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82x"), r + "x");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98\xE2\x82\xAC"), r + "\xE2\x82\xAC");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF1\x80\x80\xE1\x80\xC2" "b\x80" "c\x80\xBF" "d"),
            r + r + r + "b" + r + "c" + r + r + "d");
}

TEST(Utf8Stream, GivesTheSameTextForEveryCut) {
  const std::string bytes = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x80\xFF\xE2\x82" "b\xF0\x9F\xF0\x9F\x9A\x80\xED\xA0\x80\xE2";
  for (const Utf8Repair repair : {Utf8Repair::kPerPart, Utf8Repair::kPerByte}) {
    std::string whole;
    Utf8Stream once(repair);
    once.Append(bytes, &whole);
    once.Finish(&whole);
    EXPECT_TRUE(IsValidUtf8(whole));
    for (size_t first = 0; first <= bytes.size(); ++first) {
      for (size_t second = first; second <= bytes.size(); ++second) {
        std::string text;
        Utf8Stream stream(repair);
        for (const auto& [from, to] : {std::pair{size_t{0}, first}, {first, second}, {second, bytes.size()}}) {
          stream.Append(std::string_view(bytes).substr(from, to - from), &text);
          EXPECT_TRUE(IsValidUtf8(text));
        }
        stream.Finish(&text);
        EXPECT_EQ(text, whole) << first << " " << second;
      }
    }
  }
}

TEST(Utf8Stream, WritesOneReplacementForEachByteWhereAskedTo) {
  std::string text;
  Utf8Stream stream(Utf8Repair::kPerByte);
  stream.Append("\xE2\x82 \xE2\x82", &text);
  stream.Finish(&text);
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(text, r + r + " " + r + r);
}

}  // namespace
}  // namespace sixfold

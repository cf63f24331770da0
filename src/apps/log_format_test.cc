#include "apps/log_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace sixfold::apps {
namespace {

using Json = nlohmann::json;
using ::testing::MatchesRegex;

// Texts by which a client could try to write lines of its own, or to steer a terminal.
const std::string kHostile[] = {
    "a\n2026-01-01T00:00:00.000Z error   forged",
    "\r\x1b[2J\x07",
    "a b=c \"d\" \\",
    std::string("nul\0nul", 7),
    "\xc2\x85\xe2\x80\xa8\xe2\x80\xae",  // next line, line separator, right-to-left override
    "\xff\xfe half \xe2\x82",
    "\x7f",
    "",
};

TEST(LogFormat, NothingInAValueLeavesIt) {
  for (const std::string& text : kHostile) {
    const LogLine line{.event = "request", .fields = {{"id", text}, {"status", int64_t{200}}}};
    const std::string json = "{" + LogJson(line);
    const Json parsed = Json::parse(json);
    EXPECT_EQ(parsed["status"], 200);
    EXPECT_EQ(parsed.size(), 3u);
    if (text.find('\xff') == std::string::npos) {
      EXPECT_EQ(parsed["id"], text);
    }
    const std::string words = LogText(line);
    EXPECT_THAT(words, MatchesRegex("request id=\".*\" status=200"));
    for (const std::string& out : {json, words}) {
      for (const char c : out) EXPECT_TRUE(c >= ' ' && c <= '~') << out;
    }
    // Quotes end where the value does: what is between them is one JSON string.
    const size_t end = words.rfind(" status=");
    const std::string quoted = words.substr(11, end - 11);
    EXPECT_EQ(Json::parse(quoted), parsed["id"]);
  }
}

TEST(LogFormat, AMessageIsEscapedToo) {
  const LogLine line{.event = "failure", .message = "rank 1: \"x\"\nforged \xe2\x80\xa8"};
  EXPECT_EQ(LogText(line), "rank 1: \\\"x\\\"\\nforged \\u2028");
  EXPECT_EQ(Json::parse("{" + LogJson(line))["message"], line.message);
}

TEST(LogFormat, LongTextsAreCutAndNumbersAreNumbers) {
  const LogLine line{.event = "e",
                     .fields = {{"long", std::string(1 << 20, 'x')},
                                {"ms", 1.25},
                                {"n", int64_t{-3}},
                                {"yes", true},
                                {"nan", std::nan("")}}};
  const Json parsed = Json::parse("{" + LogJson(line));
  EXPECT_EQ(parsed["long"], std::string(kLogTextBytesMax, 'x') + "...");
  EXPECT_EQ(parsed["ms"], 1.25);
  EXPECT_EQ(parsed["n"], -3);
  EXPECT_EQ(parsed["yes"], true);
  EXPECT_TRUE(parsed["nan"].is_null());
  EXPECT_LT(LogText(line).size(), kLogTextBytesMax + 100);
}

}  // namespace
}  // namespace sixfold::apps

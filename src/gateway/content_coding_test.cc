// Compressed bodies. What CPython's gzip and zlib make is the reference, here as bytes and in
// tests/clients/test_wire.py at run time; damage and bombs are made with zlib.
#include "gateway/content_coding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Codings = std::vector<ContentCoding>;

constexpr int kGzip = 31, kZlib = 15, kBare = -15;  // windowBits
constexpr int64_t kMax = 1 << 20;
const std::string kPlain = R"({"prompt":"p"})";

std::string Bytes(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

std::string Deflated(const std::string& plain, int window) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, plain.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Plain(const Codings& codings, const std::string& body, int64_t bytes_max = kMax) {
  auto decoded = DecodeContent(codings, body, bytes_max);
  if (const auto* error = std::get_if<ApiError>(&decoded))
    return std::to_string(error->status) + " " + error->message;
  return std::get<std::string>(decoded);
}

Codings Parsed(std::string_view header) {
  auto codings = ParseContentCodings(header);
  EXPECT_TRUE(std::holds_alternative<Codings>(codings)) << header;
  return std::get<Codings>(codings);
}

TEST(ContentCoding, TheHeaderIsAListOfNamesInAnyCase) {
  EXPECT_THAT(Parsed(""), IsEmpty());
  EXPECT_THAT(Parsed(" , identity,,IDENTITY"), IsEmpty());
  EXPECT_THAT(Parsed("gzip"), ElementsAre(ContentCoding::kGzip));
  EXPECT_THAT(Parsed("\tX-GZip "), ElementsAre(ContentCoding::kGzip));
  EXPECT_THAT(Parsed("Deflate, identity ,gzip"),
              ElementsAre(ContentCoding::kDeflate, ContentCoding::kGzip));
  for (const char* header :
       {"br", "zstd", "gzip, br", "compress", "gzip;q=1", "chunked", "gzip,gzip,gzip,gzip,gzip"}) {
    auto codings = ParseContentCodings(header);
    ASSERT_TRUE(std::holds_alternative<ApiError>(codings)) << header;
    EXPECT_EQ(std::get<ApiError>(codings).status, 415);
    EXPECT_EQ(std::get<ApiError>(codings).code, "unsupported_content_encoding");
  }
}

TEST(ContentCoding, WhatPythonCompressesComesBack) {
  const std::string deflated = "ab562a28cacf2d2851b2522a50aa0500";
  const std::string gzip = Bytes("1f8b0800000000000203" + deflated + "ef79446a0e000000");
  EXPECT_EQ(Plain({ContentCoding::kGzip}, gzip), kPlain);
  EXPECT_EQ(Plain({ContentCoding::kDeflate}, Bytes("789c" + deflated + "260604cd")), kPlain);
  EXPECT_EQ(Plain({ContentCoding::kDeflate}, Bytes(deflated)), kPlain);
  EXPECT_EQ(Plain({}, gzip), gzip);
  EXPECT_EQ(Plain({ContentCoding::kGzip}, ""), "");
}

// Two stored blocks whose first bytes, 78 01, are also a correct zlib header.
TEST(ContentCoding, ABareStreamThatLooksWrappedIsReadAsBare) {
  EXPECT_EQ(Plain({ContentCoding::kDeflate}, Bytes("780100feff78010100feff79")), "xy");
}

TEST(ContentCoding, SeveralMembersAndSeveralCodings) {
  EXPECT_EQ(Plain({ContentCoding::kGzip},
                  Deflated("one ", kGzip) + Deflated("", kGzip) + Deflated("two", kGzip)),
            "one two");
  EXPECT_EQ(Plain({ContentCoding::kDeflate, ContentCoding::kGzip},
                  Deflated(Deflated(kPlain, kZlib), kGzip)),
            kPlain);
  EXPECT_EQ(Plain({ContentCoding::kGzip, ContentCoding::kDeflate},
                  Deflated(Deflated(kPlain, kGzip), kBare)),
            kPlain);
}

TEST(ContentCoding, DamageIsNamed) {
  for (const int window : {kGzip, kZlib, kBare}) {
    const Codings codings{window == kGzip ? ContentCoding::kGzip : ContentCoding::kDeflate};
    const std::string whole = Deflated(kPlain + std::string(50'000, 'x') + kPlain, window);
    for (size_t length = 1; length < whole.size(); ++length) {
      EXPECT_THAT(Plain(codings, whole.substr(0, length)), HasSubstr("400 ")) << window << length;
    }
    EXPECT_THAT(Plain(codings, whole.substr(0, whole.size() - 1)), HasSubstr("ends too early"));
    EXPECT_THAT(Plain(codings, whole + "tail"), HasSubstr("400 ")) << window;
    EXPECT_THAT(Plain(codings, kPlain), HasSubstr("400 ")) << "not compressed at all";
  }
  std::string wrong_sum = Deflated(kPlain, kGzip);
  wrong_sum[wrong_sum.size() - 6] ^= 1;
  EXPECT_THAT(Plain({ContentCoding::kGzip}, wrong_sum), HasSubstr("incorrect data check"));
  wrong_sum = Deflated(kPlain, kZlib);
  wrong_sum.back() ^= 1;
  EXPECT_THAT(Plain({ContentCoding::kDeflate}, wrong_sum), HasSubstr("incorrect data check"));
  EXPECT_THAT(Plain({ContentCoding::kDeflate}, Deflated(kPlain, kZlib) + "tail"),
              HasSubstr("4 bytes follow its end"));
}

TEST(ContentCoding, NoStageGrowsBeyondTheLimit) {
  const std::string zeros(8 << 20, '\0');
  for (const int window : {kGzip, kZlib, kBare}) {
    const Codings codings{window == kGzip ? ContentCoding::kGzip : ContentCoding::kDeflate};
    const std::string bomb = Deflated(zeros, window);
    ASSERT_LT(bomb.size(), 20'000u);
    EXPECT_EQ(Plain(codings, bomb, 8 << 20), zeros);
    EXPECT_THAT(Plain(codings, bomb, (8 << 20) - 1), HasSubstr("413 "));
    EXPECT_THAT(Plain(codings, bomb), HasSubstr("limit of 1048576 bytes"));
  }
  // The inner stage alone is too large; what it would give is small.
  const std::string twice = Deflated(Deflated(zeros, kGzip) + Deflated(zeros, kGzip), kGzip);
  EXPECT_THAT(Plain({ContentCoding::kGzip, ContentCoding::kGzip}, twice), HasSubstr("413 "));
  std::string members;
  while (members.size() < kMax / 2) members += Deflated(std::string(1000, 'x'), kGzip);
  EXPECT_THAT(Plain({ContentCoding::kGzip}, members), HasSubstr("413 "));
}

TEST(ContentCoding, TheServerDecodesBodiesAndRefusesOthers) {
  TestServer under(SayText("hello"), {.http = {.max_body_bytes = 1 << 20}});
  const auto post = [&](const std::string& body, const std::string& coding) {
    return under.Post("/v1/completions", body, "Content-Encoding: " + coding + "\r\n");
  };
  EXPECT_EQ(post(Deflated(kPlain, kGzip), "gzip").status, 200);
  EXPECT_EQ(post(Deflated(kPlain, kZlib), "deflate").status, 200);
  EXPECT_EQ(post(kPlain, "identity").status, 200);
  EXPECT_EQ(
      post(Deflated(Deflated(kPlain, kZlib), kGzip), "deflate\r\ncontent-encoding: x-gzip").status,
      200)
      << "two fields are one list";
  EXPECT_EQ(post(Deflated(std::string(4 << 20, ' '), kGzip), "gzip").status, 413);
  EXPECT_EQ(post(kPlain, "gzip").status, 400);
  RawClient client = under.Connect();
  client.Send(PostRequest("/v1/completions", kPlain, "content-encoding: br\r\n") +
              GetRequest("/health"));
  const RawResponse refused = client.ReadResponse();
  EXPECT_EQ(refused.status, 415);
  EXPECT_EQ(refused.headers.at("accept-encoding"), "gzip, deflate");
  EXPECT_THAT(refused.body, HasSubstr("'br' is not served"));
  EXPECT_EQ(client.ReadResponse().status, 200) << "the connection goes on";
}

}  // namespace
}  // namespace sixfold::gateway

// Bytes as a tokenizer.json, then some text through whatever they made. A tokenizer may be refused; nothing may crash, hang or
// decode to bytes that are not UTF-8.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sixfold;
  auto made = Tokenizer::FromHfJson({reinterpret_cast<const char*>(data), size});
  if (!made.ok()) return 0;
  const Tokenizer& tokenizer = **made;
  constexpr std::string_view kText = "Hello  wörld 123\t<s> \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80\r\n \xEF\xBF\xBD";
  for (const ParseSpecial parse : {ParseSpecial::kYes, ParseSpecial::kNo}) {
    auto ids = tokenizer.Encode(kText, AddSpecial::kYes, parse);
    if (!ids.ok()) continue;
    SF_CHECK(IsValidUtf8(tokenizer.Decode(*ids, SkipSpecial::kNo)));
    StreamDecoder decoder(&tokenizer, {.skip_special = SkipSpecial::kNo, .stop = {}});
    std::string text;
    for (const TokenId id : *ids) decoder.Append(id, &text);
    decoder.Finish(&text);
    SF_CHECK(text == tokenizer.Decode(*ids, SkipSpecial::kNo));
  }
  return 0;
}

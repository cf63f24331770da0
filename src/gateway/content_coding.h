// Bodies that clients send compressed (RFC 9110 section 8.4): which codings, and the plain bytes.
// Pure; zlib stays in content_coding.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gateway/api_error.h"

namespace sixfold::gateway {

enum class ContentCoding : uint8_t { kGzip, kDeflate };

// What a 415 tells the client in its Accept-Encoding header.
constexpr std::string_view kAcceptedCodings = "gzip, deflate";
// Codings of one body: each costs a pass over up to the body limit.
constexpr size_t kContentCodingsMax = 4;

// `header`: the values of all Content-Encoding fields, joined by commas; "identity" and empty
// members are left out. In the order in which the client applied them. Errors: 415.
std::variant<std::vector<ContentCoding>, ApiError> ParseContentCodings(std::string_view header);

// Undoes the codings, the last first. No stage may grow beyond bytes_max (413), and no more than
// that is ever held. gzip: any number of members; deflate: in its zlib wrapper, or bare as some
// clients send it. Data that is damaged, ends early or has something behind its end is a 400. An
// empty body stays empty. Any thread; takes about 3 ms for a MiB of result.
std::variant<std::string, ApiError> DecodeContent(const std::vector<ContentCoding>& codings,
                                                  std::string body, int64_t bytes_max);

}  // namespace sixfold::gateway

// The text of HTTP answers. Pure but for the clock of the date header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gateway/http_server.h"

namespace sixfold::gateway {

enum class BodyFraming : uint8_t { kLength, kChunked, kUntilClose };

// A request's target (RFC 9112 section 3.2) as path and query, which starts behind the '?'. Proxies
// and some clients send the absolute form, "http://host:port/path?query".
struct RequestTarget {
  std::string path, query;
};
RequestTarget SplitTarget(std::string_view target);

// Whether it can be the value of a Host field: "", or a name or address with or without a port.
bool IsHost(std::string_view value);

// Status line and headers, through the empty line.
std::string FormatHttpHead(const HttpResponse& response, BodyFraming framing, bool keep_alive);

// One chunk of a chunked body; bytes must not be empty, which would end it.
std::string HttpChunk(std::string_view bytes);
constexpr std::string_view kLastHttpChunk = "0\r\n\r\n";

}  // namespace sixfold::gateway

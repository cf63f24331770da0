#include "gateway/http_text.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace sixfold::gateway {
namespace {

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    default: return "Unknown";
  }
}

std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text;
}

bool StartsWithIgnoringCase(std::string_view text, std::string_view lower_prefix) {
  return text.size() >= lower_prefix.size() &&
         std::equal(lower_prefix.begin(), lower_prefix.end(), text.begin(), [](char a, char b) {
           return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
         });
}

}  // namespace

RequestTarget SplitTarget(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!StartsWithIgnoringCase(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    break;
  }
  const size_t query = target.find('?');
  RequestTarget split{.path = std::string(target.substr(0, query))};
  if (query != std::string_view::npos) split.query = std::string(target.substr(query + 1));
  if (split.path.empty()) split.path = "/";
  return split;
}

bool IsHost(std::string_view value) {
  static constexpr std::string_view kMarks = "-._~!$&'()*+,;=:[]%";
  return std::all_of(value.begin(), value.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

std::string FormatHttpHead(const HttpResponse& response, BodyFraming framing, bool keep_alive) {
  std::string head =
      "HTTP/1.1 " + std::to_string(response.status) + " " + ReasonPhrase(response.status) + "\r\n";
  head += "date: " + HttpDate() + "\r\n";
  if (!response.content_type.empty()) head += "content-type: " + response.content_type + "\r\n";
  if (framing == BodyFraming::kChunked) head += "transfer-encoding: chunked\r\n";
  if (framing == BodyFraming::kLength && response.status != 204) {
    head += "content-length: " + std::to_string(response.body.size()) + "\r\n";
  }
  head += keep_alive ? "connection: keep-alive\r\n" : "connection: close\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  return head + "\r\n";
}

std::string HttpChunk(std::string_view bytes) {
  char size[24];
  const int length = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  std::string chunk;
  chunk.reserve(bytes.size() + sizeof size + 2);
  return chunk.append(size, static_cast<size_t>(length)).append(bytes).append("\r\n");
}

}  // namespace sixfold::gateway

#include "gateway/http_text.h"

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

}  // namespace

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

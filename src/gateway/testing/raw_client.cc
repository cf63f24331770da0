#include "gateway/testing/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace sixfold::gateway {

RawClient::RawClient(uint16_t port, int receive_buffer_bytes) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) Close();
}

RawClient::~RawClient() { Close(); }

RawClient::RawClient(RawClient&& other) noexcept
    : timeout(other.timeout),
      fd_(std::exchange(other.fd_, -1)),
      buffer_(std::move(other.buffer_)) {}

bool RawClient::Send(std::string_view bytes) {
  size_t sent = 0;
  return SendAvailable(bytes, &sent) && sent == bytes.size();
}

bool RawClient::SendAvailable(std::string_view bytes, size_t* sent) {
  *sent = 0;
  if (fd_ < 0) return false;
  while (*sent < bytes.size()) {
    pollfd wait{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&wait, 1, static_cast<int>(timeout.count())) <= 0) return true;
    const ssize_t count =
        send(fd_, bytes.data() + *sent, bytes.size() - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) return false;
    *sent += static_cast<size_t>(count);
  }
  return true;
}

bool RawClient::Fill() {
  pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
  if (fd_ < 0 || poll(&wait, 1, static_cast<int>(timeout.count())) <= 0) return false;
  char bytes[16 << 10];
  const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

std::string RawClient::ReadUntil(std::string_view end) {
  size_t at;
  while ((at = buffer_.find(end)) == std::string::npos) {
    if (!Fill()) return std::exchange(buffer_, {});
  }
  std::string text = buffer_.substr(0, at + end.size());
  buffer_.erase(0, at + end.size());
  return text;
}

RawResponse RawClient::ReadResponse() {
  RawResponse response;
  const std::string head = ReadUntil("\r\n\r\n");
  if (!head.ends_with("\r\n\r\n") || head.size() < 12) return response;
  response.status = std::atoi(head.substr(9, 3).c_str());
  for (size_t line = head.find("\r\n") + 2; line + 2 < head.size();) {
    const size_t end = head.find("\r\n", line), colon = head.find(':', line);
    std::string name = head.substr(line, colon - line);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    response.headers[name] = head.substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  if (response.headers["transfer-encoding"] == "chunked") {
    while (true) {
      const std::string size = ReadUntil("\r\n");
      const size_t bytes = std::strtoul(size.c_str(), nullptr, 16);
      while (buffer_.size() < bytes + 2 && Fill()) {
      }
      response.body += buffer_.substr(0, bytes);
      buffer_.erase(0, bytes + 2);
      if (bytes == 0) return response;
    }
  }
  const size_t length = std::strtoul(response.headers["content-length"].c_str(), nullptr, 10);
  while (buffer_.size() < length && Fill()) {
  }
  response.body = buffer_.substr(0, length);
  buffer_.erase(0, length);
  return response;
}

bool RawClient::ReadEof() {
  while (true) {
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, static_cast<int>(timeout.count())) <= 0) return false;
    char bytes[16 << 10];
    if (recv(fd_, bytes, sizeof bytes, 0) <= 0) return true;
  }
}

void RawClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void RawClient::Reset() {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  Close();
}

void RawClient::ShutdownSend() { shutdown(fd_, SHUT_WR); }

std::string PostRequest(std::string_view path, std::string_view body,
                        std::string_view extra_headers) {
  std::string text =
      "POST " + std::string(path) + " HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n";
  text.append(extra_headers);
  return text + "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::string GetRequest(std::string_view path, std::string_view extra_headers) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nhost: test\r\n" + std::string(extra_headers) +
         "\r\n";
}

}  // namespace sixfold::gateway

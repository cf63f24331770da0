// A blocking TCP client that sends exactly the bytes it is told, for tests of the server's wire
// behaviour.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace sixfold::gateway {

struct RawResponse {
  int status = 0;                              // 0: no answer came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

// Thread rule: one thread at a time. Waits are bounded by `timeout`.
class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0);
  ~RawClient();
  RawClient(RawClient&& other) noexcept;
  RawClient(const RawClient&) = delete;

  bool Send(std::string_view bytes);  // false: the other side is gone
  bool SendAvailable(std::string_view bytes,
                     size_t* sent);  // stops when nothing moves for `timeout`
  RawResponse ReadResponse();        // one answer; what follows it stays for the next call
  std::string ReadUntil(
      std::string_view end);  // through `end`, or what came until end of file or timeout
  bool ReadEof();             // true when the other side closes in time, whatever it still sends
  void Close();               // FIN
  void Reset();               // RST
  void ShutdownSend();

  std::chrono::milliseconds timeout{30'000};

 private:
  bool Fill();  // false at end of file, error or timeout

  int fd_ = -1;
  std::string buffer_;
};

std::string PostRequest(std::string_view path, std::string_view body,
                        std::string_view extra_headers = "");
std::string GetRequest(std::string_view path, std::string_view extra_headers = "");

}  // namespace sixfold::gateway

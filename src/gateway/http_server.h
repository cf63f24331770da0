// HTTP/1.1 over TCP for any handler: one I/O thread, a few workers for long computations, bounded
// everything. Nothing here knows about models; Boost stays in http_server.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "gateway/byte_budget.h"

namespace sixfold::gateway {

struct HttpOptions {
  std::string host = "127.0.0.1";  // address or name
  uint16_t port = 8000;            // 0: the system chooses, see HttpServer::port
  int workers = 2;
  int max_connections = 2048;  // beyond it a connection is answered 503 and closed
  int max_header_bytes = 32 << 10;
  int64_t max_body_bytes = 10 << 20;
  // What requests hold over all connections, also of clients that have left: bodies, and what was
  // made of them. Beyond it 429.
  int64_t max_buffered_body_bytes = 256 << 20;
  int64_t max_pipelined_bytes = 256 << 10;           // read ahead while an answer is under way
  std::chrono::milliseconds header_timeout{10'000};  // first byte to end of header
  std::chrono::milliseconds body_timeout{120'000};   // end of header to end of body
  std::chrono::milliseconds idle_timeout{120'000};   // between requests of a connection
  std::chrono::milliseconds write_timeout{30'000};   // without any progress of a write
  bool handle_signals = false;  // SIGINT and SIGTERM go to HttpHandler::OnSignal
  // Of tests only: called where work of the I/O thread and of the workers begins, with the name of
  // the place; what it throws is as an exception (out of memory) there. May be empty.
  std::function<void(std::string_view place)> fault;
};

struct HttpRequest {
  std::string method;  // upper case, as sent
  std::string path;    // without the query; of an absolute target ("http://host/path") too
  std::string query;
  std::string authorization;     // "" when absent
  std::string request_id;        // header x-request-id, "" when absent or over 256 bytes
  std::string content_encoding;  // all such fields joined by commas, "" when absent
  std::string body;              // as sent
  ByteBudget::Lease body_lease;  // kept for as long as the body, or what was made of it
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  ByteBudget::Lease lease;  // kept until the client has the answer, or is gone
};

// One request's answer: either Respond, or StartStream, Write..., EndStream. Calls after the client
// went away, or after the answer's end, do nothing. Thread rule: I/O thread only.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void Respond(HttpResponse response) = 0;
  virtual void StartStream(HttpResponse head) = 0;  // its body is ignored
  virtual void Write(
      std::string_view bytes) = 0;  // sent at once when the socket takes it, else queued
  virtual void EndStream() = 0;
  virtual void Drop() = 0;                   // closes the connection; `gone` is not called
  virtual int64_t queued_bytes() const = 0;  // written but not yet taken by the socket
  // gone: the client closed before the answer's end. writable: the queue became empty. Both I/O
  // thread, at most one `gone`; both are forgotten at the answer's end.
  virtual void SetCallbacks(std::function<void()> gone, std::function<void()> writable) = 0;
};

// Thread rule: all calls come from the I/O thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // shared_ptr: an exchange is held by the handler's unfinished work and by the connection,
  // whichever ends last.
  virtual void OnRequest(std::shared_ptr<Exchange> exchange, HttpRequest request) = 0;
  // The answer for what never became a request (bad HTTP, too large, too slow, too many).
  virtual HttpResponse OnProtocolError(int status, const std::string& message) = 0;
  virtual void OnSignal() = 0;
};

// An exception (out of memory, say) costs the connection or the piece of work that it came from and
// nothing else: accepting, signals and periodic work go on.
// Thread rule: Post, RunOnWorker, Stop and Join from any thread; the rest from the I/O thread.
class HttpServer {
 public:
  struct Impl;  // of http_server.cc

  // Binds and listens; nothing is accepted before Start. kUnavailable: the port is in use (says
  // what to type); kInvalidArgument: the host is no address of this machine.
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options);
  ~HttpServer();  // Stop and Join

  uint16_t port() const;
  void Start(HttpHandler& handler);       // `handler` outlives Join
  void Post(std::function<void()> work);  // runs in the I/O thread
  void RunOnWorker(std::function<void()> work);
  // Runs `work` in the I/O thread again and again until Stop, whatever it throws. Before Start.
  void Every(std::chrono::milliseconds period, std::function<void()> work);
  void SetDraining();  // from now on every answer closes its connection
  int connections() const;
  const ByteBudget& held_bytes() const;  // of requests
  // No more connections; queued output goes out for up to a second, then all is closed.
  void Stop();
  void Join();

 private:
  HttpServer();
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold::gateway

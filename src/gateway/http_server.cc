// The only file of the gateway that includes Boost (it costs most of a minute to compile), and
// longer than others for that reason.
//
// A connection is a state machine around one read that is always pending: its end of file is how a
// client that went away is seen, whether its request is queued, running or streaming. Beast's
// parser is fed by hand for that reason.
#include "gateway/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/parser.hpp>
#include <exception>
#include <list>
#include <optional>
#include <thread>
#include <unordered_map>

#include "gateway/http_text.h"
#include "gateway/listen_error.h"

namespace sixfold::gateway {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Tcp = asio::ip::tcp;
using Executor =
    asio::io_context::executor_type;  // concrete: any_io_executor costs an allocation an operation
using Socket = asio::basic_stream_socket<Tcp, Executor>;
using Acceptor = asio::basic_socket_acceptor<Tcp, Executor>;

constexpr auto kSweepPeriod = std::chrono::milliseconds(200);
constexpr auto kLingerTime = std::chrono::seconds(3);
constexpr auto kFlushTime =
    std::chrono::seconds(1);  // output that is still queued when the server stops
// Behind unread input the end of file cannot be seen: a client that pipelines more than the limit
// while its answer takes longer than this is given up.
constexpr auto kPausedMax = std::chrono::seconds(2);
constexpr size_t kReadBytes = 16 << 10;
constexpr auto kRetryPause = std::chrono::milliseconds(1);  // after an exception in the I/O thread
constexpr int kRejectedConnections =
    256;  // over max_connections: answered 503; beyond these closed without a word

// Grows with the bytes that arrive; Beast's string_body reserves what content-length merely claims.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, ErrorCode& ec) { ec = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, ErrorCode& ec) {
      size_t total = 0;
      for (const auto buffer : beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        total += buffer.size();
      }
      ec = {};
      return total;
    }
    void finish(ErrorCode& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};
using Parser = http::request_parser<GrowingBody>;

std::string HeaderValue(const http::fields& fields, std::string_view name, size_t bytes_max) {
  const auto it = fields.find(boost::beast::string_view(name.data(), name.size()));
  if (it == fields.end() || it->value().size() > bytes_max) return "";
  return std::string(it->value().data(), it->value().size());
}

std::string JoinedHeader(const http::fields& fields, http::field name) {
  std::string joined;
  for (auto [it, end] = fields.equal_range(name); it != end; ++it) {
    if (!joined.empty()) joined += ",";
    joined.append(it->value().data(), it->value().size());
  }
  return joined;
}

// What is wrong with the Host fields (RFC 9112 section 3.2), or nullptr. A proxy that took another
// host than this server for the addressed one would mix up two requests' answers.
const char* HostFault(const http::fields& fields, bool http10) {
  const auto [first, end] = fields.equal_range(http::field::host);
  if (first == end) return http10 ? nullptr : "an HTTP/1.1 request needs a Host header";
  if (std::next(first) != end) return "there is more than one Host header";
  const auto value = first->value();
  if (!IsHost({value.data(), value.size()}))
    return "the Host header is not a name or address with an optional port";
  return nullptr;
}

// A server stream's descriptors: one a connection. The soft limit is often 1,024.
void RaiseDescriptorLimit(int connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(connections) + kRejectedConnections + 256;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Set while an operation is under way, from its beginning until its handler begins or is destroyed
// without being called: Asio drops a handler when it finds no memory itself.
class Pending {
 public:
  explicit Pending(bool& flag) : flag_(&flag) { flag = true; }
  Pending(Pending&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  Pending& operator=(Pending&&) = delete;
  ~Pending() { End(); }
  void End() {
    if (flag_ != nullptr) *flag_ = false;
    flag_ = nullptr;
  }

 private:
  bool* flag_;
};

class Connection;

}  // namespace

struct HttpServer::Impl {
  explicit Impl(const HttpOptions& o)
      : options(o),
        acceptor(io),
        signals(io),
        accept_retry(io),
        workers(std::max(1, o.workers)),
        held_bytes(o.max_buffered_body_bytes) {}

  // Work that begins itself again by a timer.
  struct Periodic {
    asio::steady_timer timer;
    std::chrono::milliseconds period;
    std::function<void()> work;
    bool& pending;
    bool until_end = false;  // goes on while connections end, beyond the beginning of a stop
  };

  void Fault(std::string_view place) const {
    if (options.fault) options.fault(place);
  }
  void Arm();
  void Accept();
  void RetryAccept();
  void Admit(Socket socket);
  void WaitForSignal();
  void AddPeriodic(std::chrono::milliseconds period, bool until_end, std::function<void()> work);
  void Wait(Periodic& periodic);
  void Sweep();
  void CancelPeriodics();
  void Remove(Connection* connection);
  void BeginStop();
  void Run();

  const HttpOptions options;
  // Before `io`, which destroys the handlers that clear them.
  bool accept_pending = false, signal_pending = false;
  std::list<bool> periodic_pending;
  asio::io_context io{1};
  std::optional<asio::executor_work_guard<Executor>> work{io.get_executor()};
  Acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer accept_retry;
  asio::thread_pool workers;
  std::thread thread;
  HttpHandler* handler = nullptr;
  uint16_t port = 0;

  // I/O thread only. shared_ptr: asio's pending operations hold a connection beyond its removal
  // from here.
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::list<Periodic> periodics;
  const ByteBudget held_bytes;
  bool draining = false;
  bool stopping = false;
  Clock::time_point stop_deadline;
  std::atomic<bool> joined{false};
};

namespace {

// Thread rule: I/O thread only.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, Socket socket, bool rejected)
      : server_(server), socket_(std::move(socket)), rejected_(rejected) {}

  void Start() {
    Guarded("start", [this] {
      ErrorCode ec;
      socket_.set_option(Tcp::no_delay(true), ec);
      ResetParser();
      deadline_ = Clock::now() + server_.options.header_timeout;
      StartRead();
    });
  }

  // Called every kSweepPeriod: what waits too long ends here.
  void CheckTime(Clock::time_point now) {
    Guarded("check", [&] { EndIfLate(now); });
  }
  bool idle() const { return state_ != State::kHandling && queued_bytes() == 0; }
  void Close();
  void Lose();  // the client is gone: tell the handler, then close

  // The part behind Exchange; `serial` names the request it was made for. What cannot be written
  // (out of memory) ends the connection, which its handler hears by `gone`; nothing is thrown.
  bool Current(uint64_t serial) const {
    return state_ == State::kHandling && serial == serial_ && !answered_;
  }
  void Respond(HttpResponse response);
  void StartStream(const HttpResponse& head);
  void WriteStream(std::string_view bytes);
  void EndStream();
  int64_t queued_bytes() const {
    return static_cast<int64_t>(out_.size() + writing_.size() - written_);
  }
  void SetCallbacks(std::function<void()> gone, std::function<void()> writable) {
    gone_ = std::move(gone);
    writable_ = std::move(writable);
  }

 private:
  enum class State { kReading, kHandling, kLingering, kClosed };

  template <typename Work>
  void Guarded(std::string_view place, Work work);
  void EndIfLate(Clock::time_point now);
  void ResetParser();
  void StartRead();
  void OnRead(const ErrorCode& ec, size_t bytes);
  bool SkipEmptyLines();  // true: the next byte begins a request
  void ParseInput();
  bool OnHeader();  // false: refused
  void OnParseError(const ErrorCode& ec);
  void Refuse(int status, const std::string& message);
  void Dispatch();
  void Append(std::string bytes);
  void StartWrite();
  void OnWritten(const ErrorCode& ec, size_t bytes);
  void OnFlushed();
  void Linger();

  HttpServer::Impl& server_;
  Socket socket_;
  const bool rejected_;
  State state_ = State::kReading;
  Clock::time_point deadline_, write_deadline_, paused_since_;

  // A read may be pending while in_ is parsed (an answer went out, the next request is there
  // already), so that it must not write into in_, whose bytes move.
  std::array<char, kReadBytes> read_bytes_;
  beast::flat_buffer in_;
  std::optional<Parser> parser_;
  bool parser_started_ = false, header_seen_ = false;
  bool reading_ = false, read_paused_ = false, peer_eof_ = false;
  ByteBudget::Lease body_lease_;

  uint64_t serial_ = 0;
  bool keep_alive_ = true, http10_ = false, head_only_ = false;
  bool answered_ = false;  // the whole answer is queued
  bool chunked_ = false;
  std::function<void()> gone_, writable_;

  std::string out_, writing_;    // queued; handed to the socket
  ByteBudget::Lease out_lease_;  // of the answer that is being written
  size_t written_ = 0;           // of writing_
  bool write_pending_ = false;
};

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, uint64_t serial)
      : connection_(std::move(connection)), serial_(serial) {}
  void Respond(HttpResponse response) override {
    if (connection_->Current(serial_)) connection_->Respond(std::move(response));
  }
  void StartStream(HttpResponse head) override {
    if (connection_->Current(serial_)) connection_->StartStream(head);
  }
  void Write(std::string_view bytes) override {
    if (connection_->Current(serial_)) connection_->WriteStream(bytes);
  }
  void EndStream() override {
    if (connection_->Current(serial_)) connection_->EndStream();
  }
  void Drop() override {
    if (connection_->Current(serial_)) connection_->Close();
  }
  int64_t queued_bytes() const override {
    return connection_->Current(serial_) ? connection_->queued_bytes() : 0;
  }
  void SetCallbacks(std::function<void()> gone, std::function<void()> writable) override {
    if (connection_->Current(serial_))
      connection_->SetCallbacks(std::move(gone), std::move(writable));
  }

 private:
  const std::shared_ptr<Connection> connection_;
  const uint64_t serial_;
};

// What is thrown here concerns this connection alone.
template <typename Work>
void Connection::Guarded(std::string_view place, Work work) {
  try {
    server_.Fault(place);
    work();
  } catch (const std::exception&) {
    Lose();
  }
}

void Connection::EndIfLate(Clock::time_point now) {
  if (queued_bytes() > 0 && now > write_deadline_) return Lose();
  if (state_ == State::kHandling && read_paused_ && now > paused_since_ + kPausedMax) return Lose();
  if (state_ == State::kHandling || now <= deadline_) return;
  if (state_ == State::kReading && parser_started_) {
    return Refuse(408, "the request did not arrive in time");
  }
  Close();
}

void Connection::ResetParser() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_.options.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(server_.options.max_body_bytes));
  parser_started_ = header_seen_ = false;
  body_lease_ = server_.held_bytes.NewLease();
  state_ = State::kReading;
}

void Connection::StartRead() {
  if (reading_ || peer_eof_ || state_ == State::kClosed) return;
  read_paused_ = state_ == State::kHandling &&
                 static_cast<int64_t>(in_.size()) >= server_.options.max_pipelined_bytes;
  if (read_paused_) {
    paused_since_ = Clock::now();
    return;
  }
  socket_.async_read_some(asio::buffer(read_bytes_),
                          [self = shared_from_this()](const ErrorCode& ec, size_t bytes) {
                            self->reading_ = false;
                            if (self->state_ == State::kClosed) return;
                            self->Guarded("read", [&] { self->OnRead(ec, bytes); });
                          });
  reading_ = true;
}

void Connection::OnRead(const ErrorCode& ec, size_t bytes) {
  if (ec) {
    peer_eof_ = true;
    // A peer that only shut down its sending side still gets an answer that is already complete.
    if (state_ == State::kHandling && answered_ && ec == asio::error::eof) return;
    return Lose();
  }
  in_.commit(asio::buffer_copy(in_.prepare(bytes), asio::buffer(read_bytes_, bytes)));
  if (state_ == State::kReading) return ParseInput();
  if (state_ == State::kLingering) in_.consume(in_.size());
  StartRead();
}

// Empty lines before a request, which old clients send behind a body (RFC 9112 section 2.2). They
// do not start the request's clock, so that they cannot hold a connection open.
bool Connection::SkipEmptyLines() {
  while (in_.size() > 0) {
    const auto* bytes = static_cast<const char*>(in_.data().data());
    size_t length = 0;
    if (bytes[0] == '\n') length = 1;
    if (bytes[0] == '\r') {
      if (in_.size() == 1) return false;
      if (bytes[1] == '\n') length = 2;
    }
    if (length == 0) return true;
    in_.consume(length);
  }
  return false;
}

void Connection::ParseInput() {
  while (in_.size() > 0 && !parser_->is_done()) {
    if (!parser_started_) {
      if (!SkipEmptyLines()) break;
      parser_started_ = true;
      deadline_ = Clock::now() + server_.options.header_timeout;
    }
    ErrorCode ec;
    in_.consume(parser_->put(in_.data(), ec));
    if (ec == http::error::need_more) break;
    if (ec) return OnParseError(ec);
    if (parser_->is_header_done() && !header_seen_ && !OnHeader()) return;
    if (!body_lease_.Resize(static_cast<int64_t>(parser_->get().body().size())))
      return Refuse(429, "too many request bodies are being held; try again");
  }
  if (parser_->is_done()) return Dispatch();
  StartRead();
}

bool Connection::OnHeader() {
  header_seen_ = true;
  deadline_ = Clock::now() + server_.options.body_timeout;
  const auto& message = parser_->get();
  http10_ = message.version() == 10;
  if (const char* fault = HostFault(message, http10_)) {
    Refuse(400, fault);
    return false;
  }
  // Beast takes such a request for one without a body, and the body for the next request.
  if (message.find(http::field::transfer_encoding) != message.end() && !parser_->chunked()) {
    Refuse(400, "only 'transfer-encoding: chunked' is served");
    return false;
  }
  const auto expect = message.find(http::field::expect);
  if (expect != message.end() && beast::iequals(expect->value(), "100-continue") && !http10_ &&
      !parser_->is_done()) {
    Append("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

void Connection::OnParseError(const ErrorCode& ec) {
  if (ec == http::error::header_limit) {
    return Refuse(431, "the header is larger than " +
                           std::to_string(server_.options.max_header_bytes) + " bytes");
  }
  if (ec == http::error::body_limit) {
    return Refuse(413, "the body is larger than the limit of " +
                           std::to_string(server_.options.max_body_bytes) + " bytes");
  }
  if (ec == http::error::bad_version)
    return Refuse(400, "only HTTP/1.0 and HTTP/1.1 are served here");
  Refuse(400, "not a valid HTTP/1.1 request: " + ec.message());
}

// Answers what never became a request, and closes.
void Connection::Refuse(int status, const std::string& message) {
  state_ = State::kHandling;
  ++serial_;
  answered_ = chunked_ = head_only_ = keep_alive_ = false;
  gone_ = writable_ = nullptr;
  std::string().swap(parser_->get().body());
  body_lease_.Release();
  HttpResponse response = server_.handler->OnProtocolError(status, message);
  Respond(std::move(response));
  in_.consume(in_.size());
  StartRead();
}

void Connection::Dispatch() {
  auto message = parser_->release();
  keep_alive_ = message.keep_alive() && !server_.draining;
  http10_ = message.version() == 10;
  if (rejected_) return Refuse(503, "too many connections; try again");
  HttpRequest request;
  request.method = std::string(message.method_string());
  RequestTarget target = SplitTarget({message.target().data(), message.target().size()});
  request.path = std::move(target.path);
  request.query = std::move(target.query);
  request.authorization = HeaderValue(message, "authorization", 4096);
  request.request_id = HeaderValue(message, "x-request-id", 256);
  request.content_encoding = JoinedHeader(message, http::field::content_encoding);
  request.body = std::move(message.body());
  request.body_lease = std::move(body_lease_);
  state_ = State::kHandling;
  ++serial_;
  head_only_ = request.method == "HEAD";
  answered_ = chunked_ = false;
  auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), serial_);
  try {
    server_.handler->OnRequest(exchange, std::move(request));
  } catch (const std::exception& e) {  // out of memory, say: this request fails, the server stays
    if (Current(serial_))
      Respond(server_.handler->OnProtocolError(500, std::string("internal error: ") + e.what()));
  }
  if (state_ != State::kClosed) StartRead();
}

void Connection::Respond(HttpResponse response) {
  if (chunked_) return Lose();  // the head of a stream is out: nothing else can be said
  Guarded("respond", [&] {
    keep_alive_ = keep_alive_ && !server_.draining;
    std::string head = FormatHttpHead(response, BodyFraming::kLength, keep_alive_);
    out_lease_ = std::move(response.lease);
    if (head_only_) response.body.clear();
    response.body.insert(0, head);  // large answers are not copied
    Append(std::move(response.body));
    answered_ = true;
  });
}

void Connection::StartStream(const HttpResponse& head) {
  chunked_ = !http10_;
  keep_alive_ = keep_alive_ && chunked_ && !server_.draining;
  const BodyFraming framing = chunked_ ? BodyFraming::kChunked : BodyFraming::kUntilClose;
  Guarded("respond", [&] { Append(FormatHttpHead(head, framing, keep_alive_)); });
}

void Connection::WriteStream(std::string_view bytes) {
  if (bytes.empty()) return;
  Guarded("respond", [&] { Append(chunked_ ? HttpChunk(bytes) : std::string(bytes)); });
}

void Connection::EndStream() {
  Guarded("respond", [&] {
    if (chunked_) Append(std::string(kLastHttpChunk));
    answered_ = true;
    if (queued_bytes() == 0) OnFlushed();
  });
}

void Connection::Append(std::string bytes) {
  if (queued_bytes() == 0) write_deadline_ = Clock::now() + server_.options.write_timeout;
  if (out_.empty()) {
    out_ = std::move(bytes);
  } else {
    out_ += bytes;
  }
  if (!write_pending_) StartWrite();
}

void Connection::StartWrite() {
  if (written_ == writing_.size()) {
    writing_.clear();
    if (writing_.capacity() > kReadBytes) writing_ = {};  // a large answer's memory is given back
    written_ = 0;
    std::swap(writing_, out_);
    if (writing_.empty()) return OnFlushed();
  }
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](const ErrorCode& ec, size_t bytes) {
                             self->write_pending_ = false;
                             if (self->state_ == State::kClosed) return;
                             self->Guarded("write", [&] { self->OnWritten(ec, bytes); });
                           });
  write_pending_ = true;
}

void Connection::OnWritten(const ErrorCode& ec, size_t bytes) {
  if (ec) return Lose();
  written_ += bytes;
  write_deadline_ = Clock::now() + server_.options.write_timeout;
  StartWrite();
}

// All output is with the socket: the next request of the connection may begin.
void Connection::OnFlushed() {
  if (state_ != State::kHandling) return;
  if (!answered_) {
    const auto writable =
        writable_;  // a copy: the call may end the exchange, which forgets writable_
    if (writable) writable();
    return;
  }
  gone_ = writable_ = nullptr;
  out_lease_.Release();
  if (!keep_alive_ || server_.stopping) return Linger();
  if (peer_eof_) return Close();
  ResetParser();
  deadline_ = Clock::now() + server_.options.idle_timeout;
  ParseInput();
}

// Closing while unread input is in the socket would reset it, and the client might never see the
// answer: what it still sends is thrown away for a while.
void Connection::Linger() {
  ErrorCode ec;
  socket_.shutdown(Socket::shutdown_send, ec);
  if (peer_eof_ || ec) return Close();
  state_ = State::kLingering;
  deadline_ = Clock::now() + kLingerTime;
  in_.consume(in_.size());
  StartRead();
}

void Connection::Lose() {
  auto gone = std::move(gone_);
  const bool unanswered = state_ == State::kHandling && !answered_;
  Close();
  if (unanswered && gone) gone();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  body_lease_.Release();
  out_lease_.Release();
  gone_ = writable_ = nullptr;
  ErrorCode ec;
  socket_.close(ec);
  server_.Remove(this);
}

}  // namespace

// Begins whatever goes on for ever and is not under way, be it for the first time or because an
// exception has ended it.
void HttpServer::Impl::Arm() {
  Fault("arm");
  Accept();
  if (options.handle_signals) WaitForSignal();
  for (Periodic& periodic : periodics) Wait(periodic);
}

void HttpServer::Impl::Accept() {
  if (accept_pending || stopping) return;
  const auto on_accept = [this](Pending& pending, const ErrorCode& ec, Socket socket) {
    pending.End();
    if (!acceptor.is_open() || stopping) return;
    if (ec) return RetryAccept();
    Accept();
    Admit(std::move(socket));
  };
  acceptor.async_accept(io.get_executor(), [on_accept, pending = Pending(accept_pending)](
                                               const ErrorCode& ec, Socket socket) mutable {
    on_accept(pending, ec, std::move(socket));
  });
}

// Out of descriptors, say: waits for some to come back.
void HttpServer::Impl::RetryAccept() {
  accept_retry.expires_after(std::chrono::milliseconds(100));
  accept_retry.async_wait([this, pending = Pending(accept_pending)](const ErrorCode& ec) mutable {
    pending.End();
    if (!ec) Accept();
  });
}

void HttpServer::Impl::Admit(Socket socket) {
  Fault("accept");
  const int open = static_cast<int>(connections.size());
  if (open >= options.max_connections + kRejectedConnections) return;
  auto connection =
      std::make_shared<Connection>(*this, std::move(socket), open >= options.max_connections);
  connections.emplace(connection.get(), connection);
  connection->Start();
}

void HttpServer::Impl::WaitForSignal() {
  if (signal_pending || stopping) return;
  signals.async_wait([this, pending = Pending(signal_pending)](const ErrorCode& ec, int) mutable {
    pending.End();
    if (ec) return;
    WaitForSignal();
    Fault("signal");
    handler->OnSignal();
  });
}

void HttpServer::Impl::AddPeriodic(std::chrono::milliseconds period, bool until_end,
                                   std::function<void()> work) {
  periodics.push_back({.timer = asio::steady_timer(io),
                       .period = period,
                       .work = std::move(work),
                       .pending = periodic_pending.emplace_back(false),
                       .until_end = until_end});
}

void HttpServer::Impl::Wait(Periodic& periodic) {
  if (periodic.pending || (stopping && (!periodic.until_end || connections.empty()))) return;
  periodic.timer.expires_after(periodic.period);
  periodic.timer.async_wait(
      [this, &periodic, pending = Pending(periodic.pending)](const ErrorCode& ec) mutable {
        pending.End();
        if (ec) return;
        Wait(periodic);
        periodic.work();
      });
}

void HttpServer::Impl::Sweep() {
  Fault("sweep");
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [_, connection] : connections) all.push_back(connection);
  for (const auto& connection : all) {
    if (stopping && (connection->idle() || now > stop_deadline)) {
      connection->Close();
    } else {
      connection->CheckTime(now);
    }
  }
}

void HttpServer::Impl::CancelPeriodics() {
  for (Periodic& periodic : periodics) {
    if (!periodic.until_end || connections.empty()) periodic.timer.cancel();
  }
}

void HttpServer::Impl::Run() {
  while (true) {
    try {
      Arm();
      io.run();
      return;
    } catch (const std::exception&) {
      // What threw has lost its own work. Where memory is short, a pause may find more.
      std::this_thread::sleep_for(kRetryPause);
    }
  }
}

void HttpServer::Impl::Remove(Connection* connection) {
  connections.erase(connection);
  if (stopping && connections.empty()) CancelPeriodics();
}

void HttpServer::Impl::BeginStop() {
  if (stopping) return;
  stopping = true;
  stop_deadline = Clock::now() + kFlushTime;
  ErrorCode ec;
  acceptor.close(ec);
  signals.cancel(ec);
  accept_retry.cancel();
  CancelPeriodics();
  work.reset();
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [_, connection] : connections) all.push_back(connection);
  for (const auto& connection : all) {
    if (connection->idle()) connection->Close();
  }
}

HttpServer::HttpServer() = default;

HttpServer::~HttpServer() {
  if (!impl_) return;
  Stop();
  Join();
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpOptions& options) {
  std::unique_ptr<HttpServer> server(new HttpServer());
  try {
    server->impl_ = std::make_unique<Impl>(options);
    Impl& impl = *server->impl_;
    ErrorCode ec;
    Tcp::resolver resolver(impl.io);
    const auto found =
        resolver.resolve(options.host, std::to_string(options.port), Tcp::resolver::passive, ec);
    if (ec || found.empty()) return ResolveError(options.host, ec.message());
    // A name may have several addresses, of which this machine need not have the first (::1 of localhost).
    ErrorCode first;
    for (const auto& entry : found) {
      ec = {};
      if (impl.acceptor.is_open()) impl.acceptor.close();
      impl.acceptor.open(entry.endpoint().protocol(), ec);
      if (!ec) impl.acceptor.set_option(Acceptor::reuse_address(true), ec);
      if (!ec) impl.acceptor.bind(entry.endpoint(), ec);
      if (!ec) impl.acceptor.listen(4096, ec);
      if (!ec) break;
      if (!first) first = ec;
      // Taken there: a listener at the name's next address would leave that client with the other program.
      if (ec == asio::error::address_in_use) break;
    }
    if (ec) return ListenError(options.host, options.port, (ec == asio::error::address_in_use ? ec : first).value());
    impl.port = impl.acceptor.local_endpoint().port();
  } catch (const std::exception& e) {
    return Internal(std::string("cannot start the HTTP server: ") + e.what());
  }
  return server;
}

uint16_t HttpServer::port() const { return impl_->port; }

void HttpServer::Start(HttpHandler& handler) {
  impl_->handler = &handler;
  RaiseDescriptorLimit(impl_->options.max_connections);
  if (impl_->options.handle_signals) {
    ErrorCode ec;
    impl_->signals.add(SIGINT, ec);
    impl_->signals.add(SIGTERM, ec);
  }
  Impl& impl = *impl_;
  impl.AddPeriodic(kSweepPeriod, true, [&impl] { impl.Sweep(); });
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

void HttpServer::Post(std::function<void()> work) { asio::post(impl_->io, std::move(work)); }

void HttpServer::RunOnWorker(std::function<void()> work) {
  asio::post(impl_->workers, [work = std::move(work)] {
    try {
      work();
    } catch (const std::exception&) {  // would end the process; whoever gave the work finds out
    }
  });
}

void HttpServer::Every(std::chrono::milliseconds period, std::function<void()> work) {
  impl_->AddPeriodic(period, false, std::move(work));
}

void HttpServer::SetDraining() { impl_->draining = true; }
int HttpServer::connections() const { return static_cast<int>(impl_->connections.size()); }
const ByteBudget& HttpServer::held_bytes() const { return impl_->held_bytes; }

void HttpServer::Stop() {
  asio::post(impl_->io, [impl = impl_.get()] { impl->BeginStop(); });
}

void HttpServer::Join() {
  if (impl_->joined.exchange(true)) return;
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->workers.stop();
  impl_->workers.join();
}

}  // namespace sixfold::gateway

// Requests on their way through the workers, which decode, parse, render and tokenise them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "gateway/byte_budget.h"
#include "gateway/content_coding.h"
#include "gateway/http_server.h"
#include "gateway/prepare.h"

namespace sixfold::gateway {

// One of them. The I/O thread makes it and takes the result, a worker does what is between; the
// atomics say whose it is.
struct Preparation {
  uint64_t key = 0;
  Endpoint endpoint = Endpoint::kChat;
  std::vector<ContentCoding> codings;
  std::string body;
  ByteBudget::Lease lease;  // of the body
  std::variant<Prepared, ApiError> result;
  std::array<char, 120> exception{};  // "": none was thrown

  std::atomic<bool> claimed{false};  // by the worker that begins it, or because its client has left
  std::atomic<bool> done{false};
};

struct PrepareQueueOptions {
  PrepareOptions prepare;
  int64_t body_bytes_max = 0;  // decoded
  int waiting_max = 0;
  std::function<void(std::string_view place)> fault;  // HttpOptions::fault
};

// Thread rule: I/O thread only.
class PrepareQueue {
 public:
  // on_done: what came of a preparation, called once in the I/O thread. All references outlive the
  // queue, and the queue outlives the workers.
  using OnDone = std::function<void(Preparation& done)>;
  PrepareQueue(HttpServer& http, const TextCodec& codec, PrepareQueueOptions options,
               OnDone on_done);

  // Whether as many wait for a worker as may, those whose clients have left included: a client that
  // comes and leaves must not make the queue grow.
  bool full() const;
  void Add(std::shared_ptr<Preparation> preparation);
  // Its client has left: the body of one that no worker has begun is freed at once.
  void Forget(uint64_t key);
  // Hands out what is done. The workers ask for it; a timer may too, for a worker that found no
  // memory to ask with.
  void Collect();

 private:
  void Run(Preparation& preparation) noexcept;  // in a worker

  HttpServer& http_;
  const TextCodec& codec_;
  const PrepareQueueOptions options_;
  const OnDone on_done_;
  std::atomic<int> waiting_{0};
  std::unordered_map<uint64_t, std::shared_ptr<Preparation>> preparations_;
};

}  // namespace sixfold::gateway

#include "gateway/prepare_queue.h"

#include <cstdio>
#include <exception>
#include <utility>

namespace sixfold::gateway {

PrepareQueue::PrepareQueue(HttpServer& http, const TextCodec& codec, PrepareQueueOptions options,
                           OnDone on_done)
    : http_(http), codec_(codec), options_(std::move(options)), on_done_(std::move(on_done)) {}

bool PrepareQueue::full() const { return waiting_.load() >= options_.waiting_max; }

void PrepareQueue::Add(std::shared_ptr<Preparation> preparation) {
  const uint64_t key = preparation->key;
  preparations_.emplace(key, preparation);
  try {
    http_.RunOnWorker([this, preparation = std::move(preparation)] {
      --waiting_;
      Run(*preparation);
    });
  } catch (const std::exception&) {
    preparations_.erase(key);
    throw;
  }
  ++waiting_;
}

void PrepareQueue::Forget(uint64_t key) {
  const auto it = preparations_.find(key);
  if (it == preparations_.end()) return;
  Preparation& preparation = *it->second;
  if (!preparation.claimed.exchange(true)) {
    std::string().swap(preparation.body);
    preparation.lease.Release();
  }
  preparations_.erase(it);
}

void PrepareQueue::Run(Preparation& preparation) noexcept {
  if (preparation.claimed.exchange(true)) return;
  try {
    if (options_.fault) options_.fault("worker");
    // The decoded body lives only here, so that each worker holds one at most.
    auto plain =
        DecodeContent(preparation.codings, std::move(preparation.body), options_.body_bytes_max);
    if (auto* error = std::get_if<ApiError>(&plain)) {
      preparation.result = std::move(*error);
    } else {
      preparation.result =
          Prepare(preparation.endpoint, std::get<std::string>(plain), options_.prepare, codec_);
    }
  } catch (const std::exception& e) {
    std::snprintf(preparation.exception.data(), preparation.exception.size(), "%s", e.what());
  }
  preparation.done.store(true);
  try {
    if (options_.fault) options_.fault("worker done");
    http_.Post([this] { Collect(); });
  } catch (const std::exception&) {
  }
}

void PrepareQueue::Collect() {
  for (auto it = preparations_.begin(); it != preparations_.end();) {
    const std::shared_ptr<Preparation> preparation = it->second;
    if (!preparation->done.load()) {
      ++it;
      continue;
    }
    it = preparations_.erase(it);
    on_done_(*preparation);
  }
}

}  // namespace sixfold::gateway

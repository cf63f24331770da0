#include "engine/inbox.h"

#include <fmt/format.h>

#include "base/check.h"

namespace sixfold {

Result<RequestId> Inbox::Submit(std::unique_ptr<ActiveRequest> request) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (closed_) return Status(StatusCode::kUnavailable, "the engine is shutting down");
  if (choices_alive_ >= choices_max_) {
    return Status(StatusCode::kOverloaded,
                  fmt::format("{} answers are running or queued, the most that this engine takes", choices_alive_));
  }
  const RequestId id(++last_id_);
  request->request.id = id;
  for (Sequence& s : request->choices) s.request = id;
  const int n = static_cast<int>(request->choices.size());
  alive_.emplace(id, n);
  choices_alive_ += n;
  mail_.arrivals.push_back(std::move(request));
  mail_came_.notify_one();
  return id;
}

void Inbox::Abort(RequestId id, int choice) {
  const std::lock_guard lock(mutex_);
  if (!alive_.contains(id)) return;
  mail_.aborts.emplace(id, choice);
  mail_came_.notify_one();
}

void Inbox::AbortAll() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, choices] : alive_) mail_.aborts.emplace(id, kAllChoices);
  mail_came_.notify_one();
}

void Inbox::Take(WhenEmpty when_empty, Mail& mail) {
  mail.arrivals.clear();
  mail.aborts.clear();
  std::unique_lock lock(mutex_);
  const auto has_mail = [&] { return mail_.stop || !mail_.arrivals.empty() || !mail_.aborts.empty(); };
  if (when_empty == WhenEmpty::kSleep && !has_mail()) {
    sleeping_ = true;
    became_idle_.notify_all();
    mail_came_.wait(lock, has_mail);
    sleeping_ = false;
  }
  mail.arrivals.swap(mail_.arrivals);
  mail.aborts.swap(mail_.aborts);
  mail.stop = mail_.stop;
}

void Inbox::FinishChoice(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto alive = alive_.find(id);
  SF_CHECK(alive != alive_.end());
  if (--alive->second == 0) alive_.erase(alive);
  --choices_alive_;
}

void Inbox::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void Inbox::Stop() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  mail_.stop = true;
  mail_came_.notify_one();
}

void Inbox::Fail(const Status& why) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  failure_ = why;
}

void Inbox::End() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  became_idle_.notify_all();
}

bool Inbox::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return became_idle_.wait_until(lock, deadline, [&] { return choices_alive_ == 0 && (sleeping_ || ended_); });
}

int64_t Inbox::choices_alive() const {
  const std::lock_guard lock(mutex_);
  return choices_alive_;
}

}  // namespace sixfold

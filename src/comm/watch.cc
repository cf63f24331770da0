#include "comm/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace sixfold {

namespace {

double Seconds(SteadyClock::duration span) { return std::chrono::duration<double>(span).count(); }

bool Same(const Place& a, const Place& b) { return a.step == b.step && a.layer == b.layer; }

// The rank at the end of `peer`'s chain of waits and the ranks on the way to it. `cycle`: the chain
// comes back to a rank it has passed, or to `self`.
struct Chain {
  std::vector<int> ranks;  // peer first
  bool cycle = false;
};

Chain Follow(int self, int peer, const RankView& view) {
  Chain chain;
  for (int at = peer; at >= 0; at = view.WaitsFor(at)) {
    if (at == self || std::find(chain.ranks.begin(), chain.ranks.end(), at) != chain.ranks.end()) {
      chain.cycle = true;
      break;
    }
    chain.ranks.push_back(at);
  }
  return chain;
}

std::string Position(const RankSight& report) {
  return report.history.empty() ? std::string("none yet") : Describe(report.history.back());
}

// "rank 3", at its first mention with host and pid. Ranks that are threads of one process have those in common: they are said
// once, at the end.
class RankNames {
 public:
  RankNames(int self, const std::vector<int>& others, const RankView& view)
      : view_(view), common_(view.ProcessOf(self)) {
    for (const int rank : others) {
      if (view.ProcessOf(rank) != common_) common_.clear();
    }
  }

  std::string Next(int rank) {
    const std::string name = fmt::format("rank {}", rank);
    const bool named = std::find(named_.begin(), named_.end(), rank) != named_.end();
    named_.push_back(rank);
    const std::string process = view_.ProcessOf(rank);
    return named || !common_.empty() || process.empty() ? name : fmt::format("{} ({})", name, process);
  }
  std::string Common() const {
    return common_.empty() ? "" : fmt::format("; ranks are threads of one process ({})", common_);
  }

 private:
  const RankView& view_;
  std::string common_;  // empty: the processes differ, or are not known
  std::vector<int> named_;
};

}  // namespace

std::string ThisProcess() {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') std::strcpy(host, "unknown");
  return fmt::format("host {}, pid {}", host, ::getpid());
}

PackedRecord Pack(const OperationRecord& record) {
  const Operation& operation = record.operation;
  return {operation.sequence, static_cast<uint64_t>(record.place.step),
          static_cast<uint64_t>(static_cast<uint32_t>(operation.group)) << 32 |
              static_cast<uint64_t>(static_cast<uint16_t>(record.place.layer)) << 16 |
              static_cast<uint64_t>(operation.axis) << 8 | static_cast<uint64_t>(operation.op)};
}

OperationRecord Unpack(const PackedRecord& packed) {
  const uint64_t rest = packed[2];
  return {.operation = {.op = static_cast<CommOp>(rest & 0xff),
                        .group = static_cast<int>(rest >> 32),
                        .sequence = packed[0],
                        .axis = static_cast<Axis>(rest >> 8 & 0xff)},
          .place = {.step = static_cast<int64_t>(packed[1]),
                    .layer = static_cast<int16_t>(rest >> 16 & 0xffff)}};
}

std::string Describe(const Operation& operation) {
  return fmt::format("{} {} of {} group {}", NameOf(operation.op), operation.sequence,
                     NameOf(operation.axis), operation.group);
}

std::string Describe(const Place& place) {
  return place.layer < 0 ? fmt::format("step {}", place.step)
                         : fmt::format("layer {}, step {}", place.layer, place.step);
}

std::string Describe(const OperationRecord& record) {
  return fmt::format("{} ({})", Describe(record.operation), Describe(record.place));
}

std::string FirstDifference(int a, int b, const RankView& view) {
  const RankSight report_a = view.ReportOf(a), report_b = view.ReportOf(b);
  for (const OperationRecord& in_a : report_a.history) {
    if (in_a.operation.op == CommOp::kSend) continue;
    for (const OperationRecord& in_b : report_b.history) {
      if (in_b.operation.op == CommOp::kSend || in_b.operation.group != in_a.operation.group ||
          in_b.operation.sequence != in_a.operation.sequence)
        continue;
      if (in_a.operation.op != in_b.operation.op || !Same(in_a.place, in_b.place)) {
        return fmt::format("; first difference: rank {} entered {}, rank {} entered {}", a,
                           Describe(in_a), b, Describe(in_b));
      }
    }
  }
  return {};
}

Status Divergence(int rank, const OperationRecord& here, int peer, const OperationRecord& there,
                  const RankView& view) {
  return Internal(fmt::format("ranks diverge: rank {} is in {}, rank {} sent it {}{}", rank,
                              Describe(here), peer, Describe(there),
                              FirstDifference(rank, peer, view)));
}

Status SizeDivergence(int rank, const OperationRecord& here, int64_t bytes_here, int peer,
                      int64_t bytes_there) {
  return Internal(
      fmt::format("ranks diverge in {}: rank {} expects {} bytes of rank {}, which sent {}",
                  Describe(here), rank, bytes_here, peer, bytes_there));
}

Watch::Watch(int rank, int world, std::chrono::milliseconds timeout)
    : rank_(rank), timeout_(timeout), seen_(world) {}

Watch::Stall Watch::WorstOf(std::span<const int> peers, SteadyClock::time_point now,
                            const RankView& view) {
  SF_CHECK(!peers.empty());
  Stall worst;
  for (const int peer : peers) {
    SteadyClock::time_point since = begin_;
    for (const int rank : Follow(rank_, peer, view).ranks) {
      const uint64_t progress = view.ProgressOf(rank);
      if (progress != seen_[rank].progress) seen_[rank] = {progress, now};
      since = std::max(since, seen_[rank].since);
    }
    if (worst.peer < 0 || now - since > worst.span) worst = {peer, now - since};
  }
  return worst;
}

Status Watch::Expired(const OperationRecord& here, int peer, SteadyClock::time_point now,
                      const RankView& view) const {
  const Chain chain = Follow(rank_, peer, view);
  RankNames names(rank_, chain.ranks, view);
  std::string text = fmt::format("{} waited {:.1f} s for ", names.Next(rank_), Seconds(now - begin_));
  text += fmt::format("{} in {}: ", names.Next(peer), Describe(here));
  for (const int rank : chain.ranks) {
    const RankSight report = view.ReportOf(rank);
    const int next = view.WaitsFor(rank);
    text += names.Next(rank);
    if (next >= 0) {
      text += fmt::format(" waits for {} in {}; ", names.Next(next), Position(report));
    } else {
      text += fmt::format(" was last seen in {} (last operation: {}) and made no progress since; ",
                          Describe(report.place), Position(report));
    }
  }
  text.resize(text.size() - 2);
  // Where the cause is not a rank that stands still, two ranks have entered different operations.
  for (const int rank : chain.ranks) {
    const std::string difference = FirstDifference(rank_, rank, view);
    text += difference;
    if (!difference.empty()) break;
  }
  text += names.Common();
  return {StatusCode::kDeadline, std::move(text)};
}

}  // namespace sixfold

#include "comm/mpi/bulletin.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace sixfold::mpi {

namespace {

constexpr int kReportTag = 1;
constexpr int kFailureTag = 2;
constexpr size_t kMessageMax = 2000;  // of last words: they travel eagerly

struct Header {
  uint64_t progress = 0;
  int64_t step = 0;
  int32_t layer = -1;
  int32_t waits_for = -1;
  uint64_t records = 0;
};

}  // namespace

Bulletin::Bulletin(Wires& wires, std::chrono::milliseconds timeout)
    : wires_(wires), timeout_(timeout), others_(wires.world()), outgoing_(wires.world()) {
  own_.history.reserve(kHistory);
  for (Outgoing& outgoing : outgoing_) outgoing.requests = std::make_unique<RequestSet>(wires);
}

Bulletin::~Bulletin() = default;

void Bulletin::Begin(const Operation& operation) {
  const PackedRecord record = Pack({operation, own_.place});
  if (own_.history.size() < kHistory) {
    own_.history.push_back(record);
  } else {
    own_.history[operations_ % kHistory] = record;
  }
  ++operations_;
  ++own_.progress;
}

std::vector<std::byte> Bulletin::Encode() const {
  const size_t records = own_.history.size();
  const Header header = {own_.progress, own_.place.step, own_.place.layer, own_.waits_for, records};
  std::vector<std::byte> data(sizeof(header) + records * sizeof(PackedRecord));
  std::memcpy(data.data(), &header, sizeof(header));
  const size_t oldest = records < kHistory ? 0 : operations_ % kHistory;
  for (size_t r = 0; r < records; ++r) {
    std::memcpy(data.data() + sizeof(header) + r * sizeof(PackedRecord),
                &own_.history[(oldest + r) % records], sizeof(PackedRecord));
  }
  return data;
}

bool Bulletin::Decode(const std::vector<std::byte>& data, Known* known) {
  Header header;
  if (data.size() < sizeof(header)) return false;
  std::memcpy(&header, data.data(), sizeof(header));
  if (header.records > kHistory ||
      data.size() != sizeof(header) + header.records * sizeof(PackedRecord))
    return false;
  known->progress = header.progress;
  known->place = {.step = header.step, .layer = header.layer};
  known->waits_for = header.waits_for;
  known->history.resize(header.records);
  if (header.records > 0)
    std::memcpy(known->history.data(), data.data() + sizeof(header), data.size() - sizeof(header));
  return true;
}

void Bulletin::Report() {
  const std::vector<std::byte> data = Encode();
  for (int peer = 0; peer < wires_.world(); ++peer) {
    if (peer == wires_.rank()) continue;
    Outgoing& out = outgoing_[peer];
    if (!out.requests->Poll().ok() || !out.requests->done()) continue;
    out.data = data;
    // A peer that cannot be reached shows in the operation that needs it.
    static_cast<void>(out.requests->Send(Lane::kControl, peer, kReportTag, out.data).ok());
  }
  told_waits_for_ = own_.waits_for;
}

std::optional<std::string> Bulletin::Read() {
  Arrival arrival;
  while (wires_.Probe(Lane::kControl, kAny, kAny, &arrival)) {
    if (!wires_.ReceiveNow(Lane::kControl, arrival, &incoming_).ok()) return std::nullopt;
    if (arrival.tag == kFailureTag)
      return std::string(reinterpret_cast<const char*>(incoming_.data()), incoming_.size());
    Known known{.heard = SteadyClock::now()};
    if (Decode(incoming_, &known)) others_[arrival.peer] = std::move(known);
  }
  return std::nullopt;
}

void Bulletin::LastWords(const std::string& message, std::chrono::milliseconds limit) {
  const std::string text = message.substr(0, kMessageMax);
  const auto words = std::as_bytes(std::span(text));
  const SteadyClock::time_point end = SteadyClock::now() + limit;
  // Reports under way may hold a slot for good: these have requests of their own.
  std::vector<std::unique_ptr<RequestSet>> sets;
  for (int peer = 0; peer < wires_.world(); ++peer) {
    if (peer == wires_.rank()) continue;
    sets.push_back(std::make_unique<RequestSet>(wires_));
    static_cast<void>(sets.back()->Send(Lane::kControl, peer, kFailureTag, words).ok());
  }
  const auto unsent = [](const auto& set) { return set->Poll().ok() && !set->done(); };
  while (std::any_of(sets.begin(), sets.end(), unsent) && SteadyClock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& set : sets) set->GiveUp();
}

uint64_t Bulletin::ProgressOf(int rank) const { return Of(rank).progress; }

int Bulletin::WaitsFor(int rank) const {
  const int waits_for = Of(rank).waits_for;
  if (rank != wires_.rank() && SteadyClock::now() - Of(rank).heard > timeout_ / 2) return -1;
  return waits_for >= 0 && waits_for < wires_.world() ? waits_for : -1;
}

RankSight Bulletin::ReportOf(int rank) const {
  const Known& known = Of(rank);
  RankSight report{.place = known.place, .waits_for = WaitsFor(rank)};
  const size_t records = known.history.size();
  const bool ring = rank == wires_.rank() && records == kHistory;
  const size_t oldest = ring ? operations_ % kHistory : 0;
  for (size_t r = 0; r < records; ++r)
    report.history.push_back(Unpack(known.history[(oldest + r) % records]));
  return report;
}

}  // namespace sixfold::mpi

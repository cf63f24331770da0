#include "engine/rank_messages.h"

#include <cstring>
#include <type_traits>

namespace sixfold {

namespace {

class Writer {
 public:
  explicit Writer(std::vector<std::byte>* out) : out_(*out) { out_.clear(); }

  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof(T));
  }
  template <typename T>
  void PutAll(const std::vector<T>& values) {
    Put(static_cast<uint64_t>(values.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    out_.insert(out_.end(), bytes, bytes + values.size() * sizeof(T));
  }

 private:
  std::vector<std::byte>& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename T>
  T Get() {
    T value{};
    if (!Need(sizeof(T))) return value;
    std::memcpy(&value, left_.data(), sizeof(T));
    left_ = left_.subspan(sizeof(T));
    return value;
  }
  template <typename T>
  void GetAll(std::vector<T>* values) {
    const auto count = Get<uint64_t>();
    if (count > left_.size() / sizeof(T)) ok_ = false;
    if (!ok_) return;
    values->resize(count);
    if (count > 0) std::memcpy(values->data(), left_.data(), count * sizeof(T));
    left_ = left_.subspan(count * sizeof(T));
  }
  // A count of things that take at least one byte each.
  uint64_t GetCount() {
    const auto count = Get<uint64_t>();
    if (count > left_.size()) ok_ = false;
    return ok_ ? count : 0;
  }
  Status End(const char* what) const {
    if (ok_ && left_.empty()) return OkStatus();
    return Internal(std::string("a ") + what + " from another rank does not decode: are all ranks of one build?");
  }

 private:
  bool Need(size_t bytes) {
    if (left_.size() < bytes) ok_ = false;
    return ok_;
  }
  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace

void Encode(const RankCommand& command, std::vector<std::byte>* out) {
  Writer w(out);
  w.Put(command.kind);
  w.Put(command.blocks);
  w.Put(command.step);
  w.Put(static_cast<uint64_t>(command.batches.size()));
  for (const StepBatch& batch : command.batches) {
    w.PutAll(batch.tokens);
    w.Put(static_cast<uint64_t>(batch.sequences.size()));
    for (const StepSequence& s : batch.sequences) {
      w.Put(s.first_position);
      w.Put(s.rows);
      w.Put(s.logit_rows);
      w.PutAll(s.blocks);
    }
  }
  w.Put(command.record_routes);
  w.Put(static_cast<uint64_t>(command.forced.replicas.size()));
  for (const auto& layers : command.forced.replicas) {
    w.Put(static_cast<uint64_t>(layers.size()));
    for (const std::vector<int32_t>& experts : layers) w.PutAll(experts);
  }
}

Result<RankCommand> DecodeCommand(std::span<const std::byte> bytes) {
  Reader r(bytes);
  RankCommand command;
  command.kind = r.Get<CommandKind>();
  command.blocks = r.Get<int32_t>();
  command.step = r.Get<int64_t>();
  command.batches.resize(r.GetCount());
  for (StepBatch& batch : command.batches) {
    r.GetAll(&batch.tokens);
    batch.sequences.resize(r.GetCount());
    for (StepSequence& s : batch.sequences) {
      s.first_position = r.Get<int64_t>();
      s.rows = r.Get<int64_t>();
      s.logit_rows = r.Get<int64_t>();
      r.GetAll(&s.blocks);
    }
  }
  command.record_routes = r.Get<bool>();
  command.forced.replicas.resize(r.GetCount());
  for (auto& layers : command.forced.replicas) {
    layers.resize(r.GetCount());
    for (std::vector<int32_t>& experts : layers) r.GetAll(&experts);
  }
  SF_RETURN_IF_ERROR(r.End("command"));
  return command;
}

void Encode(const RankReport& report, std::vector<std::byte>* out) {
  Writer w(out);
  w.Put(report.rank);
  w.Put(report.control);
  w.Put(report.comm_ns);
  w.Put(report.idle_ns);
  w.Put(report.step_ns);
  w.PutAll(report.expert_tokens);
  w.Put(report.dispatch_ns);
  w.Put(report.combine_ns);
  w.Put(report.kv_bytes_max);
  w.Put(report.kv_transit_bytes_max);
  w.Put(static_cast<uint64_t>(report.ledger.size()));
  for (const auto& [key, entry] : report.ledger) {
    w.Put(key);
    w.Put(entry);
  }
}

Result<RankReport> DecodeReport(std::span<const std::byte> bytes) {
  Reader r(bytes);
  RankReport report;
  report.rank = r.Get<int32_t>();
  report.control = r.Get<ControlTraffic>();
  report.comm_ns = r.Get<int64_t>();
  report.idle_ns = r.Get<int64_t>();
  report.step_ns = r.Get<int64_t>();
  r.GetAll(&report.expert_tokens);
  report.dispatch_ns = r.Get<int64_t>();
  report.combine_ns = r.Get<int64_t>();
  report.kv_bytes_max = r.Get<int64_t>();
  report.kv_transit_bytes_max = r.Get<int64_t>();
  for (uint64_t left = r.GetCount(); left > 0; --left) {
    const auto key = r.Get<LedgerKey>();
    report.ledger[key] = r.Get<LedgerEntry>();
  }
  SF_RETURN_IF_ERROR(r.End("report"));
  return report;
}

void Encode(const trace::RankTrace& trace, std::vector<std::byte>* out) {
  Writer w(out);
  w.Put(trace.rank);
  w.PutAll(trace.messages);
  w.PutAll(trace.loads);
  w.Put(trace.metadata_bytes);
  w.Put(static_cast<uint64_t>(trace.rows.size()));
  for (const trace::RowList& list : trace.rows) {
    w.Put(list.step);
    w.Put(list.micro_batch);
    w.Put(list.replica);
    w.Put(list.first_layer);
    w.Put(list.end_layer);
    w.Put(list.own_begin);
    w.Put(list.own_end);
    w.Put(list.share_begin);
    w.PutAll(list.rows);
  }
  w.Put(static_cast<uint64_t>(trace.kv.size()));
  for (const trace::KvRest& kv : trace.kv) {
    w.Put(kv.step);
    w.Put(kv.micro_batch);
    w.Put(kv.layer);
    w.Put(kv.head_begin);
    w.Put(kv.head_end);
    w.Put(kv.bytes_a_row);
    w.PutAll(kv.rows);
  }
  w.Put(static_cast<uint64_t>(trace.attendance.size()));
  for (const trace::Attendance& a : trace.attendance) {
    w.Put(a.at);
    w.Put(a.axis);
    w.Put(a.op);
    w.Put(a.group);
    w.Put(a.rows);
    w.PutAll(a.stays);
  }
  w.Put(static_cast<uint64_t>(trace.groups.size()));
  for (const trace::GroupMembers& group : trace.groups) {
    w.Put(group.id);
    w.PutAll(group.ranks);
  }
}

Result<trace::RankTrace> DecodeTrace(std::span<const std::byte> bytes) {
  Reader r(bytes);
  trace::RankTrace trace;
  trace.rank = r.Get<int32_t>();
  r.GetAll(&trace.messages);
  r.GetAll(&trace.loads);
  trace.metadata_bytes = r.Get<int64_t>();
  trace.rows.resize(r.GetCount());
  for (trace::RowList& list : trace.rows) {
    list.step = r.Get<int64_t>();
    list.micro_batch = r.Get<int32_t>();
    list.replica = r.Get<int32_t>();
    list.first_layer = r.Get<int64_t>();
    list.end_layer = r.Get<int64_t>();
    list.own_begin = r.Get<int64_t>();
    list.own_end = r.Get<int64_t>();
    list.share_begin = r.Get<int64_t>();
    r.GetAll(&list.rows);
  }
  trace.kv.resize(r.GetCount());
  for (trace::KvRest& kv : trace.kv) {
    kv.step = r.Get<int64_t>();
    kv.micro_batch = r.Get<int32_t>();
    kv.layer = r.Get<int32_t>();
    kv.head_begin = r.Get<int64_t>();
    kv.head_end = r.Get<int64_t>();
    kv.bytes_a_row = r.Get<int64_t>();
    r.GetAll(&kv.rows);
  }
  trace.attendance.resize(r.GetCount());
  for (trace::Attendance& a : trace.attendance) {
    a.at = r.Get<trace::Place>();
    a.axis = r.Get<uint8_t>();
    a.op = r.Get<uint8_t>();
    a.group = r.Get<int32_t>();
    a.rows = r.Get<int64_t>();
    r.GetAll(&a.stays);
  }
  trace.groups.resize(r.GetCount());
  for (trace::GroupMembers& group : trace.groups) {
    group.id = r.Get<int32_t>();
    r.GetAll(&group.ranks);
  }
  SF_RETURN_IF_ERROR(r.End("trace"));
  return trace;
}

}  // namespace sixfold

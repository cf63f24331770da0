#include "trace/recorder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace sixfold::trace {

namespace {

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string_view NameOf(Phase phase) {
  switch (phase) {
    case Phase::kAttentionGather: return "attention_gather";
    case Phase::kNormSums: return "norm_sums";
    case Phase::kHeadExchange: return "head_exchange";
    case Phase::kKvHome: return "kv_home";
    case Phase::kKvExchange: return "kv_exchange";
    case Phase::kQueryExchange: return "query_exchange";
    case Phase::kPartialReturn: return "partial_return";
    case Phase::kOutputExchange: return "output_exchange";
    case Phase::kAttentionSum: return "attention_sum";
    case Phase::kFfnGather: return "ffn_gather";
    case Phase::kFfnSum: return "ffn_sum";
    case Phase::kDispatch: return "dispatch";
    case Phase::kExpertSum: return "expert_sum";
    case Phase::kCombine: return "combine";
    case Phase::kCombineGather: return "combine_gather";
    case Phase::kSharedSum: return "shared_sum";
    case Phase::kStageSend: return "stage_send";
    case Phase::kHeadGather: return "head_gather";
    case Phase::kLogits: return "logits";
    case Phase::kUnsaid: return "unsaid";
  }
  return "unknown";
}

Recorder::Recorder(int rank) { trace_.rank = rank; }

void Recorder::BeginMicroBatch(RowList rows) {
  at_ = {.step = rows.step, .micro_batch = rows.micro_batch, .layer = static_cast<int32_t>(rows.first_layer)};
  list_rows_ = static_cast<int64_t>(rows.rows.size());
  trace_.rows.push_back(std::move(rows));
}

void Recorder::EnterLayer(int layer) { at_.layer = layer; }

RowRef Recorder::Own(int64_t row) const { return {.rank = trace_.rank, .number = static_cast<int32_t>(row)}; }
RowRef Recorder::At(int32_t sequence, int64_t position) const {
  return {.rank = trace_.rank, .number = static_cast<int32_t>(position), .sequence = sequence, .by = RowRef::By::kPosition};
}

void Recorder::Carry(Phase phase, Form form) {
  at_.phase = phase;
  form_ = form;
  fresh_ = true;
  items_.clear();
  for (std::vector<Piece>& of_member : pieces_) of_member.clear();
}

void Recorder::CarryRows(Phase phase, int64_t row_bytes, int64_t base) {
  Carry(phase, Form::kRows);
  item_bytes_ = row_bytes;
  base_ = base;
}

void Recorder::CarryItems(Phase phase, int64_t item_bytes, std::vector<RowRef> items, int64_t base) {
  Carry(phase, Form::kItems);
  item_bytes_ = item_bytes;
  base_ = base;
  items_ = std::move(items);
}

void Recorder::CarryPieces(Phase phase, int members) {
  Carry(phase, Form::kPieces);
  pieces_.resize(members);
}

void Recorder::AddPiece(int member, int64_t bytes, std::span<const RowRef> rows) {
  SF_CHECK(form_ == Form::kPieces && fresh_);
  SF_CHECK(!rows.empty());
  pieces_.at(member).push_back({bytes, items_.size(), rows.size()});
  items_.insert(items_.end(), rows.begin(), rows.end());
}

void Recorder::Attend(uint8_t axis, uint8_t op, int32_t group, int64_t rows, std::vector<int32_t> stays) {
  trace_.attendance.push_back({at_, axis, op, group, rows, std::move(stays)});
}

void Recorder::RestKv(int64_t head_begin, int64_t head_end, int64_t bytes_a_row, std::vector<RowRef> rows) {
  trace_.kv.push_back({.step = at_.step,
                       .micro_batch = at_.micro_batch,
                       .layer = at_.layer,
                       .head_begin = head_begin,
                       .head_end = head_end,
                       .bytes_a_row = bytes_a_row,
                       .rows = std::move(rows)});
}

void Recorder::RestKvOfAll(int64_t head_begin, int64_t head_end, int64_t bytes_a_row) {
  std::vector<RowRef> rows;
  for (int64_t r = 0; r < list_rows_; ++r) rows.push_back(Own(r));
  RestKv(head_begin, head_end, bytes_a_row, std::move(rows));
}

void Recorder::AddGroup(int32_t id, std::span<const int> ranks) {
  trace_.groups.push_back({id, std::vector<int32_t>(ranks.begin(), ranks.end())});
}

void Recorder::Begin() {
  if (!fresh_) at_.phase = Phase::kUnsaid;
  fresh_ = false;
  open_ = trace_.messages.size();
}

RowRef Recorder::ItemAt(int64_t index) const { return form_ == Form::kRows ? Own(index) : items_[index]; }
int64_t Recorder::Items() const { return form_ == Form::kRows ? list_rows_ : static_cast<int64_t>(items_.size()); }

// A cut through the middle of a row leaves each side its own bytes.
void Recorder::LoadLinear(const SentPart& part) {
  const int64_t items = Items();
  if (items == 0 || item_bytes_ <= 0 || part.offset < base_) return;
  int64_t at = part.offset - base_;
  const int64_t end = at + part.bytes;
  while (at < end) {
    const int64_t item = at / item_bytes_;
    const int64_t bytes = std::min((item + 1) * item_bytes_, end) - at;
    trace_.loads.push_back({ItemAt(item % items), bytes});
    at += bytes;
  }
}

// What does not divide goes to the first rows of a piece.
void Recorder::LoadPieces(const SentPart& part) {
  for (const Piece& piece : pieces_.at(part.member)) {
    const auto rows = static_cast<int64_t>(piece.count);
    for (int64_t r = 0; r < rows; ++r) {
      trace_.loads.push_back({items_[piece.first + r], piece.bytes / rows + (r < piece.bytes % rows ? 1 : 0)});
    }
  }
}

void Recorder::Sent(const SentPart& part) {
  const int64_t now = Now();
  const auto first = static_cast<int64_t>(trace_.loads.size());
  if (at_.phase != Phase::kUnsaid) {
    if (form_ == Form::kPieces) {
      LoadPieces(part);
    } else {
      LoadLinear(part);
    }
  }
  trace_.messages.push_back({.at = at_,
                             .axis = part.axis,
                             .op = part.op,
                             .link = part.link,
                             .group = part.group,
                             .from = trace_.rank,
                             .to = part.to,
                             .bytes = part.bytes,
                             .begin_ns = now,
                             .end_ns = now,
                             .first_load = first,
                             .loads = static_cast<int64_t>(trace_.loads.size()) - first});
}

void Recorder::SentMetadata(int64_t bytes) { trace_.metadata_bytes += bytes; }

void Recorder::End() {
  const int64_t now = Now();
  for (; open_ < trace_.messages.size(); ++open_) trace_.messages[open_].end_ns = now;
}

RankTrace Recorder::Take() {
  RankTrace taken = std::move(trace_);
  trace_ = {.rank = taken.rank, .groups = taken.groups};
  open_ = 0;
  return taken;
}

}  // namespace sixfold::trace

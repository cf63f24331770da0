#include "moe/expert_exchange.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace sixfold {

namespace {

using Clock = std::chrono::steady_clock;

int64_t BytesOf(WireType type) { return type == WireType::kF32 ? 4 : 2; }

}  // namespace

ExpertExchange::ExpertExchange(Communicator* group, const ExchangeOptions& options, Ops& ops)
    : group_(group), options_(options), ops_(ops), me_(group == nullptr ? 0 : group->index()) {}

// Every member hears what every row needs: all then make the same plan.
Status ExpertExchange::ExchangeRoutes(std::span<const int64_t> member_rows, const int32_t* experts, const float* weights) {
  const int members = planner_->group().members(), top_k = planner_->top_k();
  const int64_t words = RouteWords(planner_->form()) * int64_t{top_k};
  first_row_.assign(1, 0);
  for (const int64_t rows : member_rows) first_row_.push_back(first_row_.back() + rows);
  routes_.resize(first_row_.back() * words);
  const int64_t own = member_rows[me_] * top_k;
  int32_t* mine = routes_.data() + first_row_[me_] * words;
  std::copy_n(experts, own, mine);
  if (planner_->form() == CombineForm::kNodeSums && own > 0) std::memcpy(mine + own, weights, own * sizeof(float));
  if (group_ != nullptr) {
    Bounds bounds;
    for (const int64_t row : first_row_) bounds.push_back(row * words * static_cast<int64_t>(sizeof(int32_t)));
    SF_RETURN_IF_ERROR(group_->AllGather(bounds, reinterpret_cast<std::byte*>(routes_.data()), CommOp::kRoutes));
  }
  routes_of_.clear();
  gathered_weights_.clear();
  for (int m = 0; m < members; ++m) {
    const int64_t slots = member_rows[m] * top_k;
    const int32_t* first = routes_.data() + first_row_[m] * words;
    routes_of_.emplace_back(first, slots);
    if (planner_->form() == CombineForm::kSlots || slots == 0) continue;
    gathered_weights_.resize(first_row_[m + 1] * top_k);
    std::memcpy(&gathered_weights_[first_row_[m] * top_k], first + slots, slots * sizeof(float));
  }
  return OkStatus();
}

void ExpertExchange::Clear(Leg* leg) const {
  const int members = planner_->group().members();
  leg->send.resize(members);
  for (std::vector<int32_t>& to : leg->send) to.clear();
  leg->receive.assign(members, 0);
  leg->rows.resize(members);
  for (std::vector<trace::RowRef>& to : leg->rows) to.clear();
}

trace::RowRef ExpertExchange::RefOf(int32_t source, int32_t row) const {
  return {.rank = planner_->group().ranks[source], .number = row, .by = trace::RowRef::By::kShare};
}

std::vector<trace::RowRef> ExpertExchange::RowsOfWork() const {
  std::vector<trace::RowRef> rows;
  for (const ExpertSlot& w : work()) rows.push_back(RefOf(w.source, w.slot / planner_->top_k()));
  return rows;
}

// Every row of this member takes part in every dispatch and combine, also one whose experts are all here.
void ExpertExchange::SayCarried(CommOp op, int64_t row_bytes, const Leg& leg) {
  trace_->CarryPieces(op == CommOp::kDispatch ? trace::Phase::kDispatch : trace::Phase::kCombine, planner_->group().members());
  for (size_t m = 0; m < leg.rows.size(); ++m) {
    for (const trace::RowRef& row : leg.rows[m]) trace_->AddPiece(static_cast<int>(m), row_bytes, {&row, 1});
  }
  const int top_k = planner_->top_k();
  std::vector<int32_t> stays;
  for (size_t slot = 0; slot < routes_of_[me_].size(); ++slot) {
    const auto row = static_cast<int32_t>(slot / top_k);
    const bool here = planner_->group().ep_of[routes_of_[me_][slot]] == ep_;
    if (here && (stays.empty() || stays.back() != row)) stays.push_back(row);
  }
  trace_->Attend(static_cast<uint8_t>(group_->group().axis), static_cast<uint8_t>(op), group_->group().id,
                 static_cast<int64_t>(routes_of_[me_].size()) / top_k, std::move(stays));
}

// Sends vectors of `from`; what comes is appended to `to`, member by member.
Status ExpertExchange::RunLeg(CommOp op, WireType type, const Leg& leg, const float* from, std::vector<float>* to) {
  if (group_ == nullptr) return OkStatus();
  const int members = planner_->group().members();
  const int64_t n = options_.hidden, row_bytes = n * BytesOf(type);
  int64_t sends = 0, receives = 0;
  for (int m = 0; m < members; ++m) {
    sends += static_cast<int64_t>(leg.send[m].size());
    receives += leg.receive[m];
  }
  sent_.resize(sends * row_bytes);
  received_.resize(receives * row_bytes);
  send_spans_.clear();
  receive_spans_.clear();
  send_rows_.clear();
  std::byte* out = sent_.data();
  std::byte* in = received_.data();
  for (int m = 0; m < members; ++m) {
    send_rows_.insert(send_rows_.end(), leg.send[m].begin(), leg.send[m].end());
    const int64_t bytes = static_cast<int64_t>(leg.send[m].size()) * row_bytes;
    send_spans_.emplace_back(out, bytes);
    receive_spans_.emplace_back(in, leg.receive[m] * row_bytes);
    out += bytes;
    in += leg.receive[m] * row_bytes;
  }
  if (trace_ != nullptr) SayCarried(op, row_bytes, leg);
  ops_.GatherRows(from, n, send_rows_, type == WireType::kBF16, sent_.data());
  SF_RETURN_IF_ERROR(group_->AllToAll(send_spans_, receive_spans_, op));
  const size_t before = to->size();
  to->resize(before + receives * n);
  ops_.Widen(received_.data(), receives * n, type == WireType::kBF16, to->data() + before);
  return OkStatus();
}

Status ExpertExchange::SendRows(int leg) {
  Clear(&leg_);
  const std::vector<RowCopy>& copies = plan_.out[leg];
  for (const RowCopy& c : copies) {
    if (c.from == me_) {
      leg_.send[c.to].push_back(row_place_[RowNumber(c.source, c.row)]);
      if (trace_ != nullptr) leg_.rows[c.to].push_back(RefOf(c.source, c.row));
    }
    if (c.to == me_) ++leg_.receive[c.from];
  }
  std::vector<int64_t> next = {static_cast<int64_t>(rows_.size()) / options_.hidden};
  for (const int64_t count : leg_.receive) next.push_back(next.back() + count);
  SF_RETURN_IF_ERROR(RunLeg(CommOp::kDispatch, options_.dispatch, leg_, rows_.data(), &rows_));
  for (const RowCopy& c : copies) {
    if (c.to == me_) row_place_[RowNumber(c.source, c.row)] = static_cast<int32_t>(next[c.from]++);
  }
  return OkStatus();
}

Status ExpertExchange::Dispatch(const DispatchPlanner& planner, std::span<const int64_t> member_rows, const float* x,
                                const int32_t* experts, const float* weights) {
  const auto start = Clock::now();
  planner_ = &planner;
  SF_CHECK_EQ(static_cast<int>(member_rows.size()), planner.group().members());
  SF_RETURN_IF_ERROR(ExchangeRoutes(member_rows, experts, weights));
  plan_ = planner.Plan(routes_of_);
  ep_ = me_ / planner.group().etp;
  own_work_ = ShareOf(static_cast<int64_t>(work().size()), planner.group().etp, me_ % planner.group().etp);
  weights_.assign(weights, weights + member_rows[me_] * planner.top_k());
  int64_t arriving = 0;
  for (const auto& leg : plan_.out) {
    for (const RowCopy& c : leg) arriving += c.to == me_ ? 1 : 0;
  }
  rows_.reserve((member_rows[me_] + arriving) * options_.hidden);
  rows_.assign(x, x + member_rows[me_] * options_.hidden);
  row_place_.assign(first_row_.back(), -1);
  for (int64_t r = 0; r < member_rows[me_]; ++r) row_place_[RowNumber(me_, r)] = static_cast<int32_t>(r);
  for (int leg = 0; leg < planner.legs(); ++leg) SF_RETURN_IF_ERROR(SendRows(leg));
  work_rows_.clear();
  for (const ExpertSlot& w : work()) {
    const int32_t place = row_place_[RowNumber(w.source, w.slot / planner.top_k())];
    SF_CHECK_GE(place, 0);
    work_rows_.push_back(place);
  }
  dispatch_time_ += Clock::now() - start;
  return OkStatus();
}

// The weighted sum of a row's slots on this node, as a new term; in slot order.
void ExpertExchange::SumForSource(const OutputCopy& copy) {
  const int top_k = planner_->top_k();
  sum_terms_.clear();
  sum_weights_.clear();
  for (int s = 0; s < top_k; ++s) {
    const int64_t slot = int64_t{copy.index} * top_k + s;
    const int32_t place = slot_place_[RowNumber(copy.source, 0) * top_k + slot];
    if (place < 0) continue;  // on another node
    sum_terms_.push_back(place);
    sum_weights_.push_back(gathered_weights_[RowNumber(copy.source, 0) * top_k + slot]);
  }
  const size_t at = terms_.size();
  terms_.resize(at + options_.hidden);
  ops_.Combine({.slots = terms_.data(),
                .slot_place = sum_terms_.data(),
                .weights = sum_weights_.data(),
                .rows = 1,
                .top_k = static_cast<int>(sum_terms_.size()),
                .n = options_.hidden,
                .rounding = CombineArgs::Rounding::kNone,
                .out = &terms_[at]});
}

Status ExpertExchange::ReturnOutputs(int leg) {
  Clear(&leg_);
  const int64_t top_k = planner_->top_k(), n = options_.hidden;
  const bool sums = leg == 1 && planner_->form() == CombineForm::kNodeSums;
  const std::vector<OutputCopy>& copies = plan_.back[leg];
  for (const OutputCopy& c : copies) {
    if (c.from == me_) {
      int32_t place = 0;
      if (sums) {
        place = static_cast<int32_t>(terms_.size() / n);
        SumForSource(c);
      } else {
        place = slot_place_[RowNumber(c.source, 0) * top_k + c.index];
      }
      SF_CHECK_GE(place, 0);
      leg_.send[c.to].push_back(place);
      const auto row = static_cast<int32_t>(sums ? c.index : c.index / top_k);
      if (trace_ != nullptr) leg_.rows[c.to].push_back(RefOf(c.source, row));
    }
    if (c.to == me_) ++leg_.receive[c.from];
  }
  std::vector<int64_t> next = {static_cast<int64_t>(terms_.size()) / n};
  for (const int64_t count : leg_.receive) next.push_back(next.back() + count);
  SF_RETURN_IF_ERROR(RunLeg(CommOp::kCombine, options_.combine, leg_, terms_.data(), &terms_));
  for (const OutputCopy& c : copies) {
    if (c.to != me_) continue;
    const auto place = static_cast<int32_t>(next[c.from]++);
    if (sums) {
      sum_rows_.push_back(c.index);
      sum_places_.push_back(place);
    } else {
      slot_place_[RowNumber(c.source, 0) * top_k + c.index] = place;
    }
  }
  return OkStatus();
}

// Where each term of this member's rows lies. Slots whose weighted value is in a node's sum give way to it.
void ExpertExchange::PlaceTerms() {
  const int64_t top_k = planner_->top_k();
  const auto slots = static_cast<int64_t>(weights_.size());
  const int32_t* own = slot_place_.data() + RowNumber(me_, 0) * top_k;
  places_.assign(own, own + slots);
  if (planner_->form() == CombineForm::kSlots) return;
  for (size_t i = 0; i < sum_rows_.size(); ++i) {
    int32_t* row = &places_[sum_rows_[i] * top_k];
    const auto free = std::find(row, row + top_k, -1) - row;
    SF_CHECK_LT(free, top_k);  // a sum stands for one slot at least
    row[free] = sum_places_[i];
    weights_[sum_rows_[i] * top_k + free] = 1.0f;
  }
  int32_t zeros = -1;
  for (int64_t i = 0; i < slots; ++i) {
    if (places_[i] >= 0) continue;
    if (zeros < 0) {
      zeros = static_cast<int32_t>(terms_.size() / options_.hidden);
      terms_.resize(terms_.size() + options_.hidden, 0.0f);
    }
    places_[i] = zeros;
    weights_[i] = 0.0f;
  }
}

// Vectors that both legs of the way back add to terms_.
int64_t ExpertExchange::ArrivingOutputs() const {
  int64_t vectors = 0;
  for (const auto& leg : plan_.back) {
    for (const OutputCopy& c : leg) vectors += c.to == me_ ? 1 : 0;
  }
  if (planner_->form() == CombineForm::kSlots) return vectors;
  for (const OutputCopy& c : plan_.back[1]) vectors += c.from == me_ ? 1 : 0;  // sums
  return vectors;
}

Status ExpertExchange::Combine(std::span<const float> outputs) {
  const auto start = Clock::now();
  const int64_t top_k = planner_->top_k();
  SF_CHECK_EQ(static_cast<int64_t>(outputs.size()), own_work_.size() * options_.hidden);
  // Own outputs, what comes back in both directions, and a vector of zeros: no reallocation on the way.
  terms_.reserve(outputs.size() + (ArrivingOutputs() + 1) * options_.hidden);
  terms_.assign(outputs.begin(), outputs.end());
  if (options_.combine == WireType::kBF16) ops_.RoundBF16(terms_.data(), static_cast<int64_t>(terms_.size()));
  slot_place_.assign(first_row_.back() * top_k, -1);
  sum_rows_.clear();
  sum_places_.clear();
  for (int64_t i = 0; i < own_work_.size(); ++i) {
    const ExpertSlot& w = work()[own_work_.begin + i];
    slot_place_[RowNumber(w.source, 0) * top_k + w.slot] = static_cast<int32_t>(i);
  }
  for (int leg = 0; leg < planner_->legs(); ++leg) SF_RETURN_IF_ERROR(ReturnOutputs(leg));
  PlaceTerms();
  combine_time_ += Clock::now() - start;
  return OkStatus();
}

}  // namespace sixfold

// The one handle for experts on other ranks: rows go to the members that have their experts (dispatch), outputs come back to
// the rows' own member (combine). How they travel is the plan's affair (mesh/dispatch_plan.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "kernels/ops.h"
#include "mesh/dispatch_plan.h"
#include "trace/recorder.h"

namespace sixfold {

// How elements cross. bf16 rounds to nearest even, as the products and the combination do with them anyway.
enum class WireType : uint8_t { kF32, kBF16 };

struct ExchangeOptions {
  int64_t hidden = 0;
  WireType dispatch = WireType::kBF16, combine = WireType::kBF16;
};

// Use: Dispatch, then compute the outputs of work(), then Combine; the same on every member, also on one without rows. Memory is
// kept between calls and only grows. Errors: the communicator's. Thread rule: the rank's step thread.
class ExpertExchange {
 public:
  // group: the ranks of planner.group() in order; null for a group of one. Ops must outlive it.
  ExpertExchange(Communicator* group, const ExchangeOptions& options, Ops& ops);
  // Says what every message carries; null: to nobody.
  void Trace(trace::Recorder* recorder) { trace_ = recorder; }

  // This member's rows: x [rows, hidden], experts and weights [rows, top_k]; rows of all members in member_rows. Which member
  // this is, the group says.
  Status Dispatch(const DispatchPlanner& planner, std::span<const int64_t> member_rows, const float* x, const int32_t* experts,
                  const float* weights);

  // What this member computes: slots by expert, then source, then slot; those of expert e follow each other.
  std::span<const ExpertSlot> work() const { return plan_.work[ep_]; }
  // [rows, hidden]: the rows that are here, and the row of each slot of work().
  std::span<const float> rows() const { return rows_; }
  std::span<const int32_t> work_rows() const { return work_rows_; }
  // The rows of work() under the names of the ranks that they came from.
  std::vector<trace::RowRef> RowsOfWork() const;
  // Slots of work() whose outputs this member hands in: all, or its share of them where several members have parts of an expert.
  Share own_work() const { return own_work_; }

  // outputs: [own_work().size(), hidden], complete and unweighted.
  Status Combine(std::span<const float> outputs);

  // What became of this member's rows after Combine: row r is the sum over s, ascending, of weights()[r, s] times
  // terms[places()[r, s]]. With CombineForm::kSlots term s is slot s. Valid until the next Dispatch.
  float* terms() { return terms_.data(); }
  std::span<const int32_t> places() const { return places_; }
  std::span<const float> weights() const { return weights_; }

  std::chrono::nanoseconds dispatch_time() const { return dispatch_time_; }  // since start
  std::chrono::nanoseconds combine_time() const { return combine_time_; }

 private:
  // One all-to-all: what goes to and comes from each member, as indices of vectors.
  struct Leg {
    std::vector<std::vector<int32_t>> send;  // [members] vectors of the source matrix
    std::vector<int64_t> receive;            // [members] how many come
    std::vector<std::vector<trace::RowRef>> rows;  // [members] whose vectors they are; only for a recorder
  };
  Status ExchangeRoutes(std::span<const int64_t> member_rows, const int32_t* experts, const float* weights);
  Status RunLeg(CommOp op, WireType type, const Leg& leg, const float* from, std::vector<float>* to);
  void Clear(Leg* leg) const;
  trace::RowRef RefOf(int32_t source, int32_t row) const;
  void SayCarried(CommOp op, int64_t row_bytes, const Leg& leg);
  Status SendRows(int leg);
  Status ReturnOutputs(int leg);
  void SumForSource(const OutputCopy& copy);
  void PlaceTerms();
  int64_t ArrivingOutputs() const;
  int64_t RowNumber(int source, int64_t row) const { return first_row_[source] + row; }

  Communicator* group_;
  const ExchangeOptions options_;
  Ops& ops_;
  int me_ = 0;
  trace::Recorder* trace_ = nullptr;

  const DispatchPlanner* planner_ = nullptr;  // of the exchange under way
  DispatchPlan plan_;
  int ep_ = 0;
  Share own_work_;
  std::vector<int64_t> first_row_;            // [members + 1] rows before each member's
  std::vector<int32_t> routes_;               // experts of all members, then weights where relays sum
  std::vector<std::span<const int32_t>> routes_of_;
  std::vector<float> gathered_weights_;       // [slots of all members], where relays sum
  std::vector<float> rows_, terms_, weights_;
  std::vector<int32_t> row_place_;            // [rows of all members] in rows_, or -1
  std::vector<int32_t> slot_place_;           // [slots of all members] in terms_, or -1
  std::vector<int32_t> work_rows_, places_;
  std::vector<int32_t> sum_places_;           // fast: places of node sums, with their rows
  std::vector<int32_t> sum_rows_;
  std::vector<int32_t> sum_terms_;            // of the sum in work
  std::vector<float> sum_weights_;
  Leg leg_;
  std::vector<int32_t> send_rows_;            // of all members in order
  std::vector<std::byte> sent_, received_;
  std::vector<std::span<const std::byte>> send_spans_;
  std::vector<std::span<std::byte>> receive_spans_;
  std::chrono::nanoseconds dispatch_time_{0}, combine_time_{0};
};

}  // namespace sixfold

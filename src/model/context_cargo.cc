#include "model/context_cargo.h"

#include <algorithm>

#include "kv/geometry.h"

namespace sixfold {

namespace {

void AddRun(trace::Recorder& recorder, const RowRun& run, int64_t row_bytes, int to) {
  for (int64_t i = 0; i < run.rows; ++i) {
    const trace::RowRef row = recorder.At(run.sequence, run.position + i * run.stride);
    recorder.AddPiece(to, row_bytes, {&row, 1});
  }
}

// The position of a member's key number `key`, counted among its own; by_token.
int64_t PositionOf(const ContextRule& rule, int member, int64_t key) {
  return (key / rule.interleave * rule.size + member) * rule.interleave + key % rule.interleave;
}

}  // namespace

void AddRuns(trace::Recorder& recorder, std::span<const RowRun> runs, int64_t row_bytes, int to) {
  for (const RowRun& run : runs) AddRun(recorder, run, row_bytes, to);
}

void AddPrefillRuns(trace::Recorder& recorder, std::span<const ContextSequence> sequences, std::span<const RowRun> runs,
                    int64_t row_bytes, int to) {
  for (const RowRun& run : runs) {
    if (sequences[run.sequence].rows > 1) AddRun(recorder, run, row_bytes, to);
  }
}

void AddPages(trace::Recorder& recorder, const PageOwner& owner, const ContextBlock& block, int64_t page_bytes, int to) {
  std::vector<trace::RowRef> rows;
  for (const PageRun& run : block.runs) {
    const ContextSequence& sequence = owner.sequences[run.sequence];
    const int64_t end = sequence.first_position + sequence.rows;
    for (int64_t page = run.first; page < run.first + run.pages; ++page) {
      rows.clear();
      for (int64_t slot = page * kPageTokens; slot < (page + 1) * kPageTokens; ++slot) {
        const int64_t position = owner.rule.by_token ? PositionOf(owner.rule, owner.member, slot) : slot;
        if (position < end) rows.push_back(recorder.At(run.sequence, position));
      }
      if (!rows.empty()) recorder.AddPiece(to, page_bytes, rows);
    }
  }
}

void CarryQueries(trace::Recorder& recorder, std::span<const ContextQuery> queries, int me, int members, int64_t query_bytes) {
  recorder.CarryPieces(trace::Phase::kQueryExchange, members);
  for (const ContextQuery& q : queries) {
    const trace::RowRef row = recorder.At(q.sequence, q.position);
    for (int m = 0; m < members && q.home == me; ++m) {
      if (!q.nodes[m].empty()) recorder.AddPiece(m, query_bytes, {&row, 1});
    }
  }
}

void CarryPartials(trace::Recorder& recorder, std::span<const ContextQuery> queries, int me, int members, int64_t part_bytes) {
  recorder.CarryPieces(trace::Phase::kPartialReturn, members);
  for (const ContextQuery& q : queries) {
    const trace::RowRef row = recorder.At(q.sequence, q.position);
    if (!q.nodes[me].empty()) recorder.AddPiece(q.home, static_cast<int64_t>(q.nodes[me].size()) * part_bytes, {&row, 1});
  }
}

}  // namespace sixfold

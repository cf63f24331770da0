// Attention under context parallelism, its two exchanges that are no round of keys: heads against positions (Ulysses), and queries
// that go to their keys (decode).
#include <algorithm>
#include <numeric>

#include "model/context_attention.h"
#include "model/context_cargo.h"
#include "model/slices.h"

namespace sixfold {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

// --- Heads against positions -----------------------------------------------------------------------

ContextAttention::Call ContextAttention::HeadPart(const Call& whole, int part) const {
  Call call = whole;
  const int each = whole.args.heads / rule_.ulysses, group = whole.args.kv_group;
  const int first = part * each + whole.args.group_offset;
  call.kv_heads = {first / group, (first + each - 1) / group + 1};
  call.args.heads = each;
  call.args.kv.kv_heads = static_cast<int>(call.kv_heads.size());
  call.args.group_offset = first - static_cast<int>(call.kv_heads.begin) * group;
  if (whole.args.sinks != nullptr) call.args.sinks = whole.args.sinks + part * each;
  return call;
}

ContextAttention::Transposition ContextAttention::TranspositionOf(const WindowPlan& plan) const {
  Transposition t{.parts = rule_.ulysses, .mine = Member() % rule_.ulysses, .first = Member() / rule_.ulysses * rule_.ulysses};
  for (int p = 0; p < t.parts; ++p) {
    int64_t rows = 0;
    for (const RowRun& run : plan.plan.rows[t.first + p]) {
      if (sequences_[run.sequence].rows == 1) continue;
      rows += run.rows;
      for (int64_t i = 0; i < run.rows && p == t.mine; ++i) t.own_rows.push_back(own_row_[run.row + i * run.stride]);
    }
    t.counts.push_back(rows);
  }
  return t;
}

// queries_ [rows of all parts][this rank's share of the heads][k_dim].
Status ContextAttention::SendQueries(const Call& whole, const Transposition& t) {
  const int64_t heads = whole.args.heads, each = heads / t.parts, width = each * whole.args.kv.k_dim;
  const auto rows = static_cast<int64_t>(t.own_rows.size());
  Slices<float> out, in;
  for (int p = 0; p < t.parts; ++p) {
    out.Append(rows * width);
    in.Append(t.counts[p] * width);
  }
  outgoing_.resize(out.begin.back());
  queries_.resize(in.begin.back());
  out.Point(outgoing_.data());
  in.Point(queries_.data());
  for (int p = 0; p < t.parts; ++p) {
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(whole.args.q + (t.own_rows[r] * t.parts + p) * width, width, out.of[p].begin() + r * width);
    }
  }
  if (trace_ != nullptr) {
    trace_->CarryPieces(trace::Phase::kHeadExchange, t.parts);
    for (int p = 0; p < t.parts; ++p) AddPrefillRuns(*trace_, sequences_, whole.plan->plan.rows[Member()], width * kFloatBytes, p);
  }
  return comm_.ulysses->AllToAll(AsBytes(out.of), AsWritableBytes(in.of));
}

// block_: the segment's pages of all parts, with the K/V heads of this rank's share.
Status ContextAttention::SendPages(const Call& whole, const Transposition& t) {
  const ContextSegment& segment = SegmentOf(whole);
  const ContextBlock& own = segment.blocks[Member()];
  const Call mine = HeadPart(whole, t.mine);
  packed_.resize(t.parts);
  Slices<std::byte> in;
  std::vector<std::span<const std::byte>> out;
  int64_t k_bytes = 0, packed_bytes = 0;
  for (int p = 0; p < t.parts; ++p) {
    const Call part = HeadPart(whole, p);
    packed_[p].resize(own.pages * PageBytes(part, &k_bytes));
    if (!packed_[p].empty()) Pack(whole, part.kv_heads, packed_[p].data());
    out.emplace_back(packed_[p]);
    packed_bytes += static_cast<int64_t>(packed_[p].size());
    in.Append(segment.blocks[t.first + p].pages * PageBytes(mine, &k_bytes));
  }
  block_.resize(in.begin.back());
  NoteTransit(packed_bytes + in.begin.back());
  in.Point(block_.data());
  if (trace_ != nullptr) {
    trace_->CarryPieces(trace::Phase::kHeadExchange, t.parts);
    for (int p = 0; p < t.parts; ++p) CarryBlock(Member(), own, PageBytes(HeadPart(whole, p), &k_bytes), p);
  }
  return comm_.ulysses->AllToAll(out, in.of);
}

// outputs_ [rows of all parts][this rank's share of the heads][v_dim] back to the rows' own ranks.
Status ContextAttention::ReturnOutputs(const Call& whole, const Transposition& t) {
  const int64_t width = whole.args.heads / t.parts * whole.args.kv.v_dim;
  const auto rows = static_cast<int64_t>(t.own_rows.size());
  Slices<float> out, in;
  for (int p = 0; p < t.parts; ++p) {
    out.Append(t.counts[p] * width);
    in.Append(rows * width);
  }
  arrived_.resize(in.begin.back());
  out.Point(outputs_.data());
  in.Point(arrived_.data());
  if (trace_ != nullptr) {
    trace_->CarryPieces(trace::Phase::kOutputExchange, t.parts);
    for (int p = 0; p < t.parts; ++p) AddPrefillRuns(*trace_, sequences_, whole.plan->plan.rows[t.first + p], width * kFloatBytes, p);
  }
  SF_RETURN_IF_ERROR(comm_.ulysses->AllToAll(AsBytes(out.of), AsWritableBytes(in.of)));
  for (int p = 0; p < t.parts; ++p) {
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(in.of[p].begin() + r * width, width, whole.args.out + (t.own_rows[r] * t.parts + p) * width);
    }
  }
  return OkStatus();
}

// Heads are shared out and rows brought together, and back.
Status ContextAttention::Transpose(const Call& whole) {
  const Transposition t = TranspositionOf(*whole.plan);
  SF_RETURN_IF_ERROR(SendQueries(whole, t));
  Call call = HeadPart(whole, t.mine);
  outputs_.resize(std::accumulate(t.counts.begin(), t.counts.end(), int64_t{0}) * call.args.heads * call.args.kv.v_dim);
  call.args.q = queries_.data();
  call.args.out = outputs_.data();
  int64_t row = 0;
  for (int p = 0; p < t.parts; ++p) {
    AppendRuns(*whole.plan, t.first + p, row, &runs_);
    row += t.counts[p];
  }
  for (; call.segment < whole.plan->plan.segments.size(); ++call.segment) {
    Call of_segment = whole;
    of_segment.segment = call.segment;
    SF_RETURN_IF_ERROR(SendPages(of_segment, t));
    SF_RETURN_IF_ERROR(Ring(call, &block_));
  }
  Finish(call);
  return ReturnOutputs(whole, t);
}

// --- Queries to keys -------------------------------------------------------------------------------

// Partial results of all queries that came, into outgoing_ [member that asked][query][node].
void ContextAttention::AttendQueries(const AttentionArgs& args, const WindowPlan& plan) {
  const int64_t part_floats = args.heads * PartialStride(args.kv.v_dim);
  AttentionArgs call = args;
  call.q = queries_.data();
  std::vector<AttentionNode> nodes;
  int64_t row = 0;
  float* to = outgoing_.data();
  for (int m = 0; m < rule_.size; ++m) {
    for (const ContextQuery& q : plan.plan.queries) {
      if (q.home != m || q.nodes[Member()].empty()) continue;
      AttentionSequence rows{.first_row = row++, .rows = 1, .first_position = q.position, .pages = tables_[q.sequence].data()};
      for (ChunkRange node : q.nodes[Member()]) {
        if (rule_.by_token) {
          const LocalKeys keys = KeysSeen(rule_, Member(), q.position, plan.window);
          rows.first_position = keys.last - 1;
          node = VisibleChunks(rule_.chunk, keys.last - 1, keys.last - 1, keys.window());
          if (call.window != keys.window()) {
            ops_.AttentionNodes(call, nodes);
            nodes.clear();
            call.window = keys.window();
          }
        }
        nodes.push_back({.rows = rows, .chunk_begin = node.begin, .chunk_end = node.end, .partials = to});
        to += part_floats;
      }
    }
  }
  ops_.AttentionNodes(call, nodes);
}

// arrived: [members], what each of them found for this rank's queries.
void ContextAttention::MergeQueries(const AttentionArgs& args, const WindowPlan& plan, std::span<const std::span<float>> arrived) {
  const int64_t part_floats = args.heads * PartialStride(args.kv.v_dim);
  std::vector<int64_t> next(rule_.size, 0);
  for (const ContextQuery& q : plan.plan.queries) {
    if (q.home != Member()) continue;
    QueryRun& run = runs_.emplace_back();
    run.sequence = q.sequence;
    run.first_row = own_row_[q.row];
    run.position = q.position;
    run.rows = 1;
    run.visible = q.visible;
    for (int m = 0; m < rule_.size; ++m) {
      for (const ChunkRange& node : q.nodes[m]) {
        const int buffer = results_.New(part_floats);
        std::copy_n(arrived[m].begin() + next[m], part_floats, results_.Data(buffer));
        next[m] += part_floats;
        results_.Insert(run.visible, {rule_.by_token ? ChunkRange{m, m + 1} : node, buffer}, args.heads, args.kv.v_dim, &run.waiting);
      }
    }
    Finish({.args = args, .plan = &plan, .kv_heads = {}});
  }
}

Status ContextAttention::PassQueries(const AttentionArgs& args, const WindowPlan& plan) {
  const std::vector<ContextQuery>& queries = plan.plan.queries;
  const int64_t q_floats = int64_t{args.heads} * args.kv.k_dim, part_floats = args.heads * PartialStride(args.kv.v_dim);
  const int me = Member();
  Slices<float> out, in, back, home;
  for (int m = 0; m < rule_.size; ++m) {
    int64_t sent = 0, came = 0, nodes_here = 0, nodes_there = 0;
    for (const ContextQuery& q : queries) {
      const auto here = static_cast<int64_t>(q.nodes[me].size()), there = static_cast<int64_t>(q.nodes[m].size());
      if (q.home == me && there > 0) ++sent;
      if (q.home == m && here > 0) ++came;
      if (q.home == m) nodes_here += here;
      if (q.home == me) nodes_there += there;
    }
    out.Append(sent * q_floats);
    in.Append(came * q_floats);
    back.Append(nodes_here * part_floats);
    home.Append(nodes_there * part_floats);
  }
  outputs_.resize(out.begin.back());
  queries_.resize(in.begin.back());
  out.Point(outputs_.data());
  in.Point(queries_.data());
  for (int m = 0; m < rule_.size; ++m) {
    auto to = out.of[m].begin();
    for (const ContextQuery& q : queries) {
      if (q.home == me && !q.nodes[m].empty()) to = std::copy_n(args.q + own_row_[q.row] * q_floats, q_floats, to);
    }
  }
  if (trace_ != nullptr) CarryQueries(*trace_, queries, me, rule_.size, q_floats * kFloatBytes);
  SF_RETURN_IF_ERROR(comm_.cp->AllToAll(AsBytes(out.of), AsWritableBytes(in.of)));

  outgoing_.resize(back.begin.back());
  AttendQueries(args, plan);
  arrived_.resize(home.begin.back());
  back.Point(outgoing_.data());
  home.Point(arrived_.data());
  if (trace_ != nullptr) CarryPartials(*trace_, queries, me, rule_.size, part_floats * kFloatBytes);
  SF_RETURN_IF_ERROR(comm_.cp->AllToAll(AsBytes(back.of), AsWritableBytes(home.of)));
  MergeQueries(args, plan, home.of);
  return OkStatus();
}

}  // namespace sixfold

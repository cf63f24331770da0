#include "model/context_attention.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "kv/geometry.h"
#include "model/context_cargo.h"
#include "model/slices.h"

namespace sixfold {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

int64_t ElementBytes(const KvLayerView& kv) { return kv.bf16 ? 2 : 4; }

void CopyBytes(const std::byte* from, int64_t bytes, std::byte* to) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

ContextAttention::ContextAttention(const Layout& layout, const RankShard& own, Ops& ops)
    : own_(own), ops_(ops), rule_(layout.context()),
      results_(ops, rule_.by_token ? PartialResults::Merging::kAnyOrder : PartialResults::Merging::kTree) {}

void ContextAttention::Begin(const RankComm& comm, std::vector<ContextSequence> sequences,
                             std::vector<std::vector<int32_t>> tables) {
  comm_ = comm;
  sequences_ = std::move(sequences);
  tables_ = std::move(tables);
  plans_.clear();
  moves_ = KeysToMove(rule_, sequences_);
  int64_t rows = 0;
  for (const ContextSequence& s : sequences_) rows += s.rows;
  own_row_.assign(rows, -1);
  own_runs_ = DealRows(rule_, sequences_)[Member()];
  int32_t number = 0;
  for (const RowRun& run : own_runs_) {
    for (int64_t i = 0; i < run.rows; ++i) own_row_[run.row + i * run.stride] = number++;
  }
}

const ContextAttention::WindowPlan& ContextAttention::PlanFor(int64_t window) {
  for (const auto& plan : plans_) {
    if (plan->window == window) return *plan;
  }
  auto made = std::make_unique<WindowPlan>();
  made->window = window;
  made->plan = PlanContext(rule_, sequences_, window);
  for (const ContextSegment& segment : made->plan.segments) {
    made->tables.emplace_back();
    for (const ContextBlock& block : segment.blocks) {
      std::vector<std::vector<int32_t>>& tables = made->tables.back().emplace_back(sequences_.size());
      int32_t place = 0;
      for (const PageRun& run : block.runs) {
        std::vector<int32_t>& table = tables[run.sequence];
        table.resize(std::max<size_t>(table.size(), run.first + run.pages), -1);
        for (int64_t i = 0; i < run.pages; ++i) table[run.first + i] = place++;
      }
    }
  }
  plans_.push_back(std::move(made));
  return *plans_.back();
}

// --- Keys to their owners --------------------------------------------------------------------------

Status ContextAttention::WriteKeys(const float* k, const float* v, const KvLayerView& kv) {
  const bool striped = rule_.form == CpForm::kStriped && !rule_.by_token;
  std::vector<AttentionSequence> written;
  int64_t row = 0;
  for (const RowRun& run : own_runs_) {
    // Strided rows rest at their owners in whole chunks; by_token they lie without gaps on this one.
    if (!striped || sequences_[run.sequence].rows == 1) {
      const int64_t position = rule_.by_token ? KeysBelow(rule_, Member(), run.position) : run.position;
      written.push_back({.first_row = row, .rows = run.rows, .first_position = position, .pages = tables_[run.sequence].data()});
      RestKeys(run, kv);
    }
    row += run.rows;
  }
  ops_.WriteKv(k, v, written, kv);
  const bool prefills = std::any_of(sequences_.begin(), sequences_.end(), [](const ContextSequence& s) { return s.rows > 1; });
  return striped && prefills ? SendKeysHome(k, v, kv) : OkStatus();
}

// Rows that were dealt one by one: their keys to who keeps the chunk.
Status ContextAttention::SendKeysHome(const float* k, const float* v, const KvLayerView& kv) {
  const int64_t k_n = int64_t{kv.kv_heads} * kv.k_dim, v_n = kv.v_in_k ? 0 : int64_t{kv.kv_heads} * kv.v_dim;
  const int64_t row_bytes = (k_n + v_n) * ElementBytes(kv);
  Slices<std::byte> out, in;
  std::vector<int32_t> rows;
  for (int m = 0; m < rule_.size; ++m) {
    out.Append(RowsOf(moves_[Member()][m]) * row_bytes);
    in.Append(RowsOf(moves_[m][Member()]) * row_bytes);
  }
  keys_out_.resize(out.begin.back());
  keys_in_.resize(in.begin.back());
  NoteTransit(static_cast<int64_t>(keys_out_.size() + keys_in_.size()));
  out.Point(keys_out_.data());
  in.Point(keys_in_.data());
  for (int m = 0; m < rule_.size; ++m) {
    rows.clear();
    for (const RowRun& run : moves_[Member()][m]) {
      for (int64_t i = 0; i < run.rows; ++i) rows.push_back(own_row_[run.row + i * run.stride]);
    }
    if (rows.empty()) continue;
    ops_.GatherRows(k, k_n, rows, kv.bf16, out.of[m].data());
    if (v_n > 0) ops_.GatherRows(v, v_n, rows, kv.bf16, out.of[m].data() + static_cast<int64_t>(rows.size()) * k_n * ElementBytes(kv));
  }
  if (trace_ != nullptr) {
    trace_->CarryPieces(trace::Phase::kKvHome, rule_.size);
    for (int m = 0; m < rule_.size; ++m) AddRuns(*trace_, moves_[Member()][m], row_bytes, m);
  }
  SF_RETURN_IF_ERROR(comm_.cp->AllToAll(std::vector<std::span<const std::byte>>(out.of.begin(), out.of.end()), in.of));
  std::vector<AttentionSequence> written;
  int64_t arrived = 0;
  for (int m = 0; m < rule_.size; ++m) {
    const int64_t count = RowsOf(moves_[m][Member()]);
    keys_.resize((arrived + count) * k_n);
    values_.resize((arrived + count) * v_n);
    if (count == 0) continue;
    ops_.Widen(in.of[m].data(), count * k_n, kv.bf16, keys_.data() + arrived * k_n);
    if (v_n > 0) ops_.Widen(in.of[m].data() + count * k_n * ElementBytes(kv), count * v_n, kv.bf16, values_.data() + arrived * v_n);
    for (const RowRun& run : moves_[m][Member()]) {
      written.push_back({.first_row = arrived, .rows = run.rows, .first_position = run.position, .pages = tables_[run.sequence].data(), .position_step = run.stride});
      arrived += run.rows;
      RestKeys(run, kv);
    }
  }
  ops_.WriteKv(keys_.data(), v_n > 0 ? values_.data() : nullptr, written, kv);
  return OkStatus();
}

// --- Partial results -------------------------------------------------------------------------------

void ContextAttention::AppendByToken(const WindowPlan& plan, QueryRun run, std::vector<QueryRun>* out) const {
  // Rows go together while on every member each sees one key more than the one before it, through equal windows.
  const auto uniform = [&](int64_t before, int64_t after) {
    for (int m = 0; m < rule_.size; ++m) {
      const LocalKeys a = KeysSeen(rule_, m, before, plan.window), b = KeysSeen(rule_, m, after, plan.window);
      if (a.last == 0 || b.last != a.last + 1 || a.window() != b.window()) return false;
    }
    return true;
  };
  for (int64_t begin = 0; begin < run.rows;) {
    int64_t end = begin + 1;
    while (end < run.rows && uniform(run.position + (end - 1) * run.stride, run.position + end * run.stride)) ++end;
    QueryRun part = run;
    part.first_row += begin;
    part.position += begin * run.stride;
    part.rows = end - begin;
    out->push_back(std::move(part));
    begin = end;
  }
}

// Rows of the sequences with more than one. first_row: they follow each other in the query matrix from there on; without, they
// stand where this rank has them among all its rows.
void ContextAttention::AppendRuns(const WindowPlan& plan, int member, std::optional<int64_t> first_row, std::vector<QueryRun>* out) const {
  int64_t row = first_row.value_or(0);
  for (const RowRun& run : plan.plan.rows[member]) {
    if (sequences_[run.sequence].rows == 1) continue;
    if (!first_row) row = own_row_[run.row];
    const QueryRun whole{.sequence = run.sequence, .first_row = row, .position = run.position, .rows = run.rows, .stride = run.stride, .visible = {}, .waiting = {}};
    row += run.rows;
    if (rule_.by_token) {
      AppendByToken(plan, whole, out);
      continue;
    }
    out->push_back(whole);
    QueryRun& q = out->back();
    q.visible = VisibleChunks(rule_.chunk, q.position, q.position + (q.rows - 1) * q.stride, plan.window);
  }
}

void ContextAttention::RunNodes(const AttentionArgs& args, std::span<const AttentionNode> nodes, std::span<const int> runs,
                                std::span<const PartialResults::Node> results) {
  ops_.AttentionNodes(args, nodes);
  for (size_t i = 0; i < nodes.size(); ++i) {
    QueryRun& run = runs_[runs[i]];
    results_.Insert(run.visible, results[i], nodes[i].rows.rows * args.heads, args.kv.v_dim, &run.waiting);
  }
}

void ContextAttention::AttendBlock(const Call& call, int member, const std::byte* data) {
  const WindowPlan& plan = *call.plan;
  const ContextSegment& segment = SegmentOf(call);
  const int64_t pages = segment.blocks[member].pages;
  if (pages == 0) return;
  AttentionArgs args = call.args;
  int64_t k_bytes = 0;
  PageBytes(call, &k_bytes);
  // The view is read only; KvLayerView serves writers too.
  std::byte* base = const_cast<std::byte*>(data);
  args.kv.k = base;
  args.kv.v = args.kv.v_in_k ? base : base + pages * k_bytes;
  std::vector<AttentionNode> nodes;
  std::vector<int> runs;
  std::vector<PartialResults::Node> results;
  const auto add = [&](size_t run, const AttentionSequence& rows, ChunkRange range, ChunkRange result) {
    const int buffer = results_.New(PartialLanes(rows.rows, args.heads) * PartialStride(args.kv.v_dim));
    nodes.push_back({.rows = rows, .chunk_begin = range.begin, .chunk_end = range.end, .partials = nullptr});
    runs.push_back(static_cast<int>(run));
    results.push_back({result, buffer});
  };
  const auto flush = [&] {
    for (size_t i = 0; i < nodes.size(); ++i) nodes[i].partials = results_.Data(results[i].buffer);
    if (!nodes.empty()) RunNodes(args, nodes, runs, results);
    nodes.clear();
    runs.clear();
    results.clear();
  };
  std::vector<std::vector<bool>> held(sequences_.size());
  for (size_t i = 0; i < runs_.size(); ++i) {
    const QueryRun& run = runs_[i];
    const std::vector<int32_t>& table = plan.tables[call.segment][member][run.sequence];
    AttentionSequence rows{.first_row = run.first_row, .rows = run.rows, .first_position = run.position, .pages = table.data()};
    if (rule_.by_token) {
      const LocalKeys keys = KeysSeen(rule_, member, run.position, plan.window);
      if (keys.first == keys.last) continue;
      if (keys.window() != args.window) flush();
      args.window = keys.window();
      rows.first_position = keys.last - 1;
      add(i, rows, VisibleChunks(rule_.chunk, keys.last - 1, keys.last - 2 + run.rows, keys.window()), {member, member + 1});
      continue;
    }
    rows.position_step = run.stride;
    std::vector<bool>& has = held[run.sequence];
    if (has.empty()) {
      has = HeldBy(sequences_[run.sequence], member);
      std::fill(has.begin(), has.begin() + std::min<int64_t>(segment.chunks.begin, std::ssize(has)), false);
      if (segment.chunks.end < std::ssize(has)) std::fill(has.begin() + segment.chunks.end, has.end(), false);
    }
    for (const ChunkRange& node : MaximalNodes(run.visible, has)) add(i, rows, node, node);
  }
  flush();
}

void ContextAttention::AttendBlocks(const Call& call, int first_member, int members, const std::byte* data) {
  int64_t k_bytes = 0;
  const int64_t page_bytes = PageBytes(call, &k_bytes);
  for (int m = first_member; m < first_member + members; ++m) {
    AttendBlock(call, m, data);
    data += SegmentOf(call).blocks[m].pages * page_bytes;
  }
}

void ContextAttention::Finish(const Call& call) {
  for (QueryRun& run : runs_) {
    SF_CHECK_EQ(run.waiting.size(), 1u);
    const AttentionSequence rows{.first_row = run.first_row, .rows = run.rows, .first_position = run.position};
    ops_.FinishPartials(call.args, rows, results_.Data(run.waiting[0].buffer));
    results_.Give(run.waiting[0].buffer);
  }
  runs_.clear();
}

// --- Pages under way -------------------------------------------------------------------------------

// Of a page of the call's K/V heads; k_bytes: of its keys.
int64_t ContextAttention::PageBytes(const Call& call, int64_t* k_bytes) const {
  const KvLayerView& kv = call.args.kv;
  *k_bytes = call.kv_heads.size() * kPageTokens * kv.k_dim * ElementBytes(kv);
  return *k_bytes + (kv.v_in_k ? 0 : call.kv_heads.size() * kPageTokens * kv.v_dim * ElementBytes(kv));
}

// This rank's block: keys of all its pages, then values; `kv_heads` of those that the rank has.
void ContextAttention::Pack(const Call& call, Share kv_heads, std::byte* out) const {
  const KvLayerView& kv = call.args.kv;
  const auto pack = [&](const std::byte* base, int dim) {
    const int64_t head_bytes = int64_t{kPageTokens} * dim * ElementBytes(kv);
    for (const PageRun& run : SegmentOf(call).blocks[Member()].runs) {
      for (int64_t page = run.first; page < run.first + run.pages; ++page) {
        const int64_t at = (int64_t{tables_[run.sequence][page]} * kv.kv_heads + kv_heads.begin) * head_bytes;
        CopyBytes(base + at, kv_heads.size() * head_bytes, out);
        out += kv_heads.size() * head_bytes;
      }
    }
  };
  pack(kv.k, kv.k_dim);
  if (!kv.v_in_k) pack(kv.v, kv.v_dim);
}

void ContextAttention::CarryBlock(int member, const ContextBlock& block, int64_t page_bytes, int to) {
  AddPages(*trace_, {.rule = rule_, .sequences = sequences_, .member = member}, block, page_bytes, to);
}

void ContextAttention::RestKeys(const RowRun& run, const KvLayerView& kv) {
  if (trace_ == nullptr) return;
  std::vector<trace::RowRef> rows;
  for (int64_t i = 0; i < run.rows; ++i) rows.push_back(trace_->At(run.sequence, run.position + i * run.stride));
  trace_->RestKv(own_.kv_heads.begin, own_.kv_heads.end, KvRowBytes(kv), std::move(rows));
}

void ContextAttention::NoteTransit(int64_t bytes) { transit_bytes_max_ = std::max(transit_bytes_max_, bytes); }

Status ContextAttention::Gather(const Call& call) {
  int64_t k_bytes = 0;
  const int64_t page_bytes = PageBytes(call, &k_bytes);
  Bounds bounds = {0};
  for (const ContextBlock& block : SegmentOf(call).blocks) bounds.push_back(bounds.back() + block.pages * page_bytes);
  block_.resize(bounds.back());
  NoteTransit(bounds.back());
  Pack(call, call.kv_heads, block_.data() + bounds[Member()]);
  if (trace_ != nullptr) {
    trace_->CarryPieces(trace::Phase::kKvExchange, rule_.size);
    for (int m = 0; m < rule_.size; ++m) CarryBlock(Member(), SegmentOf(call).blocks[Member()], page_bytes, m);
  }
  SF_RETURN_IF_ERROR(comm_.cp->AllGather(bounds, block_.data()));
  AttendBlocks(call, 0, rule_.size, block_.data());
  return OkStatus();
}

// block: that of this rank's part of the ring. While it is attended to, it is on its way to the next rank already.
Status ContextAttention::Ring(const Call& call, std::vector<std::byte>* block) {
  int64_t k_bytes = 0;
  const int64_t page_bytes = PageBytes(call, &k_bytes);
  const int u = Member() % rule_.ulysses, r = Member() / rule_.ulysses, ring = rule_.ring();
  const int next = u + rule_.ulysses * ((r + 1) % ring), previous = u + rule_.ulysses * ((r + ring - 1) % ring);
  for (int round = 0; round < ring; ++round) {
    const int part = (r + ring - round) % ring;
    std::optional<SendTicket> ticket;
    if (round + 1 < ring && !block->empty()) {
      if (trace_ != nullptr) {
        trace_->CarryPieces(trace::Phase::kKvExchange, rule_.size);
        for (int m = part * rule_.ulysses; m < (part + 1) * rule_.ulysses; ++m) CarryBlock(m, SegmentOf(call).blocks[m], page_bytes, next);
      }
      SF_ASSIGN_OR_RETURN(ticket, comm_.cp->StartSend(next, *block));
    }
    AttendBlocks(call, part * rule_.ulysses, rule_.ulysses, block->data());
    Status status = OkStatus();
    if (round + 1 < ring) {
      const int incoming = (part + ring - 1) % ring;
      int64_t pages = 0;
      for (int m = 0; m < rule_.ulysses; ++m) pages += SegmentOf(call).blocks[incoming * rule_.ulysses + m].pages;
      next_.resize(pages * page_bytes);
      NoteTransit(static_cast<int64_t>(block->size() + next_.size()));
      if (pages > 0) status = comm_.cp->Recv(previous, next_);
    }
    if (ticket) {
      const Status sent = comm_.cp->FinishSend(*ticket);
      if (status.ok()) status = sent;
    }
    SF_RETURN_IF_ERROR(status);
    std::swap(*block, next_);
  }
  return OkStatus();
}

Status ContextAttention::Attend(const AttentionArgs& args) {
  const WindowPlan& plan = PlanFor(args.window);
  Call call{.args = args, .plan = &plan, .kv_heads = {0, args.kv.kv_heads}};
  if (plan.plan.prefills && rule_.ulysses > 1) {
    SF_RETURN_IF_ERROR(Transpose(call));
  } else if (plan.plan.prefills) {
    AppendRuns(plan, Member(), std::nullopt, &runs_);
    for (; call.segment < plan.plan.segments.size(); ++call.segment) {
      if (rule_.form == CpForm::kAllGather) {
        SF_RETURN_IF_ERROR(Gather(call));
        continue;
      }
      int64_t k_bytes = 0;
      block_.resize(SegmentOf(call).blocks[Member()].pages * PageBytes(call, &k_bytes));
      if (!block_.empty()) Pack(call, call.kv_heads, block_.data());
      SF_RETURN_IF_ERROR(Ring(call, &block_));
    }
    Finish(call);
  }
  return plan.plan.queries.empty() ? OkStatus() : PassQueries(args, plan);
}

}  // namespace sixfold

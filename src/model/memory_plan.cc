#include "model/memory_plan.h"

#include <algorithm>
#include <bit>
#include <array>
#include <map>
#include <utility>

#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "model/loader.h"
#include "model/micro_batch.h"
#include "model/stage.h"

namespace sixfold {

namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
constexpr int64_t kMappedAround = int64_t{64}
                                  << 10;  // by the kernel, when one page of a file is touched
constexpr int64_t kPeerBytes = int64_t{64} << 10;  // eager messages of one peer

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Largest micro-batch of any step, and how many a step has at most.
struct MicroBatches {
  int64_t count = 1, rows = 0;
};

MicroBatches Largest(const MemoryWork& work, int pp) {
  MicroBatches largest;
  for (const int64_t rows : work.step_rows) {
    const int count = MicroBatchCount(rows, pp);
    largest.count = std::max<int64_t>(largest.count, count);
    largest.rows = std::max(largest.rows, CeilDiv(rows, count));
  }
  return largest;
}

// The figures of one rank; sizes as in forward.h, stage.h, communicator.h and rank_runner.h.
class RankPlan {
 public:
  RankPlan(const ModelConfig& c, const ModelOptions& o, const Layout& layout,
           const MemoryWork& work, int rank)
      : c_(c),
        o_(o),
        layout_(layout),
        work_(work),
        own_(layout.Shard(rank)),
        micro_(Largest(work, layout.pp())) {
    const bool busy = own_.dp < work.busy_replicas;
    rows_ = busy ? micro_.rows : 0;
    own_rows_ = layout.sequence_parallel() ? CeilDiv(rows_, layout.tp()) : rows_;
    step_rows_ = *std::max_element(work.step_rows.begin(), work.step_rows.end());
    for (int64_t l = own_.layers.begin; l < own_.layers.end; ++l)
      (c.layers[l].sparse ? sparse_ : dense_) = true;
  }

  int64_t Embedding(const MatrixView& view) const {
    if (!own_.first_stage) return 0;
    const int64_t whole = c_.vocab * view.row_stride_bytes + 2 * kMappedAround;
    if (work_.embedded_tokens_max < 0) return whole;
    const int64_t tokens = std::min(work_.embedded_tokens_max, c_.vocab);
    return std::min(whole, tokens * (view.row_stride_bytes + kMappedAround));
  }

  int64_t Kv() const { return KvGeometryOf(layout_, own_).block_bytes() * work_.kv_blocks; }

  int64_t ActivationBytes() const {
    const int64_t hidden = c_.hidden;
    int64_t floats = own_rows_ * hidden * 2               // x, out
                     + rows_ * hidden * (1 + CutNodes())  // normed, partials
                     + rows_ * (AttentionWidth() + c_.rotary_dim());  // and cos and sin
    const int64_t dense = dense_ ? own_.intermediate.size() : 0;
    const int64_t shared = sparse_ ? own_.shared_intermediate.size() : 0;
    floats += 2 * rows_ * std::max(dense, shared);  // gate, up
    if (c_.qk_norm == QkNorm::kWholeVector) floats += rows_ * (c_.heads + GroupHeads());
    if (!own_.last_stage)
      floats += micro_.count * own_rows_ * hidden;  // residual streams under way
    const int64_t numbers =
        rows_ * 40 + std::min(work_.sequences_max, rows_) * 2 * int64_t{sizeof(AttentionSequence)};
    return floats * kFloat + numbers + PreparedBytes() + ExpertBytes() + ScratchBytes() + ContextBytes();
  }

  int64_t LogitBytes() const {
    const bool leader = own_.rank == 0;
    const int64_t wanted = std::min(rows_, work_.wanted_rows_max), vocab = c_.vocab;
    const int64_t step_wanted = std::min(step_rows_, work_.wanted_rows_max);
    int64_t floats = 0;
    if (own_.last_stage) {
      floats += wanted * own_.vocab.size();
      // Kept for the step on the leader, under way on the others.
      floats +=
          leader ? step_wanted * own_.vocab.size() : micro_.count * wanted * own_.vocab.size();
    }
    if (leader && layout_.world() > 1) {
      floats += step_wanted * work_.busy_replicas * vocab;
      const bool from_others = layout_.tp() * layout_.pp() * work_.busy_replicas > 1;
      if (from_others) floats += wanted * CeilDiv(vocab, layout_.tp());
    }
    if (leader && work_.sampling == MemoryWork::Sampling::kYes) floats += 5 * vocab;
    return floats * kFloat;
  }

  int64_t CommBytes() const {
    if (layout_.world() == 1) return 0;
    // A step's tokens and block numbers, as sent, read, and cut into micro-batches.
    const int64_t sequences = std::min(work_.sequences_max, step_rows_);
    const int64_t blocks =
        std::min<int64_t>(sequences * BlocksFor(work_.positions_max), work_.kv_blocks);
    const int64_t command = step_rows_ * 8 + sequences * 64 + blocks * 4;
    int64_t bytes = work_.busy_replicas * command * (3 + micro_.count);
    bytes += layout_.world() * kPeerBytes;
    if (layout_.tp() == 1) return bytes;
    // Slices of all nodes of a cut, as an all-reduce or a reduce-scatter keeps them.
    const int64_t row = c_.hidden * kFloat, slice = CeilDiv(rows_ * row, layout_.tp());
    int64_t parts = layout_.output_cut().tree.total_nodes() * slice;
    if (dense_) parts = std::max(parts, layout_.down_cut().tree.total_nodes() * slice);
    if (sparse_ && Shared()) parts = std::max(parts, layout_.shared_down_cut().tree.total_nodes() * slice);
    if (sparse_ && !layout_.dispatches())
      parts = std::max(parts, layout_.expert_down_cut().tree.total_nodes() * slice * c_.moe.top_k);
    return bytes + parts;
  }

 private:
  bool Shared() const { return c_.moe.shared_intermediate > 0; }

  // Floats of a row: q, attention, k and v; under latent attention q_narrow, q, absorbed, attention, v and latent.
  int64_t AttentionWidth() const {
    const int64_t heads = own_.heads.size(), kv_heads = own_.kv_heads.size();
    if (!c_.latent.used()) return 2 * (heads + kv_heads) * c_.head_dim;
    return c_.latent.q_rank + heads * (c_.head_dim + c_.k_dim() + c_.v_dim() + c_.v_head_dim()) + c_.k_dim();
  }

  static int64_t NodesOf(const KCut& cut, int tp) {
    return static_cast<int64_t>(cut.node_k[tp].size());
  }

  // Parts of one row in `partials`.
  int64_t CutNodes() const {
    int64_t nodes = std::max<int64_t>(1, NodesOf(layout_.output_cut(), own_.tp));
    if (dense_) nodes = std::max(nodes, NodesOf(layout_.down_cut(), own_.tp));
    if (sparse_ && Shared()) nodes = std::max(nodes, NodesOf(layout_.shared_down_cut(), own_.tp));
    if (sparse_ && layout_.sequence_parallel() && !layout_.dispatches()) {
      nodes = std::max(nodes, NodesOf(layout_.expert_down_cut(), own_.etp) * c_.moe.top_k);
    }
    return nodes;
  }

  // Query heads of all members of the group; a head that several hold comes several times.
  int64_t GroupHeads() const {
    int64_t heads = 0, kv_heads = 0;
    for (int t = 0; t < layout_.tp(); ++t) {
      const RankShard shard = layout_.Shard(layout_.RankAt({.tp = t}));
      heads += shard.heads.size();
      kv_heads += shard.kv_heads.size();
    }
    return std::max(heads, kv_heads);
  }

  int64_t Prepared(const Leaves& leaves, int64_t rows) const {
    return ActivationsBytes(leaves, o_.act, rows, o_.isa);
  }

  int64_t PreparedBytes() const {
    int64_t bytes = Prepared(Leaves::Whole(std::max<int64_t>(c_.hidden, c_.latent.q_rank)), rows_);
    if (c_.latent.used()) {
      const int64_t widest = std::max(c_.latent.nope_dim, c_.latent.kv_rank);
      bytes += own_.heads.size() * Prepared(Leaves::Whole(widest), rows_);
    }
    std::vector<int64_t> nodes;  // the largest of each
    const auto add = [&](const KCut& cut) {
      const std::vector<Leaves>& leaves = cut.node_leaves[own_.tp];
      nodes.resize(std::max(nodes.size(), leaves.size()));
      for (size_t i = 0; i < leaves.size(); ++i)
        nodes[i] = std::max(nodes[i], Prepared(leaves[i], rows_));
    };
    add(layout_.output_cut());
    if (dense_) add(layout_.down_cut());
    if (sparse_ && Shared()) add(layout_.shared_down_cut());
    for (const int64_t node : nodes) bytes += node;
    return bytes;
  }

  int64_t ExpertBytes() const {
    if (!sparse_) return 0;
    if (layout_.dispatches()) return TravellingExpertBytes();
    const int64_t slots = rows_ * c_.moe.top_k;
    return rows_ * c_.moe.experts * kFloat + ExpertFfnBytes(rows_, slots, c_.moe.experts) +
           own_rows_ * c_.moe.top_k * c_.hidden * kFloat;  // expert_out
  }

  // What RunExperts keeps for so many slots of so many rows.
  int64_t ExpertFfnBytes(int64_t rows, int64_t slots, int experts) const {
    const KCut& cut = layout_.expert_down_cut();
    const int64_t width = own_.expert_intermediate.size();
    int64_t bytes = 2 * slots * width * kFloat + slots * 28 + c_.moe.experts * 8;
    bytes += NodesOf(cut, own_.etp) * slots * c_.hidden * kFloat;  // expert_parts
    // The expert with the i-th most rows has at most slots / i of them.
    for (int e = 0; e < experts; ++e) {
      const int64_t of_one = std::min(rows, slots / (e + 1));
      bytes += Prepared(Leaves::Whole(c_.hidden), of_one);
      for (const Leaves& leaves : cut.node_leaves[own_.etp]) bytes += Prepared(leaves, of_one);
    }
    return bytes;
  }

  // Rows of the largest micro-batch that a rank sends to experts.
  int64_t DispatchRowsOf(int rank) const {
    const RankShard s = layout_.Shard(rank);
    return s.dp < work_.busy_replicas ? layout_.DispatchRows(micro_.rows, s.tp).size() : 0;
  }
  int64_t GroupRows() const {
    // Members of a context group have a replica's rows between them.
    std::map<std::pair<int, int>, int64_t> rows_of;
    for (const int rank : layout_.DispatchGroup(own_.rank)) {
      const RankShard s = layout_.Shard(rank);
      rows_of[{s.dp, s.tp}] = DispatchRowsOf(rank);
    }
    int64_t rows = 0;
    for (const auto& [place, own] : rows_of) rows += own;
    return rows;
  }

  // Rows that travel to experts: all of the group may want the experts of this rank. Sizes as in moe/expert_exchange.h.
  int64_t TravellingExpertBytes() const {
    const ModelShape& m = layout_.shape();
    const std::vector<int> group = layout_.DispatchGroup(own_.rank);
    const auto members = static_cast<int64_t>(group.size());
    const auto me = static_cast<int>(std::find(group.begin(), group.end(), own_.rank) - group.begin());
    const int first_sparse = static_cast<int>(
        std::find(m.sparse.begin() + own_.layers.begin, m.sparse.begin() + own_.layers.end, true) - m.sparse.begin());
    const DispatchPlanner planner = layout_.PlannerFor(first_sparse, group);
    int64_t relayed = 0, on_node = 0;  // rows of others that pass through this rank; ranks of its node
    for (int member = 0; member < static_cast<int>(members); ++member) {
      if (planner.NodeOf(member) == planner.NodeOf(me)) {
        ++on_node;
      } else if (planner.legs() == 2 && planner.Relay(member, planner.NodeOf(me)) == me) {
        relayed += DispatchRowsOf(group[member]);
      }
    }
    const int64_t all = GroupRows(), own = DispatchRowsOf(own_.rank);
    const int64_t top_k = c_.moe.top_k, etp = layout_.expert_mesh().etp();
    int64_t held = 0;  // experts of the layer with most here
    for (int64_t l = own_.layers.begin; l < own_.layers.end; ++l) {
      if (!m.sparse[l]) continue;
      held = std::max<int64_t>(held, layout_.ExpertsAt(static_cast<int>(l), own_.ep).size());
    }
    const int64_t slots = all * std::min(top_k, held), outputs = CeilDiv(slots, etp);
    const int64_t copies = top_k * etp;  // of a row, at most
    const int64_t sent_rows = std::max(own * std::min(copies, members), relayed * std::min(copies, on_node));
    const int64_t row = c_.hidden * m.dispatch_element_bytes, output = c_.hidden * m.combine_element_bytes;
    const int64_t backwards = (own + relayed) * top_k;
    const int64_t sent = std::max(sent_rows * row, std::max(outputs, relayed * top_k) * output);
    const int64_t received = std::max(all * row, backwards * output);
    const int64_t floats = own * c_.moe.experts + all * c_.hidden                  // router_logits, rows_
                           + (outputs + backwards) * c_.hidden + outputs * c_.hidden  // terms_, expert_out
                           + (layout_.sequence_parallel() ? 0 : rows_ * c_.hidden);   // out of all rows
    const int64_t plan = all * copies * 32 + all * top_k * 64;
    return floats * kFloat + sent + received + plan + ExpertFfnBytes(all, slots, static_cast<int>(held)) +
           layout_.expert_down_cut().tree.total_nodes() * outputs * c_.hidden * kFloat;  // parts of the others
  }

  // Nodes of the chunk tree of which a query's partial results can wait at once: every other chunk of a segment, when owners
  // alternate, and the nodes that the segments before it left.
  int64_t WaitingNodes() const {
    const int64_t chunks = CeilDiv(work_.positions_max, o_.attention_chunk);
    return CeilDiv(std::min(chunks, kSegmentChunks), 2) + std::bit_width(static_cast<uint64_t>(CeilDiv(chunks, kSegmentChunks))) + 1;
  }

  // Under context parallelism (model/context_attention.h): keys and values under way, partial results, queries that travel.
  int64_t ContextBytes() const {
    if (layout_.cp() == 1 || rows_ == 0) return 0;
    const ContextRule& rule = layout_.context();
    const int64_t heads = own_.heads.size(), partial = PartialStride(c_.v_dim());
    // Of one layer: a segment of every sequence, but no more than rests here.
    const int64_t page = layout_.PageBytes(own_.kv_heads.size()), sequences = std::min(work_.sequences_max, rows_);
    const int64_t rests = CeilDiv(Kv(), std::max<int64_t>(1, own_.layers.size()));
    const int64_t block = rule.by_token ? rests : std::min(rests, sequences * kSegmentChunks * o_.attention_chunk / kPageTokens * page);
    const int64_t blocks = rule.form == CpForm::kAllGather ? rule.size : rule.ulysses > 1 ? 4 : 2;
    int64_t bytes = blocks * block;
    if (rule.form == CpForm::kStriped) bytes += 4 * CeilDiv(rows_ * layout_.PageBytes(own_.kv_heads.size()), kPageTokens);
    // Rows with much behind them are those of long prompts, which are shared out evenly but for a chunk.
    const int64_t rows = std::min(rows_, 2 * CeilDiv(rows_, rule.size) + o_.attention_chunk);
    int64_t floats = (rows + 2 * work_.sequences_max) * heads * partial * WaitingNodes();
    floats += 2 * (rows_ + work_.sequences_max) * heads * (c_.k_dim() + partial);
    return bytes + floats * kFloat;
  }

  int64_t ScratchBytes() const {
    const int64_t rows = sparse_ && layout_.dispatches() ? std::max(rows_, GroupRows()) : rows_;
    if (rows == 0) return 0;
    int leaves = 1;
    const auto add = [&](const KCut& cut, int member) {
      for (const Leaves& node : cut.node_leaves[member]) leaves = std::max(leaves, node.count());
    };
    add(layout_.output_cut(), own_.tp);
    if (dense_) add(layout_.down_cut(), own_.tp);
    if (sparse_) add(layout_.expert_down_cut(), own_.etp);
    if (sparse_ && Shared()) add(layout_.shared_down_cut(), own_.tp);
    const int64_t attention =
        AttentionBytes(o_.isa, {.threads = o_.threads,
                                .chunk = o_.attention_chunk,
                                .heads = static_cast<int>(own_.heads.size()),
                                .kv_heads = static_cast<int>(own_.kv_heads.size()),
                                .k_dim = c_.k_dim(),
                                .v_dim = c_.v_dim(),
                                .rows = rows_ * (layout_.cp() > 1 ? WaitingNodes() : 1),
                                .sequences = work_.sequences_max * (layout_.cp() > 1 ? WaitingNodes() * layout_.cp() : 1),
                                .positions = work_.positions_max});
    return o_.threads * MatMulThreadBytes(rows, leaves) + attention;
  }

  const ModelConfig& c_;
  const ModelOptions& o_;
  const Layout& layout_;
  const MemoryWork& work_;
  const RankShard own_;
  const MicroBatches micro_;
  int64_t rows_ = 0;       // of the largest micro-batch
  int64_t own_rows_ = 0;   // those of them that this rank keeps under sequence parallelism
  int64_t step_rows_ = 0;  // of the largest step of a replica
  bool dense_ = false, sparse_ = false;
};

}  // namespace

Result<std::vector<RankMemory>> PlanMemory(const WeightStore& store, const ModelConfig& config,
                                           const ModelOptions& options, const Layout& layout,
                                           const MemoryWork& work) {
  SF_CHECK(!work.step_rows.empty());
  SF_ASSIGN_OR_RETURN(const MatrixView embedding, EmbeddingOf(store, config));
  // By tp, pp, ep, etp: replicas hold the same.
  std::map<std::array<int, 4>, int64_t> shards;
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const RankShard own = layout.Shard(rank);
    const auto [shard, is_new] = shards.try_emplace({own.tp, own.pp, own.ep, own.etp}, 0);
    if (is_new) {
      SF_ASSIGN_OR_RETURN(const ShardBytes bytes,
                          MeasureShard(store, config, options, layout, rank));
      shard->second = bytes.total();
    }
    const RankPlan plan(config, options, layout, work, rank);
    ranks.push_back({.rank = rank,
                     .node = layout.cluster().NodeOf(rank),
                     .shard = shard->second,
                     .embedding = plan.Embedding(embedding),
                     .kv = plan.Kv(),
                     .activations = plan.ActivationBytes(),
                     .logits = plan.LogitBytes(),
                     .comm = plan.CommBytes(),
                     .tokenizer = rank == 0 ? work.tokenizer_bytes : 0});
  }
  return ranks;
}

}  // namespace sixfold

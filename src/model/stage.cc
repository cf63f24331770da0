#include "model/stage.h"

#include <utility>

#include "model/layer_steps.h"
#include "model/micro_batch.h"

namespace sixfold {

namespace {

std::span<const std::byte> AsBytes(const std::vector<float>& v) { return std::as_bytes(std::span(v)); }

// Ends a send in every case: a buffer must not go away under the transport.
Status FinishAll(std::vector<std::pair<Communicator*, SendTicket>>& sends) {
  Status first = OkStatus();
  for (const auto& [communicator, ticket] : sends) {
    Status status = communicator->FinishSend(ticket);
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  return first;
}

// Where the keys of the micro-batch's sequences lie on this rank.
void BeginContext(ForwardContext& c, const StepBatch& batch, const MicroBatchShape& shape, int64_t blocks) {
  std::vector<std::vector<int32_t>> tables;
  for (const StepSequence& s : batch.sequences) {
    tables.push_back(s.blocks);
    for (int32_t& block : tables.back()) block = static_cast<int32_t>(block % blocks);
  }
  c.context->Begin(c.comm, shape.sequences, std::move(tables));
}

}  // namespace

Status RunMicroBatches(ForwardContext& c, const StageWork& work, std::span<const RankShard> members, KvStorage& kv,
                       StageBuffers* buffers) {
  ForwardScratch& s = c.s;
  const std::span<const StepBatch> micro_batches = work.micro_batches;
  std::vector<int64_t> member_rows(members.size());
  c.batch_row = 0;
  std::vector<std::pair<Communicator*, SendTicket>> sends;
  buffers->outgoing.resize(std::max(buffers->outgoing.size(), micro_batches.size()));
  buffers->logits.clear();
  const auto run = [&]() -> Status {
    for (size_t m = 0; m < micro_batches.size(); ++m) {
      const MicroBatchShape shape = ShapeOfBatch(c.layout, micro_batches[m], kv.blocks());
      const std::vector<std::vector<RowRun>> deal = DealRows(c.layout.context(), shape.sequences);
      const std::vector<int32_t> row_numbers = RowNumbers(deal[c.own.cp]);
      c.runs = deal[c.own.cp];
      c.row_numbers = row_numbers;
      if (c.context != nullptr) BeginContext(c, micro_batches[m], shape, kv.blocks());
      if (c.comm.previous != nullptr) {
        const auto rows = static_cast<int64_t>(row_numbers.size());
        const int64_t own = c.layout.sequence_parallel() ? ShareOf(rows, c.layout.tp(), c.own.tp).size() : rows;
        s.x.resize(own * c.config.hidden);
        SF_RETURN_IF_ERROR(c.comm.previous->Recv(0, std::as_writable_bytes(std::span(s.x))));
      }
      c.micro_batch = static_cast<int>(m);
      for (size_t i = 0; i < members.size(); ++i) {
        member_rows[i] = c.layout.DispatchRows(work.rows[m][members[i].dp][members[i].cp], members[i].tp).size();
      }
      c.member_rows = member_rows;
      SF_RETURN_IF_ERROR(ForwardStage(c, micro_batches[m], kv));
      c.batch_row += static_cast<int64_t>(micro_batches[m].tokens.size());
      std::vector<float>& outgoing = buffers->outgoing[m];
      Communicator* to = nullptr;
      int member = 0;
      if (c.comm.next != nullptr) {
        const int64_t row_bytes = c.config.hidden * kFloatBytes;
        CarryRows(c, trace::Phase::kStageSend, row_bytes, -c.own_rows.begin * row_bytes);
        std::swap(outgoing, s.x);
        to = c.comm.next;
        member = 1;
      } else if (c.comm.leader != nullptr) {
        CarryWanted(c, trace::Phase::kLogits, c.own.vocab.size() * kFloatBytes);
        std::swap(outgoing, s.logits);
        to = c.comm.leader;
      } else {
        buffers->logits.insert(buffers->logits.end(), s.logits.begin(), s.logits.end());
        continue;
      }
      SF_ASSIGN_OR_RETURN(const SendTicket ticket, to->StartSend(member, AsBytes(outgoing)));
      sends.emplace_back(to, ticket);
    }
    return OkStatus();
  };
  Status status = run();
  Status finished = FinishAll(sends);
  return status.ok() ? finished : status;
}

KvGeometry KvGeometryOf(const Layout& layout, const RankShard& shard) {
  const ModelShape& m = layout.shape();
  return {.layers = static_cast<int>(shard.layers.size()),
          .kv_heads = static_cast<int>(shard.kv_heads.size()),
          .k_dim = m.k_dim > 0 ? m.k_dim : m.head_dim,
          .v_dim = m.v_dim > 0 ? m.v_dim : m.head_dim,
          .bf16 = m.kv_element_bytes == 2,
          .v_in_k = m.v_in_k};
}

KvPlacement PlacementOf(const Layout& layout) {
  if (layout.cp() == 1) return {.stages = layout.pp()};
  const ContextRule& rule = layout.context();
  return {.owners = rule.size, .chunk = rule.chunk, .interleave = rule.interleave, .by_token = rule.by_token, .stages = layout.pp()};
}

KvGeometry LargestKvGeometry(const Layout& layout) {
  KvGeometry largest;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const KvGeometry own = KvGeometryOf(layout, layout.Shard(rank));
    if (own.block_bytes() > largest.block_bytes()) largest = own;
  }
  return largest;
}

}  // namespace sixfold

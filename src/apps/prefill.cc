#include "apps/prefill.h"
#include "base/plural.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/machine.h"
#include "kv/block_pool.h"
#include "model/micro_batch.h"

namespace sixfold::apps {

Result<std::unique_ptr<Prefill>> Prefill::Create(StepModel& model, int64_t tokens_max, int64_t chunk) {
  const KvGeometry geometry = model.kv_geometry();
  const int64_t blocks = model.kv_placement().BlocksOfOwner(tokens_max, 1);
  const int64_t available = AvailableMemoryBytes();
  const int64_t bytes_here = geometry.block_bytes() * model.ranks_here();
  if (blocks > INT32_MAX || (available > 0 && bytes_here > available / blocks)) {
    return OutOfMemory(
        fmt::format("keys and values of {} take {} MB, and {} MB of memory are free",
                    Plural(tokens_max, "token"), bytes_here * blocks >> 20, available >> 20));
  }
  SF_RETURN_IF_ERROR(model.AllocateKv(static_cast<int32_t>(blocks)));
  return std::unique_ptr<Prefill>(new Prefill(model, blocks, chunk));
}

Status Prefill::Run(std::span<const TokenId> tokens, int64_t logits_from,
                    const OnLogits& on_logits) {
  const auto count = static_cast<int64_t>(tokens.size());
  SF_CHECK_LE(count, placement_.TokensIn(blocks_));
  BlockPool pool(static_cast<int32_t>(placement_.UnitsOfPool(blocks_)), placement_.pools());
  std::vector<int32_t> units;
  for (int64_t begin = 0; begin < count; begin += chunk_) {
    const int64_t end = std::min(begin + chunk_, count);
    const int64_t wanted_from = std::clamp(logits_from, begin, end);
    std::vector<StepBatch> batches(static_cast<size_t>(model_.replicas()));
    StepBatch& batch = batches.front();
    batch.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
    StepSequence sequence{.first_position = begin,
                          .rows = end - begin,
                          .logit_rows = end - wanted_from,
                          .blocks = {}};
    pool.TakeFor(placement_, {.first_position = begin, .rows = end - begin, .units = static_cast<int64_t>(units.size())},
                 MicroBatchEnds(end - begin, MicroBatchCount(end - begin, placement_.stages)), &units);
    sequence.blocks = BlockTable(placement_, units, end, blocks_);
    batch.sequences.push_back(std::move(sequence));
    if (replay_ != nullptr) ForceRows(begin, end);
    SF_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Forward(batches));
    if (record_ != nullptr) {
      const auto& layers = model_.last_routes().replicas.front();
      record_->experts.resize(layers.size());
      for (size_t l = 0; l < layers.size(); ++l)
        record_->experts[l].insert(record_->experts[l].end(), layers[l].begin(), layers[l].end());
    }
    if (wanted_from < end) SF_RETURN_IF_ERROR(on_logits(wanted_from, logits));
  }
  return OkStatus();
}

void Prefill::Record(TokenRoutes* routes) {
  record_ = routes;
  model_.RecordRoutes(routes != nullptr);
}

// Rows [begin, end) of the file are the rows of the pass that follows, all on replica 0.
void Prefill::ForceRows(int64_t begin, int64_t end) {
  StepRoutes routes;
  routes.replicas.resize(static_cast<size_t>(model_.replicas()));
  for (auto& layers : routes.replicas) layers.resize(replay_->experts.size());
  for (size_t l = 0; l < replay_->experts.size(); ++l) {
    const std::vector<int32_t>& all = replay_->experts[l];
    const auto top_k = static_cast<int64_t>(all.size()) / replay_tokens_;
    routes.replicas.front()[l].assign(all.begin() + begin * top_k, all.begin() + end * top_k);
  }
  model_.ForceRoutes(std::move(routes));
}

}  // namespace sixfold::apps

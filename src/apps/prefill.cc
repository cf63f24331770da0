#include "apps/prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/memory.h"

namespace sixfold::apps {

Result<std::unique_ptr<Prefill>> Prefill::Create(Model& model, int64_t tokens_max, int64_t chunk) {
  const KvGeometry geometry = model.kv_geometry();
  const int64_t blocks = BlocksFor(tokens_max);
  const int64_t available = AvailableMemoryBytes();
  if (blocks > INT32_MAX || (available > 0 && geometry.block_bytes() > available / blocks)) {
    return OutOfMemory(
        fmt::format("keys and values of {} tokens take {} MB, and {} MB of memory are free",
                    tokens_max, geometry.block_bytes() * blocks >> 20, available >> 20));
  }
  SF_ASSIGN_OR_RETURN(KvStorage storage, KvStorage::Create(geometry, static_cast<int32_t>(blocks)));
  return std::unique_ptr<Prefill>(new Prefill(model, std::move(storage), chunk));
}

Status Prefill::Run(std::span<const TokenId> tokens, int64_t logits_from,
                    const OnLogits& on_logits) {
  const auto count = static_cast<int64_t>(tokens.size());
  SF_CHECK_LE(BlocksFor(count), storage_.blocks());
  for (int64_t begin = 0; begin < count; begin += chunk_) {
    const int64_t end = std::min(begin + chunk_, count);
    const int64_t wanted_from = std::clamp(logits_from, begin, end);
    StepBatch batch;
    batch.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
    StepSequence sequence{.first_position = begin,
                          .rows = end - begin,
                          .logit_rows = end - wanted_from,
                          .blocks = {}};
    sequence.blocks.resize(static_cast<size_t>(BlocksFor(end)));
    std::iota(sequence.blocks.begin(), sequence.blocks.end(), 0);
    batch.sequences.push_back(std::move(sequence));
    const std::span<const float> logits = model_.Forward(batch, storage_);
    if (wanted_from < end) SF_RETURN_IF_ERROR(on_logits(wanted_from, logits));
  }
  return OkStatus();
}

}  // namespace sixfold::apps

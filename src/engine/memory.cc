#include "engine/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/plural.h"

namespace sixfold {
namespace {

constexpr int64_t kDefaultKvBytes = int64_t{1} << 30;

Status CheckAtLeast(const char* flag, int64_t value, int64_t least) {
  if (value >= least) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}; it must be {} or more", flag, value, least));
}

Status CheckOptions(const EngineOptions& o, int64_t model_max_positions) {
  SF_RETURN_IF_ERROR(CheckAtLeast("--max-model-len", o.max_model_len, 0));
  SF_RETURN_IF_ERROR(CheckAtLeast("--max-num-seqs", o.max_num_seqs, 1));
  SF_RETURN_IF_ERROR(CheckAtLeast("--max-num-batched-tokens", o.max_num_batched_tokens, 1));
  SF_RETURN_IF_ERROR(CheckAtLeast("--kv-cache-memory", o.kv_cache_memory_bytes, 0));
  SF_RETURN_IF_ERROR(CheckAtLeast("--max-queued-requests", o.max_queued_requests, 0));
  SF_RETURN_IF_ERROR(CheckAtLeast("the prefill chunk", o.max_prefill_chunk_tokens, 0));
  if (o.max_model_len > model_max_positions) {
    return InvalidArgument(fmt::format("--max-model-len is {}; the model was made for {} positions", o.max_model_len,
                                       model_max_positions));
  }
  if (o.max_model_len == 1) {
    return InvalidArgument("--max-model-len is 1; it must leave room for a prompt and an answer: 2 or more");
  }
  return OkStatus();
}

}  // namespace

Result<ResolvedOptions> ResolveOptions(const EngineOptions& options, const MemorySetting& setting) {
  SF_RETURN_IF_ERROR(CheckOptions(options, setting.model_max_positions));
  SF_CHECK_GE(setting.ranks_here, 1);
  ResolvedOptions r{.options = options};
  int64_t& bytes = r.options.kv_cache_memory_bytes;
  int64_t& length = r.options.max_model_len;
  const bool choose_bytes = bytes == 0, choose_length = length == 0;
  if (choose_bytes) {
    const int64_t share = setting.available_bytes > 0 ? setting.available_bytes / 5 * 2 : kDefaultKvBytes;
    bytes = std::min(kDefaultKvBytes, share / setting.ranks_here);
  }
  const int64_t block_bytes = setting.geometry.block_bytes();
  int64_t blocks = std::min<int64_t>(bytes / block_bytes, std::numeric_limits<int32_t>::max());
  const KvPlacement& placement = setting.placement;
  if (choose_length) length = std::min(setting.model_max_positions, placement.TokensIn(blocks));
  if (length < 2 || placement.BlocksOfOwner(length, 1) > blocks) {
    const int64_t wanted = choose_length ? 2 : length;
    const std::string given = fmt::format("{} {} bytes ({} of {} tokens)",
                                          choose_bytes ? "this machine's share for K/V is" : "--kv-cache-memory gives",
                                          bytes, Plural(blocks, "block"), kPageTokens);
    const int64_t needed = placement.BlocksOfOwner(wanted, 1) * block_bytes;
    std::string message = fmt::format(
        "a context of {} tokens needs {} bytes of K/V memory on each rank, {}: give "
        "--kv-cache-memory {} or more",
        wanted, needed, given, needed);
    if (placement.TokensIn(blocks) >= 2) message += fmt::format(", or --max-model-len {} or less", placement.TokensIn(blocks));
    return OutOfMemory(message);
  }
  // More than all sequences can fill is never used. A size that was asked for is kept.
  if (choose_bytes) blocks = std::min(blocks, placement.BlocksOfOwner(length, r.options.max_num_seqs));
  bytes = blocks * block_bytes;
  r.blocks = static_cast<int32_t>(blocks);
  return r;
}

}  // namespace sixfold

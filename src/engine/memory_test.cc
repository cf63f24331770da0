#include "engine/memory.h"

#include <gtest/gtest.h>

namespace sixfold {
namespace {

// One block: 2 layers x (1 head x 16 x 8 + 1 head x 16 x 8) x 2 bytes = 1024 bytes.
constexpr KvGeometry kGeometry{.layers = 2, .kv_heads = 1, .k_dim = 8, .v_dim = 8, .bf16 = true};
constexpr int64_t kGiB = int64_t{1} << 30;

Result<ResolvedOptions> Resolve(const EngineOptions& options, int64_t max_positions, int64_t available) {
  return ResolveOptions(
      options, {.geometry = kGeometry, .model_max_positions = max_positions, .available_bytes = available});
}

TEST(ResolveOptions, ChoosesAGibibyteOrTwoFifthsOfWhatThereIs) {
  EngineOptions options{.max_num_seqs = 1 << 20};
  auto r = Resolve(options, 1 << 20, 100 * kGiB);
  EXPECT_EQ(r->options.kv_cache_memory_bytes, kGiB);
  EXPECT_EQ(r->options.max_model_len, 1 << 20);
  r = Resolve(options, 1 << 30, 1000 * 1024);
  EXPECT_EQ(r->blocks, 400);
  EXPECT_EQ(r->options.max_model_len, 400 * 16);  // what the memory holds
  r = Resolve(options, 4096, 0);
  EXPECT_EQ(r->options.kv_cache_memory_bytes, kGiB);
}

TEST(ResolveOptions, RanksOfOneMachineShareItsMemory) {
  const auto bytes = [](const EngineOptions& options, int64_t available, int ranks) {
    return ResolveOptions(options, {.geometry = kGeometry,
                                    .model_max_positions = 1 << 20,
                                    .available_bytes = available,
                                    .ranks_here = ranks})
        ->options.kv_cache_memory_bytes;
  };
  const EngineOptions automatic{.max_num_seqs = 1 << 20};
  EXPECT_EQ(bytes(automatic, 4 * kGiB, 8), 4 * kGiB / 5 * 2 / 8 / 1024 * 1024);
  EXPECT_EQ(bytes(automatic, 100 * kGiB, 4), kGiB);
  EXPECT_EQ(bytes({.kv_cache_memory_bytes = kGiB / 2}, kGiB, 8), kGiB / 2);  // what was asked for is of each rank
}

TEST(ResolveOptions, TakesNoMoreThanAllSequencesCanFillUnlessAsked) {
  auto r = Resolve({.max_num_seqs = 3}, 100, 100 * kGiB);
  EXPECT_EQ(r->blocks, 3 * 7);
  EXPECT_EQ(r->options.kv_cache_memory_bytes, 21 * 1024);
  r = Resolve({.max_num_seqs = 3, .kv_cache_memory_bytes = 50 * 1024 + 1023}, 100, 0);
  EXPECT_EQ(r->blocks, 50);
}

TEST(ResolveOptions, SaysWhichValuesWouldWork) {
  const EngineOptions options{.max_model_len = 1000, .kv_cache_memory_bytes = 10 * 1024};
  const auto r = Resolve(options, 4096, 0);
  ASSERT_EQ(r.status().code(), StatusCode::kOutOfMemory);
  const std::string& message = r.status().message();
  EXPECT_NE(message.find("--kv-cache-memory 64512 or more"), std::string::npos) << message;
  EXPECT_NE(message.find("--max-model-len 160 or less"), std::string::npos) << message;
  EngineOptions more = options, less = options;
  more.kv_cache_memory_bytes = 64512;
  less.max_model_len = 160;
  EXPECT_TRUE(Resolve(more, 4096, 0).ok());
  EXPECT_TRUE(Resolve(less, 4096, 0).ok());
  more.kv_cache_memory_bytes -= 1;
  less.max_model_len += 1;
  EXPECT_FALSE(Resolve(more, 4096, 0).ok());
  EXPECT_FALSE(Resolve(less, 4096, 0).ok());
}

TEST(ResolveOptions, NoRoomForOneBlockIsNotEnoughMemory) {
  const auto r = Resolve({.kv_cache_memory_bytes = 1000}, 4096, 0);
  EXPECT_EQ(r.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(r.status().message().find("--kv-cache-memory 1024 or more"), std::string::npos);
}

TEST(ResolveOptions, RefusesImpossibleValuesByFlag) {
  const auto message = [](const EngineOptions& options) {
    const auto r = Resolve(options, 4096, kGiB);
    EXPECT_EQ(r.status().code(), StatusCode::kInvalidArgument);
    return r.status().message();
  };
  EXPECT_NE(message({.max_model_len = 4097}).find("--max-model-len is 4097"), std::string::npos);
  EXPECT_NE(message({.max_num_seqs = 0}).find("--max-num-seqs"), std::string::npos);
  EXPECT_NE(message({.max_num_batched_tokens = 0}).find("--max-num-batched-tokens"), std::string::npos);
  EXPECT_NE(message({.kv_cache_memory_bytes = -1}).find("--kv-cache-memory"), std::string::npos);
}

}  // namespace
}  // namespace sixfold

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kv/block_pool.h"
#include "kv/storage.h"

namespace sixfold {
namespace {

TEST(BlockPool, HandsOutEachBlockOnceAndTakeFailsWhenEmpty) {
  BlockPool pool(5);
  std::set<int32_t> seen;
  for (int i = 0; i < 5; ++i) seen.insert(pool.Take()->value());
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(pool.used(), 5);
  EXPECT_FALSE(pool.Take().has_value());
  pool.Give(BlockId(3));
  EXPECT_EQ(pool.Take(), BlockId(3));
}

TEST(BlockPoolDeathTest, GivingBackAFreeBlockIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.Give(BlockId(1)), "CHECK");
}

TEST(KvStorage, LayersDoNotOverlapAndFillTheMemory) {
  const KvGeometry g{.layers = 3, .kv_heads = 2, .k_dim = 24, .v_dim = 8, .bf16 = true};
  auto storage = KvStorage::Create(g, 7);
  ASSERT_TRUE(storage.ok());
  EXPECT_EQ(storage->bytes(), 7 * 3 * 2 * 16 * (24 + 8) * 2);
  const std::byte* end = storage->Layer(0).k;
  for (int l = 0; l < 3; ++l) {
    const KvLayerView v = storage->Layer(l);
    EXPECT_EQ(v.k, end);
    EXPECT_EQ(v.v, v.k + 7 * g.k_page_bytes());
    end = v.v + 7 * g.v_page_bytes();
  }
  EXPECT_EQ(end - storage->Layer(0).k, storage->bytes());
}

TEST(KvStorage, AValueThatIsAPrefixOfItsKeyTakesNoMemory) {
  const KvGeometry g{.layers = 2, .kv_heads = 1, .k_dim = 24, .v_dim = 20, .bf16 = false, .v_in_k = true};
  auto storage = KvStorage::Create(g, 5);
  ASSERT_TRUE(storage.ok());
  EXPECT_EQ(storage->bytes(), 5 * 2 * 16 * 24 * 4);
  EXPECT_EQ(storage->Layer(1).v, storage->Layer(1).k);
  EXPECT_EQ(storage->Layer(1).k, storage->Layer(0).k + 5 * g.k_page_bytes());
  EXPECT_EQ(storage->Layer(0).v_stride(), 24);
}

TEST(KvStorage, RefusesMoreThanTheMachineHasAndNamesTheFlag) {
  const KvGeometry g{.layers = 64, .kv_heads = 64, .k_dim = 128, .v_dim = 128, .bf16 = false};
  const auto storage = KvStorage::Create(g, 1 << 20);
  ASSERT_FALSE(storage.ok());
  EXPECT_EQ(storage.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(storage.status().message().find("--kv-cache-memory"), std::string::npos);
}

}  // namespace
}  // namespace sixfold

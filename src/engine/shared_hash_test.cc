#include "engine/shared_hash.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <numeric>

#include "comm/testing/run_ranks.h"
#include "weights/testing/safetensors_bytes.h"
#include "weights/testing/temp_dir.h"
#include "weights/weight_store.h"
#include "weights/weights_hash.h"

namespace sixfold {
namespace {

using namespace std::chrono_literals;

// One tensor of 11 units and a bit.
std::string FileOf(char fill) {
  const size_t bytes = (size_t{44} << 20) + 3;
  return SafetensorsBytes(R"({"w":{"dtype":"U8","shape":[)" + std::to_string(bytes) +
                              "],\"data_offsets\":[0," + std::to_string(bytes) + "]}}",
                          std::string(bytes, fill));
}

struct Seen {
  std::vector<std::optional<Digest256>> digests;  // [ranks]
  size_t units_read = 0;                          // of all stores together
};

// Every rank over its own store, unless two are the same object.
Seen RunAll(const std::vector<std::shared_ptr<WeightStore>>& stores) {
  const int ranks = static_cast<int>(stores.size());
  LocalWorld world(ranks, {.timeout = 60s});
  Seen seen;
  seen.digests.resize(stores.size());
  std::vector<int> members(stores.size());
  std::iota(members.begin(), members.end(), 0);
  const auto results = RunRanks(world, [&](Transport& transport) -> Status {
    Ledger ledger;
    ControlTraffic control;
    Communicator comm(transport, Cluster::OneNode(ranks), {Axis::kTp, 7, members}, ledger, control);
    const auto rank = static_cast<size_t>(comm.index());
    SharedHash hash(stores[rank]->hash(), comm, transport, 2);
    SF_ASSIGN_OR_RETURN(seen.digests[rank], hash.Run());
    return OkStatus();
  });
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.ToString();
  for (const auto& store : stores) seen.units_read += store->hash().units_read();
  return seen;
}

std::shared_ptr<WeightStore> Open(const std::filesystem::path& path) {
  return std::move(WeightStore::Open(path)).value();
}

TEST(SharedHash, RanksWithTheSameFilesReadEachByteOnce) {
  const TempDir dir;
  const auto path = dir.Write("m.safetensors", FileOf('a'));
  const auto alone = Open(path);
  const Digest256 expected = *alone->hash().Wait(1);
  EXPECT_EQ(alone->hash().units_read(), 12u);
  for (const int ranks : {2, 3, 5}) {
    std::vector<std::shared_ptr<WeightStore>> stores;
    for (int r = 0; r < ranks; ++r) stores.push_back(Open(path));
    // What a rank has done in the background counts.
    ASSERT_TRUE(stores[1]->hash().HashUnits(std::vector<uint32_t>{3, 4, 5}, 1).ok());
    const Seen seen = RunAll(stores);
    for (const auto& digest : seen.digests) EXPECT_EQ(digest, expected);
    EXPECT_EQ(seen.units_read, 12u);
  }
}

TEST(SharedHash, EveryCopyIsReadAndADifferenceIsSeen) {
  const TempDir here, there;
  std::string file = FileOf('a');
  const auto first = here.Write("m.safetensors", file);
  file[file.size() / 2] = 'b';
  const auto second = there.Write("m.safetensors", file);
  const Seen seen = RunAll({Open(first), Open(second), Open(first), Open(second)});
  EXPECT_EQ(seen.digests[0], *Open(first)->hash().Wait(1));
  EXPECT_EQ(seen.digests[1], *Open(second)->hash().Wait(1));
  EXPECT_NE(seen.digests[0], seen.digests[1]);
  EXPECT_EQ(seen.digests[2], seen.digests[0]);
  EXPECT_EQ(seen.digests[3], seen.digests[1]);
  EXPECT_EQ(seen.units_read, 24u);
}

TEST(SharedHash, ThreadsOfOneProcessReadNothing) {
  const TempDir dir;
  const auto store = Open(dir.Write("m.safetensors", FileOf('a')));
  const Seen seen = RunAll({store, store, store});
  for (const auto& digest : seen.digests) EXPECT_FALSE(digest.has_value());
  EXPECT_EQ(store->hash().units_read(), 0u);
}

TEST(SharedHash, ARankWhoseCacheKnowsTheHashOnlyListens) {
  const TempDir dir;
  const auto path = dir.Write("m.safetensors", FileOf('a'));
  const auto known = Open(path), one = Open(path), other = Open(path);
  const Digest256 expected = *known->hash().Wait(1);
  const Seen seen = RunAll({one, known, other});
  for (const auto& digest : seen.digests) EXPECT_EQ(digest, expected);
  EXPECT_EQ(one->hash().units_read() + other->hash().units_read(), 12u);
}

}  // namespace
}  // namespace sixfold

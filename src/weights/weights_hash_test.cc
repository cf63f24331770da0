#include "weights/weights_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <numeric>

#include "weights/mapped_file.h"
#include "weights/testing/gguf_writer.h"
#include "weights/testing/safetensors_bytes.h"
#include "weights/testing/temp_dir.h"
#include "weights/weight_store.h"
#include "weights/weights_hash_cache.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr size_t kPiece = size_t{4} << 20;

struct TestTensor {
  std::string name, data;
  std::string shape = "[" + std::to_string(data.size()) + "]";
};

std::string FileOf(const std::vector<TestTensor>& tensors) {
  std::string header, data;
  for (const TestTensor& t : tensors) {
    header += (header.empty() ? "{\"" : ",\"") + t.name + R"(":{"dtype":"U8","shape":)" + t.shape +
              ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.data.size()) + "]}";
    data += t.data;
  }
  return SafetensorsBytes(header + "}", data);
}

// Bytes that repeat nowhere near.
std::string Noise(size_t bytes, uint32_t state = 1) {
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return out;
}

std::unique_ptr<WeightStore> Open(const fs::path& path) {
  auto store = WeightStore::Open(path);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return std::move(store).value();
}

std::string RootOf(const fs::path& path, int threads = 1) {
  const auto root = Open(path)->hash().Wait(threads);
  EXPECT_TRUE(root.ok()) << root.status().ToString();
  return HexText(*root);
}

// A file as it was long ago, so that the cache takes it.
void Age(const fs::path& path, int seconds = 100) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
}

// The root when the cache alone knows it.
std::optional<std::string> FromCache(const fs::path& path, const fs::path& cache) {
  const auto store = Open(path);
  store->hash().Start({.threads = 0, .cache = cache});
  const auto root = store->hash().Poll();
  EXPECT_EQ(store->hash().units_read(), 0u);
  return root ? std::optional(HexText(**root)) : std::nullopt;
}

void FillCache(const fs::path& path, const fs::path& cache) {
  const auto store = Open(path);
  store->hash().Start({.threads = 0, .cache = cache});
  ASSERT_TRUE(store->hash().Wait(1).ok());
}

TEST(WeightsHash, IsTheTreeThatTheHeaderDescribes) {
  const TempDir dir;
  const std::string big = Noise(2 * kPiece + 5), small = "abc";
  const fs::path path =
      dir.Write("m.safetensors", FileOf({{"b", big}, {"a", small}, {"none", ""}}));
  const auto piece = [](std::string_view bytes) {
    return Sha256().Add(std::string(1, '\0')).Add(bytes).Finish();
  };
  const auto tensor = [](uint64_t bytes, const std::vector<Digest256>& pieces) {
    Sha256 sha;
    sha.Add("\1").Add(bytes);
    for (const Digest256& p : pieces) sha.Add(p);
    return sha.Finish();
  };
  const std::string_view view = big;
  Sha256 root;
  root.Add("\2").Add(uint64_t{3});
  root.AddSized("a")
      .AddSized("U8")
      .Add(uint64_t{1})
      .Add(uint64_t{3})
      .Add(tensor(3, {piece(small)}));
  root.AddSized("b").AddSized("U8").Add(uint64_t{1}).Add(big.size());
  root.Add(tensor(big.size(), {piece(view.substr(0, kPiece)), piece(view.substr(kPiece, kPiece)),
                               piece(view.substr(2 * kPiece))}));
  root.AddSized("none").AddSized("U8").Add(uint64_t{1}).Add(uint64_t{0}).Add(tensor(0, {}));
  const std::string expected = HexText(root.Finish());
  EXPECT_EQ(RootOf(path), expected);
  EXPECT_EQ(RootOf(path, 3), expected);
}

TEST(WeightsHash, SeesEveryByteNameTypeAndShape) {
  const TempDir dir;
  std::string data = Noise(3 * kPiece);
  const auto root = [&](const std::vector<TestTensor>& tensors) {
    return RootOf(dir.Write("m.safetensors", FileOf(tensors)));
  };
  const std::string before = root({{"w", data}, {"v", "abcd"}});
  for (const size_t at :
       {size_t{0}, size_t{5000}, kPiece - 1, kPiece, data.size() / 2, data.size() - 1}) {
    data[at] = static_cast<char>(data[at] ^ 1);
    EXPECT_NE(root({{"w", data}, {"v", "abcd"}}), before) << at;
    data[at] = static_cast<char>(data[at] ^ 1);
  }
  EXPECT_EQ(root({{"w", data}, {"v", "abcd"}}), before);
  EXPECT_NE(root({{"x", data}, {"v", "abcd"}}), before);
  EXPECT_NE(root({{"w", data}, {"v", "abcd", "[2,2]"}}), before);
  EXPECT_NE(root({{"w", "abcd"}, {"v", data}}), before);
  const auto gguf = [&](uint32_t value) {
    return RootOf(dir.Write("g.gguf", GgufWriter().U32("k", value).Build()));
  };
  EXPECT_NE(gguf(1), gguf(2));
}

TEST(WeightsHash, IgnoresShardingOrderAndPlace) {
  const TempDir dir, other;
  const TestTensor a{"a", Noise(70'000, 2)}, b{"b", Noise(kPiece + 9, 3)}, c{"c", "x"};
  const std::string one = RootOf(dir.Write("one.safetensors", FileOf({a, b, c})));
  EXPECT_EQ(RootOf(other.Write("moved.safetensors", FileOf({a, b, c}))), one);
  EXPECT_EQ(RootOf(dir.Write("turned.safetensors", FileOf({c, b, a}))), one);
  dir.Write("m-1.safetensors", FileOf({c, a}));
  dir.Write("m-2.safetensors", FileOf({b}));
  EXPECT_EQ(
      RootOf(dir.Write(
          "model.safetensors.index.json",
          R"({"weight_map":{"a":"m-1.safetensors","c":"m-1.safetensors","b":"m-2.safetensors"}})")),
      one);
}

TEST(WeightsHash, TheCacheAnswersForTheSameStateOfAFileOnly) {
  const TempDir dir, cache;
  const std::string data = Noise(kPiece + 100);
  const fs::path path = dir.Write("m.safetensors", FileOf({{"w", data}, {"v", "abc"}}));
  Age(path);
  const std::string root = RootOf(path);
  EXPECT_EQ(FromCache(path, cache.path()), std::nullopt);
  FillCache(path, cache.path());
  EXPECT_EQ(FromCache(path, cache.path()), root);
  fs::create_symlink(path, dir.path() / "link.safetensors");
  EXPECT_EQ(FromCache(dir.path() / "link.safetensors", cache.path()), root);

  Age(path, 50);  // another mtime
  EXPECT_EQ(FromCache(path, cache.path()), std::nullopt);
  FillCache(path, cache.path());
  EXPECT_EQ(FromCache(path, cache.path()), root);

  const auto time = fs::last_write_time(path);
  fs::copy(path, dir.path() / "copy");  // another inode
  fs::rename(dir.path() / "copy", path);
  fs::last_write_time(path, time);
  EXPECT_EQ(FromCache(path, cache.path()), std::nullopt);

  dir.Write("m.safetensors", FileOf({{"w", data}, {"v", "abcd"}}));  // another size
  fs::last_write_time(path, time);
  EXPECT_EQ(FromCache(path, cache.path()), std::nullopt);
  EXPECT_NE(RootOf(path), root);
}

TEST(WeightsHash, AFileThatWasJustWrittenIsNotCached) {
  const TempDir dir, cache;
  const fs::path path = dir.Write("m.safetensors", FileOf({{"v", "abc"}}));
  fs::last_write_time(
      path, fs::file_time_type::clock::now() + std::chrono::seconds(100));  // or by another clock
  FillCache(path, cache.path());
  EXPECT_EQ(FromCache(path, cache.path()), std::nullopt);
}

TEST(WeightsHash, ADamagedOrUnwritableCacheIsNone) {
  const TempDir dir, cache;
  const fs::path path = dir.Write("m.safetensors", FileOf({{"v", "abc"}, {"w", "def"}}));
  Age(path);
  const std::string root = RootOf(path);
  FillCache(path, cache.path());
  ASSERT_EQ(std::distance(fs::directory_iterator(cache.path()), {}), 1);
  const fs::path entry = fs::directory_iterator(cache.path())->path();
  std::string bytes;
  {
    std::ifstream in(entry, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto with = [&](const std::string& changed) {
    std::ofstream(entry, std::ios::binary | std::ios::trunc) << changed;
    return FromCache(path, cache.path());
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    ASSERT_EQ(with(changed), std::nullopt) << i;
    ASSERT_EQ(with(bytes.substr(0, i)), std::nullopt) << i;
  }
  EXPECT_EQ(with(bytes + "x"), std::nullopt);
  EXPECT_EQ(with(bytes), root);
  fs::remove(entry);
  fs::create_directory(entry);
  EXPECT_EQ(FromCache(path, cache.path()), std::nullopt);
  FillCache(path, cache.path());
  FillCache(path, path);  // a file where the folder should be
  FillCache(path, "/proc/no such folder");
  EXPECT_EQ(RootOf(path), root);
}

TEST(WeightsHash, TheCacheIsBounded) {
  const TempDir cache;
  for (size_t i = 0; i < kHashCacheEntriesMax + 5; ++i)
    Age(cache.Write(std::to_string(i) + ".hash", "x"), 1000);
  cache.Write("mine", "x");
  const FileKey key{.path = "/a", .bytes = 1};
  const CachedHash hash{.offset = 1, .bytes = 2, .digest = Sha256().Finish()};
  WriteHashCache(cache.path(), key, {&hash, 1});
  EXPECT_EQ(static_cast<size_t>(std::distance(fs::directory_iterator(cache.path()), {})),
            kHashCacheEntriesMax + 1);
  EXPECT_TRUE(fs::exists(cache.path() / "mine"));
  EXPECT_EQ(ReadHashCache(cache.path(), key).size(), 1u);
}

TEST(WeightsHash, AFileThatChangesMeanwhileHasNoHashAndOneThatIsReplacedKeepsItsOwn) {
  const TempDir dir, cache;
  const fs::path path = dir.Write("m.safetensors", FileOf({{"v", "abc"}}));
  Age(path);
  const std::string root = RootOf(path);
  const auto replaced = Open(path);
  fs::rename(dir.Write("new", FileOf({{"v", "xyz"}})), path);
  replaced->hash().Start({.threads = 0, .cache = cache.path()});
  EXPECT_EQ(HexText(*replaced->hash().Wait(1)), root);
  EXPECT_NE(RootOf(path), root);

  Age(path);
  const auto changed = Open(path);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << "";
  Age(path, 10);
  changed->hash().Start({.threads = 0, .cache = cache.path()});
  const auto refused = changed->hash().Wait(1);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidFile);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("m.safetensors: was written to while it was in use"));
  ASSERT_TRUE(changed->hash().Poll().has_value());
  EXPECT_FALSE(changed->hash().Poll()->ok());
  EXPECT_EQ(FromCache(path, cache.path()), std::nullopt);
}

TEST(WeightsHash, StoresOfTheSameFilesShareTheWork) {
  const TempDir dir, elsewhere;
  const std::string file = FileOf({{"w", Noise(5 * kPiece)}, {"v", "abc"}});
  const fs::path path = dir.Write("m.safetensors", file);
  const auto a = Open(path), b = Open(path), c = Open(elsewhere.Write("m.safetensors", file));
  EXPECT_EQ(a->hash().FilesIdentity(), b->hash().FilesIdentity());
  EXPECT_NE(a->hash().FilesIdentity(), c->hash().FilesIdentity());
  EXPECT_NE(a->hash().token(), b->hash().token());
  const size_t units = a->hash().unit_count();
  EXPECT_EQ(units, 6u);
  const std::vector<uint32_t> even = {0, 2, 4}, odd = {1, 3, 5};
  ASSERT_TRUE(a->hash().HashUnits(even, 2).ok());
  ASSERT_TRUE(b->hash().HashUnits(odd, 1).ok());
  EXPECT_FALSE(a->hash().Poll().has_value());
  const auto from_a = a->hash().Known(even), from_b = b->hash().Known(odd);
  EXPECT_TRUE(a->hash().Known(odd).empty());
  std::vector<uint32_t> which;
  ASSERT_TRUE(a->hash().Add(from_b, &which).ok());
  ASSERT_TRUE(b->hash().Add(from_a, &which).ok());
  EXPECT_THAT(which, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
  ASSERT_TRUE(a->hash().Poll() && b->hash().Poll());
  EXPECT_EQ(HexText(**a->hash().Poll()), RootOf(path));
  EXPECT_EQ(HexText(**b->hash().Poll()), RootOf(path));
  EXPECT_EQ(a->hash().units_read(), 3u);
  EXPECT_EQ(b->hash().units_read(), 3u);
  std::vector<std::byte> damaged = from_a;
  damaged.pop_back();
  EXPECT_EQ(c->hash().Add(damaged, &which).code(), StatusCode::kInternal);
  damaged = from_a;
  damaged[3] = std::byte{0x7f};
  EXPECT_EQ(c->hash().Add(damaged, &which).code(), StatusCode::kInternal);
}

TEST(WeightsHash, TheBackgroundWaitersAndAHurriedThreadAgree) {
  const TempDir dir;
  const fs::path path = dir.Write("m.safetensors", FileOf({{"w", Noise(6 * kPiece)}}));
  const std::string root = RootOf(path);
  for (int round = 0; round < 3; ++round) {
    const auto store = Open(path);
    store->hash().Start({.threads = 2, .share = round, .shares = 3});
    store->hash().Hurry();
    std::vector<std::string> seen(3);
    std::vector<std::thread> waiters;
    for (std::string& text : seen)
      waiters.emplace_back([&] { text = HexText(*store->hash().Wait(2)); });
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_THAT(seen, ::testing::Each(root));
    EXPECT_EQ(store->hash().progress(), 1.0);
  }
  int ticks = 0;
  const auto stopped =
      Open(path)->hash().Wait(1, [&]() { return ++ticks < 2 ? OkStatus() : Internal("enough"); });
  EXPECT_EQ(stopped.status().message(), "enough");
  Open(path)->hash().Start({.threads = 2});  // gone before it is done
}

}  // namespace
}  // namespace sixfold

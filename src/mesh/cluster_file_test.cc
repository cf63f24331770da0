#include "mesh/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace sixfold {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Cluster Parsed(const char* text) {
  auto cluster = ParseClusterFile(text, "c.toml");
  EXPECT_TRUE(cluster.ok()) << cluster.status().message();
  return cluster.ok() ? *cluster : Cluster{};
}

std::string Refusal(std::string_view text) {
  const auto cluster = ParseClusterFile(text, "c.toml");
  if (cluster.ok()) return "accepted";
  EXPECT_EQ(cluster.status().code(), StatusCode::kInvalidFile);
  return cluster.status().message();
}

TEST(ClusterFile, EqualNodesWithPresets) {
  const Cluster cluster = Parsed(R"(
    nodes = 4
    ranks-per-node = 8
    inside = "nvlink"
    between = "infiniband"
  )");
  EXPECT_THAT(cluster.ranks_per_node, ElementsAre(8, 8, 8, 8));
  EXPECT_EQ(cluster.inside, PresetLink(LinkClass::kNvlink));
  EXPECT_EQ(cluster.between, PresetLink(LinkClass::kInfiniband));
  EXPECT_EQ(cluster.ranks(), 32);
  EXPECT_EQ(cluster.LinkBetween(7, 8).link, LinkClass::kInfiniband);
  EXPECT_EQ(cluster.LinkBetween(8, 15).link, LinkClass::kNvlink);
}

TEST(ClusterFile, UnequalNodesAndOverrides) {
  const Cluster cluster = Parsed(R"(
    ranks_per_node = [8, 4, 1]
    [inside]
    link = "pcie"
    bandwidth-gb-s = 50
    [between]
    link = "roce"
    bandwidth_gb_s = 12.5
    latency-us = 0.0
  )");
  EXPECT_THAT(cluster.ranks_per_node, ElementsAre(8, 4, 1));
  EXPECT_EQ(cluster.inside, (Link{LinkClass::kPcie, 50, PresetLink(LinkClass::kPcie).latency_us}));
  EXPECT_EQ(cluster.between, (Link{LinkClass::kRoce, 12.5, 0}));
  EXPECT_EQ(cluster.NodeOf(11), 1);
  EXPECT_EQ(cluster.NodeOf(12), 2);
}

TEST(ClusterFile, WhatIsLeftOutIsOneNodeOfSharedMemory) {
  const Cluster cluster = Parsed("ranks-per-node = 2");
  EXPECT_THAT(cluster.ranks_per_node, ElementsAre(2));
  EXPECT_EQ(cluster.inside, PresetLink(LinkClass::kShm));
  EXPECT_EQ(cluster.between, PresetLink(LinkClass::kEthernet));
  EXPECT_THAT(Parsed("nodes = 1\nranks-per-node = [3]").ranks_per_node, ElementsAre(3));
}

TEST(ClusterFile, EveryLinkClassIsKnownByName) {
  for (int i = 0; i < kLinkClassCount; ++i) {
    const auto link = static_cast<LinkClass>(i);
    const std::string text =
        "ranks-per-node = 1\nbetween = \"" + std::string(NameOf(link)) + "\"\n";
    EXPECT_EQ(Parsed(text.c_str()).between, PresetLink(link));
    EXPECT_GT(PresetLink(link).bandwidth_gb_s, 0);
  }
}

TEST(ClusterFile, PresetsAreHalfOfWhatIsQuotedBothWays) {
  // 001 chapter 20: PCIe 5.0 x16 64 GB/s one way, NVLink 4 900 GB/s both ways, 400 Gb/s NDR;
  // 000 §3.2: NVLink 5 1.8 TB/s both ways.
  EXPECT_EQ(PresetLink(LinkClass::kPcie).bandwidth_gb_s, 64);
  EXPECT_EQ(PresetLink(LinkClass::kNvlink).bandwidth_gb_s, 900.0 / 2);
  EXPECT_EQ(PresetLink(LinkClass::kNvswitch).bandwidth_gb_s, 900.0 / 2);
  EXPECT_EQ(PresetLink(LinkClass::kNvl72).bandwidth_gb_s, 1800.0 / 2);
  EXPECT_EQ(PresetLink(LinkClass::kInfiniband).bandwidth_gb_s, 400.0 / 8);
  EXPECT_EQ(PresetLink(LinkClass::kRoce).bandwidth_gb_s, 400.0 / 8);
  EXPECT_LT(PresetLink(LinkClass::kInfiniband).latency_us, PresetLink(LinkClass::kRoce).latency_us);
}

TEST(ClusterFile, UnknownNamesComeWithTheNearest) {
  EXPECT_EQ(Refusal("ranks-per-node = 8\nnode = 2"),
            "c.toml:2: node: unknown key; expected nodes, ranks-per-node, inside, between, nearest "
            "is 'nodes'");
  EXPECT_THAT(Refusal("ranks-per-node = 8\n[inside]\nlink = \"pcie\"\nbandwith-gb-s = 1"),
              HasSubstr("c.toml:4: inside.bandwith-gb-s: unknown key; expected link, "
                        "bandwidth-gb-s, latency-us, nearest is 'bandwidth-gb-s'"));
  EXPECT_EQ(Refusal("ranks-per-node = 8\nbetween = \"infinband\""),
            "c.toml:2: between: expected one of shm, pcie, nvlink, nvswitch, nvl72, infiniband, "
            "roce, ethernet, got text 'infinband', nearest is 'infiniband'");
}

TEST(ClusterFile, WrongTypesAndSizesNameKeyAndLine) {
  EXPECT_EQ(Refusal("\nranks-per-node = \"8\""),
            "c.toml:2: ranks-per-node: expected an integer from 1 to 65536, got text '8'");
  const char* const cases[][2] = {
      {"", "c.toml: ranks-per-node: expected a number such as 8 or a list"},
      {"nodes = 0\nranks-per-node = 1",
       "c.toml:1: nodes: expected an integer from 1 to 65536, got 0"},
      {"nodes = -1\nranks-per-node = 1", "got -1"},
      {"nodes = 1.5\nranks-per-node = 1", "nodes: expected an integer from 1 to 65536, got 1.5"},
      {"nodes = 1979-05-27\nranks-per-node = 1", "got a date or time"},
      {"ranks-per-node = 65537", "got 65537"},
      {"ranks-per-node = 99999999999999999999", "c.toml:1"},
      {"ranks-per-node = [8, 0]", "expected an integer from 1 to 65536, got 0"},
      {"ranks-per-node = [8, [8]]", "got a list"},
      {"ranks-per-node = []", "expected a number a node, got a list"},
      {"ranks-per-node = { a = 1 }", "got a table"},
      {"nodes = 3\nranks-per-node = [8, 8]",
       "c.toml:2: ranks-per-node: expected 3 numbers, one a "
       "node, got 2"},
      {"nodes = 65536\nranks-per-node = 2", "at most 65536 ranks on all nodes, got 131072"},
      {"nodes = 65536\nranks-per-node = 65536", "got 4294967296"},
      {"ranks-per-node = 1\nranks_per_node = 2", "c.toml:2: ranks-per-node stands twice"},
      {"ranks-per-node = 1\nranks-per-node = 2", "c.toml:2"},
      {"ranks-per-node = 1\ninside = 3",
       "inside: expected the name of a link class or a table, got 3"},
      {"ranks-per-node = 1\n[inside]\nlatency-us = 1", "inside.link: expected one of shm"},
      {"ranks-per-node = 1\n[inside]\nlink = 1", "inside.link: expected one of shm"},
      {"ranks-per-node = 1\n[inside]\nlink = \"shm\"\nbandwidth-gb-s = 0",
       "c.toml:4: inside.bandwidth-gb-s: expected a number above 0, got 0"},
      {"ranks-per-node = 1\n[inside]\nlink = \"shm\"\nbandwidth-gb-s = inf", "from 0 to 1000000"},
      {"ranks-per-node = 1\n[inside]\nlink = \"shm\"\nlatency-us = nan", "inside.latency-us"},
      {"ranks-per-node = 1\n[inside]\nlink = \"shm\"\nlatency-us = -1", "got -1"},
      {"ranks-per-node = 1\n[inside]\nlink = \"shm\"\nlatency-us = true", "got true"},
      {"ranks-per-node = = 1", "c.toml:1: "},
      {"[[inside]]\nlink = \"shm\"", "inside"},
      {"[[[1]]]]", "c.toml:1: "},
      {"\xff", "c.toml:1: "},
  };
  for (const auto& [text, said] : cases) EXPECT_THAT(Refusal(text), HasSubstr(said)) << text;
}

TEST(ClusterFile, DeepAndLongFilesAreRefusedWithoutHarm) {
  EXPECT_THAT(Refusal("ranks-per-node = " + std::string(100000, '[')), HasSubstr("c.toml:1"));
  EXPECT_THAT(Refusal(std::string(5000, 'k') + " = 1"), HasSubstr("unknown key"));
}

TEST(ClusterFile, FilesAreNamedInMessages) {
  EXPECT_EQ(ReadClusterFile("/no/such/cluster.toml").status().code(), StatusCode::kInvalidFile);
  EXPECT_THAT(ReadClusterFile("/no/such/cluster.toml").status().message(),
              HasSubstr("/no/such/cluster.toml: No such file"));
  EXPECT_FALSE(ReadClusterFile("/").ok());
  const std::string path = ::testing::TempDir() + "/sixfold_cluster_file_test.toml";
  std::ofstream(path) << "nodes = 2\nranks-per-node = 4\n";
  const auto cluster = ReadClusterFile(path);
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->nodes(), 2);
  std::ofstream(path) << std::string(kClusterFileBytesMax + 1, '#');
  EXPECT_THAT(ReadClusterFile(path).status().message(), HasSubstr("larger than"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace sixfold

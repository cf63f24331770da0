// Layout and bytes against figures that are worked out here by hand.
#include "mesh/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/collectives.h"
#include "mesh/reduction.h"

namespace sixfold {
namespace {

using testing::HasSubstr;

// SmolLM2's sizes with two layers.
ModelShape SmallShape() {
  return {.hidden = 576,
          .vocab = 49152,
          .intermediate = 1536,
          .heads = 9,
          .kv_heads = 3,
          .head_dim = 64,
          .sparse = {false, false},
          .output_units = OutputProjectionLeaves(9, 64, 8, 32),
          .down_units = DownProjectionLeaves(1536, 8, 32)};
}

Layout Make(const ModelShape& shape, const char* mesh, int nodes = 1, bool sp = false) {
  const Mesh m = Mesh::Parse(mesh).value();
  return Layout::Make(shape, {.mesh = m,
                              .cluster = Cluster::EqualNodes(m.world(), nodes).value(),
                              .sequence_parallel = sp})
      .value();
}

TEST(Mesh, RanksCountInTheOrderGiven) {
  const Mesh mesh = Mesh::Parse("tp2,cp2,dp4,pp2").value();
  EXPECT_EQ(mesh.world(), 32);
  // The golden journey's token: dp 2, cp 1, tp 1 is rank 11, and 27 in the second stage.
  EXPECT_EQ(mesh.Coordinate(11, Axis::kTp), 1);
  EXPECT_EQ(mesh.Coordinate(11, Axis::kCp), 1);
  EXPECT_EQ(mesh.Coordinate(11, Axis::kDp), 2);
  EXPECT_EQ(mesh.Neighbour(11, Axis::kPp, 1), 27);
  EXPECT_EQ(mesh.Group(11, Axis::kTp), (std::vector<int>{10, 11}));
  EXPECT_EQ(mesh.Group(11, Axis::kCp), (std::vector<int>{9, 11}));
  const Mesh swapped = Mesh::Parse("pp2,tp2").value();
  EXPECT_EQ(swapped.Group(0, Axis::kTp), (std::vector<int>{0, 2}));
}

TEST(Mesh, RefusesWhatIsNone) {
  for (const char* text : {"", "tp", "tp0", "2tp", "tp2,tp2", "sp2", "ep4", "tp2,", "tp2x", "tp99999999999", "tp65536,dp2"}) {
    EXPECT_FALSE(Mesh::Parse(text).ok()) << text;
  }
}

TEST(Layout, DealsHeadsInWholeLeaves) {
  const Layout layout = Make(SmallShape(), "tp2");
  EXPECT_EQ(layout.Shard(0).heads, (Share{0, 5}));
  EXPECT_EQ(layout.Shard(1).heads, (Share{5, 9}));
  // Heads 3 to 5 read K/V head 1, which therefore lies on both.
  EXPECT_EQ(layout.Shard(0).kv_heads, (Share{0, 2}));
  EXPECT_EQ(layout.Shard(1).kv_heads, (Share{1, 3}));
  EXPECT_EQ(layout.Shard(0).intermediate, (Share{0, 768}));
  EXPECT_EQ(layout.Shard(1).vocab, (Share{24576, 49152}));
}

TEST(Layout, NodesOfACutAreTheTreesOwn) {
  const Layout layout = Make(SmallShape(), "tp2");
  const KCut& cut = layout.output_cut();
  EXPECT_EQ(cut.tree.nodes[0], (std::vector<TreeNode>{{0, 4}, {4, 5}}));
  EXPECT_EQ(cut.tree.nodes[1], (std::vector<TreeNode>{{5, 6}, {6, 8}, {8, 9}}));
  // ((0-3) + (4 + 5) + (6-7)) + 8, as the tree over nine leaves has it.
  EXPECT_EQ(AddsOf(cut.tree), (std::vector<TreeAdd>{{1, 2}, {1, 3}, {0, 1}, {0, 4}}));
}

TEST(Layout, CutsOfEverySizeCoverAllLeavesOnce) {
  for (int leaves = 1; leaves <= 19; ++leaves) {
    for (int members = 1; members <= leaves + 2; ++members) {
      const TreeCut cut = CutTree(leaves, members);
      int next = 0;
      for (const auto& nodes : cut.nodes) {
        for (const TreeNode& node : nodes) {
          EXPECT_EQ(node.begin, next);
          next = node.end;
        }
      }
      EXPECT_EQ(next, leaves);
      EXPECT_EQ(static_cast<int>(AddsOf(cut).size()), cut.total_nodes() - 1);
    }
  }
}

TEST(Layout, RefusesWithTheReasonAndWhatRuns) {
  const ModelShape shape = SmallShape();
  const auto refusal = [&](const char* mesh) {
    const Mesh m = Mesh::Parse(mesh).value();
    const auto made = Layout::Make(shape, {.mesh = m, .cluster = Cluster::OneNode(m.world())});
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_EQ(refusal("tp9"), "");
  EXPECT_THAT(refusal("tp10"), HasSubstr("tp is 10 and the model has 9 query heads"));
  EXPECT_THAT(refusal("tp10"), HasSubstr("--mesh tp9"));
  EXPECT_THAT(refusal("pp3"), HasSubstr("pp is 3 and the model has 2 layers"));
  EXPECT_EQ(refusal("cp2"), "");
  const auto context = [&](const char* mesh, const ContextOptions& options, Numerics numerics = Numerics::kReproducible) {
    ModelShape with = shape;
    with.numerics = numerics;
    const Mesh m = Mesh::Parse(mesh).value();
    const auto made = Layout::Make(with, {.mesh = m, .cluster = Cluster::OneNode(m.world()), .context = options});
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_EQ(context("cp3", {.form = CpForm::kUlysses}), "");
  EXPECT_THAT(context("cp2", {.form = CpForm::kUlysses}), HasSubstr("2 ranks would share the 9 query heads of tp rank 0"));
  EXPECT_THAT(context("tp2,cp5", {.form = CpForm::kUlysses}), HasSubstr("5 ranks would share the 4 query heads of tp rank 1"));
  EXPECT_EQ(context("cp6", {.form = CpForm::kUlyssesRing}), "");
  EXPECT_THAT(context("cp4", {.form = CpForm::kUlyssesRing, .ulysses = 3}), HasSubstr("--hierarchical-context-parallel-sizes"));
  EXPECT_THAT(context("cp2", {.interleave = 1}), HasSubstr("--numerics fast"));
  EXPECT_EQ(context("cp2", {.interleave = 1}, Numerics::kFast), "");
  EXPECT_THAT(context("cp2", {.interleave = 5}, Numerics::kFast), HasSubstr("1, 2, 4, 8 or 16"));
  EXPECT_EQ(context("cp2", {.interleave = 512}), "");
  ModelShape wide = shape;
  wide.heads = 32;
  wide.kv_heads = 8;
  wide.output_units = OutputProjectionLeaves(32, 64, 8, 32);
  const Mesh m = Mesh::Parse("tp16").value();
  const auto made = Layout::Make(wide, {.mesh = m, .cluster = Cluster::OneNode(16)});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().message(), HasSubstr("8 leaves"));
  EXPECT_THAT(made.status().message(), HasSubstr("--mesh tp8,dp2"));
}

TEST(Collectives, TensorParallelBytes) {
  const Layout layout = Make(SmallShape(), "tp2");
  const int64_t rows = 10;
  const Ledger ledger = PlanCollectives(layout, {{{{.rows = rows, .wanted = {9}}}}}, nullptr);
  // Elements split 2880 + 2880; a member's nodes of the other's half, then its own half of the sum.
  const int64_t half = rows * 576 / 2 * 4;
  const int64_t attention = 2 * half + 3 * half + 2 * half;  // two nodes one way, three the other
  const int64_t ffn = 2 * (half + half);                     // one node each: eight leaves, four and four
  const LedgerEntry sum = ledger.at({Axis::kTp, CommOp::kAllReduce, LinkClass::kShm});
  EXPECT_EQ(sum.count, 2 * 2);
  EXPECT_EQ(sum.bytes, 2 * (attention + ffn));
  EXPECT_EQ(ledger.at({Axis::kTp, CommOp::kSend, LinkClass::kShm}), (LedgerEntry{1, 24576 * 4}));
}

TEST(Collectives, RingVolumeWhereTheTreeIsEven) {
  // 8 leaves over 4 members, one node each: the classic 2 (p - 1) / p of the message, summed over p ranks.
  ModelShape shape = SmallShape();
  shape.heads = 8;
  shape.kv_heads = 4;
  shape.output_units = OutputProjectionLeaves(8, 64, 8, 32);
  const Layout layout = Make(shape, "tp4");
  const Ledger ledger = PlanCollectives(layout, {{{{.rows = 16}}}}, nullptr);
  const int64_t message = 16 * 576 * 4;
  EXPECT_EQ(ledger.at({Axis::kTp, CommOp::kAllReduce, LinkClass::kShm}).bytes, 4 * 2 * 3 * message);
}

TEST(Collectives, SequenceParallelSendsAsMuchInTwoHalves) {
  ModelShape shape = SmallShape();
  shape.heads = 8;
  shape.kv_heads = 4;
  shape.output_units = OutputProjectionLeaves(8, 64, 8, 32);
  const Layout layout = Make(shape, "tp4", 2, true);
  const Ledger ledger = PlanCollectives(layout, {{{{.rows = 16}}}}, nullptr);
  const int64_t message = 16 * 576 * 4;
  int64_t scatter = 0, gather = 0;
  for (const auto& [key, entry] : ledger) {
    if (key.op == CommOp::kReduceScatter) scatter += entry.bytes;
    if (key.op == CommOp::kAllGather) gather += entry.bytes;
  }
  EXPECT_EQ(scatter, 4 * 3 * message);  // two a layer; the embedding is looked up in place
  EXPECT_EQ(gather, 4 * 3 * message);
  // Of the three others of each member, two stand on the other node.
  EXPECT_EQ(ledger.at({Axis::kTp, CommOp::kAllGather, LinkClass::kEthernet}).bytes, 4 * 2 * message);
}

TEST(Collectives, PipelineAndReplicas) {
  const Layout layout = Make(SmallShape(), "dp2,pp2", 2);
  const StepShape step{{{{.rows = 3}, {.rows = 2, .wanted = {1}}}, {{.rows = 0}, {.rows = 0}}}};
  const Ledger ledger = PlanCollectives(layout, step, nullptr);
  // Stages stand on different nodes; the idle replica takes part with nothing.
  EXPECT_EQ(ledger.at({Axis::kPp, CommOp::kSend, LinkClass::kEthernet}), (LedgerEntry{4 + 2, 5 * 576 * 4 + 49152 * 4}));
  EXPECT_EQ(ledger.at({Axis::kDp, CommOp::kSend, LinkClass::kEthernet}), (LedgerEntry{2, 0}));
}

}  // namespace
}  // namespace sixfold

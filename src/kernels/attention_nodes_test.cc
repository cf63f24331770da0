// Attention in parts: nodes of the chunk tree computed apart, merged in any order of arrival, finished.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/testing/cases.h"
#include "base/thread_pool.h"
#include "kernels/numerics.h"
#include "kernels/ops.h"
#include "kernels/testing/attention_case.h"

namespace sixfold {
namespace {

using Request = AttentionRequest;
using Shape = AttentionCaseShape;

constexpr int32_t kFarAway = 1 << 30;  // number of a page that must not be looked at

struct Device {
  Device(Isa isa, int threads) : pool(threads, SetFloatMode), ops(isa, pool) {}
  ThreadPool pool;
  Ops ops;
};

// A node of the tree over the chunks [begin, end) that exist.
struct TreeNode {
  int level = 0;
  int64_t index = 0;
  int64_t begin = 0, end = 0;
  int owner = 0;
};

// The largest nodes of which one owner holds every chunk that exists. owner_of: by chunk.
void AppendMaximalNodes(const std::vector<int>& owner_of, const TreeNode& exists, int level, int64_t index,
                        std::vector<TreeNode>* out) {
  const int64_t begin = std::max(exists.begin, index << level), end = std::min(exists.end, (index + 1) << level);
  if (begin >= end) return;
  const bool one_owner = std::all_of(owner_of.begin() + begin, owner_of.begin() + end,
                                     [&](int owner) { return owner == owner_of[begin]; });
  if (one_owner) {
    out->push_back({level, index, begin, end, owner_of[begin]});
    return;
  }
  AppendMaximalNodes(owner_of, exists, level - 1, 2 * index, out);
  AppendMaximalNodes(owner_of, exists, level - 1, 2 * index + 1, out);
}

// What has arrived of the partials of some rows. Siblings merge as soon as both are there.
class Forest {
 public:
  Forest(const TreeNode& exists, int root_level, int64_t lanes, int v_dim)
      : exists_(exists), root_level_(root_level), lanes_(lanes), v_dim_(v_dim) {}

  void Add(Ops& ops, int level, int64_t index, std::vector<float> partials) {
    for (; level < root_level_; ++level, index /= 2) {
      if (!Exists(level, index ^ 1)) continue;
      const auto sibling = held_.find({level, index ^ 1});
      if (sibling == held_.end()) break;
      std::vector<float> other = std::move(sibling->second);
      held_.erase(sibling);
      if (index % 2 == 1) std::swap(partials, other);
      ops.MergePartials(partials.data(), other.data(), lanes_, v_dim_);
    }
    ASSERT_TRUE(held_.emplace(std::pair{level, index}, std::move(partials)).second);
  }
  const std::vector<float>& root() const {
    SF_CHECK_EQ(held_.size(), 1u);
    return held_.at({root_level_, 0});
  }

 private:
  bool Exists(int level, int64_t index) const {
    return std::max(exists_.begin, index << level) < std::min(exists_.end, (index + 1) << level);
  }
  TreeNode exists_;
  int root_level_;
  int64_t lanes_;
  int v_dim_;
  std::map<std::pair<int, int64_t>, std::vector<float>> held_;
};

enum class Deal { kEach, kBlocks, kZigzag, kInTurn };

std::vector<int> DealChunks(Deal deal, int owners, int64_t chunks, std::mt19937& bits) {
  std::vector<int> owner(chunks);
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t half = c * 2 * owners / chunks;  // of 2 * owners blocks
    switch (deal) {
      case Deal::kEach: owner[c] = static_cast<int>(bits() % owners); break;
      case Deal::kBlocks: owner[c] = static_cast<int>(half / 2); break;
      case Deal::kZigzag: owner[c] = static_cast<int>(half < owners ? half : 2 * owners - 1 - half); break;
      case Deal::kInTurn: owner[c] = static_cast<int>(c % owners); break;
    }
  }
  return owner;
}

// Rows [first, first + count) of a sequence.
AttentionSequence RowsOf(const AttentionSequence& whole, int64_t first, int64_t count) {
  return {whole.first_row + first, count, whole.first_position + first, whole.pages};
}

// Partials of some rows: who computes them, and what has come back.
struct Part {
  AttentionSequence rows;
  size_t request = 0;
  std::vector<int> owner_of;
  TreeNode exists;
  std::vector<TreeNode> nodes;
  std::vector<std::vector<float>> partials;  // by node
};

// Whether a row sees a key of the node, from positions alone.
bool Sees(const Shape& s, int64_t position, const TreeNode& node) {
  const int64_t first = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
  return std::max(first, node.begin * s.chunk) < std::min(position + 1, node.end * s.chunk);
}

void CheckEmptyLanes(const AttentionCase& c, const Part& part) {
  const Shape& s = c.shape;
  const int group = s.kv_group > 0 ? s.kv_group : s.heads / s.kv_heads;
  for (size_t n = 0; n < part.nodes.size(); ++n) {
    int64_t lane = 0;
    for (int kv = 0; kv < s.kv_heads; ++kv) {
      const int heads = std::min(s.heads, (kv + 1) * group - s.group_offset) - std::max(0, kv * group - s.group_offset);
      for (int64_t i = 0; i < part.rows.rows * heads; ++i, ++lane) {
        const float l = part.partials[n][lane * PartialStride(s.v_dim) + s.v_dim + 1];
        ASSERT_EQ(l != 0, Sees(s, part.rows.PositionOf(i / heads), part.nodes[n])) << "node " << n << " lane " << lane;
      }
    }
    ASSERT_EQ(lane, PartialLanes(part.rows.rows, s.heads));
  }
}

// One random way to cut the case over owners; returns the outputs. Owners and the merging rank run different ISAs.
class SharedAttention {
 public:
  SharedAttention(AttentionCase& c, std::mt19937& bits) : c_(c), bits_(bits), owners_(1 + bits() % 8) {
    for (const Isa isa : IsasHere()) devices_.push_back(std::make_unique<Device>(isa, 1 + bits() % 3));
  }

  std::vector<float> Run() {
    PlanParts();
    for (int owner = 0; owner < owners_; ++owner) RunOwner(owner);
    std::vector<float> out(c_.rows * c_.shape.heads * c_.shape.v_dim, -7.0f);
    const AttentionArgs args = c_.Args({}, out.data());
    for (const Part& part : parts_) {
      CheckEmptyLanes(c_, part);
      Finish(part, args);
    }
    return out;
  }

 private:
  Ops& AnyOps() { return devices_[bits_() % devices_.size()]->ops; }

  void PlanParts() {
    const Shape& s = c_.shape;
    const auto deal = static_cast<Deal>(bits_() % 4);
    const std::vector<AttentionSequence> sequences = c_.Sequences();
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t rows = sequences[i].rows;
      const int64_t chunks = sequences[i].PositionOf(rows - 1) / s.chunk + 1;
      const std::vector<int> owner_of = DealChunks(deal, owners_, chunks, bits_);
      const int64_t step = bits_() % 2 ? rows : 1 + static_cast<int64_t>(bits_() % rows);
      for (int64_t first = 0; first < rows; first += step) {
        Part part{.rows = RowsOf(sequences[i], first, std::min(step, rows - first)), .request = i, .owner_of = owner_of, .exists = {}, .nodes = {}, .partials = {}};
        const int64_t p = part.rows.first_position, last = part.rows.PositionOf(part.rows.rows - 1);
        part.exists.begin = s.window > 0 ? std::max<int64_t>(0, p - s.window + 1) / s.chunk : 0;
        part.exists.end = last / s.chunk + 1;
        AppendMaximalNodes(owner_of, part.exists, kRootLevel, 0, &part.nodes);
        const int64_t floats = PartialLanes(part.rows.rows, s.heads) * PartialStride(s.v_dim);
        part.partials.assign(part.nodes.size(), std::vector<float>(floats, std::numeric_limits<float>::quiet_NaN()));
        parts_.push_back(std::move(part));
      }
    }
  }

  // All nodes of one owner in one call, which knows no page of anybody else's chunks.
  void RunOwner(int owner) {
    const Shape& s = c_.shape;
    std::vector<std::vector<int32_t>> tables(parts_.size());
    std::vector<AttentionNode> nodes;
    for (size_t p = 0; p < parts_.size(); ++p) {
      Part& part = parts_[p];
      tables[p] = c_.pages[part.request];
      for (size_t i = 0; i < tables[p].size(); ++i)
        if (part.owner_of[i * kPageTokens / s.chunk] != owner) tables[p][i] = kFarAway;
      for (size_t n = 0; n < part.nodes.size(); ++n) {
        if (part.nodes[n].owner != owner) continue;
        AttentionNode& node = nodes.emplace_back(AttentionNode{.rows = part.rows,
                                                               .chunk_begin = part.nodes[n].begin,
                                                               .chunk_end = part.nodes[n].end,
                                                               .partials = part.partials[n].data()});
        node.rows.pages = tables[p].data();
      }
    }
    AnyOps().AttentionNodes(c_.Args({}, nullptr), nodes);
  }

  void Finish(const Part& part, const AttentionArgs& args) {
    Forest forest(part.exists, kRootLevel, PartialLanes(part.rows.rows, c_.shape.heads), c_.shape.v_dim);
    std::vector<size_t> arrival(part.nodes.size());
    for (size_t i = 0; i < arrival.size(); ++i) arrival[i] = i;
    std::shuffle(arrival.begin(), arrival.end(), bits_);
    for (const size_t n : arrival) forest.Add(AnyOps(), part.nodes[n].level, part.nodes[n].index, part.partials[n]);
    AttentionSequence rows = part.rows;
    rows.pages = nullptr;
    AnyOps().FinishPartials(args, rows, forest.root().data());
  }

  static constexpr int kRootLevel = 9;  // any that is high enough
  AttentionCase& c_;
  std::mt19937& bits_;
  int owners_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Part> parts_;
};

Shape RandomShape(std::mt19937& bits) {
  Shape s;
  s.kv_heads = 1 + bits() % 3;
  const int group = 1 + bits() % 6;
  s.heads = s.kv_heads * group;
  if (bits() % 2 && group > 1) {  // a rank that holds parts of the first and of the last group
    s.kv_group = group;
    s.group_offset = bits() % group;
    const int missing = s.kv_heads > 1 ? bits() % group : 0;
    s.heads -= s.kv_heads > 1 ? s.group_offset + missing : s.group_offset;
  }
  s.k_dim = 1 + bits() % 70;
  s.v_dim = 1 + bits() % 70;
  s.v_in_k = s.v_dim <= s.k_dim && bits() % 2;
  s.bf16 = bits() % 2;
  s.chunk = 16 << (bits() % 6);
  s.window = bits() % 2 ? 1 + bits() % (3 * s.chunk) : 0;
  s.sinks = bits() % 2;
  return s;
}

std::string Describe(const Shape& s) {
  return "heads " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " offset " +
         std::to_string(s.group_offset) + " dims " + std::to_string(s.k_dim) + "/" + std::to_string(s.v_dim) + " bf16 " +
         std::to_string(s.bf16) + " chunk " + std::to_string(s.chunk) + " window " + std::to_string(s.window) +
         " sinks " + std::to_string(s.sinks);
}

TEST(AttentionNodes, AnyCoverByNodesMergedInAnyOrderEqualsAttention) {
  SetFloatMode();
  std::mt19937 bits(11);
  for (int round = 0; round < FullOr(80, 10); ++round) {
    const Shape s = RandomShape(bits);
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) {
      const int64_t context = bits() % std::min(s.chunk * 12, FullOr(1300, 400));
      requests.push_back({context, static_cast<int64_t>(1 + bits() % (i == 0 ? std::min(2 * s.chunk, 80) : 3))});
    }
    AttentionCase c(s, requests, round);
    const std::vector<float> want = c.Run(DetectIsa(), 2, c.Sequences());
    for (const float value : want) ASSERT_TRUE(std::isfinite(value));
    for (int deal = 0; deal < 2; ++deal)
      ASSERT_TRUE(SameBits(SharedAttention(c, bits).Run(), want)) << "round " << round << " " << Describe(s);
  }
}

TEST(AttentionNodes, HundredsOfDecodeRowsInOneCall) {
  SetFloatMode();
  std::mt19937 bits(12);
  for (const int64_t window : {0, 90}) {
    const Shape s{.heads = 6, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .chunk = 32, .window = window, .sinks = true};
    std::vector<Request> requests;
    for (int i = 0; i < FullOr(200, 30); ++i) requests.push_back({static_cast<int64_t>(bits() % 500), 1});
    AttentionCase c(s, requests);
    const std::vector<float> want = c.Run(DetectIsa(), 2, c.Sequences());
    for (int deal = 0; deal < 3; ++deal) EXPECT_TRUE(SameBits(SharedAttention(c, bits).Run(), want));
  }
}

TEST(AttentionNodes, ALongNodeIsTheSameOnAnyNumberOfThreads) {
  SetFloatMode();
  const int64_t chunks = FullOr(16, 8);
  for (const Shape& s : {Shape{.heads = 4, .kv_heads = 2, .chunk = 256}, Shape{.heads = 14, .kv_heads = 1, .chunk = 256}}) {
    AttentionCase c(s, {{chunks * 256 - 3, 1}});
    const AttentionSequence rows = c.Sequences()[0];
    std::vector<float> want;
    for (const Isa isa : IsasHere()) {
      for (int threads = 1; threads <= 4; ++threads) {
        Device device(isa, threads);
        std::vector<float> got(PartialLanes(1, s.heads) * PartialStride(s.v_dim));
        const AttentionNode node{.rows = rows, .chunk_begin = chunks / 2, .chunk_end = chunks, .partials = got.data()};
        device.ops.AttentionNodes(c.Args({}, nullptr), {&node, 1});
        if (want.empty()) want = got;
        EXPECT_TRUE(SameBits(got, want)) << NameOf(isa) << ", " << threads;
      }
    }
  }
}

TEST(AttentionNodes, RowsDealtInTurnEqualTheSameRowsInOrder) {
  SetFloatMode();
  std::mt19937 bits(13);
  for (int round = 0; round < FullOr(20, 5); ++round) {
    const Shape s = RandomShape(bits);
    AttentionCase c(s, {{static_cast<int64_t>(bits() % 300), static_cast<int64_t>(1 + bits() % 80)}}, round);
    const AttentionSequence whole = c.Sequences()[0];
    const std::vector<float> want = c.Run(DetectIsa(), 1, {whole});
    const int64_t members = 1 + bits() % 5;
    for (const Isa isa : IsasHere()) {
      Device device(isa, 2);
      for (int64_t member = 0; member < std::min(members, whole.rows); ++member) {
        const AttentionSequence rows{.rows = (whole.rows - member + members - 1) / members,
                                     .first_position = whole.first_position + member,
                                     .pages = whole.pages,
                                     .position_step = members};
        std::vector<float> q, member_want;
        const int64_t q_row = int64_t{s.heads} * s.k_dim, out_row = int64_t{s.heads} * s.v_dim;
        for (int64_t r = member; r < whole.rows; r += members) {
          q.insert(q.end(), c.q.begin() + r * q_row, c.q.begin() + (r + 1) * q_row);
          member_want.insert(member_want.end(), want.begin() + r * out_row, want.begin() + (r + 1) * out_row);
        }
        std::vector<float> out(member_want.size());
        AttentionArgs args = c.Args({}, out.data());
        args.q = q.data();
        args.sequences = {&rows, 1};
        device.ops.Attention(args);
        EXPECT_TRUE(SameBits(out, member_want)) << NameOf(isa) << " " << Describe(s);

        std::vector<float> root(PartialLanes(rows.rows, s.heads) * PartialStride(s.v_dim));
        const AttentionNode node{.rows = rows,
                                 .chunk_begin = 0,
                                 .chunk_end = rows.PositionOf(rows.rows - 1) / s.chunk + 1,
                                 .partials = root.data()};
        std::fill(out.begin(), out.end(), -7.0f);
        device.ops.AttentionNodes(args, {&node, 1});
        device.ops.FinishPartials(args, rows, root.data());
        EXPECT_TRUE(SameBits(out, member_want)) << NameOf(isa) << " " << Describe(s);
      }
    }
  }
}

// Two random partials a lane, some without keys: what is in those must not matter.
TEST(MergePartials, FollowsTheDefinitionAndLeavesOutLanesWithoutKeys) {
  SetFloatMode();
  std::mt19937 bits(14);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const int v_dim : {1, 7, 8, 15, 16, 33, 64, 130}) {
    const int64_t lanes = 300, stride = PartialStride(v_dim);
    std::vector<float> left(lanes * stride), right(lanes * stride), want;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      float* a = &left[lane * stride];
      float* b = &right[lane * stride];
      for (int d = 0; d < v_dim; ++d) a[d] = normal(bits), b[d] = normal(bits);
      a[v_dim] = normal(bits) * 20, b[v_dim] = normal(bits) * 20;
      a[v_dim + 1] = 1 + std::abs(normal(bits)), b[v_dim + 1] = 1 + std::abs(normal(bits));
      if (lane % 3 == 1) std::fill(a, a + v_dim + 1, kNan), a[v_dim + 1] = 0;
      if (lane % 5 == 2) std::fill(b, b + v_dim + 1, lane % 2 ? kNan : 3.0f), b[v_dim + 1] = 0;
      if (a[v_dim + 1] == 0 || b[v_dim + 1] == 0) {
        const float* from = b[v_dim + 1] == 0 ? a : b;
        want.insert(want.end(), from, from + stride);
        continue;
      }
      const float m = std::max(a[v_dim], b[v_dim]), fa = ExpF(a[v_dim] - m), fb = ExpF(b[v_dim] - m);
      for (int d = 0; d < v_dim; ++d) want.push_back(std::fma(a[d], fa, b[d] * fb));
      want.push_back(m);
      want.push_back(std::fma(a[v_dim + 1], fa, b[v_dim + 1] * fb));
    }
    for (const Isa isa : IsasHere()) {
      Device device(isa, 2);
      std::vector<float> got = left;
      device.ops.MergePartials(got.data(), right.data(), lanes, v_dim);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        if (want[(lane + 1) * stride - 1] == 0) {
          EXPECT_EQ(got[(lane + 1) * stride - 1], 0);
          continue;
        }
        EXPECT_EQ(std::memcmp(&got[lane * stride], &want[lane * stride], stride * sizeof(float)), 0)
            << NameOf(isa) << " v_dim " << v_dim << " lane " << lane;
      }
    }
  }
}

}  // namespace
}  // namespace sixfold

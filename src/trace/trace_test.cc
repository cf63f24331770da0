// Journeys of hand-made records: what counts as an operation, a hop, a crossing, and whose the bytes are.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trace/itinerary.h"
#include "trace/picture.h"
#include "trace/recorder.h"
#include "trace/timeline.h"

namespace sixfold::trace {
namespace {

constexpr uint8_t kTp = 0, kEp = 1;             // axes
constexpr uint8_t kGather = 0, kDispatch = 1;  // operations
constexpr uint8_t kShm = 0, kEthernet = 1;      // links

Map TwoNodes(int ranks) {
  Map map{.layout = "a & b", .layers = 2, .names = {{"tp", "ep", "pp"}, {"all_gather", "dispatch", "send"}, {"shm", "ethernet"}}};
  for (int r = 0; r < ranks; ++r) map.node_of.push_back(r * 2 / ranks);
  return map;
}

// A rank with rows at positions first, first + 1 … of replica 0, all at home.
Recorder RankWith(int rank, int64_t first, int64_t rows) {
  Recorder recorder(rank);
  RowList list{.end_layer = 2, .own_end = rows};
  for (int64_t r = 0; r < rows; ++r) list.rows.push_back({0, first + r});
  recorder.BeginMicroBatch(std::move(list));
  recorder.EnterLayer(0);
  return recorder;
}

// Both rows of ranks 0 and 1 as a tp pair with sequence parallelism would list them: row 0 at home on 0, row 1 on 1.
Recorder PairMember(int rank) {
  Recorder recorder(rank);
  recorder.BeginMicroBatch({.end_layer = 2, .own_begin = rank, .own_end = rank + 1, .share_begin = rank, .rows = {{0, 10}, {0, 11}}});
  recorder.EnterLayer(0);
  return recorder;
}

SentPart Part(int to, int64_t offset, int64_t bytes) {
  return {.member = to, .to = to, .axis = kTp, .op = kGather, .link = kShm, .offset = offset, .bytes = bytes};
}

std::vector<std::pair<int, int64_t>> LoadsOf(const RankTrace& trace) {
  std::vector<std::pair<int, int64_t>> loads;
  for (const Load& load : trace.loads) loads.emplace_back(load.row.number, load.bytes);
  return loads;
}

TEST(Recorder, LinearBuffersAreCutByRowAndRepeat) {
  Recorder r = RankWith(0, 5, 3);
  r.CarryRows(Phase::kAttentionSum, 8);
  r.Begin();
  r.Sent(Part(1, 4, 12));   // half of row 0, row 1
  r.Sent(Part(1, 28, 8));   // second vector: the last half of row 0, the first of row 1
  const RankTrace trace = r.Take();
  EXPECT_EQ(LoadsOf(trace), (std::vector<std::pair<int, int64_t>>{{0, 4}, {1, 8}, {0, 4}, {1, 4}}));
  EXPECT_EQ(trace.messages.at(0).loads, 2);
  EXPECT_EQ(trace.messages.at(1).first_load, 2);
}

TEST(Recorder, ABaseBelowZeroLeavesOutTheFirstRows) {
  Recorder r = RankWith(0, 5, 3);
  r.CarryRows(Phase::kStageSend, 8, -16);
  r.Begin();
  r.Sent(Part(1, 0, 8));
  EXPECT_EQ(LoadsOf(r.Take()), (std::vector<std::pair<int, int64_t>>{{2, 8}}));
}

TEST(Recorder, WhatRowsOfAPieceShareLosesNothing) {
  Recorder r = RankWith(0, 5, 3);
  const RowRef rows[] = {r.Own(0), r.Own(1), r.Own(2)};
  r.CarryPieces(Phase::kKvExchange, 2);
  r.AddPiece(1, 32, rows);
  r.Begin();
  r.Sent(Part(1, 0, 32));
  EXPECT_EQ(LoadsOf(r.Take()), (std::vector<std::pair<int, int64_t>>{{0, 11}, {1, 11}, {2, 10}}));
}

TEST(Recorder, WhatWasSaidHoldsForOneOperation) {
  Recorder r = RankWith(0, 5, 1);
  r.CarryRows(Phase::kAttentionGather, 8);
  r.Begin();
  r.Sent(Part(1, 0, 8));
  r.Begin();
  r.Sent(Part(1, 0, 8));
  std::vector<RankTrace> ranks = {r.Take()};
  EXPECT_EQ(ranks[0].messages.at(0).at.phase, Phase::kAttentionGather);
  EXPECT_EQ(ranks[0].messages.at(1).at.phase, Phase::kUnsaid);
  const trace::Run run(std::move(ranks));
  EXPECT_EQ(run.Totals().at({kTp, kGather, kShm}), (Total{.bytes = 16, .carried = 8}));
  EXPECT_EQ(run.FirstUnsaid(TwoNodes(2).names), "unsaid: tp all_gather of layer 1 from rank 0 to 1: 0 of 8 bytes");
}

TEST(Recorder, TakeEmptiesAllButTheGroups) {
  Recorder r = RankWith(3, 5, 1);
  const int members[] = {3, 4};
  r.AddGroup(7, members);
  r.SentMetadata(12);
  EXPECT_EQ(r.Take().metadata_bytes, 12);
  const RankTrace again = r.Take();
  EXPECT_EQ(again.rank, 3);
  EXPECT_EQ(again.metadata_bytes, 0);
  EXPECT_TRUE(again.rows.empty());
  EXPECT_EQ(again.groups.at(0).ranks, (std::vector<int32_t>{3, 4}));
}

// Ranks 0, 1 on node 0, 2, 3 on node 1. The token of row 0 at home on rank 0: gathered by 1, dispatched over relay 2 to 3.
std::vector<RankTrace> SmallRun() {
  std::vector<Recorder> ranks;
  for (int r = 0; r < 2; ++r) ranks.push_back(PairMember(r));
  for (int r = 2; r < 4; ++r) ranks.push_back(RankWith(r, 100 + r, 1));
  const int pair[] = {0, 1}, all[] = {0, 1, 2, 3};
  for (Recorder& r : ranks) {
    r.AddGroup(5, pair);
    r.AddGroup(6, all);
  }
  for (int r = 0; r < 2; ++r) {
    ranks[r].CarryRows(Phase::kAttentionGather, 8);
    ranks[r].Begin();
    SentPart part = Part(1 - r, r * 8, 8);
    part.group = 5;
    ranks[r].Sent(part);
    ranks[r].RestKvOfAll(r, r + 1, 6);
  }
  const RowRef row{.rank = 0, .number = 0, .by = RowRef::By::kShare};
  const auto leg = [&](int from, int to, int copies) {
    ranks[from].CarryPieces(Phase::kDispatch, 4);
    for (int i = 0; i < copies; ++i) ranks[from].AddPiece(to, 4, {&row, 1});
    if (from == 0) ranks[0].Attend(kEp, kDispatch, 6, 1, {0});
    ranks[from].Begin();
    ranks[from].Sent({.member = to, .to = to, .axis = kEp, .op = kDispatch, .link = from / 2 == to / 2 ? kShm : kEthernet, .group = 6,
                      .bytes = 4 * copies});
  };
  leg(0, 2, 2);
  leg(2, 3, 1);
  ranks[1].CarryPieces(Phase::kDispatch, 4);
  ranks[1].Attend(kEp, kDispatch, 6, 1, {});  // its row's experts are all there: nothing is sent
  for (int r = 0; r < 2; ++r) {
    ranks[r].EnterLayer(1);
    ranks[r].RestKvOfAll(r, r + 1, 6);
  }
  std::vector<RankTrace> traces;
  for (Recorder& r : ranks) traces.push_back(r.Take());
  return traces;
}

TEST(Journey, HopsRanksAndCrossingsAreCounted) {
  const Map map = TwoNodes(4);
  const trace::Run run(SmallRun());
  const Journey j = run.Follow(map, {.position = 10});
  ASSERT_EQ(j.operations.size(), 2u);
  EXPECT_EQ(HopsText(j.operations[0]), "0→1");
  EXPECT_EQ(j.operations[0].groups, (std::vector<std::vector<int32_t>>{{0, 1}}));
  EXPECT_EQ(j.operations[0].new_ranks, (std::vector<int32_t>{1}));
  EXPECT_EQ(j.operations[0].ranks, 2);
  EXPECT_EQ(HopsText(j.operations[1]), "0 stays, 0⇒2→3");  // two copies in one message are one crossing
  EXPECT_EQ(j.operations[1].hops[0].bytes, 8);
  EXPECT_EQ(j.operations[1].new_ranks, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(j.crossings, 1);
  EXPECT_EQ(j.ranks, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(j.bytes, 8 + 8 + 4);
}

TEST(Journey, MessagesOfOneOperationBetweenTwoRanksAreOneHop) {
  Recorder r = RankWith(0, 5, 1), other = RankWith(1, 50, 1);
  r.CarryRows(Phase::kAttentionSum, 8);
  r.Begin();
  r.Sent(Part(1, 0, 8));
  r.Sent(Part(1, 8, 8));  // the row's part of another node
  const trace::Run run({r.Take(), other.Take()});
  const Journey j = run.Follow(TwoNodes(2), {.position = 5});
  ASSERT_EQ(j.operations.size(), 1u);
  ASSERT_EQ(j.operations[0].hops.size(), 1u);
  EXPECT_EQ(j.operations[0].hops[0].bytes, 16);
  EXPECT_EQ(j.bytes, 16);
}

TEST(Journey, AnOperationThatSendsNothingOfTheTokenCounts) {
  const Map map = TwoNodes(4);
  const trace::Run run(SmallRun());
  const Journey j = run.Follow(map, {.position = 11});
  ASSERT_EQ(j.operations.size(), 2u);
  EXPECT_EQ(j.operations[1].at.phase, Phase::kDispatch);
  EXPECT_TRUE(j.operations[1].hops.empty());
  EXPECT_EQ(j.ranks, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(j.homes.at(0).ranks, (std::vector<int32_t>{1}));
}

TEST(Journey, KeysOfLayersThatFollowEachOtherAreOnePlace) {
  const trace::Run run(SmallRun());
  const Journey j = run.Follow(TwoNodes(4), {.position = 10});
  ASSERT_EQ(j.kv.size(), 2u);
  EXPECT_EQ(j.kv[1].rank, 1);
  EXPECT_EQ(j.kv[1].first_layer, 0);
  EXPECT_EQ(j.kv[1].end_layer, 2);
  EXPECT_EQ(j.kv[1].head_begin, 1);
  EXPECT_EQ(j.kv[1].bytes, 12);
}

TEST(Journey, HopsOfAllTokensAddUpToWhatWasSent) {
  const Map map = TwoNodes(4);
  const trace::Run run(SmallRun());
  int64_t hops = 0, sent = 0;
  for (const int64_t position : {10, 11, 102, 103}) hops += run.Follow(map, {.position = position}).bytes;
  for (const auto& [key, total] : run.Totals()) sent += total.bytes;
  EXPECT_EQ(hops, sent);
  const std::vector<int64_t> by_position = run.BytesByPosition(0, 0, 104);
  EXPECT_EQ(std::accumulate(by_position.begin(), by_position.end(), int64_t{0}), sent);
  EXPECT_EQ(by_position[10], run.Follow(map, {.position = 10}).bytes);
}

TEST(Journey, NobodyHasATokenOfAnotherReplica) {
  const Journey j = trace::Run(SmallRun()).Follow(TwoNodes(4), {.replica = 1, .position = 10});
  EXPECT_TRUE(j.homes.empty());
  EXPECT_TRUE(j.operations.empty());
}

TEST(Journey, HopsThatReturnOverARelayComeInTheirOrder) {
  const RowRef row{.rank = 0};
  std::vector<RankTrace> traces;
  for (int r = 0; r < 4; ++r) {
    Recorder recorder = RankWith(r, r, 1);
    if (r > 0) {
      const int to = r == 2 ? 0 : 2;
      recorder.CarryPieces(Phase::kCombine, 4);
      recorder.AddPiece(to, 4, {&row, 1});
      recorder.Begin();
      recorder.Sent({.member = to, .to = to, .axis = kEp, .op = kDispatch, .link = kShm, .bytes = 4});
    }
    traces.push_back(recorder.Take());
  }
  const Journey j = trace::Run(std::move(traces)).Follow(TwoNodes(4), {.position = 0});
  EXPECT_EQ(HopsText(j.operations.at(0)), "1⇒2⇒0, 3→2");
  EXPECT_EQ(j.crossings, 2);
}

TEST(Itinerary, RangesOfRanks) {
  EXPECT_EQ(RangesText({}), "");
  EXPECT_EQ(RangesText({3}), "3");
  EXPECT_EQ(RangesText({0, 1, 2, 3, 7, 9, 10}), "0-3,7,9,10");
}

TEST(Itinerary, JsonCountsFromOneAndKeepsTotals) {
  const Map map = TwoNodes(4);
  const auto json = JourneyJson(trace::Run(SmallRun()).Follow(map, {.position = 10}), map);
  EXPECT_EQ(json.at("operations"), 2);
  EXPECT_EQ(json.at("crossings"), 1);
  EXPECT_EQ(json.at("hops").size(), 3u);
  EXPECT_EQ(json.at("hops")[1].at("link"), "ethernet");
  EXPECT_EQ(json.at("hops")[1].at("layer"), 1);
  EXPECT_EQ(json.at("kv")[0].at("layers"), (nlohmann::json{1, 2}));
  EXPECT_EQ(json.at("itinerary")[1].at("stays"), (nlohmann::json{0}));
}

TEST(Picture, IsClosedEscapedAndHasAnArrowAHop) {
  const Map map = TwoNodes(4);
  const std::string svg = JourneySvg(trace::Run(SmallRun()).Follow(map, {.position = 10}), map);
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_NE(svg.find("a &amp; b"), std::string::npos);
  size_t arrows = 0;
  for (size_t at = 0; (at = svg.find("marker-end", at)) != std::string::npos; ++at) ++arrows;
  EXPECT_EQ(arrows, 3u);
}

// DejaVu Sans, one of the widest, takes 0.6 of its size for a letter of running text.
TEST(Picture, LongNamesOfOperationsAndNodesStayOutOfTheColumnsOfRanks) {
  Map map = TwoNodes(4);
  map.node_of = {0, 1, 2, 3};
  for (std::string& op : map.names.ops) op = "a_collective_operation_of_a_long_name";
  const std::string svg = JourneySvg(trace::Run(SmallRun()).Follow(map, {.position = 10}), map);
  const auto number_behind = [&](const std::string& what, size_t from) {
    const size_t at = svg.find(what, from);
    return at == std::string::npos ? -1 : std::stoi(svg.substr(at + what.size()));
  };
  const size_t name = svg.find(">a-collective-operation");
  ASSERT_NE(name, std::string::npos);
  const int begin = number_behind("x=\"", svg.rfind("<text", name));
  const int end = begin + static_cast<int>(0.6 * 11 * std::string("a-collective-operation-of-a-long-name").size());
  int last = end, nodes = 0;
  const std::string rect = "<rect x=\"";
  for (size_t at = svg.find(rect + std::to_string(number_behind(rect, 0))); at != std::string::npos && nodes < 4; at = svg.find(rect, at + 1)) {
    const int left = number_behind(rect, at), width = number_behind("width=\"", at);
    EXPECT_GE(left, last) << "node " << nodes;
    EXPECT_GE(width, 0.6 * 11 * std::string("node 0").size());
    last = left + width;
    ++nodes;
  }
  EXPECT_EQ(nodes, 4);
}

TEST(Timeline, EveryArrowStartsAndEnds) {
  const Map map = TwoNodes(4);
  const trace::Run run(SmallRun());
  const auto json = nlohmann::json::parse(TimelineJson(run, run.Follow(map, {.position = 10}), map));
  std::map<std::string, int> count;
  for (const auto& event : json.at("traceEvents")) ++count[event.at("ph").get<std::string>()];
  EXPECT_EQ(count["s"], 3);
  EXPECT_EQ(count["f"], 3);
  EXPECT_EQ(count["M"], 2 + 4);
  EXPECT_EQ(count["X"], 4 + 3);  // what ranks sent, and arrivals
}

}  // namespace
}  // namespace sixfold::trace

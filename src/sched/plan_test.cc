// Scheduling as text: testdata/*.txt hold arrivals and budgets, and after each `step` what the plan must be. And random
// loads, played to the end.
#include "sched/plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/testing/random_numbers.h"
#include "sched/place.h"
#include "sched/testing/simulation.h"

namespace sixfold {
namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Plays a script and returns it with the plans as they are; equal to the script when all is as expected.
//   limits rows N seqs N blocks N [chunk N] [replicas N]
//   arrive NAME prompt N answer N
//   abort NAME
//   step                       followed by "  <plan>", a line for each replica
//   run                        steps until nobody is left, each followed by its plan
std::string Play(const std::string& script) {
  std::optional<SchedSimulation> simulation;
  std::string out;
  const auto step = [&] {
    for (const std::string& plan : simulation->Step()) out += "  " + plan + "\n";
  };
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) continue;  // what was expected
    out += line + "\n";
    std::istringstream words(line);
    std::string verb, name, key;
    words >> verb;
    if (verb == "limits") {
      SchedLimits limits;
      int64_t blocks = 0, replicas = 1, value = 0;
      while (words >> key >> value) {
        if (key == "rows")
          limits.max_num_batched_tokens = value;
        else if (key == "seqs")
          limits.max_num_seqs = value;
        else if (key == "chunk")
          limits.max_chunk_tokens = value;
        else if (key == "blocks")
          blocks = value;
        else if (key == "replicas")
          replicas = value;
        else
          ADD_FAILURE() << "unknown limit " << key;
      }
      simulation.emplace(limits, blocks, static_cast<int32_t>(replicas));
    } else if (verb == "arrive") {
      SchedSimulation::Arrival arrival;
      words >> arrival.name >> key >> arrival.prompt_tokens >> key >> arrival.answer_tokens;
      simulation->Arrive(arrival);
    } else if (verb == "abort") {
      words >> name;
      simulation->Abort(name);
    } else if (verb == "step") {
      step();
    } else if (verb == "run") {
      for (int i = 0; i < 200 && simulation->alive() > 0; ++i) step();
    } else if (!verb.empty() && verb[0] != '#') {
      ADD_FAILURE() << "unknown line: " << line;
    }
  }
  return out;
}

TEST(PlanStep, ScriptsGiveTheirPlans) {
  int scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator("src/sched/testdata")) {
    SCOPED_TRACE(entry.path().string());
    const std::string script = ReadAll(entry.path());
    EXPECT_EQ(Play(script), script);
    ++scripts;
  }
  EXPECT_GE(scripts, 5);
}

struct RandomLoadTotals {
  int64_t preemptions = 0;
  int64_t replica_changes = 0;
  int64_t steps = 0;
  int64_t steps_with_all_busy = 0;
};

// The simulation itself checks budgets, blocks, the queue and the state machine at each step; here: everyone ends,
// nobody waits for ever, and no block is left behind.
void PlayRandomLoad(uint64_t seed, int32_t replicas, RandomLoadTotals& totals) {
  RandomNumbers random(seed);
  const int64_t blocks = random.Next(1, 24);
  const SchedLimits limits{.max_num_batched_tokens = random.Next(1, 64),
                           .max_num_seqs = random.Next(1, 8),
                           .max_chunk_tokens = random.Next(0, 2) == 0 ? random.Next(1, 20) : 0};
  SchedSimulation simulation(limits, blocks, replicas);
  const int64_t arrivals = random.Next(1, 30 * replicas);
  int64_t arrived = 0, work = 0, busy_steps = 0;
  while (arrived < arrivals || simulation.alive() > 0) {
    for (int32_t r = 0; r < replicas; ++r) {
      if (arrived == arrivals || random.Next(0, 2) != 0) continue;
      const int64_t total = random.Next(2, blocks * kPageTokens);
      const int64_t answer = random.Next(1, std::min<int64_t>(total - 1, 60));
      simulation.Arrive({.name = std::to_string(arrived++), .prompt_tokens = total - answer, .answer_tokens = answer});
      work += total;
    }
    if (simulation.alive() > 0 && random.Next(0, 29) == 0) {
      simulation.Abort(simulation.Name(random.Next(0, simulation.alive() - 1)));  // queued or running
    }
    const bool busy = simulation.alive() > 0;
    const int64_t rows = simulation.rows_computed();
    simulation.Step();
    ASSERT_TRUE(!busy || simulation.rows_computed() > rows) << "a step without progress";
    // Each row is computed once, and again at most once for each preemption of its sequence.
    busy_steps += busy ? 1 : 0;
    ASSERT_LE(busy_steps, work + simulation.preemptions() * blocks * kPageTokens);
    totals.steps += busy ? 1 : 0;
    totals.steps_with_all_busy += simulation.replicas_busy() == replicas ? 1 : 0;
  }
  EXPECT_EQ(simulation.blocks_used(), 0);
  totals.preemptions += simulation.preemptions();
  totals.replica_changes += simulation.replica_changes();
}

TEST(PlanStep, RandomLoadsEndWithinABoundAndLeaveNoBlocks) {
  RandomLoadTotals totals;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    PlayRandomLoad(seed, 1, totals);
  }
  EXPECT_GT(totals.preemptions, 100) << "the loads are too light to test preemption";
}

TEST(PlanStep, RandomLoadsEndOnSeveralReplicas) {
  for (const int32_t replicas : {2, 3, 4}) {
    RandomLoadTotals totals;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      SCOPED_TRACE(testing::Message() << replicas << " replicas, seed " << seed);
      PlayRandomLoad(seed, replicas, totals);
    }
    EXPECT_GT(totals.preemptions, 100);
    EXPECT_GT(totals.replica_changes, 10) << "preempted sequences never move";
    EXPECT_GT(totals.steps_with_all_busy, totals.steps / 2);
  }
}

TEST(PlanStep, IsAPureFunction) {
  const GlobalSnapshot snapshot{
      .sequences = {{.state = SequenceState::kRunning, .known = 17, .computed = 16, .blocks = 1}, {.known = 40}},
      .blocks_free = {8}};
  const GlobalPlan plan = PlanStep(snapshot, {.max_num_batched_tokens = 20});
  EXPECT_EQ(plan, PlanStep(snapshot, {.max_num_batched_tokens = 20}));
  EXPECT_EQ(plan.replicas.at(0).rows, (std::vector<PlannedRows>{{0, 1, 1}, {1, 19, 2}}));
}

TEST(PlanStep, AReplicaWithoutWorkHasAnEmptyPlan) {
  const GlobalSnapshot snapshot{
      .sequences = {{.state = SequenceState::kRunning, .known = 5, .computed = 4, .blocks = 1, .replica = 2}},
      .blocks_free = {3, 3, 2, 3}};
  const GlobalPlan plan = PlanStep(snapshot, {});
  ASSERT_EQ(plan.replicas.size(), 4u);
  for (const int r : {0, 1, 3}) EXPECT_TRUE(plan.replicas[r].empty());
  EXPECT_EQ(plan.replicas[2].rows, (std::vector<PlannedRows>{{0, 1, 0}}));
  EXPECT_FALSE(plan.empty());
}

TEST(PlaceSequence, TakesTheLeastLoadedThatHasRoom) {
  constexpr auto kForIt = ReplicaLoad::Room::kForIt;
  const auto place = [](std::vector<ReplicaLoad> loads) { return PlaceSequence(loads); };
  EXPECT_EQ(place({}), std::nullopt);
  EXPECT_EQ(place({{.blocks_free = 9}, {.blocks_free = 9}}), std::nullopt);
  const ReplicaLoad even{kForIt, 3, 10, 5};
  EXPECT_EQ(place({even, even, even}), 0);
  EXPECT_EQ(place({even, {kForIt, 2, 99, 1}, even}), 1);
  EXPECT_EQ(place({even, even, {kForIt, 3, 9, 1}}), 2);
  EXPECT_EQ(place({even, {kForIt, 3, 10, 6}, even}), 1);
  EXPECT_EQ(place({{.running = 0, .blocks_free = 50}, even}), 1);  // the idle one has no room for this sequence
}

TEST(SequenceProgressDeathTest, TransitionsThatTheDiagramLacksAreBugs) {
  SequenceProgress s{.known = 3};
  EXPECT_DEATH(s.Advance(1), "CHECK");
  EXPECT_DEATH(s.Preempt(), "CHECK");
  s.Admit(0);
  EXPECT_DEATH(s.Admit(0), "CHECK");
  EXPECT_DEATH(s.Append(), "CHECK");
  s.Finish();
  EXPECT_DEATH(s.Finish(), "CHECK");
}

}  // namespace
}  // namespace sixfold

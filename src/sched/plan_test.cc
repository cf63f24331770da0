// Scheduling as text: testdata/*.txt hold arrivals and budgets, and after each `step` what the plan must be. And random
// loads, played to the end.
#include "sched/plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/random.h"
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
//   limits rows N seqs N blocks N [chunk N]
//   arrive NAME prompt N answer N
//   abort NAME
//   step                       followed by "  <plan>"
//   run                        steps until nobody is left, each followed by its plan
std::string Play(const std::string& script) {
  std::optional<SchedSimulation> simulation;
  std::string out;
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) continue;  // what was expected
    out += line + "\n";
    std::istringstream words(line);
    std::string verb, name, key;
    words >> verb;
    if (verb == "limits") {
      SchedLimits limits;
      int64_t blocks = 0, value = 0;
      while (words >> key >> value) {
        if (key == "rows")
          limits.max_num_batched_tokens = value;
        else if (key == "seqs")
          limits.max_num_seqs = value;
        else if (key == "chunk")
          limits.max_chunk_tokens = value;
        else if (key == "blocks")
          blocks = value;
        else
          ADD_FAILURE() << "unknown limit " << key;
      }
      simulation.emplace(limits, blocks);
    } else if (verb == "arrive") {
      SchedSimulation::Arrival arrival;
      words >> arrival.name >> key >> arrival.prompt_tokens >> key >> arrival.answer_tokens;
      simulation->Arrive(arrival);
    } else if (verb == "abort") {
      words >> name;
      simulation->Abort(name);
    } else if (verb == "step") {
      out += "  " + simulation->Step() + "\n";
    } else if (verb == "run") {
      for (int step = 0; step < 200 && simulation->alive() > 0; ++step) out += "  " + simulation->Step() + "\n";
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

class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : seed_(seed) {}
  // In [low, high].
  int64_t Next(int64_t low, int64_t high) {
    const double u = RandomUniform({.seed = seed_, .position = next_++, .purpose = RandomPurpose::kTest});
    return low + static_cast<int64_t>(u * static_cast<double>(high - low + 1));
  }

 private:
  uint64_t seed_;
  uint32_t next_ = 0;
};

// The simulation itself checks budgets, blocks and the state machine at each step; here: everyone ends, nobody waits
// for ever, and no block is left behind.
TEST(PlanStep, RandomLoadsEndWithinABoundAndLeaveNoBlocks) {
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomNumbers random(seed);
    const int64_t blocks = random.Next(1, 24);
    const SchedLimits limits{.max_num_batched_tokens = random.Next(1, 64),
                             .max_num_seqs = random.Next(1, 8),
                             .max_chunk_tokens = random.Next(0, 2) == 0 ? random.Next(1, 20) : 0};
    SchedSimulation simulation(limits, blocks);
    const int64_t arrivals = random.Next(1, 30);
    int64_t arrived = 0, work = 0, busy_steps = 0;
    while (arrived < arrivals || simulation.alive() > 0) {
      if (arrived < arrivals && random.Next(0, 2) == 0) {
        const int64_t total = random.Next(2, blocks * kPageTokens);
        const int64_t answer = random.Next(1, std::min<int64_t>(total - 1, 60));
        simulation.Arrive(
            {.name = std::to_string(arrived++), .prompt_tokens = total - answer, .answer_tokens = answer});
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
    }
    EXPECT_EQ(simulation.blocks_used(), 0);
    preemptions += simulation.preemptions();
  }
  EXPECT_GT(preemptions, 100) << "the loads are too light to test preemption";
}

TEST(PlanStep, IsAPureFunction) {
  SchedSnapshot snapshot{
      .sequences = {{.state = SequenceState::kRunning, .known = 17, .computed = 16, .blocks = 1}, {.known = 40}},
      .blocks_free = 8};
  const StepPlan plan = PlanStep(snapshot, {.max_num_batched_tokens = 20});
  EXPECT_EQ(plan, PlanStep(snapshot, {.max_num_batched_tokens = 20}));
  EXPECT_EQ(plan.rows, (std::vector<PlannedRows>{{0, 1, 1}, {1, 19, 2}}));
}

TEST(SequenceProgressDeathTest, TransitionsThatTheDiagramLacksAreBugs) {
  SequenceProgress s{.known = 3};
  EXPECT_DEATH(s.Advance(1), "CHECK");
  EXPECT_DEATH(s.Preempt(), "CHECK");
  s.Admit();
  EXPECT_DEATH(s.Admit(), "CHECK");
  EXPECT_DEATH(s.Append(), "CHECK");
  s.Finish();
  EXPECT_DEATH(s.Finish(), "CHECK");
}

}  // namespace
}  // namespace sixfold

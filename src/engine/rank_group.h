// An instance of many ranks behind StepModel: the leader's side.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/mpi/mpi_world.h"
#include "engine/rank_runner.h"
#include "engine/step_model.h"

namespace sixfold {

struct RankGroupOptions {
  // --comm-timeout: how long a rank waits for one that makes no progress.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // Predict the bytes of every step, to be compared with the counted ones in stats().
  enum class Prediction : uint8_t { kOff, kOn } prediction = Prediction::kOff;
  // --emulate-links, of ranks that are threads: messages take as long as the layout's cluster says
  // (LocalWorldOptions::emulated_links).
  enum class Links : uint8_t { kAsTheyAre, kEmulated } links = Links::kAsTheyAre;
};

// Counted by the ranks, predicted by the layout, since start.
struct GroupStats {
  int world = 0;
  int64_t steps = 0;
  Ledger counted, predicted;
  std::vector<RankReport> ranks;  // [world]
  ExpertLoad experts;
};

// Rank 0 runs in a thread of its own, so that it shows signs of life while the engine has nothing to do. Thread rule: as
// StepModel; Stats between steps.
class RankGroup : public StepModel {
 public:
  // All ranks as threads of this process.
  static Result<std::unique_ptr<RankGroup>> StartThreads(InstanceSpec spec, const RankGroupOptions& options);
  // Rank 0 of a world of processes; the others call RunRank. The world outlives the group.
  static Result<std::unique_ptr<RankGroup>> StartLeader(InstanceSpec spec, MpiWorld& world, const RankGroupOptions& options);
  ~RankGroup() override;

  int replicas() const override;
  KvGeometry kv_geometry() const override;
  KvPlacement kv_placement() const override;
  int ranks_here() const override;
  int64_t vocab() const override;
  int64_t max_positions() const override;
  std::span<const TokenId> eos_ids() const override;
  Status health() const override;
  Status AllocateKv(int32_t blocks) override;
  Result<std::span<const float>> Forward(std::span<const StepBatch> batches) override;
  void RecordRoutes(bool record) override;
  const StepRoutes& last_routes() const override;
  void ForceRoutes(StepRoutes routes) override;
  ExpertLoad expert_load() const override;
  Status ResetCounters() override;

  Result<GroupStats> Stats();
  // What the ranks recorded since the last call, [world]; none without InstanceSpec::tracing.
  Result<std::vector<trace::RankTrace>> TakeTrace();
  // The ordinary end of all ranks; once, by the destructor at the latest.
  Status Stop();

 private:
  struct Impl;
  explicit RankGroup(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with the ranks' threads: one that is stuck outlives the group
};

// A rank above 0 of a world of processes: loads, serves until the leader stops (OK) or something fails.
Status RunRank(InstanceSpec spec, MpiWorld& world);

}  // namespace sixfold

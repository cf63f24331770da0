// One rank of an instance: its share of the model, its K/V memory, its communicators, and the commands it carries out. The
// same code on the leader, on a thread and in a process of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "engine/rank_messages.h"
#include "kv/storage.h"
#include "mesh/collectives.h"
#include "mesh/layout.h"
#include "model/config.h"
#include "model/model.h"
#include "trace/recorder.h"
#include "weights/weight_store.h"

namespace sixfold {

// What all ranks of an instance are made from.
struct InstanceSpec {
  std::shared_ptr<const WeightStore> store;  // shared: the ranks of one process read one mapping
  ModelConfig config;
  ModelOptions options;                      // threads: of one rank
  Layout layout;
  // Most micro-batches of a step; 0: as many as the pipeline likes.
  int micro_batches_max = 0;
  // Whether ranks write down what they send (RankGroup::TakeTrace).
  enum class Tracing : uint8_t { kOff, kOn } tracing = Tracing::kOff;
  // For tests of failures: called by every rank before it computes a step.
  std::function<void(int rank, int64_t step)> before_step;
  // The same, before it reports its counters.
  std::function<void(int rank)> before_report = {};
  // Model::Observe of every rank, in that rank's thread.
  std::function<void(int rank, const Model::Observation&)> observer = {};
};

// Thread rule: one thread, which is then the transport's and the model's.
class RankRunner {
 public:
  RankRunner(const InstanceSpec& spec, int rank, Transport& transport);

  // Reads and packs the rank's share, then hears from all others. Collective; every rank returns the first failure in order
  // of ranks.
  Status Load();

  // Ranks above 0: carries out commands until the leader says stop (OK) or something fails.
  Status Serve();

  // Rank 0: tells the others, takes part, and returns what came of it. Collective.
  Status AllocateKv(int32_t blocks);
  // batches: [dp]. Logits of all replicas in order, [sum of logit_rows][vocab], valid until the next step.
  struct StepOptions {
    bool record_routes = false;  // then last_routes() has them
    StepRoutes forced = {};      // of the rows of `batches`; empty without
  };
  Result<std::span<const float>> Step(std::vector<StepBatch> batches, StepOptions options);
  Result<std::vector<RankReport>> Report();  // [world]
  // What was recorded since the last call. None without InstanceSpec::tracing.
  Result<std::vector<trace::RankTrace>> TakeTrace();  // [world]
  Status Stop();

  Model& model() { return *model_; }
  int64_t steps() const { return steps_; }
  // Micro-batches of the last step: what PlanCollectives asks.
  const StepShape& last_shape() const { return shape_; }
  const StepRoutes& last_routes() const { return routes_; }

 private:
  void MakeCommunicators();
  std::unique_ptr<Communicator> Group(Axis axis, int ids, std::vector<int> members);
  Communicator* Pair(Axis axis, int id, int first, int second);
  Status Tell(const RankCommand& command);
  Status Agree(const Status& mine);
  Status CheckSameModel();
  Status CompareToLeader(const std::string& mine);
  Status Take(const RankCommand& command);
  Status AllocateMine(int32_t blocks);
  Status RunMine(const RankCommand& command);
  Status CollectLogits();
  Status GatherRoutes();
  Status GatherBytes(const std::vector<std::byte>& mine, std::vector<std::byte>* joined, Bounds* bounds);
  Status SendReport(std::vector<RankReport>* all);
  Status SendTrace(std::vector<trace::RankTrace>* all);

  const InstanceSpec& spec_;
  const int rank_;
  Transport& transport_;
  Ledger ledger_, untracked_;  // of the model's operations; of the leader's own business
  ControlTraffic control_;
  std::unique_ptr<trace::Recorder> recorder_;  // null unless tracing
  std::unique_ptr<Communicator> world_, tp_, cp_, ulysses_, experts_, etp_;
  std::vector<std::unique_ptr<Communicator>> pairs_;
  std::vector<Communicator*> from_last_stage_;  // rank 0: by dp, cp, then tp; null for itself
  RankComm comm_;
  std::unique_ptr<Model> model_;
  std::optional<KvStorage> kv_;
  int64_t steps_ = 0;
  StepShape shape_;
  StepRoutes routes_;
  std::vector<std::vector<StepBatch>> micro_batches_;  // [dp] of the step in work
  std::vector<std::vector<std::vector<std::vector<int32_t>>>> row_numbers_;  // [micro-batches][dp][cp] rows of the micro-batch
  std::vector<float> shard_, logits_;
  std::vector<std::byte> message_;
  int64_t comm_ns_ = 0, idle_ns_ = 0, step_ns_ = 0;
  int64_t kv_blocks_max_ = 0;
};

}  // namespace sixfold

#include "engine/rank_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "engine/shared_hash.h"
#include "kernels/numerics.h"
#include "model/micro_batch.h"
#include "weights/weights_hash.h"

namespace sixfold {

namespace {

using Clock = std::chrono::steady_clock;

int64_t Since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Numbers of communicators: unequal for all groups of an instance.
constexpr int kWorldId = 0;
constexpr int kTpIds = 1;  // and as many as there are ranks

}  // namespace

RankRunner::RankRunner(const InstanceSpec& spec, int rank, Transport& transport)
    : spec_(spec), rank_(rank), transport_(transport) {
  if (spec.tracing == InstanceSpec::Tracing::kOn) recorder_ = std::make_unique<trace::Recorder>(rank);
  MakeCommunicators();
}

Communicator* RankRunner::Pair(Axis axis, int id, int first, int second) {
  pairs_.push_back(std::make_unique<Communicator>(transport_, spec_.layout.cluster(),
                                                  CommGroup{.axis = axis, .id = id, .members = {first, second}}, ledger_,
                                                  control_));
  pairs_.back()->SetRecorder(recorder_.get());
  return pairs_.back().get();
}

// Null for a group of one. ids: from there on, one a rank.
std::unique_ptr<Communicator> RankRunner::Group(Axis axis, int ids, std::vector<int> members) {
  if (members.size() < 2) return nullptr;
  const int id = ids + members.front();
  auto group = std::make_unique<Communicator>(transport_, spec_.layout.cluster(),
                                              CommGroup{.axis = axis, .id = id, .members = std::move(members)}, ledger_, control_);
  group->SetRecorder(recorder_.get());
  return group;
}

void RankRunner::MakeCommunicators() {
  const Layout& layout = spec_.layout;
  const int world = layout.world();
  CommGroup all{.axis = Axis::kDp, .id = kWorldId};
  for (int r = 0; r < world; ++r) all.members.push_back(r);
  world_ = std::make_unique<Communicator>(transport_, layout.cluster(), all, untracked_, control_);
  const RankShard own = layout.Shard(rank_);
  comm_.transport = &transport_;
  tp_ = Group(Axis::kTp, kTpIds, layout.TpGroup(rank_));
  comm_.tp = tp_.get();
  const int stage_ids = kTpIds + world, leader_ids = stage_ids + world;
  const int expert_ids = leader_ids + world, etp_ids = expert_ids + world;
  const int context_ids = etp_ids + world, ulysses_ids = context_ids + world;
  const std::vector<int> context = layout.ContextGroup(rank_);
  cp_ = Group(Axis::kCp, context_ids, context);
  comm_.cp = cp_.get();
  if (layout.context().ulysses > 1) {
    const int u = layout.context().ulysses, first = own.cp / u * u;
    ulysses_ = Group(Axis::kCp, ulysses_ids, {context.begin() + first, context.begin() + first + u});
    comm_.ulysses = ulysses_.get();
  }
  if (layout.dispatches()) {
    experts_ = Group(Axis::kEp, expert_ids, layout.DispatchGroup(rank_));
    etp_ = Group(Axis::kEtp, etp_ids, layout.EtpGroup(rank_));
    comm_.experts = experts_.get();
    comm_.etp = etp_.get();
  }
  if (own.pp > 0) {
    const int before = layout.RankAt({.tp = own.tp, .cp = own.cp, .dp = own.dp, .pp = own.pp - 1});
    comm_.previous = Pair(Axis::kPp, stage_ids + before, before, rank_);
  }
  if (!own.last_stage) {
    comm_.next = Pair(Axis::kPp, stage_ids + rank_, rank_, layout.RankAt({.tp = own.tp, .cp = own.cp, .dp = own.dp, .pp = own.pp + 1}));
  }
  if (own.last_stage && rank_ != 0) comm_.leader = Pair(LeaderAxis(layout, rank_), leader_ids + rank_, 0, rank_);
  if (rank_ != 0) return;
  for (int dp = 0; dp < layout.dp(); ++dp) {
    for (int cp = 0; cp < layout.cp(); ++cp) {
      for (int tp = 0; tp < layout.tp(); ++tp) {
        const int from = layout.RankAt({.tp = tp, .cp = cp, .dp = dp, .pp = layout.pp() - 1});
        from_last_stage_.push_back(from == 0 ? nullptr : Pair(LeaderAxis(layout, from), leader_ids + from, 0, from));
      }
    }
  }
}

// Every rank's own status in; the first failure in order of ranks out, the same on all.
Status RankRunner::Agree(const Status& mine) {
  const int world = spec_.layout.world();
  struct Head {
    int64_t code = 0, length = 0;
  };
  std::vector<Head> heads(world);
  heads[rank_] = {static_cast<int64_t>(mine.code()), static_cast<int64_t>(mine.message().size())};
  Bounds bounds;
  for (int r = 0; r <= world; ++r) bounds.push_back(r * static_cast<int64_t>(sizeof(Head)));
  SF_RETURN_IF_ERROR(world_->AllGather(bounds, reinterpret_cast<std::byte*>(heads.data())));
  bounds = {0};
  for (const Head& head : heads) bounds.push_back(bounds.back() + head.length);
  if (bounds.back() == 0 && std::all_of(heads.begin(), heads.end(), [](const Head& h) { return h.code == 0; })) {
    return OkStatus();
  }
  std::string messages(bounds.back(), '\0');
  std::copy(mine.message().begin(), mine.message().end(), messages.begin() + bounds[rank_]);
  SF_RETURN_IF_ERROR(world_->AllGather(bounds, reinterpret_cast<std::byte*>(messages.data())));
  for (int r = 0; r < world; ++r) {
    if (heads[r].code == 0) continue;
    const std::string message = messages.substr(bounds[r], heads[r].length);
    return Status(static_cast<StatusCode>(heads[r].code), r == 0 ? message : fmt::format("rank {}: {}", r, message));
  }
  return OkStatus();
}

Status RankRunner::Load() {
  SetFloatMode();
  ModelOptions options = spec_.options;
  // Packing takes long: each layer says that this rank is alive, and rank 0 shows how far it is.
  options.on_progress = [&](double done) {
    transport_.Progress({});
    if (rank_ == 0 && spec_.options.on_progress) spec_.options.on_progress(done);
  };
  Result<std::unique_ptr<Model>> model = Model::LoadShard(spec_.store, spec_.config, options, spec_.layout, rank_);
  SF_RETURN_IF_ERROR(Agree(model.ok() ? OkStatus() : model.status()));
  model_ = std::move(model).value();
  SF_RETURN_IF_ERROR(CheckSameModel());
  model_->Connect(comm_);
  model_->Trace(recorder_.get());
  if (spec_.observer) {
    model_->Observe([this](const Model::Observation& seen) { spec_.observer(rank_, seen); });
  }
  return OkStatus();
}

// Ranks with another copy of the model, or started with other options, would compute nonsense
// together. Options are compared first: for them no file is read.
Status RankRunner::CheckSameModel() {
  SF_RETURN_IF_ERROR(CompareToLeader(fmt::format("model {}, layout {}",
                                                 NumericsIdentity(spec_.config, spec_.options),
                                                 spec_.layout.Identity())));
  SharedHash hash(spec_.store->hash(), *world_, transport_, spec_.options.threads);
  const Result<std::optional<Digest256>> weights = hash.Run();
  SF_RETURN_IF_ERROR(transport_.Failed());
  SF_RETURN_IF_ERROR(Agree(weights.status()));
  // All ranks have it or, as threads of one process, none.
  return *weights ? CompareToLeader("weights " + FingerprintText(**weights)) : OkStatus();
}

Status RankRunner::CompareToLeader(const std::string& mine) {
  const auto* bytes = reinterpret_cast<const std::byte*>(mine.data());
  message_.assign(bytes, bytes + mine.size());
  SF_RETURN_IF_ERROR(world_->Broadcast(0, &message_));
  const std::string leader(reinterpret_cast<const char*>(message_.data()), message_.size());
  return Agree(leader == mine ? OkStatus()
                              : InvalidArgument(fmt::format("has another model or other options than rank 0: '{}' and '{}'; "
                                                            "start all ranks with the same files and flags",
                                                            mine, leader)));
}

Status RankRunner::Serve() {
  while (true) {
    const auto start = Clock::now();
    SF_RETURN_IF_ERROR(world_->Broadcast(0, &message_));
    idle_ns_ += Since(start);
    SF_ASSIGN_OR_RETURN(const RankCommand command, DecodeCommand(message_));
    if (command.kind == CommandKind::kStop) return OkStatus();
    SF_RETURN_IF_ERROR(Take(command));
    // Where the leader will be when it broadcasts next, so that a time-out there compares equal places.
    if (command.kind == CommandKind::kStep) transport_.Progress({.step = command.step + 1});
  }
}

Status RankRunner::Take(const RankCommand& command) {
  switch (command.kind) {
    case CommandKind::kAllocateKv: {
      // A rank without memory says so and goes on: the leader decides.
      const Status agreed = AllocateMine(command.blocks);
      return transport_.Failed().ok() ? OkStatus() : agreed;
    }
    case CommandKind::kStep:
      SF_RETURN_IF_ERROR(RunMine(command));
      return command.record_routes ? GatherRoutes() : OkStatus();
    case CommandKind::kReport: return SendReport(nullptr);
    case CommandKind::kTrace: return SendTrace(nullptr);
    case CommandKind::kStop: return OkStatus();
  }
  return Internal("a command of another build");
}

Status RankRunner::Tell(const RankCommand& command) {
  Encode(command, &message_);
  return world_->Broadcast(0, &message_);
}

Status RankRunner::AllocateMine(int32_t blocks) {
  Result<KvStorage> storage = KvStorage::Create(model_->kv_geometry(), blocks);
  if (storage.ok()) kv_.emplace(std::move(storage).value());
  return Agree(storage.ok() ? OkStatus() : storage.status());
}

Status RankRunner::AllocateKv(int32_t blocks) {
  SF_RETURN_IF_ERROR(Tell({.kind = CommandKind::kAllocateKv, .blocks = blocks}));
  return AllocateMine(blocks);
}

// This rank's part of a step: its replica's micro-batches through its stage.
Status RankRunner::RunMine(const RankCommand& command) {
  SF_CHECK(kv_.has_value());
  SF_CHECK_EQ(static_cast<int>(command.batches.size()), spec_.layout.dp());
  const auto start = Clock::now();
  const auto waited = transport_.wait_time();
  transport_.Progress({.step = command.step});
  if (spec_.before_step) spec_.before_step(rank_, command.step);
  size_t rows = 0;
  for (const StepBatch& batch : command.batches) rows = std::max(rows, batch.tokens.size());
  int count = MicroBatchCount(static_cast<int64_t>(rows), spec_.layout.pp());
  if (spec_.micro_batches_max > 0) count = std::min(count, spec_.micro_batches_max);
  const RankShard& own = model_->shard();
  // Other replicas' rows matter to the leader, and where experts are shared with them.
  micro_batches_.assign(command.batches.size(), std::vector<StepBatch>(count));
  for (int dp = 0; dp < spec_.layout.dp(); ++dp) {
    if (rank_ == 0 || dp == own.dp || spec_.layout.dispatches()) micro_batches_[dp] = SplitBatch(command.batches[dp], count);
  }
  shape_ = ShapeOfStep(spec_.layout, micro_batches_, kv_->blocks());
  int64_t resting = 0;
  for (const StepSequence& s : command.batches[own.dp].sequences) {
    const bool everywhere = spec_.layout.cp() == 1 || spec_.layout.context().by_token;
    resting += everywhere ? static_cast<int64_t>(s.blocks.size())
                          : std::count_if(s.blocks.begin(), s.blocks.end(), [&](int32_t b) { return b / kv_->blocks() == own.cp; });
  }
  kv_blocks_max_ = std::max(kv_blocks_max_, resting);
  row_numbers_.assign(count, {});
  std::vector<std::vector<std::vector<int64_t>>> rows_of(count);
  for (int b = 0; b < count; ++b) {
    for (const std::vector<MicroBatchShape>& replica : shape_.replicas) {
      row_numbers_[b].emplace_back();
      rows_of[b].emplace_back();
      for (const std::vector<RowRun>& runs : DealBatch(spec_.layout, replica[b])) {
        row_numbers_[b].back().push_back(RowNumbers(runs));
        rows_of[b].back().push_back(static_cast<int64_t>(row_numbers_[b].back().back().size()));
      }
    }
  }
  model_->RecordRoutes(command.record_routes ? Model::Recording::kOn : Model::Recording::kOff);
  if (!command.forced.replicas.empty()) {
    model_->ForceRoutes({.top_k = spec_.config.moe.top_k, .experts = command.forced.replicas[own.dp]});
  }
  const Status status =
      model_->RunStage({.micro_batches = micro_batches_[own.dp], .rows = rows_of, .step = command.step}, *kv_);
  comm_ns_ += (transport_.wait_time() - waited).count();
  step_ns_ += Since(start);
  return status;
}

Result<std::span<const float>> RankRunner::Step(std::vector<StepBatch> batches, StepOptions options) {
  RankCommand command{.kind = CommandKind::kStep,
                      .step = steps_++,
                      .batches = std::move(batches),
                      .record_routes = options.record_routes,
                      .forced = std::move(options.forced)};
  transport_.Progress({.step = command.step});
  SF_RETURN_IF_ERROR(Tell(command));
  SF_RETURN_IF_ERROR(RunMine(command));
  const auto start = Clock::now();
  SF_RETURN_IF_ERROR(CollectLogits());
  if (command.record_routes) SF_RETURN_IF_ERROR(GatherRoutes());
  comm_ns_ += Since(start);
  step_ns_ += Since(start);
  return std::span<const float>(logits_);
}

// Every rank of the last stage sends the wanted rows of its vocabulary share, micro-batch by micro-batch.
Status RankRunner::CollectLogits() {
  const Layout& layout = spec_.layout;
  const int64_t vocab = layout.shape().vocab;
  int64_t total = 0;
  for (const auto& replica : shape_.replicas) {
    for (const MicroBatchShape& batch : replica) total += static_cast<int64_t>(batch.wanted.size());
  }
  logits_.resize(total * vocab);
  int64_t row = 0;
  for (int dp = 0; dp < layout.dp(); ++dp) {
    int64_t own_row = 0;  // in the leader's own logits
    for (size_t b = 0; b < shape_.replicas[dp].size(); ++b) {
      const std::vector<int32_t>& wanted = shape_.replicas[dp][b].wanted;
      for (int cp = 0; cp < layout.cp(); ++cp) {
        const std::vector<int32_t>& numbers = row_numbers_[b][dp][cp];
        const std::vector<int32_t> own = OwnWanted(wanted, numbers);
        const auto count = static_cast<int64_t>(own.size());
        for (int tp = 0; tp < layout.tp(); ++tp) {
          const Share share = ShareOf(vocab, layout.tp(), tp);
          Communicator* from = from_last_stage_[(dp * layout.cp() + cp) * layout.tp() + tp];
          const float* rows = nullptr;
          if (from == nullptr) {
            rows = model_->stage_logits().data() + own_row * share.size();
            own_row += count;
          } else {
            shard_.resize(count * share.size());
            SF_RETURN_IF_ERROR(from->Recv(1, std::as_writable_bytes(std::span(shard_))));
            rows = shard_.data();
          }
          for (int64_t r = 0; r < count; ++r) {
            const auto place = std::lower_bound(wanted.begin(), wanted.end(), numbers[own[r]]) - wanted.begin();
            std::copy_n(rows + r * share.size(), share.size(), &logits_[(row + place) * vocab + share.begin]);
          }
        }
      }
      row += static_cast<int64_t>(wanted.size());
    }
  }
  return OkStatus();
}

// From every rank the routes of the rows that it answers for, by sparse layer of its stage and micro-batch.
Status RankRunner::GatherRoutes() {
  const Layout& layout = spec_.layout;
  const ModelShape& m = layout.shape();
  const int64_t top_k = m.top_k;
  const auto sparse_before = [&](int64_t layer) { return std::count(m.sparse.begin(), m.sparse.begin() + layer, true); };
  const auto own_slots = [&](const RankShard& s) {
    int64_t slots = 0;
    for (const auto& rows : row_numbers_) {
      slots += layout.DispatchRows(static_cast<int64_t>(rows[s.dp][s.cp].size()), s.tp).size() * top_k;
    }
    return slots;
  };
  Bounds bounds = {0};
  for (int r = 0; r < layout.world(); ++r) {
    const RankShard s = layout.Shard(r);
    const int64_t layers = sparse_before(s.layers.end) - sparse_before(s.layers.begin);
    bounds.push_back(bounds.back() + layers * own_slots(s) * static_cast<int64_t>(sizeof(int32_t)));
  }
  std::vector<int32_t> mine;
  for (const auto& layer : model_->recorded_routes().experts) mine.insert(mine.end(), layer.begin(), layer.end());
  std::vector<int32_t> all(rank_ == 0 ? bounds.back() / sizeof(int32_t) : 0);
  SF_RETURN_IF_ERROR(world_->Gather(0, bounds, reinterpret_cast<const std::byte*>(mine.data()),
                                    reinterpret_cast<std::byte*>(all.data())));
  if (rank_ != 0) return OkStatus();
  routes_.replicas.assign(layout.dp(), std::vector<std::vector<int32_t>>(sparse_before(m.layers())));
  const int32_t* from = all.data();
  for (int r = 0; r < layout.world(); ++r) {
    const RankShard s = layout.Shard(r);
    for (int64_t l = sparse_before(s.layers.begin); l < sparse_before(s.layers.end); ++l) {
      std::vector<int32_t>& to = routes_.replicas[s.dp][l];
      int64_t first = 0;  // row of the micro-batch in the replica's step
      for (size_t b = 0; b < row_numbers_.size(); ++b) {
        const std::vector<int32_t>& numbers = row_numbers_[b][s.dp][s.cp];
        const Share own = layout.DispatchRows(static_cast<int64_t>(numbers.size()), s.tp);
        const int64_t rows = shape_.replicas[s.dp][b].rows;
        to.resize(std::max(static_cast<int64_t>(to.size()), (first + rows) * top_k));
        for (int64_t r = own.begin; r < own.end; ++r) {
          std::copy_n(from, top_k, to.begin() + (first + numbers[r]) * top_k);
          from += top_k;
        }
        first += rows;
      }
    }
  }
  return OkStatus();
}

// Bytes of every rank to rank 0, those of rank r at [bounds[r], bounds[r + 1]) of *joined.
Status RankRunner::GatherBytes(const std::vector<std::byte>& mine, std::vector<std::byte>* joined, Bounds* bounds) {
  const int world = spec_.layout.world();
  std::vector<int64_t> lengths(world);
  lengths[rank_] = static_cast<int64_t>(mine.size());
  bounds->clear();
  for (int r = 0; r <= world; ++r) bounds->push_back(r * static_cast<int64_t>(sizeof(int64_t)));
  SF_RETURN_IF_ERROR(world_->AllGather(*bounds, reinterpret_cast<std::byte*>(lengths.data())));
  *bounds = {0};
  for (const int64_t length : lengths) bounds->push_back(bounds->back() + length);
  joined->resize(rank_ == 0 ? bounds->back() : 0);
  return world_->Gather(0, *bounds, mine.data(), joined->data());
}

Status RankRunner::SendReport(std::vector<RankReport>* all) {
  if (spec_.before_report) spec_.before_report(rank_);
  std::vector<std::byte> mine;
  ExpertCounters experts = model_->expert_counters();
  Encode(RankReport{.rank = rank_,
                    .ledger = ledger_,
                    .control = control_,
                    .comm_ns = comm_ns_,
                    .idle_ns = idle_ns_,
                    .step_ns = step_ns_,
                    .expert_tokens = std::move(experts.tokens),
                    .dispatch_ns = experts.dispatch.count(),
                    .combine_ns = experts.combine.count(),
                    .kv_bytes_max = kv_blocks_max_ * model_->kv_geometry().block_bytes(),
                    .kv_transit_bytes_max = model_->transit_bytes_max()},
         &mine);
  std::vector<std::byte> joined;
  Bounds bounds;
  SF_RETURN_IF_ERROR(GatherBytes(mine, &joined, &bounds));
  if (rank_ != 0 || all == nullptr) return OkStatus();
  for (int r = 0; r < spec_.layout.world(); ++r) {
    SF_ASSIGN_OR_RETURN(RankReport report,
                        DecodeReport(std::span(joined).subspan(bounds[r], bounds[r + 1] - bounds[r])));
    all->push_back(std::move(report));
  }
  return OkStatus();
}

Result<std::vector<RankReport>> RankRunner::Report() {
  SF_RETURN_IF_ERROR(Tell({.kind = CommandKind::kReport}));
  std::vector<RankReport> all;
  SF_RETURN_IF_ERROR(SendReport(&all));
  return all;
}

Status RankRunner::SendTrace(std::vector<trace::RankTrace>* all) {
  std::vector<std::byte> mine, joined;
  Bounds bounds;
  if (recorder_ != nullptr) Encode(recorder_->Take(), &mine);
  SF_RETURN_IF_ERROR(GatherBytes(mine, &joined, &bounds));
  if (all == nullptr || joined.empty()) return OkStatus();
  for (int r = 0; r < spec_.layout.world(); ++r) {
    SF_ASSIGN_OR_RETURN(trace::RankTrace trace, DecodeTrace(std::span(joined).subspan(bounds[r], bounds[r + 1] - bounds[r])));
    all->push_back(std::move(trace));
  }
  return OkStatus();
}

Result<std::vector<trace::RankTrace>> RankRunner::TakeTrace() {
  SF_RETURN_IF_ERROR(Tell({.kind = CommandKind::kTrace}));
  std::vector<trace::RankTrace> all;
  SF_RETURN_IF_ERROR(SendTrace(&all));
  return all;
}

Status RankRunner::Stop() { return Tell({.kind = CommandKind::kStop}); }

}  // namespace sixfold

// sixfold verify: whether every layout gives the bits of one rank, and sends the bytes that were predicted.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/output.h"
#include "apps/verify_balance.h"
#include "apps/verify_fault.h"
#include "apps/verify_layouts.h"
#include "apps/verify_run.h"
#include "base/plural.h"
#include "kernels/ops.h"
#include "model/micro_batch.h"
#include "model/shape.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Reference {
  VerifyWork work;
  std::optional<VerifyFault> fault;        // put into what a layout computed
  std::vector<std::vector<float>> logits;  // [step], each [rows][vocab]
};

// Where two runs part first.
struct Difference {
  int64_t step = 0;
  int sequence = 0;
  int64_t position = 0;  // of the token
  TokenId token = 0;
  int layer = -1;        // -1: after the last layer
  float expected = 0, got = 0;
};

// Sequence and position of a row of a step.
std::pair<int, int64_t> PlaceOf(const VerifyWork& work, int64_t step, int64_t row) {
  for (const VerifyPiece& piece : work.steps[static_cast<size_t>(step)]) {
    if (row < piece.rows) return {piece.sequence, piece.first_position + row};
    row -= piece.rows;
  }
  SF_CHECK(false);
  return {};
}

// What --prompt-lengths says; otherwise short prompts and, with context parallelism, one that has two attention chunks and more
// for each rank.
std::vector<int64_t> PromptLengths(const Options& options, int cp_max) {
  std::vector<int64_t> lengths = options.Integers("prompt-lengths");
  if (!lengths.empty()) return lengths;
  lengths = {7, 1, 33, 18, 64};
  if (cp_max > 1) lengths.back() = std::max<int64_t>(64, 2 * cp_max * AttentionChunkOf(options) + 5);
  return lengths;
}

std::vector<size_t> PromptSizes(const VerifyWork& work) {
  std::vector<size_t> sizes;
  for (const auto& prompt : work.prompts) sizes.push_back(prompt.size());
  return sizes;
}

// Greedy answers of one rank decide what every layout computes.
Result<Reference> RunReference(const PlannedModel& planned, const Options& options, int cp_max) {
  Reference reference;
  reference.work = MakeVerifyWork({.prompt_lengths = PromptLengths(options, cp_max),
                                   .prefill_chunk = options.Integer("prefill-chunk"),
                                   .decode_steps = static_cast<int>(options.Integer("decode-steps")),
                                   .vocab = planned.config.vocab,
                                   .max_positions = planned.config.max_positions});
  VerifyWork& work = reference.work;
  sixfold::ModelOptions model_options = planned.options;
  SF_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                      Model::LoadShard(planned.store, planned.config, model_options,
                                       Layout::Whole(planned.layout.shape()), 0));
  const std::unique_ptr<StepModel> adapted = AdaptModel(std::move(model));
  // A rounding may change a route, after which no bound holds: in fast mode all go where the reference went.
  const bool force = planned.options.numerics == Numerics::kFast && planned.config.moe.experts > 0;
  adapted->RecordRoutes(force);
  std::vector<StepRoutes> routes;
  SF_RETURN_IF_ERROR(RunVerifyWork(
      *adapted, work, [&](int64_t step, std::span<const float> logits) -> Status {
        if (force) routes.push_back(adapted->last_routes());
        reference.logits.emplace_back(logits.begin(), logits.end());
        int64_t row = 0;
        for (const VerifyPiece& piece : work.steps[static_cast<size_t>(step)]) {
          row += piece.rows;
          const auto s = static_cast<size_t>(piece.sequence);
          if (piece.first_position + piece.rows < static_cast<int64_t>(work.prompts[s].size())) continue;
          work.answers[s].push_back(ArgMax(logits.subspan(
              static_cast<size_t>((row - 1) * work.vocab), static_cast<size_t>(work.vocab))));
        }
        return OkStatus();
      }));
  work.routes = std::move(routes);
  return reference;
}

// In fast mode sums are regrouped: a logit may move by some roundings of its row's size, more with depth. Where keys are dealt
// by token the probabilities are rounded against other maxima too; another --attention-chunk moves logits as far.
double FastBound(std::span<const float> row, const PlannedModel& planned, const Layout& layout) {
  double squares = 0;
  for (const float v : row) squares += static_cast<double>(v) * v;
  const double rms = std::sqrt(squares / static_cast<double>(row.size()));
  const double unit = planned.options.act == ActDType::kF32    ? 0x1p-20
                      : planned.options.act == ActDType::kBF16 ? 0x1p-7
                                                               : 0x1p-5;
  const double roundings = layout.context().by_token ? 32 : 8;
  return roundings * unit * rms * std::sqrt(static_cast<double>(planned.config.layers.size()));
}

std::optional<Difference> Compare(const Reference& reference, const PlannedModel& planned, const Layout& layout,
                                  int64_t step, std::span<const float> logits) {
  const std::vector<float>& want = reference.logits[static_cast<size_t>(step)];
  const int64_t vocab = reference.work.vocab;
  SF_CHECK_EQ(want.size(), logits.size());
  const bool exact = planned.options.numerics == Numerics::kReproducible;
  if (exact && std::memcmp(want.data(), logits.data(), logits.size_bytes()) == 0) return {};
  for (int64_t row = 0; row * vocab < static_cast<int64_t>(want.size()); ++row) {
    const auto a = std::span(want).subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab));
    const auto b = logits.subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab));
    const double bound = exact ? 0 : FastBound(a, planned, layout);
    for (size_t i = 0; i < a.size(); ++i) {
      const bool same = exact ? std::memcmp(&a[i], &b[i], sizeof(float)) == 0
                              : std::abs(static_cast<double>(a[i]) - b[i]) <= bound;
      if (same) continue;
      Difference d{.step = step, .expected = a[i], .got = b[i]};
      std::tie(d.sequence, d.position) = PlaceOf(reference.work, step, row);
      d.token = reference.work.TokenAt(d.sequence, d.position);
      return d;
    }
  }
  return {};
}

// The residual stream after each layer in one step: [layer][row of the step][hidden].
class Recorder {
 public:
  Recorder(const Layout& layout, const VerifyWork& work, int64_t step)
      : layout_(layout), step_(step) {
    const int64_t hidden = layout.shape().hidden;
    layers_.assign(static_cast<size_t>(layout.shape().layers()),
                   std::vector<float>(static_cast<size_t>(work.rows(step) * hidden)));
    int64_t longest = 0;
    for (const StepBatch& batch : BatchesOf(work, layout.dp(), step)) {
      rows_.push_back(static_cast<int64_t>(batch.tokens.size()));
      longest = std::max(longest, rows_.back());
    }
    micro_batches_ = MicroBatchCount(longest, layout.pp());
  }

  // From any rank's thread.
  void Add(int rank, int64_t step, const Model::Observation& seen) {
    if (step != step_) return;
    const int dp = layout_.Shard(rank).dp;
    int64_t first = ShareOf(rows_[static_cast<size_t>(dp)], micro_batches_, seen.micro_batch).begin;
    for (int d = 0; d < dp; ++d) first += rows_[static_cast<size_t>(d)];
    const int64_t hidden = layout_.shape().hidden;
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < seen.row_numbers.size(); ++i) {
      std::copy_n(seen.rows.begin() + static_cast<int64_t>(i) * hidden, hidden,
                  layers_[static_cast<size_t>(seen.layer)].begin() + (first + seen.row_numbers[i]) * hidden);
    }
  }

  // First layer whose rows differ, and the first such row.
  std::optional<std::pair<int, int64_t>> FirstDifference(const Recorder& other) const {
    const auto hidden = static_cast<size_t>(layout_.shape().hidden);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const auto at = std::mismatch(layers_[l].begin(), layers_[l].end(), other.layers_[l].begin(),
                                    [](float a, float b) { return std::memcmp(&a, &b, 4) == 0; });
      if (at.first == layers_[l].end()) continue;
      return std::pair(static_cast<int>(l), static_cast<int64_t>(
                                                static_cast<size_t>(at.first - layers_[l].begin()) / hidden));
    }
    return {};
  }

 private:
  const Layout& layout_;
  const int64_t step_;
  std::vector<int64_t> rows_;  // [dp]
  int micro_batches_ = 1;
  std::mutex mutex_;
  std::vector<std::vector<float>> layers_;
};

InstanceSpec SpecFor(const PlannedModel& planned, const Layout& layout, int threads) {
  InstanceSpec spec{.store = planned.store,
                    .config = planned.config,
                    .options = planned.options,
                    .layout = layout};
  spec.options.threads = threads;
  return spec;
}

Status RunRecorded(const PlannedModel& planned, const Layout& layout, const VerifyWork& work,
                   Recorder* recorder) {
  InstanceSpec spec = SpecFor(planned, layout, 1);
  std::vector<int64_t> steps(static_cast<size_t>(layout.world()), -1);  // one an own rank's thread
  spec.before_step = [&](int rank, int64_t step) { steps[static_cast<size_t>(rank)] = step; };
  spec.observer = [&](int rank, const Model::Observation& seen) {
    recorder->Add(rank, steps[static_cast<size_t>(rank)], seen);
  };
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroup> group,
                      RankGroup::StartThreads(std::move(spec), {}));
  return RunVerifyWork(*group, work, [](int64_t, std::span<const float>) { return OkStatus(); });
}

// Both runs again, layer by layer; only with threads, where all layers are in reach.
Status LocateLayer(const PlannedModel& planned, const Layout& layout, const Reference& reference,
                   Difference* difference) {
  const Layout whole = Layout::Whole(planned.layout.shape());
  Recorder expected(whole, reference.work, difference->step);
  Recorder got(layout, reference.work, difference->step);
  SF_RETURN_IF_ERROR(RunRecorded(planned, whole, reference.work, &expected));
  SF_RETURN_IF_ERROR(RunRecorded(planned, layout, reference.work, &got));
  if (const auto found = expected.FirstDifference(got)) {
    difference->layer = found->first;
    std::tie(difference->sequence, difference->position) =
        PlaceOf(reference.work, difference->step, found->second);
    difference->token = reference.work.TokenAt(difference->sequence, difference->position);
  }
  return OkStatus();
}

struct Verdict {
  std::optional<Difference> difference;
  GroupStats stats;
  double seconds = 0;
  bool bytes_equal() const { return stats.counted == stats.predicted; }
  bool ok() const { return !difference && bytes_equal(); }
};

int64_t TotalBytes(const Ledger& ledger) {
  int64_t total = 0;
  for (const auto& [key, entry] : ledger) total += entry.bytes;
  return total;
}

Result<Verdict> VerifyOne(const PlannedModel& planned, const Options& options, const Launch& launch,
                          const Layout& layout, const Reference& reference) {
  Verdict verdict;
  const auto start = Clock::now();
  const int threads = static_cast<int>(options.MaybeInteger("threads").value_or(1));
  const RankGroupOptions group_options = GroupOptionsFrom(options);
  Result<std::unique_ptr<RankGroup>> group =
      launch.mpi != nullptr
          ? RankGroup::StartLeader(SpecFor(planned, layout, threads), *launch.mpi, group_options)
          : RankGroup::StartThreads(SpecFor(planned, layout, threads), group_options);
  SF_RETURN_IF_ERROR(group.status());
  SF_RETURN_IF_ERROR(RunVerifyWork(
      **group, reference.work, [&](int64_t step, std::span<const float> logits) -> Status {
        if (verdict.difference) return OkStatus();
        if (reference.fault) {
          std::vector<float> wrong(logits.begin(), logits.end());
          InjectFault(*reference.fault, step, reference.work.vocab, wrong);
          verdict.difference = Compare(reference, planned, layout, step, wrong);
        } else {
          verdict.difference = Compare(reference, planned, layout, step, logits);
        }
        return OkStatus();
      }));
  SF_ASSIGN_OR_RETURN(verdict.stats, (*group)->Stats());
  if (reference.fault) InjectFault(*reference.fault, &verdict.stats.counted);
  SF_RETURN_IF_ERROR((*group)->Stop());
  verdict.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (verdict.difference && launch.mpi == nullptr) {
    SF_RETURN_IF_ERROR(LocateLayer(planned, layout, reference, &*verdict.difference));
  }
  return verdict;
}

ordered_json JsonOf(const NamedLayout& named, const Verdict& v) {
  ordered_json json = {{"layout", named.flags},
                       {"ranks", named.layout.world()},
                       {"nodes", named.layout.cluster().nodes()},
                       {"equal", !v.difference.has_value()},
                       {"bytes_equal", v.bytes_equal()},
                       {"counted_bytes", TotalBytes(v.stats.counted)},
                       {"predicted_bytes", TotalBytes(v.stats.predicted)},
                       {"steps", v.stats.steps},
                       {"seconds", v.seconds}};
  if (v.difference) {
    const Difference& d = *v.difference;
    json["first_difference"] = {{"step", d.step},         {"layer", d.layer},
                                {"sequence", d.sequence}, {"position", d.position},
                                {"token", d.token},       {"expected", d.expected},
                                {"got", d.got}};
  }
  if (!v.bytes_equal()) {
    json["collectives"] =
        ordered_json::parse(CollectivesJson(v.stats.counted, v.stats.predicted));
  }
  return json;
}

std::string Describe(const NamedLayout& named, const Verdict& v) {
  std::string text;
  if (v.difference) {
    const Difference& d = *v.difference;
    text = fmt::format("{}: differs from one rank in step {}, {}, token {} at position {} of sequence {}: {} instead of {}",
                       named.flags, d.step,
                       d.layer < 0 ? std::string("after the last layer") : fmt::format("layer {} (from 0)", d.layer),
                       d.token, d.position, d.sequence, d.got, d.expected);
  } else if (!v.bytes_equal()) {
    text = fmt::format("{}: {} bytes were sent and {} predicted", named.flags, TotalBytes(v.stats.counted),
                       TotalBytes(v.stats.predicted));
  }
  return text;
}

// Ranks that a layout must have to run in this launch.
std::optional<int> RanksOf(const Launch& launch) {
  return launch.mpi != nullptr ? std::optional<int>(launch.mpi->world()) : std::nullopt;
}

// The model, as the flags of verify itself cut it (one rank unless they say more), for any launch.
Result<PlannedModel> PlanForVerify(const Options& options) {
  Launch alone;
  return PlanModel(options, alone, nullptr);
}

// Those of --layouts; without it the layout of verify's own flags, if they cut anything.
Result<LayoutList> LayoutsOf(const Options& options, const PlannedModel& planned, const Launch& launch) {
  const Layout* own = planned.layout.world() > 1 ? &planned.layout : nullptr;
  return LayoutsToVerify(options, planned.layout.shape(), own, RanksOf(launch));
}

}  // namespace

Status FollowVerify(const Options& options, const Launch& launch) {
  if (options.Flag("balance")) return OkStatus();
  SF_ASSIGN_OR_RETURN(const PlannedModel planned, PlanForVerify(options));
  SF_ASSIGN_OR_RETURN(LayoutList list, LayoutsOf(options, planned, launch));
  const int threads = static_cast<int>(options.MaybeInteger("threads").value_or(1));
  for (const NamedLayout& named : list.layouts) {
    SF_RETURN_IF_ERROR(RunRank(SpecFor(planned, named.layout, threads), *launch.mpi));
  }
  return OkStatus();
}

Status RunVerify(const Options& options, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const PlannedModel planned, PlanForVerify(options));
  if (options.Flag("balance")) return RunBalance(options, planned);
  SF_ASSIGN_OR_RETURN(const LayoutList list,
                      LayoutsOf(options, planned, launch));
  const std::vector<std::string>& refused = list.refused;
  const std::vector<NamedLayout>& layouts = list.layouts;
  if (layouts.empty()) {
    return InvalidArgument(fmt::format("no layout of {} is among those of --layouts {}",
                                       Plural(launch.mpi != nullptr ? launch.mpi->world() : 0, "rank"),
                                       options.Text("layouts")));
  }
  const bool as_json = options.Flag("json"), quiet = options.Flag("quiet");
  int cp_max = 1;
  for (const NamedLayout& named : layouts) cp_max = std::max(cp_max, named.layout.mesh().size(Axis::kCp));
  SF_ASSIGN_OR_RETURN(Reference reference, RunReference(planned, options, cp_max));
  SF_ASSIGN_OR_RETURN(reference.fault, ParseVerifyFault(options.Text("inject-fault"), reference.work));
  ordered_json results = ordered_json::array();
  std::string failure;
  for (const NamedLayout& named : layouts) {
    SF_ASSIGN_OR_RETURN(const Verdict verdict, VerifyOne(planned, options, launch, named.layout, reference));
    results.push_back(JsonOf(named, verdict));
    failure = Describe(named, verdict);
    if (!failure.empty()) break;
    if (!as_json) {
      SF_RETURN_IF_ERROR(Print(fmt::format("equal  {:<44} {:>9}  {:>13} bytes  {:>6.1f} s\n", named.flags,
                                           Plural(named.layout.world(), "rank"), CountText(TotalBytes(verdict.stats.counted)),
                                           verdict.seconds)));
    } else if (!quiet) {
      Remark(fmt::format("equal  {}", named.flags));
    }
  }
  const size_t equal = results.size() - (failure.empty() ? 0 : 1);
  if (as_json) {
    const ordered_json json = {{"model", planned.name},
                               {"numerics", options.Text("numerics")},
                               {"dtype", NameOf(planned.options.act)},
                               {"prompts", PromptSizes(reference.work)},
                               {"rows", reference.work.rows(0)},
                               {"attention_chunk", planned.options.attention_chunk},
                               {"decode_steps", options.Integer("decode-steps")},
                               {"passed", equal},
                               {"failed", results.size() - equal},
                               {"not_run", layouts.size() - results.size()},
                               {"refused", refused.size()},
                               {"layouts", std::move(results)}};
    SF_RETURN_IF_ERROR(Print(json.dump(1) + "\n"));
  } else if (failure.empty()) {
    SF_RETURN_IF_ERROR(Print(fmt::format("{} the {} of one rank and {} what was predicted\n",
                                         Plural(equal, "layout gives", "layouts give"),
                                         planned.options.numerics == Numerics::kReproducible ? "bits" : "logits",
                                         equal == 1 ? "sends" : "send")));
  }
  return failure.empty() ? OkStatus() : Internal(failure);
}

}  // namespace sixfold::apps

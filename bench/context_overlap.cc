// Does the ring of context parallelism hide the transfer of the next block behind the attention on this one? Two ranks that
// are threads of one thread each, p2p, emulated links; a round's time against the longer of computing and transferring.
// usage: context_overlap MODEL [--prompts 1024,2048,4096] [--bandwidth-gb-s X] [--latency-us 5] [--repeat 3]
// Without a bandwidth the link is such that computing and transferring take equally long at the middle prompt, where hiding
// is hardest. Prints one JSON object with a row a prompt; each figure is a lower quartile over layers, then over repeats. With cp 2
// a rank holds half the prompt's keys, its block, and one round of a layer has a transfer: that of this block to the other rank.
//   compute_ms   attention on the own block, measured with links that take no time
//   transfer_ms  block_bytes / bandwidth + latency
//   round_ms     from when the later rank has begun to send until the later rank has the other's block
//   ratio        round_ms / max(compute_ms, transfer_ms): meant to be at most 1.15
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/local/local_world.h"
#include "engine/rank_runner.h"
#include "kv/block_pool.h"
#include "model/shape.h"
#include "model/stage.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

constexpr int kRanks = 2;
constexpr double kMeant = 1.15;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The lower quartile: other work on the machine only adds time.
double Undisturbed(std::vector<double> values) {
  SF_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

// One round of the ring on one rank, in seconds of the steady clock.
struct Round {
  double begin = 0, computing = 0, computed = 0, end = 0;
  size_t bytes = 0;
};

// A Transport that notes when the ring sends, receives, and is done.
class TimedTransport : public Transport {
 public:
  explicit TimedTransport(Transport& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  Status Exchange(const Operation& operation, std::span<const SendPart> sends, std::span<const RecvPart> recvs) override {
    if (IsRing(operation) && !recvs.empty()) now_.computed = Seconds();
    return inner_.Exchange(operation, sends, recvs);
  }
  Result<SendTicket> StartSend(const Operation& operation, const SendPart& send) override {
    now_ = {.begin = Seconds(), .bytes = send.data.size()};
    Result<SendTicket> ticket = inner_.StartSend(operation, send);
    now_.computing = Seconds();
    return ticket;
  }
  Status FinishSend(SendTicket ticket) override {
    Status status = inner_.FinishSend(ticket);
    now_.end = Seconds();
    if (now_.computed > 0) rounds.push_back(now_);
    now_ = {};
    return status;
  }
  void Progress(const Place& place) override { inner_.Progress(place); }
  void Abort(const Status& why) override { inner_.Abort(why); }
  Status Failed() const override { return inner_.Failed(); }
  std::chrono::nanoseconds wait_time() const override { return inner_.wait_time(); }

  std::vector<Round> rounds;

 private:
  static bool IsRing(const Operation& operation) {
    return operation.op == CommOp::kSend && operation.axis == Axis::kCp;
  }
  Transport& inner_;
  Round now_;
};

struct Setting {
  std::shared_ptr<const WeightStore> store;
  ModelConfig config;
  ModelOptions options;
  Link link;
};

InstanceSpec SpecOf(const Setting& setting) {
  const Cluster cluster{.ranks_per_node = {1, 1}, .inside = setting.link, .between = setting.link};
  const ModelShape shape = ShapeOf(*setting.store, setting.config, setting.options).value();
  return {.store = setting.store,
          .config = setting.config,
          .options = setting.options,
          .layout = Layout::Make(shape, {.mesh = Mesh::Parse("cp2").value(), .cluster = cluster}).value()};
}

// What one prefill took, undisturbed: over layers and ranks.
struct Figures {
  double compute_s = 0, round_s = 0;
  size_t block_bytes = 0;
  size_t rounds = 0;
};

// Two ranks of one model, one of them on the calling thread.
class Pair {
 public:
  enum class Links : uint8_t { kAsTheyAre, kEmulated };

  Pair(const Setting& setting, Links links, int64_t longest)
      : spec_(SpecOf(setting)),
        placement_(PlacementOf(spec_.layout)),
        blocks_(placement_.BlocksOfOwner(longest, 1)),
        world_(kRanks, OptionsOf(spec_, links)),
        transports_{TimedTransport(world_.transport(0)), TimedTransport(world_.transport(1))},
        follower_([this] {
          RankRunner runner(spec_, 1, transports_[1]);
          SF_CHECK(runner.Load().ok());
          SF_CHECK(runner.Serve().ok());
        }),
        leader_(spec_, 0, transports_[0]) {
    SF_CHECK(leader_.Load().ok());
    SF_CHECK(leader_.AllocateKv(static_cast<int32_t>(blocks_)).ok());
  }
  ~Pair() {
    SF_CHECK(leader_.Stop().ok());
    follower_.join();
  }

  Figures Prefill(int64_t prompt) {
    for (TimedTransport& transport : transports_) transport.rounds.clear();
    SF_CHECK(leader_.Step({BatchOf(prompt)}, {}).ok());
    SF_CHECK(leader_.Report().ok());  // now rank 1 is done too
    const std::vector<Round>&a = transports_[0].rounds, &b = transports_[1].rounds;
    SF_CHECK_EQ(a.size(), b.size());
    SF_CHECK(!a.empty());
    std::vector<double> compute, round;
    for (size_t i = 0; i < a.size(); ++i) {
      compute.push_back(a[i].computed - a[i].computing);
      compute.push_back(b[i].computed - b[i].computing);
      // A rank that comes early waits for the other whatever the link does.
      round.push_back(std::max(a[i].end, b[i].end) - std::max(a[i].begin, b[i].begin));
    }
    return {.compute_s = Undisturbed(compute),
            .round_s = Undisturbed(round),
            .block_bytes = a.front().bytes,
            .rounds = a.size()};
  }

 private:
  static LocalWorldOptions OptionsOf(const InstanceSpec& spec, Links links) {
    LocalWorldOptions options{.timeout = std::chrono::hours(1)};
    if (links == Links::kEmulated) options.emulated_links = spec.layout.cluster();
    return options;
  }

  StepBatch BatchOf(int64_t prompt) const {
    StepSequence s{.first_position = 0, .rows = prompt, .logit_rows = 1, .blocks = {}};
    BlockPool pool(static_cast<int32_t>(placement_.UnitsOfPool(blocks_)), placement_.pools());
    std::vector<int32_t> units;
    const std::vector<int64_t> ends = {prompt};
    pool.TakeFor(placement_, {.first_position = 0, .rows = prompt, .units = 0, .batch_row = 0}, ends, &units);
    s.blocks = BlockTable(placement_, units, prompt, blocks_);
    StepBatch batch{.tokens = {}, .sequences = {s}};
    for (int64_t i = 0; i < prompt; ++i)
      batch.tokens.push_back(static_cast<TokenId>((i * 7919 + 13) % spec_.config.vocab));
    return batch;
  }

  const InstanceSpec spec_;
  const KvPlacement placement_;
  const int64_t blocks_;
  LocalWorld world_;
  TimedTransport transports_[kRanks];
  std::thread follower_;
  RankRunner leader_;
};

double TransferSeconds(const Link& link, size_t bytes) {
  return static_cast<double>(bytes) / (link.bandwidth_gb_s * 1e9) + link.latency_us * 1e-6;
}

std::vector<int64_t> ParseList(const char* text) {
  std::vector<int64_t> values;
  for (char* at = const_cast<char*>(text); *at != '\0'; at += *at == ',' ? 1 : 0) {
    char* end = nullptr;
    values.push_back(std::strtoll(at, &end, 10));
    if (end == at || values.back() < 2) return {};
    at = end;
  }
  return values;
}

int Main(int argc, char** argv) {
  std::vector<int64_t> prompts = {1024, 2048, 4096};
  int repeat = 3;
  Setting setting{.store = nullptr, .config = {}, .options = {}, .link = {.bandwidth_gb_s = 0, .latency_us = 5}};
  if (argc < 2) {
    std::fprintf(stderr, "usage: context_overlap MODEL [--prompts N,N,N] [--bandwidth-gb-s X] [--latency-us X] [--repeat N]\n");
    return 2;
  }
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--prompts") prompts = ParseList(argv[i + 1]);
    else if (flag == "--bandwidth-gb-s") setting.link.bandwidth_gb_s = std::atof(argv[i + 1]);
    else if (flag == "--latency-us") setting.link.latency_us = std::atof(argv[i + 1]);
    else if (flag == "--repeat") repeat = std::max(1, std::atoi(argv[i + 1]));
    else return std::fprintf(stderr, "context_overlap: unknown flag %s\n", argv[i]), 2;
  }
  if (prompts.empty()) return std::fprintf(stderr, "context_overlap: --prompts wants lengths such as 1024,2048\n"), 2;
  auto opened = WeightStore::Open(argv[1]);
  if (!opened.ok()) return std::fprintf(stderr, "%s\n", opened.status().message().c_str()), 3;
  setting.store = std::move(opened).value();
  auto config = ConfigFor(*setting.store, argv[1]);
  if (!config.ok()) return std::fprintf(stderr, "%s\n", config.status().message().c_str()), 3;
  setting.config = *config;
  setting.options = {.isa = DetectIsa(), .threads = 1};

  const int64_t longest = *std::max_element(prompts.begin(), prompts.end());
  if (longest > config->max_positions)
    return std::fprintf(stderr, "context_overlap: the model has %ld positions\n", static_cast<long>(config->max_positions)), 2;
  const double wanted = setting.link.bandwidth_gb_s;
  setting.link.bandwidth_gb_s = 1;  // not used
  Pair plain(setting, Pair::Links::kAsTheyAre, longest);
  std::vector<double> middle;
  size_t middle_bytes = 0;
  for (int i = 0; i < 3; ++i) {
    const Figures figures = plain.Prefill(prompts[prompts.size() / 2]);
    middle.push_back(figures.compute_s);
    middle_bytes = figures.block_bytes;
  }
  const double latency_s = setting.link.latency_us * 1e-6;
  setting.link.bandwidth_gb_s = wanted > 0 ? wanted : static_cast<double>(middle_bytes) / 1e9 / std::max(1e-6, Undisturbed(middle) - latency_s);
  Pair emulated(setting, Pair::Links::kEmulated, longest);
  emulated.Prefill(prompts.front());

  std::printf("{\"bench\": \"context_overlap\", \"model\": \"%s\", \"cp\": %d, \"form\": \"p2p\", \"meant\": %.2f, "
              "\"bandwidth_gb_s\": %.4f, \"latency_us\": %.1f, \"repeat\": %d, \"rows\": [",
              argv[1], kRanks, kMeant, setting.link.bandwidth_gb_s, setting.link.latency_us, repeat);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<double> compute, round;
    Figures figures;
    for (int r = 0; r < repeat; ++r) {  // in turns, so that what disturbs the machine disturbs both
      compute.push_back(plain.Prefill(prompts[i]).compute_s);
      figures = emulated.Prefill(prompts[i]);
      round.push_back(figures.round_s);
    }
    const double transfer = TransferSeconds(setting.link, figures.block_bytes);
    const double computing = Undisturbed(compute), took = Undisturbed(round), longer = std::max(computing, transfer);
    std::printf("%s\n {\"prompt\": %ld, \"block_bytes\": %zu, \"rounds\": %zu, \"compute_ms\": %.3f, \"transfer_ms\": %.3f, "
                "\"round_ms\": %.3f, \"ratio\": %.3f, \"ratio_without_overlap\": %.3f}",
                i == 0 ? "" : ",", static_cast<long>(prompts[i]), figures.block_bytes, figures.rounds * repeat, computing * 1e3,
                transfer * 1e3, took * 1e3, took / longer, (computing + transfer) / longer);
    std::fflush(stdout);
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }

#include "apps/memory_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "apps/loading.h"
#include "apps/output.h"
#include "apps/sampling.h"
#include "apps/text_loading.h"
#include "base/plural.h"
#include "engine/engine.h"
#include "engine/memory.h"
#include "mesh/axes.h"
#include "model/memory_plan.h"
#include "model/micro_batch.h"
#include "model/stage.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;

struct MemoryTable {
  std::vector<RankMemory> ranks;  // [world]
  Share here;                     // ranks on this machine
  int32_t kv_blocks = 0;          // of a replica
  int64_t available = 0;          // of this machine; 0: not known
};

struct Item {
  const char* name;   // key of the JSON
  const char* title;  // of a column, and in messages
  int64_t RankMemory::*bytes;
};

constexpr std::array<Item, 7> kItems = {{{"shard", "weights", &RankMemory::shard},
                                         {"embedding", "embedding", &RankMemory::embedding},
                                         {"kv", "keys and values", &RankMemory::kv},
                                         {"activations", "activations", &RankMemory::activations},
                                         {"logits", "logits", &RankMemory::logits},
                                         {"comm", "messages", &RankMemory::comm},
                                         {"tokenizer", "tokenizer", &RankMemory::tokenizer}}};

// What decides the table beside the layout; a value that is tried can be put into a copy.
struct Limits {
  CommandId command = CommandId::kRun;
  EngineOptions engine;
  int64_t batched_tokens = 512;
  int64_t tokens = 0;             // logits: given ones; perplexity: a window
  int64_t prompt_tokens_max = 0;  // generate; 0: not known
  int choices = 0;                // generate
  int64_t answer_tokens_max = 0;  // generate, of a choice
  int64_t tokenizer_bytes = 0;
};

bool HasEngine(CommandId command) {
  return command == CommandId::kRun || command == CommandId::kServe ||
         command == CommandId::kGenerate;
}

Result<Limits> LimitsFrom(const Options& options, const std::string& model_path) {
  Limits out{.command = options.command(),
             .batched_tokens = BatchedTokensOf(options)};
  if (HasEngine(out.command)) out.engine = EngineOptionsFrom(options);
  if (out.command == CommandId::kTrace) {
    constexpr int64_t kSpecialTokens = 16;
    out.tokens = options.IsGiven("prompt") ? static_cast<int64_t>(options.Text("prompt").size()) + kSpecialTokens
                                           : static_cast<int64_t>(options.Integers("prompt-tokens").size());
    out.tokens += options.Flag("decode") ? 1 : 0;
    out.batched_tokens = out.tokens;
  }
  if (out.command == CommandId::kLogits) {
    out.tokens = static_cast<int64_t>(options.Integers("tokens").size());
    if (out.tokens == 0) return InvalidArgument("--tokens is missing: token ids such as 1,2,3");
  } else {
    SF_ASSIGN_OR_RETURN(out.tokenizer_bytes, TokenizerBytes(options, model_path));
  }
  if (out.command == CommandId::kPerplexity) out.tokens = options.Integer("context");
  if (out.command == CommandId::kGenerate) {
    constexpr int64_t kSpecialTokens = 16;
    out.choices = static_cast<int>(options.Integer("n"));
    out.answer_tokens_max = options.MaybeInteger("max-tokens").value_or(kGenerateMaxTokensAuto);
    if (options.IsGiven("prompt-tokens")) {
      out.prompt_tokens_max = static_cast<int64_t>(options.Integers("prompt-tokens").size());
    } else if (options.IsGiven("prompt")) {
      out.prompt_tokens_max = static_cast<int64_t>(options.Text("prompt").size()) + kSpecialTokens;
    }
  }
  return out;
}

// `logits` and `perplexity`: steps of one sequence on the first replica, all rows wanted.
MemoryWork PrefillWork(const Limits& limits, const Layout& layout) {
  const int64_t chunk = std::min(limits.batched_tokens, limits.tokens);
  MemoryWork work{
      .step_rows = {chunk},
      .wanted_rows_max = chunk,
      .positions_max = limits.tokens,
      .kv_blocks = static_cast<int32_t>(std::min<int64_t>(PlacementOf(layout).BlocksOfOwner(limits.tokens, 1), INT32_MAX))};
  if (limits.tokens % chunk != 0) work.step_rows.push_back(limits.tokens % chunk);
  if (limits.command == CommandId::kLogits) work.embedded_tokens_max = limits.tokens;
  return work;
}

// An engine's steps; K/V blocks are still to be chosen.
MemoryWork EngineWork(const Limits& limits, const Layout& layout, int64_t max_positions) {
  int64_t sequences = limits.engine.max_num_seqs, rows = limits.batched_tokens;
  int64_t embedded = -1, choices = INT32_MAX;
  if (limits.command == CommandId::kRun) choices = 1;
  if (limits.command == CommandId::kGenerate) choices = limits.choices;
  sequences = std::min(sequences, choices);
  if (limits.prompt_tokens_max > 0) {
    rows = std::min(rows, limits.prompt_tokens_max * sequences);
    embedded = limits.prompt_tokens_max + limits.answer_tokens_max * choices;
  }
  const int64_t positions =
      limits.engine.max_model_len > 0 ? limits.engine.max_model_len : max_positions;
  return {.step_rows = WorstSteps(rows, layout.pp()),
          .wanted_rows_max = sequences,
          .sequences_max = sequences,
          .positions_max = positions,
          .embedded_tokens_max = embedded,
          .busy_replicas = static_cast<int>(std::min<int64_t>(layout.dp(), choices)),
          .sampling = MemoryWork::Sampling::kYes};
}

int64_t Sum(const MemoryTable& table, int64_t RankMemory::*item) {
  int64_t sum = 0;
  for (int64_t r = table.here.begin; r < table.here.end; ++r) {
    sum += table.ranks[static_cast<size_t>(r)].*item;
  }
  return sum;
}

// Ranks of one machine map the same files and read the same embedding: its pages are there once.
int64_t Together(std::span<const RankMemory> ranks) {
  int64_t sum = 0, embedding = 0;
  for (const RankMemory& rank : ranks) {
    sum += rank.total() - rank.embedding;
    embedding = std::max(embedding, rank.embedding);
  }
  return sum + embedding;
}

int64_t NeededHere(const MemoryTable& table) {
  return Together(std::span(table.ranks).subspan(table.here.begin, table.here.size()));
}

// As the engine will, when the weights are loaded.
Result<int32_t> EngineBlocks(const Limits& limits, const PlannedModel& planned,
                             const Layout& layout, const MemoryTable& table) {
  int64_t left = 0;
  if (table.available > 0) {
    left = table.available - Sum(table, &RankMemory::shard) - Sum(table, &RankMemory::tokenizer);
    if (left <= 0) return 0;  // for CheckMemory to say
  }
  SF_ASSIGN_OR_RETURN(
      const ResolvedOptions resolved,
      ResolveOptions(limits.engine, {.geometry = LargestKvGeometry(layout),
                                     .model_max_positions = planned.config.max_positions,
                                     .available_bytes = left,
                                     .ranks_here = static_cast<int>(table.here.size()),
                                     .placement = PlacementOf(layout)}));
  return resolved.blocks;
}

// Ranks are placed on machines in ascending order, equally many on each.
Share RanksHere(const Launch& launch, int world) {
  if (launch.mpi == nullptr) return {0, world};
  const int64_t each = launch.mpi->ranks_on_host();
  const int64_t first = launch.mpi->rank() / each * each;
  return {first, std::min<int64_t>(world, first + each)};
}

Result<MemoryTable> Tabulate(const Limits& limits, const PlannedModel& planned,
                             const Layout& layout, const Launch& launch) {
  MemoryTable table{.here = RanksHere(launch, layout.world()), .available = launch.available_bytes};
  MemoryWork work = HasEngine(limits.command)
                        ? EngineWork(limits, layout, planned.config.max_positions)
                        : PrefillWork(limits, layout);
  work.tokenizer_bytes = limits.tokenizer_bytes;
  const auto plan = [&] {
    return PlanMemory(*planned.store, planned.config, planned.options, layout, work);
  };
  SF_ASSIGN_OR_RETURN(table.ranks, plan());
  if (HasEngine(limits.command)) {
    SF_ASSIGN_OR_RETURN(work.kv_blocks, EngineBlocks(limits, planned, layout, table));
    SF_ASSIGN_OR_RETURN(table.ranks, plan());
  }
  table.kv_blocks = work.kv_blocks;
  return table;
}

bool Fits(const MemoryTable& table) {
  return table.available == 0 || NeededHere(table) <= table.available;
}

bool Fits(const Result<MemoryTable>& table) { return table.ok() && Fits(*table); }

const Item& LargestItem(const MemoryTable& table) {
  return *std::max_element(kItems.begin(), kItems.end(), [&](const Item& a, const Item& b) {
    return Sum(table, a.bytes) < Sum(table, b.bytes);
  });
}

// The flags that make an item smaller.
std::string_view FlagsOf(const Item& item, CommandId command) {
  const std::string_view name = item.name;
  if (name == "kv") {
    if (command == CommandId::kLogits) return "give fewer --tokens";
    if (command == CommandId::kPerplexity) return "lower --context";
    return "lower --kv-cache-memory or --max-model-len";
  }
  if (name == "logits" && command == CommandId::kServe)
    return "lower --max-num-seqs or --max-num-batched-tokens";
  if (name == "activations" || name == "logits" || name == "comm")
    return "lower --max-num-batched-tokens";
  if (name == "tokenizer") return "name a smaller --tokenizer";
  return "take fewer replicas (--data-parallel-size), a file of fewer bits, or more machines";
}

// A number of rows, a size of K/V memory or a number of replicas that fits, as a flag; "" when none
// is near.
class Nearest {
 public:
  Nearest(const Limits& limits, const PlannedModel& planned, const Launch& launch,
          const MemoryTable& table)
      : limits_(limits), planned_(planned), launch_(launch), table_(table) {}

  std::string Find() const {
    for (const std::string& flag : {KvMemory(), Rows(), Replicas()}) {
      if (!flag.empty()) return flag;
    }
    return "";
  }

 private:
  std::string KvMemory() const {
    if (!HasEngine(limits_.command)) return "";
    int64_t each = 0;  // bytes of one block on all ranks here
    for (int64_t r = table_.here.begin; r < table_.here.end; ++r) {
      each +=
          KvGeometryOf(planned_.layout, planned_.layout.Shard(static_cast<int>(r))).block_bytes();
    }
    const int64_t spare = table_.available - NeededHere(table_) + Sum(table_, &RankMemory::kv);
    const int64_t blocks = each > 0 ? spare / each : 0;
    Limits tried = limits_;
    tried.engine.kv_cache_memory_bytes = blocks * LargestKvGeometry(planned_.layout).block_bytes();
    if (blocks < 1 || !Fits(Tabulate(tried, planned_, planned_.layout, launch_))) return "";
    return fmt::format("--kv-cache-memory {}", tried.engine.kv_cache_memory_bytes);
  }

  std::string Rows() const {
    Limits tried = limits_;
    while (tried.batched_tokens > 1) {
      tried.batched_tokens /= 2;
      if (Fits(Tabulate(tried, planned_, planned_.layout, launch_)))
        return fmt::format("--max-num-batched-tokens {}", tried.batched_tokens);
    }
    return "";
  }

  std::string Replicas() const {
    if (launch_.mpi != nullptr) return "";  // as many as there are processes
    const Layout& layout = planned_.layout;
    for (int dp = layout.dp() - 1; dp >= 1; --dp) {
      std::vector<AxisSize> sizes(layout.mesh().order().begin(), layout.mesh().order().end());
      for (AxisSize& size : sizes) size.size = size.axis == Axis::kDp ? dp : size.size;
      const Result<Mesh> mesh = Mesh::Make(sizes);
      if (!mesh.ok()) continue;
      const Result<Layout> smaller =
          Layout::Make(layout.shape(), {.mesh = *mesh,
                                        .cluster = Cluster::OneNode(mesh->world()),
                                        .sequence_parallel = layout.sequence_parallel(),
                                        .experts = layout.options().experts});
      if (smaller.ok() && Fits(Tabulate(limits_, planned_, *smaller, launch_)))
        return fmt::format("--mesh {}", mesh->ToString());
    }
    return "";
  }

  const Limits& limits_;
  const PlannedModel& planned_;
  const Launch& launch_;
  const MemoryTable& table_;
};

std::string Text(int64_t bytes) { return BytesText(static_cast<double>(bytes)); }

Status Check(const Limits& limits, const PlannedModel& planned, const Launch& launch,
             const MemoryTable& table) {
  if (Fits(table)) return OkStatus();
  const Item& largest = LargestItem(table);
  const int64_t ranks = table.here.size();
  std::string message = fmt::format(
      "{}: {} need{} {} of this machine's memory and {} are available; most of it are {} ({}): {}",
      planned.name, ranks == 1 ? std::string("one rank") : Plural(ranks, "rank"),
      ranks == 1 ? "s" : "", Text(NeededHere(table)), Text(table.available), largest.title,
      Text(Sum(table, largest.bytes)), FlagsOf(largest, limits.command));
  const std::string nearest = Nearest(limits, planned, launch, table).Find();
  if (!nearest.empty()) message += fmt::format("; {} fits", nearest);
  return OutOfMemory(std::move(message));
}

struct NodeSum {
  int64_t ranks = 0, total = 0;
};

std::map<int, NodeSum> SumNodes(const MemoryTable& table) {
  std::map<int, std::vector<RankMemory>> ranks;
  for (const RankMemory& rank : table.ranks) ranks[rank.node].push_back(rank);
  std::map<int, NodeSum> nodes;
  for (const auto& [number, of_node] : ranks) {
    nodes[number] = {.ranks = static_cast<int64_t>(of_node.size()), .total = Together(of_node)};
  }
  return nodes;
}

int64_t TotalOf(const MemoryTable& table) {
  int64_t total = 0;
  for (const auto& [number, node] : SumNodes(table)) total += node.total;
  return total;
}

std::string JsonOf(const MemoryTable& table) {
  ordered_json ranks = ordered_json::array(), nodes = ordered_json::array();
  for (const RankMemory& rank : table.ranks) {
    ordered_json& row = ranks.emplace_back();
    row["rank"] = rank.rank;
    row["node"] = rank.node;
    for (const Item& item : kItems) row[item.name] = rank.*item.bytes;
    row["total"] = rank.total();
  }
  for (const auto& [number, node] : SumNodes(table))
    nodes.push_back({{"node", number}, {"ranks", node.ranks}, {"total", node.total}});
  const ordered_json json = {{"ranks", std::move(ranks)},
                             {"total", TotalOf(table)},
                             {"nodes", std::move(nodes)},
                             {"kv_blocks", table.kv_blocks},
                             {"available", table.available}};
  return json.dump(1) + "\n";
}

std::string TextOf(const PlannedModel& planned, const MemoryTable& table) {
  const int world = planned.layout.world();
  std::string text = fmt::format("{}: {} rank{}, {}\n\n", planned.name, world,
                                 world == 1 ? "" : "s", planned.layout.ToString());
  text += fmt::format("{:>5} {:>5}", "rank", "node");
  for (const Item& item : kItems) text += fmt::format(" {:>15}", item.title);
  text += fmt::format(" {:>12}\n", "total");
  for (const RankMemory& rank : table.ranks) {
    text += fmt::format("{:>5} {:>5}", rank.rank, rank.node);
    for (const Item& item : kItems) text += fmt::format(" {:>15}", Text(rank.*item.bytes));
    text += fmt::format(" {:>12}\n", Text(rank.total()));
  }
  text += "\n";
  for (const auto& [number, node] : SumNodes(table)) {
    text += fmt::format("node {}: {} rank{}, {}\n", number, node.ranks, node.ranks == 1 ? "" : "s",
                        Text(node.total));
  }
  if (table.available > 0)
    text += fmt::format("available on this machine: {}\n", Text(table.available));
  return text;
}

}  // namespace

Status CheckMemory(const Options& options, const PlannedModel& planned, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const Limits limits, LimitsFrom(options, planned.path));
  SF_ASSIGN_OR_RETURN(const MemoryTable table, Tabulate(limits, planned, planned.layout, launch));
  return Check(limits, planned, launch, table);
}

Status RunDryRun(const Options& options, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const PlannedModel planned, PlanModel(options, launch, nullptr));
  SF_ASSIGN_OR_RETURN(const Limits limits, LimitsFrom(options, planned.path));
  SF_ASSIGN_OR_RETURN(const MemoryTable table, Tabulate(limits, planned, planned.layout, launch));
  const bool has_json =
      options.command() != CommandId::kRun && options.command() != CommandId::kServe;
  const bool as_json = has_json && options.Flag("json");
  SF_RETURN_IF_ERROR(Print(as_json ? JsonOf(table) : TextOf(planned, table)));
  return Check(limits, planned, launch, table);
}

std::string SmallKvRemark(const Options& options, const Engine& engine, const ModelConfig& config, const Layout& layout) {
  constexpr int64_t kEnough = 2048;  // where the size was chosen here: a chat of some turns
  const bool given = options.IsGiven("kv-cache-memory");
  int64_t wanted = given ? config.max_positions : std::min(config.max_positions, kEnough);
  if (options.IsGiven("max-model-len")) wanted = std::min(wanted, engine.options().max_model_len);
  const EngineStats stats = engine.stats();
  const int64_t blocks = stats.replicas.empty() ? 0 : stats.replicas.front().blocks_total;
  const KvPlacement placement = PlacementOf(layout);
  const int64_t tokens = placement.TokensIn(blocks);
  if (tokens >= wanted) return "";
  const int64_t length = engine.options().max_model_len;
  const int64_t sequences = std::min<int64_t>(blocks / std::max<int64_t>(1, placement.BlocksOfOwner(length, 1)), engine.options().max_num_seqs);
  const int64_t block_bytes = LargestKvGeometry(layout).block_bytes();
  return fmt::format(
      "{} of K/V memory on each rank holds {} of a replica: {} at a time with prompt and answer of at most {}; the model "
      "takes {}, which --kv-cache-memory {} on each rank would hold",
      Text(engine.options().kv_cache_memory_bytes),
      CountText(tokens) + (tokens == 1 ? " token" : " tokens"), Plural(sequences, "sequence"), Plural(length, "token"),
      Plural(config.max_positions, "token"), placement.BlocksOfOwner(config.max_positions, 1) * block_bytes);
}

}  // namespace sixfold::apps

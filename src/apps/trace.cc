// sixfold trace: where one token went.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/memory_table.h"
#include "apps/output.h"
#include "apps/text_loading.h"
#include "apps/trace_compare.h"
#include "apps/trace_run.h"
#include "base/plural.h"
#include "trace/itinerary.h"
#include "trace/picture.h"
#include "trace/timeline.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;

Status CheckForm(const Options& options) {
  if (options.IsGiven("prompt") == options.IsGiven("prompt-tokens"))
    return InvalidArgument("a prompt is needed, in one form: --prompt TEXT or --prompt-tokens 1,2,3");
  if (!options.Flag("last") && !options.MaybeInteger("token"))
    return InvalidArgument("which token? --token N, its position from 0, or --last");
  int forms = 0;
  for (const char* form : {"json", "perfetto", "svg"}) forms += options.Flag(form) ? 1 : 0;
  if (forms > 1) return InvalidArgument("--json, --perfetto and --svg exclude each other: one answer a run");
  if (options.IsGiven("compare") && (options.Flag("perfetto") || options.Flag("svg")))
    return InvalidArgument("--compare answers as a table or with --json");
  return OkStatus();
}

// The layout that --compare asks for: everything but the mesh as given.
Result<std::optional<PlannedModel>> PlanOther(const Options& options, const Launch& launch, const PlannedModel& planned) {
  if (!options.IsGiven("compare")) return std::optional<PlannedModel>();
  SF_ASSIGN_OR_RETURN(sixfold::LayoutOptions wanted, LayoutOptionsFrom(options));
  Result<Mesh> mesh = Mesh::Parse(options.Text("compare"));
  if (!mesh.ok()) return mesh.status().WithContext("--compare");
  wanted.mesh = *mesh;
  if (!options.IsGiven("cluster")) {
    SF_ASSIGN_OR_RETURN(wanted.cluster, Cluster::EqualNodes(wanted.mesh.world(), static_cast<int>(options.Integer("nodes"))));
  }
  SF_RETURN_IF_ERROR(CheckLaunch(launch, wanted.mesh));
  Result<Layout> layout = Layout::Make(planned.layout.shape(), wanted);
  if (!layout.ok()) return layout.status().WithContext("--compare");
  PlannedModel other = planned;
  other.layout = *std::move(layout);
  return std::optional<PlannedModel>(std::move(other));
}

Result<TraceWork> WorkOf(const Options& options, const PlannedModel& planned, const Tokenizer* tokenizer) {
  SF_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, PromptTokens(options, tokenizer, planned.config.vocab));
  TraceWork work{.tokens = std::move(tokens), .decode_steps = options.Flag("decode") ? 1 : 0};
  const auto count = static_cast<int64_t>(work.tokens.size());
  if (count + work.decode_steps > planned.config.max_positions) {
    return InvalidArgument(fmt::format("the prompt has {}{} and the model takes {}: give a shorter one", Plural(count, "token"),
                                       work.decode_steps > 0 ? " and --decode adds one" : "", planned.config.max_positions));
  }
  work.position = options.MaybeInteger("token").value_or(count - 1);
  if (work.position >= count) {
    return InvalidArgument(fmt::format("--token {}: the prompt has {}, positions 0 to {}", work.position, Plural(count, "token"), count - 1));
  }
  const int64_t replica = options.Integer("replica");
  if (replica >= planned.layout.dp()) {
    return InvalidArgument(fmt::format("--replica {}: the layout has {}, from 0 to {}; more come with --data-parallel-size",
                                       replica, Plural(planned.layout.dp(), "replica"), planned.layout.dp() - 1));
  }
  work.replica = static_cast<int>(replica);
  if (options.IsGiven("experts")) {
    SF_ASSIGN_OR_RETURN(work.experts, ReadForcedExperts(options.Text("experts"), planned.layout.shape()));
  }
  return work;
}

// How the new token's queries find the keys of an old one.
struct Read {
  int32_t layer = 0;  // from 0
  int32_t rank = 0;   // where the keys rest
  std::vector<int32_t> from;  // the rank that sent the query; empty: it was computed there
};

std::vector<Read> ReadsOf(const trace::Journey& old, const trace::Journey& latest) {
  std::vector<Read> reads;
  for (const trace::KvPlace& kv : old.kv) {
    for (int64_t layer = kv.first_layer; layer < kv.end_layer; ++layer) {
      Read read{.layer = static_cast<int32_t>(layer), .rank = kv.rank};
      for (const trace::Operation& o : latest.operations) {
        if (o.at.layer != layer || o.at.phase != trace::Phase::kQueryExchange) continue;
        for (const trace::Hop& hop : o.hops) {
          if (hop.to == kv.rank) read.from.push_back(hop.from);
        }
      }
      reads.push_back(std::move(read));
    }
  }
  std::sort(reads.begin(), reads.end(), [](const Read& a, const Read& b) { return std::tie(a.layer, a.rank) < std::tie(b.layer, b.rank); });
  return reads;
}

struct Answer {
  const PlannedModel& planned;
  const TraceWork& work;
  const TracedRun& traced;
  trace::Journey journey;
  std::optional<trace::Journey> last;  // of the last position of the prompt, beside another
  std::optional<trace::Journey> next;  // of the first new position
  std::vector<MeshFigures> figures;    // with --compare: of both meshes
};

// by_position: what the hops of each token add up to; all of them to "bytes".
ordered_json LedgerJson(const TracedRun& traced, const TraceWork& work) {
  ordered_json rows = ordered_json::array();
  int64_t bytes = 0;
  for (const auto& [key, entry] : traced.ledger) {
    rows.push_back({{"axis", NameOf(key.axis)}, {"op", NameOf(key.op)}, {"link", NameOf(key.link)}, {"count", entry.count}, {"bytes", entry.bytes}});
    bytes += entry.bytes;
  }
  return {{"bytes", bytes}, {"rows", std::move(rows)},
          {"by_position", traced.run.BytesByPosition(work.replica, 0, static_cast<int64_t>(work.tokens.size()) + work.decode_steps)},
          {"metadata_bytes", traced.run.metadata_bytes()}};
}

ordered_json NodesJson(const trace::Map& map) {
  ordered_json nodes = ordered_json::array();
  for (size_t rank = 0; rank < map.node_of.size(); ++rank) {
    const auto node = static_cast<size_t>(map.node_of[rank]);
    while (nodes.size() <= node) nodes.push_back(ordered_json::array());
    nodes[node].push_back(rank);
  }
  return nodes;
}

ordered_json JsonOf(const Answer& a) {
  ordered_json json = {{"model", a.planned.name},
                       {"layout", a.planned.layout.ToString()},
                       {"mesh", a.planned.layout.mesh().ToString()},
                       {"nodes", NodesJson(a.traced.map)},
                       {"prompt_tokens", a.work.tokens.size()},
                       {"token", a.work.position},
                       {"token_id", a.work.tokens[static_cast<size_t>(a.work.position)]},
                       {"replica", a.work.replica}};
  ordered_json experts = ordered_json::object();
  for (const auto& [layer, of] : a.traced.experts) experts[std::to_string(layer + 1)] = of;
  json["experts"] = std::move(experts);
  json.update(trace::JourneyJson(a.journey, a.traced.map));
  json["ledger"] = LedgerJson(a.traced, a.work);
  if (a.last) {
    ordered_json last = {{"token", a.work.tokens.size() - 1}, {"token_id", a.work.tokens.back()}};
    last.update(trace::JourneyJson(*a.last, a.traced.map));
    json["last"] = std::move(last);
  }
  if (a.next) {
    ordered_json reads = ordered_json::array();
    for (const Read& read : ReadsOf(a.journey, *a.next))
      reads.push_back({{"layer", read.layer + 1}, {"rank", read.rank}, {"from", read.from}});
    ordered_json decode = {{"token", a.work.tokens.size()}, {"token_id", a.traced.answers.front()}};
    decode.update(trace::JourneyJson(*a.next, a.traced.map));
    decode["reads"] = std::move(reads);
    json["decode"] = std::move(decode);
  }
  for (const MeshFigures& f : a.figures) {
    json["compare"].push_back({{"mesh", f.mesh},
                               {"layout", f.layout},
                               {"ranks", f.ranks},
                               {"crossings", f.crossings},
                               {"operations", f.operations},
                               {"experts_sent", f.experts_sent},
                               {"experts_expected", f.experts_expected},
                               {"stage_sent", f.stage_sent}});
  }
  return json;
}

std::string FiguresText(const std::vector<MeshFigures>& figures) {
  std::string text = fmt::format("\n{:<60}", "");
  for (const MeshFigures& f : figures) text += fmt::format("  {:>20}", f.mesh);
  const auto line = [&](const char* what, const auto& value) {
    text += fmt::format("\n{:<60}", what);
    for (const MeshFigures& f : figures) text += fmt::format("  {:>20}", value(f));
  };
  line("ranks that the token touches", [](const MeshFigures& f) { return fmt::format("{}", f.ranks); });
  line("crossings between nodes", [](const MeshFigures& f) { return fmt::format("{}", f.crossings); });
  line("operations", [](const MeshFigures& f) { return fmt::format("{}", f.operations); });
  line("rows to experts and back between nodes, a layer and rank", [](const MeshFigures& f) { return fmt::format("{:.3f} T·d", f.experts_sent); });
  line("  expected over uniform routes", [](const MeshFigures& f) { return fmt::format("{:.3f} T·d", f.experts_expected); });
  line("rows to the next stage between nodes, once, a rank", [](const MeshFigures& f) { return fmt::format("{:.3f} T·d", f.stage_sent); });
  return text + "\nT·d: the elements of all rows of the prompt.\n";
}

std::string TextOf(const Answer& a) {
  std::string text = fmt::format("Token {} of {} on replica {}, {}\n\n", a.work.position, a.work.tokens.size(), a.work.replica,
                                 a.planned.layout.ToString());
  text += trace::JourneyTable(a.journey, a.traced.map);
  if (a.last) {
    text += fmt::format("\nThe last token of the prompt, position {}\n\n", a.work.tokens.size() - 1);
    text += trace::JourneyTable(*a.last, a.traced.map);
  }
  if (a.next) {
    text += fmt::format("\nThe first new token, position {}\n\n", a.work.tokens.size());
    text += trace::JourneyTable(*a.next, a.traced.map);
    text += fmt::format("\nIts queries meet the keys of token {}:\n", a.work.position);
    for (const Read& read : ReadsOf(a.journey, *a.next)) {
      std::string from;
      for (const int32_t rank : read.from) from += fmt::format("{}{}", from.empty() ? "" : ", ", rank);
      text += fmt::format("  layer {}: on rank {}, {}\n", read.layer + 1, read.rank,
                          from.empty() ? "where they are computed" : "sent by rank " + from);
    }
  }
  return a.figures.empty() ? text : text + FiguresText(a.figures);
}

Status Write(const Options& options, const std::string& text) {
  return options.IsGiven("output") ? WriteTextFile(options.Text("output"), text) : Print(text);
}

}  // namespace

Status FollowTrace(const Options& options, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const PlannedModel planned, PlanModel(options, launch, nullptr));
  SF_ASSIGN_OR_RETURN(const std::optional<PlannedModel> other, PlanOther(options, launch, planned));
  SF_RETURN_IF_ERROR(FollowTraced(planned, launch));
  return other ? FollowTraced(*other, launch) : OkStatus();
}

Status RunTrace(const Options& options, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_RETURN_IF_ERROR(CheckForm(options));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFor(options, path));
  // Ranks above 0 have no tokenizer: the end-of-sequence tokens that it would add play no part here.
  SF_ASSIGN_OR_RETURN(const PlannedModel planned, PlanModel(options, launch, nullptr));
  SF_ASSIGN_OR_RETURN(const TraceWork work, WorkOf(options, planned, tokenizer.get()));
  SF_ASSIGN_OR_RETURN(const std::optional<PlannedModel> other, PlanOther(options, launch, planned));
  if (other && work.replica >= other->layout.dp())
    return InvalidArgument(fmt::format("--compare {} has {} and --replica is {}", options.Text("compare"), Plural(other->layout.dp(), "replica"), work.replica));
  SF_RETURN_IF_ERROR(CheckMemory(options, planned, launch));
  SF_ASSIGN_OR_RETURN(const TracedRun traced, RunTraced(planned, options, launch, work));
  Answer answer{.planned = planned, .work = work, .traced = traced, .journey = {}, .last = {}, .next = {}, .figures = {}};
  answer.journey = traced.run.Follow(traced.map, {.replica = work.replica, .position = work.position});
  const auto last = static_cast<int64_t>(work.tokens.size()) - 1;
  if (options.Flag("last") && work.position != last) answer.last = traced.run.Follow(traced.map, {.replica = work.replica, .position = last});
  if (work.decode_steps > 0)
    answer.next = traced.run.Follow(traced.map, {.replica = work.replica, .position = static_cast<int64_t>(work.tokens.size())});
  if (options.Flag("perfetto")) return Write(options, trace::TimelineJson(traced.run, answer.journey, traced.map));
  if (options.Flag("svg")) return Write(options, trace::JourneySvg(answer.journey, traced.map));
  if (other) {
    answer.figures.push_back(FiguresOf(planned.layout, traced, answer.journey, work.replica));
    SF_ASSIGN_OR_RETURN(const TracedRun second, RunTraced(*other, options, launch, work));
    const trace::Journey journey = second.run.Follow(second.map, {.replica = work.replica, .position = work.position});
    answer.figures.push_back(FiguresOf(other->layout, second, journey, work.replica));
  }
  return Write(options, options.Flag("json") ? JsonOf(answer).dump(1) + "\n" : TextOf(answer));
}

}  // namespace sixfold::apps

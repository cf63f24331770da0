#include "trace/itinerary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/plural.h"

namespace sixfold::trace {

namespace {

using nlohmann::ordered_json;

const char* ArrowOf(const Hop& hop) { return hop.crosses ? "⇒" : "→"; }

std::string LayersText(int64_t first, int64_t end) {
  return end - first == 1 ? fmt::format("layer {}", end) : fmt::format("layers {}-{}", first + 1, end);
}

// The chain that starts with hop `at`: the first hop that goes on from its end is written behind it, more of them apart.
void AppendChain(const std::vector<Hop>& hops, size_t at, std::vector<bool>* done, std::string* text) {
  (*done)[at] = true;
  *text += fmt::format("{}{}", ArrowOf(hops[at]), hops[at].to);
  bool first = true;
  for (size_t next = at + 1; next < hops.size(); ++next) {
    if ((*done)[next] || hops[next].from != hops[at].to) continue;
    if (!first) *text += fmt::format(", {}", hops[next].from);
    first = false;
    AppendChain(hops, next, done, text);
  }
}

}  // namespace

std::string RangesText(const std::vector<int32_t>& ascending) {
  std::string text;
  for (size_t i = 0; i < ascending.size();) {
    size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += last == i ? fmt::format("{}", ascending[i]) : fmt::format("{}{}{}", ascending[i], last == i + 1 ? "," : "-", ascending[last]);
    i = last + 1;
  }
  return text;
}

std::string KindOf(const Operation& operation, const Names& names) {
  switch (operation.at.phase) {
    case Phase::kKvExchange: return "K/V exchange";
    case Phase::kKvHome: return "K/V to their rank";
    case Phase::kQueryExchange: return "query exchange";
    case Phase::kPartialReturn: return "partial results";
    case Phase::kHeadExchange: return "heads for positions";
    case Phase::kOutputExchange: return "positions for heads";
    case Phase::kStageSend: return "pipeline send";
    case Phase::kLogits: return "logits";
    default: break;
  }
  std::string op = names.ops.at(operation.op);
  std::replace(op.begin(), op.end(), '_', '-');
  switch (operation.at.phase) {
    case Phase::kNormSums: return op + " of norm sums";
    case Phase::kFfnGather:
    case Phase::kFfnSum: return op + " (FFN)";
    case Phase::kExpertSum: return op + " (experts)";
    case Phase::kCombineGather: return op + " (combined)";
    case Phase::kSharedSum: return op + " (shared experts)";
    case Phase::kHeadGather: return op + " (head)";
    default: return op;
  }
}

std::string HopsText(const Operation& operation) {
  std::string text;
  for (const int32_t rank : operation.stays) text += fmt::format("{}{} stays", text.empty() ? "" : ", ", rank);
  const std::vector<Hop>& hops = operation.hops;
  std::vector<bool> done(hops.size(), false);
  for (size_t i = 0; i < hops.size(); ++i) {
    const auto back = std::find_if(hops.begin(), hops.end(), [&](const Hop& h) { return h.from == hops[i].to && h.to == hops[i].from; });
    if (done[i] || back == hops.end()) continue;
    done[i] = done[back - hops.begin()] = true;
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", hops[i].from, hops[i].crosses ? "⇔" : "↔", hops[i].to);
  }
  for (size_t i = 0; i < hops.size(); ++i) {
    if (done[i]) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", hops[i].from);
    AppendChain(hops, i, &done, &text);
  }
  return text;
}

std::string JourneyTable(const Journey& journey, const Map& map) {
  constexpr const char* kRow = "{:>3}  {:>8}  {:<34}  {:<30}  {:>9}  {:<10}  {:>5}  {:>9}\n";
  std::string text = fmt::format(kRow, "op", "L from 1", "operation", "the token", "bytes", "new ranks", "ranks", "crossings");
  for (const Operation& o : journey.operations) {
    std::string kind = KindOf(o, map.names);
    for (const std::vector<int32_t>& group : o.groups) kind += fmt::format(" {{{}}}", RangesText(group));
    text += fmt::format(kRow, o.number, o.at.layer + 1, kind, HopsText(o), o.bytes(), o.new_ranks.empty() ? "-" : RangesText(o.new_ranks),
                        o.ranks, o.crossings);
  }
  text += "\n→ inside a node, ⇒ between nodes (a crossing).\n";
  for (const Home& home : journey.homes) {
    text += fmt::format("At home on rank{} {} in {}.\n", home.ranks.size() == 1 ? "" : "s", RangesText(home.ranks),
                        LayersText(home.first_layer, home.end_layer));
  }
  for (const KvPlace& kv : journey.kv) {
    text += fmt::format("K/V stay on rank {}: {}, {}, {} bytes.\n", kv.rank, LayersText(kv.first_layer, kv.end_layer),
                        kv.head_end - kv.head_begin == 1 ? fmt::format("head {}", kv.head_begin)
                                                         : fmt::format("heads {}-{}", kv.head_begin, kv.head_end - 1),
                        kv.bytes);
  }
  text += fmt::format("{} of {}: {}.\n", Plural(static_cast<int64_t>(journey.ranks.size()), "rank"), map.node_of.size(),
                      RangesText(journey.ranks));
  text += fmt::format("{}, {}, {} bytes of the token sent.\n", Plural(static_cast<int64_t>(journey.operations.size()), "operation"),
                      Plural(journey.crossings, "node crossing"), journey.bytes);
  return text;
}

nlohmann::ordered_json JourneyJson(const Journey& journey, const Map& map) {
  ordered_json home = ordered_json::array(), kv = ordered_json::array(), hops = ordered_json::array(), itinerary = ordered_json::array();
  for (const Home& h : journey.homes) home.push_back({{"layers", {h.first_layer + 1, h.end_layer}}, {"ranks", h.ranks}});
  for (const KvPlace& p : journey.kv) {
    kv.push_back({{"rank", p.rank}, {"layers", {p.first_layer + 1, p.end_layer}}, {"heads", {p.head_begin, p.head_end}}, {"bytes", p.bytes}});
  }
  for (const Operation& o : journey.operations) {
    ordered_json pairs = ordered_json::array();
    for (const Hop& hop : o.hops) {
      pairs.push_back({hop.from, hop.to});
      hops.push_back({{"operation", o.number},
                      {"step", o.at.step},
                      {"layer", o.at.layer + 1},
                      {"phase", NameOf(o.at.phase)},
                      {"op", map.names.ops.at(hop.op)},
                      {"axis", map.names.axes.at(hop.axis)},
                      {"group", hop.group},
                      {"from", hop.from},
                      {"to", hop.to},
                      {"link", map.names.links.at(hop.link)},
                      {"crosses", hop.crosses},
                      {"bytes", hop.bytes},
                      {"ranks", o.ranks},
                      {"crossings", o.crossings}});
    }
    itinerary.push_back({{"operation", o.number},
                         {"step", o.at.step},
                         {"layer", o.at.layer + 1},
                         {"phase", NameOf(o.at.phase)},
                         {"op", map.names.ops.at(o.op)},
                         {"axis", map.names.axes.at(o.axis)},
                         {"groups", o.groups},
                         {"stays", o.stays},
                         {"hops", std::move(pairs)},
                         {"bytes", o.bytes()},
                         {"new_ranks", o.new_ranks},
                         {"ranks", o.ranks},
                         {"crossings", o.crossings}});
  }
  return {{"home", std::move(home)},
          {"ranks", journey.ranks},
          {"crossings", journey.crossings},
          {"operations", journey.operations.size()},
          {"bytes", journey.bytes},
          {"kv", std::move(kv)},
          {"hops", std::move(hops)},
          {"itinerary", std::move(itinerary)}};
}

}  // namespace sixfold::trace

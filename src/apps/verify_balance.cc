#include "apps/verify_balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "apps/output.h"
#include "base/plural.h"
#include "kv/placement.h"
#include "mesh/context.h"
#include "model/stage.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kTokensMax = int64_t{1} << 24;

struct Cut {
  const char* name;
  std::vector<std::vector<RowRun>> rows;  // [cp]
};

std::vector<Cut> CutsOf(const Layout& layout, int64_t tokens) {
  ContextRule rule = layout.context();
  rule.form = CpForm::kRing;
  rule.by_token = false;
  KvPlacement placement = PlacementOf(layout);
  placement.by_token = false;
  placement.chunk = rule.chunk;
  placement.stages = 1;
  ContextSequence zigzag{.rows = tokens, .owners = {}}, contiguous = zigzag;
  std::vector<int64_t> free(static_cast<size_t>(rule.size), std::numeric_limits<int32_t>::max());
  for (const int owner : DealUnits(placement, {.rows = tokens}, std::span(&tokens, 1), free)) zigzag.owners.push_back(owner);
  const auto chunks = static_cast<int64_t>(zigzag.owners.size());
  for (int owner = 0; owner < rule.size; ++owner) {
    contiguous.owners.insert(contiguous.owners.end(), static_cast<size_t>(ShareOf(chunks, rule.size, owner).size()), owner);
  }
  std::vector<Cut> cuts;
  cuts.push_back({"contiguous", DealRows(rule, std::span(&contiguous, 1))});
  cuts.push_back({"zigzag", DealRows(rule, std::span(&zigzag, 1))});
  rule.form = CpForm::kStriped;
  cuts.push_back({"striped", DealRows(rule, std::span(&zigzag, 1))});
  return cuts;
}

struct Work {
  const char* cut;
  int64_t window = 0;          // 0: every key up to the query's own
  std::vector<int64_t> pairs;  // [cp]

  // Pairs as multiples of the least busy rank's that has any.
  std::vector<double> Ratio() const {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const int64_t p : pairs) least = p > 0 ? std::min(least, p) : least;
    std::vector<double> ratio;
    for (const int64_t p : pairs) ratio.push_back(static_cast<double>(p) / static_cast<double>(least));
    return ratio;
  }
  double Imbalance() const {
    const auto sum = static_cast<double>(std::accumulate(pairs.begin(), pairs.end(), int64_t{0}));
    return static_cast<double>(*std::max_element(pairs.begin(), pairs.end())) * static_cast<double>(pairs.size()) / sum;
  }
};

ordered_json JsonOf(const PlannedModel& planned, int64_t tokens, const std::vector<Work>& works) {
  ordered_json cuts = ordered_json::array();
  for (const Work& w : works) {
    cuts.push_back({{"cut", w.cut}, {"window", w.window}, {"pairs", w.pairs}, {"ratio", w.Ratio()}, {"imbalance", w.Imbalance()}});
  }
  return {{"model", planned.name},
          {"cp", planned.layout.cp()},
          {"tokens", tokens},
          {"attention_chunk", planned.options.attention_chunk},
          {"cuts", std::move(cuts)}};
}

std::string TextOf(const PlannedModel& planned, int64_t tokens, const std::vector<Work>& works) {
  std::string text = fmt::format("{}: (query, key) pairs of each of {} cp ranks for a prompt of {}, attention chunks of {}\n\n",
                                 planned.name, planned.layout.cp(), CountText(tokens) + (tokens == 1 ? " token" : " tokens"), planned.options.attention_chunk);
  text += fmt::format("{:<11} {:>7} ", "cut", "window");
  for (int cp = 0; cp < planned.layout.cp(); ++cp) text += fmt::format(" {:>18}", fmt::format("cp {}", cp));
  text += "  ratio\n";
  for (const Work& w : works) {
    text += fmt::format("{:<11} {:>7} ", w.cut, w.window == 0 ? "none" : std::to_string(w.window));
    for (const int64_t p : w.pairs) text += fmt::format(" {:>18}", CountText(p));
    std::vector<std::string> ratio;
    for (const double r : w.Ratio()) ratio.push_back(fmt::format("{:.2f}", r));
    text += fmt::format("  {}\n", fmt::join(ratio, " : "));
  }
  return text;
}

}  // namespace

Status RunBalance(const Options& options, const PlannedModel& planned) {
  if (planned.layout.cp() == 1)
    return InvalidArgument("--balance needs context parallelism: add --context-parallel-size 4");
  const std::vector<int64_t> given = options.Integers("tokens");
  const int64_t tokens = given.empty() ? 16384 : given.front();
  if (given.size() > 1 || tokens < 1 || tokens > kTokensMax) {
    return InvalidArgument(fmt::format("--tokens: with --balance one length from 1 to {}", kTokensMax));
  }
  const ModelShape& shape = planned.layout.shape();
  std::set<int64_t> windows;
  for (int layer = 0; layer < shape.layers(); ++layer) windows.insert(shape.window(layer));
  std::vector<Work> works;
  for (const Cut& cut : CutsOf(planned.layout, tokens)) {
    for (const int64_t window : windows) works.push_back({cut.name, window, AttendedPairs(cut.rows, window)});
  }
  if (options.Flag("json")) return Print(JsonOf(planned, tokens, works).dump(1) + "\n");
  return Print(TextOf(planned, tokens, works));
}

}  // namespace sixfold::apps

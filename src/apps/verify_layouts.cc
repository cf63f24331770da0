#include "apps/verify_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "apps/layout_options.h"
#include "apps/output.h"

namespace sixfold::apps {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

// One value of each thing that is varied.
using Choice = std::array<int, 9>;
enum { kTp, kSp, kPp, kDp, kNodes, kOrder, kEp, kEtp, kBackend };
constexpr int kDefault = 0;  // of kEp, kEtp and kBackend: the flag is left out

// The three in the order in which ranks count.
template <typename T>
std::array<T, 3> Ordered(const Choice& c, const T& tp, const T& dp, const T& pp) {
  switch (c[kOrder]) {
    case 0: return {tp, dp, pp};
    case 1: return {pp, tp, dp};
    default: return {dp, pp, tp};
  }
}

std::string FlagsOf(const Choice& c) {
  const std::string tp = fmt::format("tp{}", c[kTp]), dp = fmt::format("dp{}", c[kDp]), pp = fmt::format("pp{}", c[kPp]);
  const std::array<std::string, 3> order = Ordered(c, tp, dp, pp);
  const std::string mesh = fmt::format("{}", fmt::join(order, ","));
  std::string flags = "--mesh " + mesh;
  if (c[kSp] == 1) flags += " --sequence-parallel";
  if (c[kNodes] > 1) flags += fmt::format(" --nodes {}", c[kNodes]);
  if (c[kEp] != kDefault) flags += fmt::format(" --ep {}", c[kEp]);
  if (c[kEtp] != kDefault) flags += fmt::format(" --etp {}", c[kEtp]);
  if (c[kBackend] != kDefault) flags += fmt::format(" --all2all-backend {}", c[kBackend] == 1 ? "flat" : "hierarchical");
  return flags;
}

std::string FlagsOf(const Layout& layout) {
  std::string flags = "--mesh " + layout.mesh().ToString();
  const sixfold::LayoutOptions& given = layout.options();
  if (layout.sequence_parallel()) flags += " --sequence-parallel";
  if (layout.cluster().nodes() > 1) flags += fmt::format(" --nodes {}", layout.cluster().nodes());
  if (given.experts.ep || given.experts.expert_parallel == ExpertMeshRequest::ExpertParallel::kOn)
    flags += fmt::format(" --ep {}", layout.expert_mesh().ep());
  if (given.experts.etp) flags += fmt::format(" --etp {}", layout.expert_mesh().etp());
  if (given.all2all) flags += fmt::format(" --all2all-backend {}", NameOf(*given.all2all));
  return flags;
}

Result<Layout> MakeLayout(const Choice& c, const ModelShape& shape) {
  const AxisSize tp{Axis::kTp, c[kTp]}, dp{Axis::kDp, c[kDp]}, pp{Axis::kPp, c[kPp]};
  const std::array<AxisSize, 3> order = Ordered(c, tp, dp, pp);
  sixfold::LayoutOptions options{.sequence_parallel = c[kSp] == 1};
  SF_ASSIGN_OR_RETURN(options.mesh, Mesh::Make(order));
  SF_ASSIGN_OR_RETURN(options.cluster, Cluster::EqualNodes(options.mesh.world(), c[kNodes]));
  if (c[kEp] != kDefault) options.experts.ep = c[kEp];
  if (c[kEtp] != kDefault) options.experts.etp = c[kEtp];
  if (c[kBackend] != kDefault) options.all2all = c[kBackend] == 1 ? All2AllBackend::kFlat : All2AllBackend::kHierarchical;
  return Layout::Make(shape, options);
}

// Combinations that differ from another one in name only are left out.
bool IsRedundant(const Choice& c) {
  return (c[kSp] == 1 && c[kTp] == 1) || (c[kOrder] == 1 && (c[kPp] == 1 || c[kTp] * c[kDp] == 1)) ||
         (c[kOrder] == 2 && (c[kTp] == 1 || c[kDp] == 1));
}

int RanksOf(const Choice& c) { return c[kTp] * c[kPp] * c[kDp]; }

// Expert places and parts that divide the ranks of a stage; none but the default for dense models. The backends differ only
// where there are nodes to cross.
void AddExpertChoices(Choice c, bool experts, std::vector<Choice>* all) {
  all->push_back(c);
  if (!experts) return;
  const int ranks = c[kTp] * c[kDp];
  for (const int ep : {1, 2, 3, 4, 8, 16}) {
    for (const int etp : {1, 2, 4}) {
      if (ranks % (ep * etp) != 0) continue;
      for (const int backend : {1, 2}) {
        if (backend == 2 && c[kNodes] == 1) continue;
        c[kEp] = ep;
        c[kEtp] = etp;
        c[kBackend] = backend;
        all->push_back(c);
      }
    }
  }
}

std::vector<Choice> AllChoices(bool experts, int64_t ranks_max) {
  std::vector<Choice> all;
  for (const int tp : {1, 2, 3, 4, 8})
    for (const int sp : {0, 1})
      for (const int pp : {1, 2, 3, 4})
        for (const int dp : {1, 2, 4, 8, 16})
          for (const int nodes : {1, 2, 4})
            for (const int order : {0, 1, 2}) {
              const Choice c = {tp, sp, pp, dp, nodes, order, kDefault, kDefault, kDefault};
              if (dp > 4 && !experts) continue;  // replicas of a dense model never meet
              const bool fits = RanksOf(c) % nodes == 0 && RanksOf(c) > 1 && RanksOf(c) <= ranks_max;
              if (fits && !IsRedundant(c)) AddExpertChoices(c, experts, &all);
            }
  return all;
}

using Pair = std::array<int, 4>;  // thing, value, thing, value

std::vector<Pair> PairsOf(const Choice& c) {
  std::vector<Pair> pairs;
  for (int a = 0; a < static_cast<int>(c.size()); ++a) {
    for (int b = a + 1; b < static_cast<int>(c.size()); ++b) {
      pairs.push_back({a, c[static_cast<size_t>(a)], b, c[static_cast<size_t>(b)]});
    }
  }
  return pairs;
}

// Greedy: always the one that brings most pairs that have not met, of those the one of fewest ranks.
std::vector<Choice> Covering(const std::vector<Choice>& all) {
  std::set<Pair> open;
  for (const Choice& c : all) {
    for (const Pair& pair : PairsOf(c)) open.insert(pair);
  }
  std::vector<Choice> chosen;
  while (!open.empty()) {
    const Choice* best = nullptr;
    std::pair<int, int> best_score;
    for (const Choice& c : all) {
      int fresh = 0;
      for (const Pair& pair : PairsOf(c)) fresh += static_cast<int>(open.count(pair));
      const std::pair<int, int> score = {fresh, -RanksOf(c)};
      if (best == nullptr || score > best_score) {
        best = &c;
        best_score = score;
      }
    }
    chosen.push_back(*best);
    for (const Pair& pair : PairsOf(*best)) open.erase(pair);
  }
  return chosen;
}

Result<LayoutList> FromFile(const std::string& path, const ModelShape& shape) {
  SF_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kFileBytesMax));
  LayoutList list;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = line.substr(0, line.find('#'));
    std::istringstream words(line);
    OptionSources sources;
    for (std::string word; words >> word;) sources.arguments.push_back(word);
    if (sources.arguments.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const Result<Resolved> resolved =
        ResolveOptions(CommandId::kVerify, {.takes_model = false, .text = ""}, sources);
    if (!resolved.ok()) return resolved.status().WithContext(where);
    const Result<sixfold::LayoutOptions> wanted = LayoutOptionsFrom(resolved->options);
    if (!wanted.ok()) return wanted.status().WithContext(where);
    Result<Layout> layout = Layout::Make(shape, *wanted);
    if (!layout.ok()) return layout.status().WithContext(where);
    list.layouts.push_back({fmt::format("{}", fmt::join(sources.arguments, " ")),
                            std::move(layout).value()});
  }
  if (list.layouts.empty()) return InvalidArgument(path + ": no layout in it, one a line is expected");
  return list;
}

}  // namespace

Result<LayoutList> LayoutsToVerify(const Options& options, const ModelShape& shape,
                                   const Layout* own, std::optional<int> ranks) {
  const std::string& which = options.Text("layouts");
  LayoutList list;
  if (own != nullptr && !options.IsGiven("layouts")) {
    if (ranks.value_or(own->world()) != own->world()) {
      return InvalidArgument(fmt::format("--mesh {} has {} ranks and mpirun started {}: make them equal", own->mesh().ToString(),
                                         own->world(), *ranks));
    }
    list.layouts.push_back({FlagsOf(*own), *own});
    return list;
  }
  if (which != "all" && which != "covering") {
    SF_ASSIGN_OR_RETURN(list, FromFile(which, shape));
    std::erase_if(list.layouts, [&](const NamedLayout& named) {
      return ranks.value_or(named.layout.world()) != named.layout.world();
    });
    return list;
  }
  std::vector<Choice> runnable;
  for (const Choice& c : AllChoices(shape.experts > 0, ranks.value_or(options.Integer("max-ranks")))) {
    if (ranks.value_or(RanksOf(c)) != RanksOf(c)) continue;
    const Result<Layout> layout = MakeLayout(c, shape);
    if (layout.ok())
      runnable.push_back(c);
    else
      list.refused.push_back(FlagsOf(c) + ": " + layout.status().message());
  }
  for (const Choice& c : which == "all" ? runnable : Covering(runnable)) {
    SF_ASSIGN_OR_RETURN(Layout layout, MakeLayout(c, shape));
    list.layouts.push_back({FlagsOf(c), std::move(layout)});
  }
  return list;
}

}  // namespace sixfold::apps

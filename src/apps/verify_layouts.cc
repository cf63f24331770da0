#include "apps/verify_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "apps/layout_options.h"
#include "apps/output.h"
#include "base/plural.h"

namespace sixfold::apps {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

// One value of each thing that is varied.
using Choice = std::array<int, 11>;
enum { kTp, kSp, kCp, kForm, kPp, kDp, kNodes, kOrder, kEp, kEtp, kBackend };
constexpr int kDefault = 0;  // of kForm, kEp, kEtp and kBackend: the flag is left out
constexpr CpForm kForms[] = {CpForm::kRing, CpForm::kAllGather, CpForm::kUlysses, CpForm::kUlyssesRing, CpForm::kStriped};

// The axes in the order in which ranks count.
std::array<AxisSize, 4> Ordered(const Choice& c) {
  const AxisSize tp{Axis::kTp, c[kTp]}, cp{Axis::kCp, c[kCp]}, dp{Axis::kDp, c[kDp]}, pp{Axis::kPp, c[kPp]};
  switch (c[kOrder]) {
    case 0: return {tp, cp, dp, pp};
    case 1: return {pp, cp, tp, dp};
    default: return {dp, pp, tp, cp};
  }
}

std::string ExpertFlags(const Choice& c) {
  std::string flags;
  if (c[kEp] != kDefault) flags += fmt::format(" --ep {}", c[kEp]);
  if (c[kEtp] != kDefault) flags += fmt::format(" --etp {}", c[kEtp]);
  if (c[kBackend] != kDefault) flags += fmt::format(" --all2all-backend {}", c[kBackend] == 1 ? "flat" : "hierarchical");
  return flags;
}

std::string FlagsOf(const Choice& c) {
  std::string mesh;
  for (const AxisSize& axis : Ordered(c)) {
    if (axis.axis != Axis::kCp || axis.size > 1) mesh += fmt::format("{}{}{}", mesh.empty() ? "" : ",", NameOf(axis.axis), axis.size);
  }
  std::string flags = "--mesh " + mesh;
  if (c[kSp] == 1) flags += " --sequence-parallel";
  if (c[kForm] != kDefault) flags += fmt::format(" --cp-comm-type {}", NameOf(kForms[c[kForm] - 1]));
  if (c[kNodes] > 1) flags += fmt::format(" --nodes {}", c[kNodes]);
  return flags + ExpertFlags(c);
}

std::string FlagsOf(const Layout& layout) {
  std::string flags = "--mesh " + layout.mesh().ToString();
  const sixfold::LayoutOptions& given = layout.options();
  if (layout.sequence_parallel()) flags += " --sequence-parallel";
  if (layout.mesh().size(Axis::kCp) > 1) {
    flags += fmt::format(" --cp-comm-type {}", NameOf(given.context.form));
    if (given.context.interleave > 0) flags += fmt::format(" --cp-kv-cache-interleave-size {}", given.context.interleave);
    if (const int u = given.context.ulysses; u > 0)
      flags += fmt::format(" --hierarchical-context-parallel-sizes {},{}", u, layout.mesh().size(Axis::kCp) / u);
  }
  if (layout.cluster().nodes() > 1) flags += fmt::format(" --nodes {}", layout.cluster().nodes());
  if (given.experts.ep || given.experts.expert_parallel == ExpertMeshRequest::ExpertParallel::kOn)
    flags += fmt::format(" --ep {}", layout.expert_mesh().ep());
  if (given.experts.etp) flags += fmt::format(" --etp {}", layout.expert_mesh().etp());
  if (given.all2all) flags += fmt::format(" --all2all-backend {}", NameOf(*given.all2all));
  return flags;
}

Result<Layout> MakeLayout(const Choice& c, const ModelShape& shape) {
  sixfold::LayoutOptions options{.sequence_parallel = c[kSp] == 1};
  SF_ASSIGN_OR_RETURN(options.mesh, Mesh::Make(Ordered(c)));
  SF_ASSIGN_OR_RETURN(options.cluster, Cluster::EqualNodes(options.mesh.world(), c[kNodes]));
  if (c[kForm] != kDefault) options.context.form = kForms[c[kForm] - 1];
  if (c[kEp] != kDefault) options.experts.ep = c[kEp];
  if (c[kEtp] != kDefault) options.experts.etp = c[kEtp];
  if (c[kBackend] != kDefault) options.all2all = c[kBackend] == 1 ? All2AllBackend::kFlat : All2AllBackend::kHierarchical;
  return Layout::Make(shape, options);
}

// Combinations that differ from another one in name only are left out.
bool IsRedundant(Choice c) {
  if (c[kSp] == 1 && c[kTp] == 1) return true;
  const auto counted = [](const Choice& of) {
    std::vector<AxisSize> order;
    for (const AxisSize& axis : Ordered(of)) {
      if (axis.size > 1) order.push_back(axis);
    }
    return order;
  };
  const std::vector<AxisSize> own = counted(c);
  while (c[kOrder]-- > 0) {
    if (counted(c) == own) return true;
  }
  return false;
}

int RanksOf(const Choice& c) { return c[kTp] * c[kCp] * c[kPp] * c[kDp]; }

// Expert places and parts that divide the ranks of a stage; none but the default for dense models. The backends differ only
// where there are nodes to cross.
void AddExpertChoices(Choice c, bool experts, std::vector<Choice>* all) {
  all->push_back(c);
  if (!experts) return;
  const int ranks = c[kTp] * c[kCp] * c[kDp];
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

// Forms of context parallelism, where there is any.
void AddForms(Choice c, bool experts, std::vector<Choice>* all) {
  if (c[kCp] == 1) return AddExpertChoices(c, experts, all);
  for (int form = 1; form <= static_cast<int>(std::size(kForms)); ++form) {
    c[kForm] = form;
    AddExpertChoices(c, experts, all);
  }
}

std::vector<Choice> AllChoices(bool experts, int64_t ranks_max) {
  std::vector<Choice> all;
  for (const int tp : {1, 2, 3, 4, 8})
    for (const int sp : {0, 1})
      for (const int cp : {1, 2, 3, 4, 8})
        for (const int pp : {1, 2, 3, 4})
          for (const int dp : {1, 2, 4, 8, 16})
            for (const int nodes : {1, 2, 4})
              for (const int order : {0, 1, 2}) {
                const Choice c = {tp, sp, cp, kDefault, pp, dp, nodes, order, kDefault, kDefault, kDefault};
                if (dp > 4 && !experts) continue;  // replicas of a dense model never meet
                const bool fits = RanksOf(c) % nodes == 0 && RanksOf(c) > 1 && RanksOf(c) <= ranks_max;
                if (fits && !IsRedundant(c)) AddForms(c, experts, &all);
              }
  return all;
}

// Numbers of the pairs (thing, value, thing, value) of a choice.
class PairNumbers {
 public:
  std::vector<int> Of(const Choice& c) {
    std::vector<int> numbers;
    for (int a = 0; a < static_cast<int>(c.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(c.size()); ++b) {
        const std::array<int, 4> pair = {a, c[static_cast<size_t>(a)], b, c[static_cast<size_t>(b)]};
        numbers.push_back(numbers_.try_emplace(pair, static_cast<int>(numbers_.size())).first->second);
      }
    }
    return numbers;
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::map<std::array<int, 4>, int> numbers_;
};

// Greedy: always the one that brings most pairs that have not met, of those the one of fewest ranks.
std::vector<Choice> Covering(const std::vector<Choice>& all) {
  PairNumbers numbers;
  std::vector<std::vector<int>> pairs;
  for (const Choice& c : all) pairs.push_back(numbers.Of(c));
  std::vector<char> open(numbers.size(), 1);
  std::vector<Choice> chosen;
  while (std::find(open.begin(), open.end(), 1) != open.end()) {
    size_t best = 0;
    std::pair<int, int> best_score = {-1, 0};
    for (size_t i = 0; i < all.size(); ++i) {
      int fresh = 0;
      for (const int pair : pairs[i]) fresh += open[static_cast<size_t>(pair)];
      const std::pair<int, int> score = {fresh, -RanksOf(all[i])};
      if (score <= best_score) continue;
      best = i;
      best_score = score;
    }
    chosen.push_back(all[best]);
    for (const int pair : pairs[best]) open[static_cast<size_t>(pair)] = 0;
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
      return InvalidArgument(fmt::format("--mesh {} has {} and mpirun started {}: make them equal", own->mesh().ToString(),
                                         Plural(own->world(), "rank"), *ranks));
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

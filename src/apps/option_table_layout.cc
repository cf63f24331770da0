// How a model is cut over ranks.
#include "apps/option_sources.h"

namespace sixfold::apps {
namespace {

using enum OptionType;
using enum CommandId;

constexpr CommandSet kRunning = LaidOutCommands() & ~Commands(kLayout, kVerify);

OptionSpec AxisOption(std::string_view name, std::vector<std::string_view> aliases,
                      std::string_view help) {
  return {.name = name,
          .aliases = std::move(aliases),
          .type = kInteger,
          .group = OptionGroup::kLayout,
          .commands = LaidOutCommands(),
          .metavar = "N",
          .fallback = "1",
          .min = 1,
          .max = 65536,
          .help = help};
}

OptionSpec ExpertOption(std::string_view name, std::vector<std::string_view> aliases,
                        std::string_view otherwise, std::string_view help) {
  OptionSpec spec = AxisOption(name, std::move(aliases), help);
  spec.fallback = "auto";
  spec.auto_means = otherwise;
  return spec;
}

}  // namespace

std::vector<OptionSpec> LayoutOptions() {
  constexpr OptionGroup group = OptionGroup::kLayout;
  return {
      AxisOption("tensor-parallel-size", {"tp-size", "tp", "-tp"},
                 "ranks that share every layer's weights"),
      AxisOption("context-parallel-size", {"cp-size", "cp", "-cp"},
                 "ranks that share the positions of each request out, and its keys and values"),
      AxisOption("pipeline-parallel-size", {"pp-size", "pp", "-pp"},
                 "stages that share the layers out"),
      AxisOption("data-parallel-size", {"dp-size", "dp", "-dp"},
                 "replicas that share the requests out, each with limits of its own"),
      {.name = "sequence-parallel",
       .aliases = {"enable-sequence-parallel", "sp", "-sp"},
       .type = kFlag,
       .group = group,
       .commands = LaidOutCommands(),
       .fallback = "false",
       .help = "share the rows out among the tp ranks wherever these do not share weights"},
      {.name = "enable-expert-parallel",
       .aliases = {},
       .type = kFlag,
       .group = group,
       .commands = LaidOutCommands(),
       .fallback = "false",
       .help = "deal whole experts to all ranks of a stage, instead of a part of each to every rank"},
      ExpertOption("expert-parallel-size", {"ep-size", "ep", "-ep"},
                   "all ranks of a stage with --enable-expert-parallel, else 1",
                   "places that the experts of a layer are dealt to, over replicas too"),
      ExpertOption("expert-tensor-parallel-size", {"etp-size", "etp", "-etp"},
                   "1 with expert parallelism, else the tp size", "ranks that share each expert's weights"),
      {.name = "all2all-backend",
       .aliases = {"moe-a2a-backend"},
       .type = kChoice,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "HOW",
       .fallback = "auto",
       .auto_means = "hierarchical when the ranks that share the experts out span nodes",
       .choices = {"auto", "flat", "hierarchical"},
       .help = "how rows reach experts: flat (to each rank that has one) or hierarchical (once to each "
               "node, and on inside)"},
      {.name = "expert-placement",
       .aliases = {"init-expert-location"},
       .type = kText,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "FILE",
       .help = "JSON that says which place (from 0, of the ep) each expert of a layer has: "
               "{\"1\": [0, 3, ...], ...}, layers from 1; others are dealt in order"},
      {.name = "mesh",
       .type = kText,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "SIZES",
       .help = "all sizes in the order in which ranks count, the fastest first: tp2,cp2,dp4,pp2; "
               "instead of -tp, -cp, -dp and -pp, which count in the order tp, cp, dp, pp"},
      {.name = "cp-comm-type",
       .type = kChoice,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "FORM",
       .fallback = "p2p",
       .choices = {"p2p", "all_gather", "a2a", "a2a+p2p", "striped"},
       .help = "how the keys and values of a prompt meet its queries: p2p (they go round the cp ranks), all_gather (to all "
               "at once), a2a (every rank gets some heads), a2a+p2p (heads inside a node, round across nodes), striped "
               "(p2p with rows dealt one by one)"},
      {.name = "cp-kv-cache-interleave-size",
       .type = kInteger,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "N",
       .fallback = "auto",
       .auto_means = "--attention-chunk",
       .min = 1,
       .max = 1 << 20,
       .help = "positions after which the keys and values of new tokens go to the next cp rank"},
      {.name = "hierarchical-context-parallel-sizes",
       .type = kIntegers,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "U,R",
       .min = 1,
       .max = 65536,
       .help = "a2a+p2p: U ranks share the heads out, R of these groups make a ring; U times R is the cp size (default: "
               "the largest U that fits in a node and divides the query heads of a tp rank)"},
      {.name = "record-routes",
       .type = kText,
       .group = group,
       .commands = Commands(kLogits),
       .metavar = "FILE",
       .help = "write as JSON which experts every token went to, by layer (from 1)"},
      {.name = "replay-routes",
       .type = kText,
       .group = group,
       .commands = Commands(kLogits),
       .metavar = "FILE",
       .help = "take the experts from such a file instead of choosing them"},
      {.name = "cluster",
       .type = kText,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "FILE",
       .help = "cluster.toml: nodes, ranks on each, links; instead of --nodes"},
      {.name = "comm-timeout",
       .type = kReal,
       .group = group,
       .commands = kRunning | Commands(kVerify),
       .metavar = "SECONDS",
       .fallback = "30",
       .min = 0.1,
       .max = 86400,
       .help = "how long a rank waits for one that makes no progress; then the instance ends"},
      {.name = "stats",
       .type = kText,
       .group = group,
       .commands = kRunning,
       .metavar = "FILE",
       .help = "write as JSON what the ranks sent, what was predicted, and how they spent the time"},
      {.name = "dry-run",
       .type = kFlag,
       .group = group,
       .commands = kRunning,
       .fallback = "false",
       .help = "print the memory that each rank will take, and load nothing"},
      {.name = "layouts",
       .type = kText,
       .group = group,
       .commands = Commands(kVerify),
       .metavar = "all|covering|FILE",
       .fallback = "covering",
       .help = "layouts to compare with one rank: all, a set in which every two sizes of two axes "
               "meet, or a file with one layout a line, as flags"},
      {.name = "max-ranks",
       .type = kInteger,
       .group = group,
       .commands = Commands(kVerify),
       .metavar = "N",
       .fallback = "32",
       .min = 1,
       .max = 4096,
       .help = "leave out layouts of more ranks"},
      {.name = "decode-steps",
       .type = kInteger,
       .group = group,
       .commands = Commands(kVerify),
       .metavar = "N",
       .fallback = "32",
       .min = 0,
       .max = 4096,
       .help = "steps of each prompt after its prefill"},
  };
}

}  // namespace sixfold::apps

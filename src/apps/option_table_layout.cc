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

}  // namespace

std::vector<OptionSpec> LayoutOptions() {
  constexpr OptionGroup group = OptionGroup::kLayout;
  return {
      AxisOption("tensor-parallel-size", {"tp-size", "tp", "-tp"},
                 "ranks that share every layer's weights"),
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
      {.name = "mesh",
       .type = kText,
       .group = group,
       .commands = LaidOutCommands(),
       .metavar = "SIZES",
       .help = "all sizes in the order in which ranks count, the fastest first: tp2,dp4,pp2; "
               "instead of -tp, -dp and -pp, which count in the order tp, dp, pp"},
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
       .help = "steps after the prefill"},
  };
}

}  // namespace sixfold::apps

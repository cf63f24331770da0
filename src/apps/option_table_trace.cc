// What `sixfold trace` has alone.
#include "apps/option_sources.h"

namespace sixfold::apps {
namespace {

using enum OptionType;

OptionSpec TraceFlag(std::string_view name, std::string_view help) {
  return {.name = name, .type = kFlag, .commands = Commands(CommandId::kTrace), .fallback = "false", .help = help};
}

}  // namespace

std::vector<OptionSpec> TraceOptions() {
  constexpr CommandSet commands = Commands(CommandId::kTrace);
  return {
      {.name = "token",
       .type = kInteger,
       .commands = commands,
       .metavar = "N",
       .fallback = "auto",
       .auto_means = "none",
       .min = 0,
       .max = 1e9,
       .help = "position of the token to follow, from 0"},
      TraceFlag("last", "follow the last token of the prompt, whose row becomes the logits; beside --token, or alone"),
      {.name = "replica",
       .type = kInteger,
       .commands = commands,
       .metavar = "D",
       .fallback = "0",
       .min = 0,
       .max = 65535,
       .help = "which of the dp replicas gets the prompt"},
      {.name = "experts",
       .type = kText,
       .commands = commands,
       .metavar = "FILE",
       .help = "JSON with the experts that the token goes to, by layer from 1: {\"1\": [5, 27], ...}; "
               "the gate chooses for other layers and tokens"},
      TraceFlag("decode", "also compute the first new token, and tell how its queries meet the keys of --token"),
      {.name = "compare",
       .type = kText,
       .commands = commands,
       .metavar = "MESH",
       .help = "run the same prompt on a second mesh too, and put the figures side by side"},
      TraceFlag("perfetto", "print the run as a timeline for ui.perfetto.dev, with arrows along the token's way"),
      TraceFlag("svg", "print the journey as a picture"),
  };
}

}  // namespace sixfold::apps

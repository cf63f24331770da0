// The quantities of `sixfold bytes`, apart from the rest of the table.
#include "apps/option_sources.h"

namespace sixfold::apps {
namespace {

using enum OptionType;

OptionSpec Quantity(std::string_view name, double max, std::string_view help,
                    std::string_view fallback = "auto") {
  return {.name = name,
          .type = kInteger,
          .commands = Commands(CommandId::kByteFormulas),
          .metavar = "N",
          .fallback = fallback,
          .auto_means = fallback == "auto" ? "none" : "",
          .min = 1,
          .max = max,
          .help = help};
}

}  // namespace

std::vector<OptionSpec> BytesOptions() {
  OptionSpec combine =
      Quantity("combine-dtype-bytes", 8, "ep: bytes of an element on the way back");
  combine.auto_means = "--dtype-bytes";
  OptionSpec heads = Quantity("heads", 65536, "cp: query heads");
  heads.auto_means = "--kv-heads";
  OptionSpec rope = Quantity("rope-dim", 65536, "handoff: width of MLA's rotated part", "64");
  rope.min = 0;
  OptionSpec nodes = Quantity("nodes", 65536, "equal nodes that the ranks stand on", "1");
  nodes.aliases = {"nnodes"};
  OptionSpec laid_out_nodes = nodes;  // of a model's layout, beside the options of that
  laid_out_nodes.group = OptionGroup::kLayout;
  laid_out_nodes.commands = LaidOutCommands();
  return {
      Quantity("ranks", 65536, "ranks that share the work; pp: stages"),
      nodes,
      laid_out_nodes,
      Quantity("top-k", 1 << 20, "ep: experts that a token takes"),
      Quantity("seq", 1e9, "tokens of a sequence"),
      Quantity("batch", 1e6, "sequences", "1"),
      Quantity("hidden", 1 << 24, "width of an activation"),
      Quantity("layers", 65536, "layers to add up; ep: those with experts", "1"),
      Quantity("dtype-bytes", 8, "bytes of an element", "2"),
      combine,
      Quantity("experts", 1 << 20, "ep: experts of a layer, for what reaches distinct nodes"),
      heads,
      Quantity("kv-heads", 65536, "cp, handoff: K/V heads"),
      Quantity("head-dim", 65536, "cp, handoff: width of a head"),
      Quantity("mla-rank", 1 << 20, "handoff: width of MLA's compressed row, instead of heads"),
      rope,
      {.name = "form",
       .type = kChoice,
       .commands = Commands(CommandId::kByteFormulas),
       .metavar = "FORM",
       .fallback = "all",
       .choices = {"all", "all_gather", "p2p", "striped", "a2a", "a2a+p2p", "pass_q"},
       .help = "cp: all_gather, p2p, striped, a2a, a2a+p2p, pass_q or all"},
      Quantity("ulysses-ranks", 65536, "cp: ranks of an all-to-all group in a2a+p2p"),
      Quantity("query-tokens", 1e9, "cp: new tokens whose queries move in pass_q", "1"),
      {.name = "bandwidth-gb-s",
       .type = kReal,
       .commands = Commands(CommandId::kByteFormulas),
       .metavar = "X",
       .fallback = "auto",
       .auto_means = "none",
       .min = 1e-6,
       .max = 1e6,
       .help = "also print milliseconds, at 1e9·X bytes a second"},
      {.name = "fixed-ms",
       .type = kReal,
       .commands = Commands(CommandId::kByteFormulas),
       .metavar = "MS",
       .fallback = "0",
       .min = 0,
       .max = 1e6,
       .help = "fixed part of that time"},
  };
}

}  // namespace sixfold::apps

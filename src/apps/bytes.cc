// sixfold bytes: the formulas of how parallel execution moves bytes, for people with a calculator
// in mind. Needs no model.
#include <fmt/format.h>

#include <algorithm>

#include "apps/bytes_report.h"
#include "apps/commands.h"
#include "base/nearest.h"
#include "apps/output.h"

namespace sixfold::apps {
namespace {

struct BytesMode {
  std::string_view name;
  std::vector<std::string_view> required, optional;
  std::string_view example;
  Result<BytesReport> (*report)(const Options&);
};

// Taken by every mode.
constexpr std::string_view kCommon[] = {"json", "config", "bandwidth-gb-s", "fixed-ms"};

std::vector<BytesMode> Modes() {
  return {
      {"tp",
       {"ranks", "seq", "hidden"},
       {"batch", "layers", "dtype-bytes"},
       "--ranks 8 --seq 4096 --hidden 8192",
       TpBytesReport},
      {"sp",
       {"ranks", "seq", "hidden"},
       {"batch", "layers", "dtype-bytes"},
       "--ranks 8 --seq 4096 --hidden 8192",
       SpBytesReport},
      {"cp",
       {"ranks", "seq", "kv-heads", "head-dim"},
       {"heads", "batch", "layers", "dtype-bytes", "form", "ulysses-ranks", "query-tokens"},
       "--ranks 4 --seq 131072 --heads 32 --kv-heads 8 --head-dim 128",
       CpBytesReport},
      {"ep",
       {"ranks", "seq", "hidden", "top-k"},
       {"nodes", "experts", "batch", "layers", "dtype-bytes", "combine-dtype-bytes"},
       "--ranks 8 --seq 4096 --hidden 8192 --top-k 2",
       EpBytesReport},
      {"pp",
       {"ranks", "seq", "hidden"},
       {"batch", "dtype-bytes"},
       "--ranks 4 --seq 4096 --hidden 8192",
       PpBytesReport},
      {"handoff",
       {"seq"},
       {"kv-heads", "head-dim", "mla-rank", "rope-dim", "batch", "layers", "dtype-bytes"},
       "--seq 2048 --layers 80 --kv-heads 8 --head-dim 128",
       HandoffBytesReport},
  };
}

Status WhatToType(const BytesMode& mode, const std::string& what) {
  return InvalidArgument(
      fmt::format("{}; for example: sixfold bytes {} {}", what, mode.name, mode.example));
}

bool Has(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A flag of another mode is a slip; a variable or a line of the file may serve several.
Status CheckFlags(const BytesMode& mode, const Options& options) {
  std::string missing;
  for (const std::string_view name : mode.required) {
    if (!options.MaybeInteger(name))
      missing += fmt::format("{}--{}", missing.empty() ? "" : ", ", name);
  }
  if (!missing.empty()) return WhatToType(mode, fmt::format("{} needs {}", mode.name, missing));
  for (const OptionSpec& spec : OptionTable()) {
    if ((spec.commands & Commands(CommandId::kByteFormulas)) == 0) continue;
    if (options.Get(spec.name).origin.kind != Origin::Kind::kFlag) continue;
    if (Has(mode.required, spec.name) || Has(mode.optional, spec.name)) continue;
    if (std::find(std::begin(kCommon), std::end(kCommon), spec.name) != std::end(kCommon)) continue;
    return WhatToType(mode, fmt::format("{} does not read --{}", mode.name, spec.name));
  }
  return OkStatus();
}

BytesPrinting PrintingOf(const BytesMode& mode, const Options& options) {
  BytesPrinting printing{.mode = std::string(mode.name),
                         .bandwidth_gb_s = options.MaybeReal("bandwidth-gb-s"),
                         .fixed_ms = options.MaybeReal("fixed-ms").value_or(0)};
  for (const auto* names : {&mode.required, &mode.optional}) {
    for (const std::string_view name : *names) {
      if (name == "form") {
        printing.inputs.emplace_back(name, options.Text("form"));
      } else if (const auto value = options.MaybeInteger(name)) {
        printing.inputs.emplace_back(name, *value);
      }
    }
  }
  return printing;
}

}  // namespace

Status RunBytes(const Options& options) {
  const std::vector<BytesMode> modes = Modes();
  const std::string& name = options.arguments().front();
  std::vector<std::string> names;
  for (const BytesMode& mode : modes) names.emplace_back(mode.name);
  const auto mode =
      std::find_if(modes.begin(), modes.end(), [&](const BytesMode& m) { return m.name == name; });
  if (mode == modes.end()) {
    return InvalidArgument(fmt::format("expected one of {}, got '{}'{}", fmt::join(names, ", "),
                                       name, DidYouMean(name, names)));
  }
  SF_RETURN_IF_ERROR(CheckFlags(*mode, options));
  Result<BytesReport> report = mode->report(options);
  if (!report.ok()) return WhatToType(*mode, report.status().message());
  SF_RETURN_IF_ERROR(CheckBytesReport(*report));
  const BytesPrinting printing = PrintingOf(*mode, options);
  return Print(options.Flag("json") ? BytesReportJson(*report, printing)
                                    : BytesReportText(*report, printing));
}

}  // namespace sixfold::apps

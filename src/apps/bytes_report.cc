#include "apps/bytes_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/output.h"
#include "mesh/formulas.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;
using Kind = BytesRow::Kind;

// Columns that `text` takes: characters of UTF-8, all of them one wide here.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string Left(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, Width(text)), ' ');
}

std::string Right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, Width(text)), ' ') + text;
}

double Real(const BytesRow& row) {
  return std::visit([](auto value) { return static_cast<double>(value); }, row.value);
}

// "112 MiB", as the seed documents count.
std::string BinaryText(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string ExactText(const BytesRow& row) {
  if (const auto* exact = std::get_if<int64_t>(&row.value)) return CountText(*exact);
  const double value = std::get<double>(row.value);
  if (row.kind == Kind::kCount) return fmt::format("{:.6g}", value);
  if (std::fabs(value) >= 9e18) return fmt::format("{:.6g}", value);
  return CountText(std::llround(value));
}

std::optional<double> Ms(const BytesRow& row, const BytesPrinting& printing) {
  if (!printing.bandwidth_gb_s || row.kind != Kind::kTimed) return std::nullopt;
  return printing.fixed_ms + Real(row) / (*printing.bandwidth_gb_s * 1e6);
}

ordered_json Number(const BytesRow& row) {
  if (const auto* exact = std::get_if<int64_t>(&row.value)) return *exact;
  const double value = std::get<double>(row.value);
  if (value == std::floor(value) && std::fabs(value) < 9e15) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

Status CheckBytesReport(const BytesReport& report) {
  for (const BytesRow& row : report.rows) {
    const auto* exact = std::get_if<int64_t>(&row.value);
    if (exact != nullptr && *exact == formulas::kBytesMax) {
      return InvalidArgument(fmt::format("{} = {} is beyond 2^63 bytes; give smaller numbers",
                                         row.formula, row.filled));
    }
  }
  return OkStatus();
}

std::string BytesReportText(const BytesReport& report, const BytesPrinting& printing) {
  std::vector<std::vector<std::string>> lines = {{"", "formula", "", "bytes", ""}};
  if (printing.bandwidth_gb_s) lines[0].emplace_back("ms");
  for (const BytesRow& row : report.rows) {
    const bool bytes = row.kind != Kind::kCount;
    lines.push_back({row.label, row.formula, "= " + row.filled, ExactText(row),
                     bytes ? BinaryText(Real(row)) : ""});
    if (printing.bandwidth_gb_s) {
      const auto ms = Ms(row, printing);
      lines.back().push_back(ms ? fmt::format("{:.4g}", *ms) : "");
    }
  }
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], Width(line[i]));
  }
  std::string text = report.title + "\n\n";
  for (const auto& line : lines) {
    std::string out;
    for (size_t i = 0; i < line.size(); ++i)
      out += (i == 0 ? "" : "  ") + (i < 3 ? Left(line[i], widths[i]) : Right(line[i], widths[i]));
    text += out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
  }
  if (!report.notes.empty()) text += "\n";
  for (const std::string& note : report.notes) text += Wrapped(note);
  return text;
}

std::string BytesReportJson(const BytesReport& report, const BytesPrinting& printing) {
  ordered_json out = {{"mode", printing.mode}};
  ordered_json inputs = ordered_json::object(), bytes = inputs, counts = inputs, ms = inputs;
  ordered_json texts = inputs;
  for (const auto& [name, value] : printing.inputs) {
    std::string key = name;
    std::replace(key.begin(), key.end(), '-', '_');
    std::visit([&](const auto& v) { inputs[key] = v; }, value);
  }
  for (const BytesRow& row : report.rows) {
    (row.kind == Kind::kCount ? counts : bytes)[row.key] = Number(row);
    texts[row.key] = row.formula + " = " + row.filled;
    if (const auto time = Ms(row, printing)) ms[row.key] = *time;
  }
  out["inputs"] = std::move(inputs);
  out["bytes"] = std::move(bytes);
  out["counts"] = std::move(counts);
  if (printing.bandwidth_gb_s) {
    out["bandwidth_gb_s"] = *printing.bandwidth_gb_s;
    out["fixed_ms"] = printing.fixed_ms;
    out["ms"] = std::move(ms);
  }
  out["formulas"] = std::move(texts);
  out["notes"] = report.notes;
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sixfold::apps

// What `sixfold bytes` answers: formulas with their numbers, as a table or as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "apps/options.h"
#include "base/status.h"

namespace sixfold::apps {

struct BytesRow {
  enum class Kind : uint8_t {
    kBytes,
    kTimed,  // bytes that one rank, or one message, sends: with a bandwidth they take a time
    kCount,  // no bytes: messages, shares, distinct nodes
  };
  std::string key;                      // snake_case; scripts rely on it
  std::string label;                    // for people
  std::string formula;                  // "(p-1)/p·S"
  std::string filled;                   // "7/8·67108864"
  std::variant<int64_t, double> value;  // double: an expectation
  Kind kind = Kind::kBytes;
};

struct BytesReport {
  std::string title;
  std::vector<BytesRow> rows;
  std::vector<std::string> notes;
};

// How to print it: `inputs` are (name, value) pairs that the mode read.
struct BytesPrinting {
  std::string mode;
  std::vector<std::pair<std::string, std::variant<int64_t, std::string>>> inputs;
  std::optional<double> bandwidth_gb_s;
  double fixed_ms = 0;
};
// kInvalidArgument when a number is beyond int64.
Status CheckBytesReport(const BytesReport& report);
std::string BytesReportText(const BytesReport& report, const BytesPrinting& printing);
std::string BytesReportJson(const BytesReport& report, const BytesPrinting& printing);

// The modes. Required options are there (bytes.cc); kInvalidArgument for numbers that do not go
// together.
Result<BytesReport> TpBytesReport(const Options& options);
Result<BytesReport> SpBytesReport(const Options& options);
Result<BytesReport> CpBytesReport(const Options& options);
Result<BytesReport> EpBytesReport(const Options& options);
Result<BytesReport> PpBytesReport(const Options& options);
Result<BytesReport> HandoffBytesReport(const Options& options);

}  // namespace sixfold::apps

// The log of `sixfold serve`: lines on stderr, written by a thread of its own (spdlog).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/options.h"
#include "base/log.h"

namespace sixfold::apps {

enum class LogFormat : uint8_t { kText, kJson };

struct LogOptions {
  std::optional<LogLevel> level = LogLevel::kInfo;  // nullopt: nothing is logged
  LogFormat format = LogFormat::kText;
  size_t queue_lines_max = 1024;  // waiting for a slow reader; beyond it the oldest are dropped
  int fd = 2;
};

// Time (UTC, ISO 8601, milliseconds), level, words and values a line; with kJson one object a line.
// A reader that does not read costs lines, never an answer: they are counted in the first line that
// goes out again. The destructor gives what waits a second.
std::unique_ptr<Log> OpenLog(const LogOptions& options);

// --log-level and --log-format.
LogOptions LogOptionsFrom(const Options& options);

// One line at once, before there is a log or after it. Gives up where nobody reads.
void WriteLogLine(const LogOptions& options, const LogLine& line);

}  // namespace sixfold::apps

// Where a long-running command tells what happens. An interface that is handed down: only apps/
// knows how lines look and where they go.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sixfold {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

struct LogField {
  std::string name;  // of the program's own: letters and '_'
  // Texts may come from anybody: whoever writes the line escapes and shortens them.
  std::variant<int64_t, double, bool, std::string> value;
};

struct LogLine {
  LogLevel level = LogLevel::kInfo;
  std::string event;    // one word for programs: "request"
  std::string message;  // for people, in the program's own words; "": the event says it all
  std::vector<LogField> fields;
};

// Thread rule: any thread. Write never waits: a line for which there is no room is dropped, and
// counted in a later one.
class Log {
 public:
  virtual ~Log() = default;
  virtual bool Takes(LogLevel level) const = 0;
  virtual void Write(const LogLine& line) = 0;
};

// What `make` returns as a line; where there is no memory for it the line is lost and nothing else.
template <typename MakeLine>
void WriteOrLose(Log& log, MakeLine make) noexcept {
  try {
    log.Write(make());
  } catch (const std::exception&) {
  }
}

// Takes nothing.
class NoLog final : public Log {
 public:
  bool Takes(LogLevel) const override { return false; }
  void Write(const LogLine&) override {}
};

}  // namespace sixfold

// A log that keeps its lines, for tests. Thread rule: any thread.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace sixfold {

class LogRecorder final : public Log {
 public:
  bool Takes(LogLevel) const override { return true; }
  void Write(const LogLine& line) override {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }

  std::vector<LogLine> Of(const std::string& event) const {
    const std::lock_guard lock(mutex_);
    std::vector<LogLine> found;
    for (const LogLine& line : lines_) {
      if (line.event == event) found.push_back(line);
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<LogLine> lines_;
};

// The field of a line; nullopt when it has none of the name or of the type.
template <typename T>
std::optional<T> FieldOf(const LogLine& line, const std::string& name) {
  for (const LogField& field : line.fields) {
    if (field.name != name) continue;
    if (const T* value = std::get_if<T>(&field.value)) return *value;
  }
  return std::nullopt;
}

}  // namespace sixfold

// What the program prints: answers on stdout, progress and remarks on stderr.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sixfold::apps {

// All of `text` to stdout, at once. A reader that went away is kCancelled (nothing is wrong, nobody
// listens); other failures, such as a full disk, are kInternal.
Status Print(std::string_view text);
// A line on stderr; failures are ignored.
void Remark(std::string_view line);

bool StdinIsTerminal();
bool StdoutIsTerminal();
// All of stdin. kInvalidArgument above `bytes_max`, naming it.
Result<std::string> ReadStdin(size_t bytes_max);
// A whole file, kInvalidFile when it cannot be read or is larger than `bytes_max`; "-" is stdin.
Result<std::string> ReadTextFile(const std::string& path, size_t bytes_max);

// kInvalidArgument when the file cannot be written.
Status WriteTextFile(const std::string& path, std::string_view text);

// For the shell, in single quotes.
std::string ShellQuoted(std::string_view text);
std::string BytesText(double bytes);   // "98.4 MB"
std::string CountText(int64_t count);  // "1,234,567"

// A line "what  42 %" on stderr that rewrites itself. Only where stderr is a terminal and it is
// wanted; elsewhere silent. Thread rule: one thread.
class Progress {
 public:
  enum class Mode : uint8_t { kShown, kQuiet };
  Progress(std::string what, Mode mode);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void Update(double done, std::string_view note = {});

 private:
  std::string what_;
  bool shown_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace sixfold::apps

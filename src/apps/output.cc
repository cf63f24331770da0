#include "apps/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace sixfold::apps {
namespace {

constexpr int kReaderMs = 2000;  // what a reader of stderr may take before a remark is left out

// 0, or the errno of the failure.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// 0, or the errno of the failure; EFBIG beyond bytes_max.
int ReadAll(int fd, size_t bytes_max, std::string* text) {
  char chunk[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return 0;
    if (text->size() + static_cast<size_t>(got) > bytes_max) return EFBIG;
    text->append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace

Status Print(std::string_view text) {
  const int error = WriteAll(STDOUT_FILENO, text);
  if (error == 0) return OkStatus();
  if (error == EPIPE) return {StatusCode::kCancelled, "stdout was closed"};
  return Internal(std::string("cannot write to stdout: ") + std::strerror(error));
}

void Remark(std::string_view line) {
  // Nobody reads: a pipe that stays full must not keep the program from its end.
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&ready, 1, kReaderMs) == 0) return;
  WriteAll(STDERR_FILENO, std::string(line) + "\n");
}

bool StdinIsTerminal() { return ::isatty(STDIN_FILENO) == 1; }
bool StdoutIsTerminal() { return ::isatty(STDOUT_FILENO) == 1; }

Result<std::string> ReadStdin(size_t bytes_max) {
  std::string text;
  const int error = ReadAll(STDIN_FILENO, bytes_max, &text);
  if (error == EFBIG)
    return InvalidArgument("stdin holds more than " + BytesText(static_cast<double>(bytes_max)));
  if (error != 0) return InvalidArgument(std::string("cannot read stdin: ") + std::strerror(error));
  return text;
}

Result<std::string> ReadTextFile(const std::string& path, size_t bytes_max) {
  if (path == "-") return ReadStdin(bytes_max);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return InvalidFile(path + ": " + std::strerror(errno));
  std::string text;
  const int error = ReadAll(fd, bytes_max, &text);
  ::close(fd);
  if (error == EFBIG)
    return InvalidFile(path + ": larger than " + BytesText(static_cast<double>(bytes_max)));
  if (error != 0) return InvalidFile(path + ": " + std::strerror(error));
  return text;
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file.good()) return OkStatus();
  return InvalidArgument("cannot write " + path + ": " + std::strerror(errno));
}

std::string ShellQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string BytesText(double bytes) {
  if (bytes < 1000) return fmt::format("{:.0f} B", bytes);
  const char* unit = "";
  for (const char* next : {"kB", "MB", "GB", "TB", "PB", "EB"}) {
    if (bytes < 999.95 && *unit != '\0') break;
    bytes /= 1000;
    unit = next;
  }
  return fmt::format("{:.1f} {}", bytes, unit);
}

std::string CountText(int64_t count) {
  std::string text = std::to_string(count);
  const size_t first = text[0] == '-' ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

Progress::Progress(std::string what, Mode mode)
    : what_(std::move(what)), shown_(mode == Mode::kShown && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) WriteAll(STDERR_FILENO, "\r\x1b[K");
}

void Progress::Update(double done, std::string_view note) {
  if (!shown_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const double percent = std::clamp(done * 100, 0.0, 100.0);
  WriteAll(STDERR_FILENO,
           fmt::format("\r\x1b[K{} {:3.0f} %{}{}", what_, percent, note.empty() ? "" : "  ", note));
}

}  // namespace sixfold::apps

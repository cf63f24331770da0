#include "apps/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

namespace sixfold::apps {
namespace {

using Json = nlohmann::json;
using ::testing::MatchesRegex;

// Both ends of a pipe or a socket, and what a reader gets of it.
class Wire {
 public:
  enum class Kind { kPipe, kSocket };
  explicit Wire(Kind kind = Kind::kPipe) {
    EXPECT_EQ(kind == Kind::kPipe ? ::pipe2(ends_, O_CLOEXEC)
                                  : ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_),
              0);
  }
  ~Wire() {
    CloseRead();
    CloseWrite();
  }
  int write_end() const { return ends_[1]; }
  int read_end() const { return ends_[0]; }
  void CloseWrite() { Close(&ends_[1]); }
  void CloseRead() { Close(&ends_[0]); }
  std::string ReadSome() const {
    char bytes[1 << 16];
    const ssize_t got = ::read(ends_[0], bytes, sizeof bytes);
    return got > 0 ? std::string(bytes, static_cast<size_t>(got)) : "";
  }
  // Everything up to the end, after the write end is closed.
  std::string ReadRest() const {
    std::string all;
    for (std::string some = ReadSome(); !some.empty(); some = ReadSome()) all += some;
    return all;
  }

 private:
  static void Close(int* fd) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
  int ends_[2] = {-1, -1};
};

TEST(Log, LinesHaveTimeLevelAndOrder) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    Wire wire;
    {
      const auto log =
          OpenLog({.level = LogLevel::kInfo, .format = format, .fd = wire.write_end()});
      EXPECT_FALSE(log->Takes(LogLevel::kDebug));
      log->Write({.level = LogLevel::kDebug, .event = "hidden"});
      log->Write({.event = "request", .fields = {{"status", int64_t{200}}}});
      log->Write({.level = LogLevel::kError, .event = "failure", .message = "gone"});
    }
    wire.CloseWrite();
    std::istringstream lines(wire.ReadRest());
    std::string first, second, third;
    std::getline(lines, first);
    std::getline(lines, second);
    EXPECT_FALSE(std::getline(lines, third)) << third;
    const std::string time = "20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z";
    if (format == LogFormat::kText) {
      EXPECT_THAT(first, MatchesRegex(time + " info    request status=200"));
      EXPECT_THAT(second, MatchesRegex(time + " error   gone"));
      continue;
    }
    const Json one = Json::parse(first), two = Json::parse(second);
    EXPECT_THAT(one["time"].get<std::string>(), MatchesRegex(time));
    EXPECT_EQ(one["level"], "info");
    EXPECT_EQ(one["event"], "request");
    EXPECT_EQ(one["status"], 200);
    EXPECT_EQ(two["level"], "error");
    EXPECT_EQ(two["message"], "gone");
  }
}

// A full pipe keeps nobody waiting; the lines for which there was no room are counted, none is lost
// without a word, and no line is torn.
TEST(Log, AReaderThatDoesNotReadCostsLinesAndNothingElse) {
  constexpr int64_t kLines = 4000;
  for (const auto kind : {Wire::Kind::kPipe, Wire::Kind::kSocket}) {
    Wire wire(kind);
    int64_t seen = 0, dropped = 0;
    bool last_seen = false;
    std::string text;
    {
      const auto log =
          OpenLog({.format = LogFormat::kJson, .queue_lines_max = 64, .fd = wire.write_end()});
      for (int64_t i = 0; i < kLines; ++i)
        log->Write({.event = "line", .fields = {{"i", i}, {"long", std::string(200, 'x')}}});
      // Now somebody reads; a last line comes through.
      log->Write({.event = "last"});
      while (text.find("\"last\"") == std::string::npos) text += wire.ReadSome();
    }
    wire.CloseWrite();
    text += wire.ReadRest();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const Json parsed = Json::parse(line);
      seen += parsed["event"] == "line";
      last_seen = last_seen || parsed["event"] == "last";
      if (parsed["event"] == "log_dropped") dropped += parsed["lines"].get<int64_t>();
    }
    EXPECT_EQ(seen + dropped, kLines);
    EXPECT_GT(dropped, 0);
    EXPECT_TRUE(last_seen);
  }
}

TEST(Log, EndsWhenNobodyReads) {
  std::signal(SIGPIPE, SIG_IGN);  // as the program has it
  Wire full;
  {
    const auto log = OpenLog({.queue_lines_max = 16, .fd = full.write_end()});
    for (int i = 0; i < 2000; ++i) log->Write({.event = "line", .message = std::string(200, 'x')});
  }
  Wire gone;
  gone.CloseRead();
  const auto log = OpenLog({.fd = gone.write_end()});
  for (int i = 0; i < 100; ++i) log->Write({.event = "line"});
  WriteLogLine({.fd = gone.write_end()}, {.event = "line"});
  EXPECT_TRUE((::fcntl(full.write_end(), F_GETFL) & O_NONBLOCK) == 0)
      << "others share the descriptor";
}

TEST(Log, MayBeOff) {
  Wire wire;
  OpenLog({.level = std::nullopt, .fd = wire.write_end()})
      ->Write({.level = LogLevel::kError, .event = "x"});
  WriteLogLine({.level = LogLevel::kError, .fd = wire.write_end()}, {.event = "x"});
  wire.CloseWrite();
  EXPECT_EQ(wire.ReadRest(), "");
}

}  // namespace
}  // namespace sixfold::apps

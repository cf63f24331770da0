#include "apps/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <string>
#include <string_view>

#include "apps/log_format.h"

namespace sixfold::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLastLines{1000};  // what the end leaves a slow reader
constexpr int kPollMs = 50;

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

const char* PatternOf(LogFormat format) {
  return format == LogFormat::kJson ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v)"
                                    : "%Y-%m-%dT%H:%M:%S.%eZ %-7l %v";
}

std::string Payload(LogFormat format, const LogLine& line) {
  return format == LogFormat::kJson ? LogJson(line) : LogText(line);
}

// Writes to a descriptor without ever waiting for longer than a reader is given. Thread rule: one
// thread, Stop from any.
class PatientWriter {
 public:
  explicit PatientWriter(int fd) : fd_(fd) {
    struct stat about {};
    if (::fstat(fd, &about) != 0) return;
    socket_ = S_ISSOCK(about.st_mode);
    // The flag O_NONBLOCK belongs to the open file, which the shell and other ranks share: a pipe
    // is opened once more for it.
    if (!S_ISFIFO(about.st_mode)) return;
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    own_ = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (own_ >= 0) fd_ = own_;
  }
  ~PatientWriter() {
    if (own_ >= 0) ::close(own_);
  }
  PatientWriter(const PatientWriter&) = delete;
  PatientWriter& operator=(const PatientWriter&) = delete;

  // From now on a reader has this long for all that comes.
  void Stop(Clock::duration left) {
    deadline_.store((Clock::now() + left).time_since_epoch().count());
  }

  // False: it was dropped, or its end was.
  bool Write(std::string_view bytes) {
    if (torn_ && !Push("\n")) return false;
    torn_ = false;
    const bool all = Push(bytes);
    torn_ = !all && torn_;
    return all;
  }

 private:
  bool Expired() const { return Clock::now().time_since_epoch().count() >= deadline_.load(); }

  bool Push(std::string_view bytes) {
    while (!bytes.empty()) {
      pollfd ready{fd_, POLLOUT, 0};
      const int polled = ::poll(&ready, 1, kPollMs);
      if (polled < 0 && errno != EINTR) return false;
      if (polled <= 0) {
        if (Expired()) return false;
        continue;
      }
      const ssize_t written =
          socket_ ? ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                  : ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && (errno == EINTR || errno == EAGAIN)) {
        if (Expired()) return false;
        continue;
      }
      if (written < 0) return false;  // nobody will ever read it
      bytes.remove_prefix(static_cast<size_t>(written));
      torn_ = true;
    }
    torn_ = false;
    return true;
  }

  int fd_;
  int own_ = -1;
  bool socket_ = false;
  bool torn_ = false;  // the last line lacks its end
  std::atomic<Clock::rep> deadline_{std::numeric_limits<Clock::rep>::max()};
};

// Thread rule: the one thread of the pool, which writes no two lines at once; Stop from any.
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit StderrSink(const LogOptions& options) : format_(options.format), writer_(options.fd) {
    set_formatter_(std::make_unique<spdlog::pattern_formatter>(PatternOf(options.format),
                                                               spdlog::pattern_time_type::utc));
  }

  // `pool` counts what its queue has dropped; it outlives the sink's last line.
  void CountDropsOf(spdlog::details::thread_pool* pool) { pool_ = pool; }
  void Stop(Clock::duration left) { writer_.Stop(left); }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto overrun = static_cast<int64_t>(pool_ == nullptr ? 0 : pool_->overrun_counter());
    if (const int64_t dropped = overrun + torn_ - told_; dropped > 0) {
      const std::string payload =
          Payload(format_, {.event = "log_dropped",
                            .message = "lines of the log were dropped: stderr was not read",
                            .fields = {{"lines", dropped}}});
      if (Emit({message.source, message.logger_name, spdlog::level::warn, payload}))
        told_ += dropped;
    }
    if (!Emit(message)) ++torn_;
  }
  void flush_() override {}

 private:
  bool Emit(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    return writer_.Write({line.data(), line.size()});
  }

  const LogFormat format_;
  PatientWriter writer_;
  spdlog::details::thread_pool* pool_ = nullptr;
  int64_t torn_ = 0, told_ = 0;
};

class SpdLog final : public Log {
 public:
  explicit SpdLog(const LogOptions& options)
      : format_(options.format),
        level_(LevelOf(*options.level)),
        sink_(std::make_shared<StderrSink>(options)),
        pool_(std::make_shared<spdlog::details::thread_pool>(options.queue_lines_max, 1)),
        logger_(std::make_shared<spdlog::async_logger>(
            "", sink_, pool_, spdlog::async_overflow_policy::overrun_oldest)) {
    sink_->CountDropsOf(pool_.get());
    logger_->set_level(level_);
    // Out of memory, say: the line is lost. spdlog's own handler would write to stderr and wait.
    logger_->set_error_handler([](const std::string&) {});
  }
  ~SpdLog() override {
    sink_->Stop(kLastLines);
    logger_.reset();
    pool_.reset();  // joins its thread
  }

  bool Takes(LogLevel level) const override { return LevelOf(level) >= level_; }
  void Write(const LogLine& line) override {
    if (!Takes(line.level)) return;
    const std::string payload = Payload(format_, line);
    logger_->log(LevelOf(line.level), spdlog::string_view_t(payload.data(), payload.size()));
  }

 private:
  const LogFormat format_;
  const spdlog::level::level_enum level_;
  const std::shared_ptr<StderrSink> sink_;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;  // spdlog's messages hold it
};

}  // namespace

LogOptions LogOptionsFrom(const Options& options) {
  LogOptions log{.format =
                     options.Text("log-format") == "json" ? LogFormat::kJson : LogFormat::kText};
  const std::string& level = options.Text("log-level");
  if (level == "off") log.level = std::nullopt;
  if (level == "debug") log.level = LogLevel::kDebug;
  if (level == "info") log.level = LogLevel::kInfo;
  if (level == "warning" || (level == "auto" && options.Flag("quiet")))
    log.level = LogLevel::kWarning;
  if (level == "error") log.level = LogLevel::kError;
  return log;
}

std::unique_ptr<Log> OpenLog(const LogOptions& options) {
  if (!options.level) return std::make_unique<NoLog>();
  return std::make_unique<SpdLog>(options);
}

void WriteLogLine(const LogOptions& options, const LogLine& line) {
  if (!options.level || line.level < *options.level) return;
  StderrSink sink(options);
  sink.Stop(kLastLines);
  const std::string payload = Payload(options.format, line);
  sink.log({spdlog::source_loc{}, "", LevelOf(line.level), payload});
}

}  // namespace sixfold::apps

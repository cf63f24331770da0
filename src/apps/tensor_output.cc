#include "apps/tensor_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace sixfold::apps {
namespace {

static_assert(std::endian::native == std::endian::little);

// Length and JSON of a header, padded so that the data begin at a multiple of 8.
std::string Header(const std::string& tensor, std::span<const int64_t> shape, uint64_t bytes) {
  nlohmann::json json;
  json[tensor] = {{"dtype", "F32"},
                  {"shape", std::vector<int64_t>(shape.begin(), shape.end())},
                  {"data_offsets", std::vector<uint64_t>{0, bytes}}};
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + text;
}

}  // namespace

Result<std::unique_ptr<TensorOutput>> TensorOutput::Create(const std::string& path,
                                                           const std::string& tensor,
                                                           std::span<const int64_t> shape) {
  uint64_t values = 1;
  for (const int64_t dimension : shape) values *= static_cast<uint64_t>(dimension);
  std::unique_ptr<TensorOutput> output(new TensorOutput());
  output->path_ = path;
  output->missing_ = values;
  struct stat existing {};
  const bool straight = ::stat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode);
  if (!straight) output->temporary_ = path + ".part" + std::to_string(::getpid());
  const std::string& target = straight ? path : output->temporary_;
  output->fd_ =
      ::open(target.c_str(), O_WRONLY | O_CLOEXEC | (straight ? 0 : O_CREAT | O_TRUNC), 0666);
  if (output->fd_ < 0) {
    output->temporary_.clear();
    return InvalidArgument("cannot write " + path + ": " + std::strerror(errno));
  }
  const std::string header = Header(tensor, shape, values * sizeof(float));
  SF_RETURN_IF_ERROR(output->Write(header.data(), header.size()));
  return output;
}

TensorOutput::~TensorOutput() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status TensorOutput::Append(std::span<const float> values) {
  SF_CHECK_LE(values.size(), missing_);
  missing_ -= values.size();
  return Write(values.data(), values.size_bytes());
}

Status TensorOutput::Commit() {
  SF_CHECK_EQ(missing_, 0u);
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) return Internal("cannot write " + path_ + ": " + std::strerror(errno));
  if (!temporary_.empty() && std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return Internal("cannot rename " + temporary_ + " to " + path_ + ": " + std::strerror(errno));
  }
  temporary_.clear();
  return OkStatus();
}

Status TensorOutput::Write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE)
      return {StatusCode::kCancelled, path_ + ": the reader went away"};
    if (written < 0) return Internal("cannot write " + path_ + ": " + std::strerror(errno));
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return OkStatus();
}

}  // namespace sixfold::apps

#include "weights/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <system_error>

#include "weights/error_text.h"
#include "weights/tensor_layout.h"

namespace sixfold {

namespace fs = std::filesystem;

namespace {

Status WriteError(const fs::path& path, const char* what, int error) {
  return InvalidArgument(path.string() + ": " + what + ": " +
                         std::generic_category().message(error));
}

Status CheckTensor(const fs::path& path, const OutputTensor& tensor) {
  const std::string prefix = path.string() + ": tensor " + Quote(tensor.name) + " ";
  if (IsBlockType(tensor.dtype)) {
    return InvalidArgument(prefix + "is " + std::string(NameOf(tensor.dtype)) +
                           ", which safetensors files do not hold");
  }
  if (tensor.name == "__metadata__")
    return InvalidArgument(prefix + "has a name that the format reserves");
  const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.has_value() || *bytes != tensor.data.size()) {
    return InvalidArgument(prefix + ShapeText(tensor.shape) + " was given " +
                           std::to_string(tensor.data.size()) + " bytes, " +
                           (bytes.has_value() ? std::to_string(*bytes) : "another number") +
                           " was expected");
  }
  return OkStatus();
}

// Wide elements first, so that each tensor is aligned to its element (the order of the reference
// writer).
std::vector<size_t> DataOrder(std::span<const OutputTensor> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return InfoOf(tensors[a].dtype).block_bytes > InfoOf(tensors[b].dtype).block_bytes;
  });
  return order;
}

// The length and the JSON, padded with spaces to a multiple of 8 bytes.
Result<std::string> Header(const fs::path& path, std::span<const OutputTensor> tensors,
                           std::span<const size_t> order,
                           const std::map<std::string, std::string>& metadata) {
  try {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    if (!metadata.empty()) json["__metadata__"] = metadata;
    uint64_t offset = 0;
    for (const size_t i : order) {
      const OutputTensor& tensor = tensors[i];
      nlohmann::ordered_json entry = nlohmann::ordered_json::object();
      entry["dtype"] = NameOf(tensor.dtype);
      entry["shape"] = tensor.shape;
      entry["data_offsets"] = {offset, offset + tensor.data.size()};
      json[tensor.name] = std::move(entry);
      offset += tensor.data.size();
    }
    std::string text = json.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    std::string header(sizeof(length), '\0');
    std::memcpy(header.data(), &length, sizeof(length));
    return header + text;
  } catch (const nlohmann::json::exception&) {
    return InvalidArgument(path.string() + ": a name or a metadata text is not UTF-8");
  }
}

Status WriteAll(const fs::path& path, int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(fd, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return WriteError(path, "cannot be written", errno);
    at += done;
    size -= static_cast<size_t>(done);
  }
  return OkStatus();
}

// Closes the file in any case.
Status WriteParts(const fs::path& path, int fd, const std::string& header,
                  std::span<const OutputTensor> tensors, std::span<const size_t> order) {
  Status status = WriteAll(path, fd, header.data(), header.size());
  for (const size_t i : order) {
    if (status.ok()) status = WriteAll(path, fd, tensors[i].data.data(), tensors[i].data.size());
  }
  if (::close(fd) != 0 && status.ok()) status = WriteError(path, "cannot be written", errno);
  return status;
}

// A new file beside `path`; its name goes to `temporary`.
Result<int> CreateBeside(const fs::path& path, fs::path* temporary) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    *temporary = path;
    *temporary += ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    const int fd = ::open(temporary->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
    if (errno != EEXIST) return WriteError(path, "cannot be written", errno);
  }
  return WriteError(path, "cannot be written, too many temporary files beside it", EEXIST);
}

}  // namespace

Status WriteSafetensors(const fs::path& path, std::span<const OutputTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  for (const OutputTensor& tensor : tensors) {
    SF_RETURN_IF_ERROR(CheckTensor(path, tensor));
    if (!names.insert(tensor.name).second) {
      return InvalidArgument(path.string() + ": tensor " + Quote(tensor.name) + " was given twice");
    }
  }
  const std::vector<size_t> order = DataOrder(tensors);
  SF_ASSIGN_OR_RETURN(const std::string header, Header(path, tensors, order, metadata));
  struct stat info = {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return WriteError(path, "cannot be written", EISDIR);
  if (exists && !S_ISREG(info.st_mode)) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return WriteError(path, "cannot be written", errno);
    return WriteParts(path, fd, header, tensors, order);
  }
  fs::path temporary;
  SF_ASSIGN_OR_RETURN(const int fd, CreateBeside(path, &temporary));
  Status status = WriteParts(path, fd, header, tensors, order);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = WriteError(path, "cannot be written", errno);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace sixfold

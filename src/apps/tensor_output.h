// A safetensors file with one f32 tensor, written as its rows come, so that it may be larger than
// memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace sixfold::apps {

// The file appears under its name complete or not at all: written beside it and renamed. A target
// that is no regular file (/dev/stdout, a pipe) is written straight. Thread rule: one thread.
class TensorOutput {
 public:
  // kInvalidArgument when the file cannot be created; the message names it.
  static Result<std::unique_ptr<TensorOutput>> Create(const std::string& path,
                                                      const std::string& tensor,
                                                      std::span<const int64_t> shape);
  ~TensorOutput();  // takes away what Commit did not finish
  TensorOutput(const TensorOutput&) = delete;
  TensorOutput& operator=(const TensorOutput&) = delete;

  // kInternal when the disk is full and the like. More values than the shape holds are a bug.
  Status Append(std::span<const float> values);
  Status Commit();  // all values must have come

 private:
  TensorOutput() = default;
  Status Write(const void* data, size_t bytes);

  std::string path_;
  std::string temporary_;  // "" when written straight
  int fd_ = -1;
  uint64_t missing_ = 0;  // values yet to come
};

}  // namespace sixfold::apps

// Safetensors files for tests from a header written by hand, so that it may lie.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sixfold {

inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out.append(header).append(data);
}

}  // namespace sixfold

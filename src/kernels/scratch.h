// Scratch memory between passes.
#pragma once

#include <cstdint>
#include <vector>

namespace sixfold {

// At least `size` elements; contents are lost when it grows. The old memory goes first: a resize would hold both while it copies,
// which the memory plan (model/memory_plan.h) does not count.
template <typename T, typename A>
void GrowTo(std::vector<T, A>& v, int64_t size) {
  if (static_cast<int64_t>(v.size()) >= size) return;
  v = std::vector<T, A>();
  v.resize(static_cast<size_t>(size));
}

}  // namespace sixfold

#include "comm/tree_sum.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/dequantize.h"

namespace sixfold {

namespace {

constexpr size_t kPlans = 8;           // o_proj and FFN cuts of one group, and some to spare
constexpr int64_t kBlockBytes = 8192;  // of a slot: a tree of 8 slots stays in the first cache

// out[i] = a[i] + b[i]; out may be a or b, element for element.
template <typename T>
void AddVectors(const std::byte* a_bytes, const std::byte* b_bytes, std::byte* out_bytes,
                int64_t count) {
  const T* a = reinterpret_cast<const T*>(a_bytes);
  const T* b = reinterpret_cast<const T*>(b_bytes);
  T* out = reinterpret_cast<T*>(out_bytes);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    T sum[16];
    for (int j = 0; j < 16; ++j) sum[j] = a[i + j] + b[i + j];
    for (int j = 0; j < 16; ++j) out[i + j] = sum[j];
  }
  for (; i < count; ++i) out[i] = a[i] + b[i];
}

using Adder = void (*)(const std::byte*, const std::byte*, std::byte*, int64_t);

// Whole numbers wrap, so they are added without sign.
Adder AdderOf(ReduceType type) {
  switch (type) {
    case ReduceType::kF32:
    case ReduceType::kBF16: return AddVectors<float>;
    case ReduceType::kF64: return AddVectors<double>;
    case ReduceType::kI32: return AddVectors<uint32_t>;
    case ReduceType::kI64: return AddVectors<uint64_t>;
  }
  return nullptr;
}

void Widen(const std::byte* bf16, std::byte* out_bytes, int64_t count) {
  const uint16_t* in = reinterpret_cast<const uint16_t*>(bf16);
  uint32_t* out = reinterpret_cast<uint32_t*>(out_bytes);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint32_t>(in[i]) << 16;
}

void Narrow(const std::byte* f32, std::byte* out_bytes, int64_t count) {
  const float* in = reinterpret_cast<const float*>(f32);
  uint16_t* out = reinterpret_cast<uint16_t*>(out_bytes);
  for (int64_t i = 0; i < count; ++i) out[i] = F32ToBF16(in[i]);
}

}  // namespace

int64_t SizeOf(ReduceType type) {
  switch (type) {
    case ReduceType::kBF16: return 2;
    case ReduceType::kF32:
    case ReduceType::kI32: return 4;
    case ReduceType::kF64:
    case ReduceType::kI64: return 8;
  }
  return 0;
}

const std::vector<TreeAdd>& TreeSum::AddsFor(const TreeCut& cut) {
  for (const Plan& plan : plans_) {
    if (plan.leaves == cut.leaves && plan.nodes == cut.nodes) return plan.adds;
  }
  Plan plan{cut.leaves, cut.nodes, AddsOf(cut)};
  if (plans_.size() < kPlans) {
    plans_.push_back(std::move(plan));
    return plans_.back().adds;
  }
  Plan& oldest = plans_[next_plan_++ % kPlans];
  oldest = std::move(plan);
  return oldest.adds;
}

void TreeSum::Add(ReduceType type, const TreeCut& cut, std::span<const std::byte* const> slots,
                  int64_t count, std::byte* out) {
  SF_CHECK_EQ(static_cast<int>(slots.size()), cut.total_nodes());
  if (count == 0) return;
  const std::vector<TreeAdd>& adds = AddsFor(cut);
  const int64_t element = SizeOf(type);
  if (adds.empty()) {
    if (out != slots[0]) std::memmove(out, slots[0], static_cast<size_t>(count * element));
    return;
  }
  const bool wide = type == ReduceType::kBF16;  // added as fp32
  const int64_t step = kBlockBytes / (wide ? 4 : element);
  block_.resize(slots.size() * kBlockBytes);
  const auto scratch = [&](int slot) { return block_.data() + slot * kBlockBytes; };
  const Adder add = AdderOf(type);
  std::vector<const std::byte*>& at = at_;
  at.resize(slots.size());
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t n = std::min(step, count - begin);
    for (size_t s = 0; s < slots.size(); ++s) {
      at[s] = slots[s] + begin * element;
      if (wide) {
        Widen(at[s], scratch(static_cast<int>(s)), n);
        at[s] = scratch(static_cast<int>(s));
      }
    }
    for (const TreeAdd& a : adds) {
      const bool last = &a == &adds.back();
      std::byte* to = last && !wide ? out + begin * element : scratch(a.into);
      add(at[a.into], at[a.from], to, n);
      at[a.into] = to;
    }
    if (wide) Narrow(scratch(adds.back().into), out + begin * element, n);
  }
}

}  // namespace sixfold

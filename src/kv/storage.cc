#include "kv/storage.h"

#include <utility>

namespace sixfold {

Result<KvStorage> KvStorage::Create(const KvGeometry& geometry, int32_t blocks) {
  KvStorage s;
  s.geometry_ = geometry;
  s.blocks_ = blocks;
  auto memory = Buffer::Allocate(static_cast<size_t>(geometry.block_bytes() * blocks), "the K/V cache");
  if (!memory.ok()) {
    return OutOfMemory(memory.status().message() + "; give less with --kv-cache-memory or --max-model-len");
  }
  s.memory_ = std::move(memory).value();
  return s;
}

KvLayerView KvStorage::Layer(int layer) {
  SF_CHECK_GE(layer, 0);
  SF_CHECK_LT(layer, geometry_.layers);
  const int64_t k_bytes = geometry_.k_page_bytes() * blocks_;
  const int64_t v_bytes = geometry_.v_page_bytes() * blocks_;
  std::byte* base = memory_.data() + layer * (k_bytes + v_bytes);
  return {.k = base, .v = geometry_.v_in_k ? base : base + k_bytes, .bf16 = geometry_.bf16,
          .kv_heads = geometry_.kv_heads, .k_dim = geometry_.k_dim, .v_dim = geometry_.v_dim,
          .v_in_k = geometry_.v_in_k};
}

}  // namespace sixfold

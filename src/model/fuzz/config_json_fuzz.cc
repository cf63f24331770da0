// Any bytes as config.json or generation_config.json: an error or a config whose sizes are within bounds.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = sixfold::ConfigFromHfText(text, "config.json");
  if (config.ok()) {
    SF_CHECK_GE(config->heads, config->kv_heads);
    SF_CHECK_EQ(config->heads % config->kv_heads, 0);
    SF_CHECK_EQ(config->rotary_dim() % 2, 0);
    SF_CHECK_LE(config->layers.size(), 4096u);
    SF_CHECK_LE(config->moe.top_k, config->moe.experts);
  }
  const auto defaults = sixfold::GenerationDefaultsFromHfText(text, "generation_config.json");
  SF_CHECK_LE(defaults.eos_ids.size(), 4096u);
  return 0;
}

// Pieces of config reading that several families share.
#pragma once

#include <vector>

#include "model/arch/fields.h"
#include "model/config.h"

namespace sixfold {

// Sizes that every HF decoder has: hidden, layers, heads, head_dim (default: hidden / heads), vocabulary, eps.
Status ReadHfCommon(Fields& fields, ModelConfig* config);
// rope_theta + rope_scaling (transformers 4) or rope_parameters (5).
Status ReadHfRope(Fields& fields, double default_theta, ModelConfig* config);
// Full attention everywhere, or `window` in each layer for which `slides(layer)` holds.
void SetWindow(ModelConfig* config, int64_t window);
// sliding_window with use_sliding_window, max_window_layers and layer_types, as Qwen2 and Qwen3 read them.
Status ReadQwenWindow(Fields& fields, ModelConfig* config);
// layer_types: which layers slide, or nothing where the field is absent. Other types than full and sliding are errors.
Result<std::vector<bool>> ReadLayerTypes(Fields& fields, const ModelConfig& config);
// num_experts_per_tok and the number of experts under any of its names.
Status ReadHfExperts(Fields& fields, std::string_view intermediate_key, ModelConfig* config);
// decoder_sparse_step and mlp_only_layers.
Status ReadSparseLayers(Fields& fields, ModelConfig* config);

Status ReadGgufCommon(Fields& fields, ModelConfig* config);
Status ReadGgufExperts(Fields& fields, ModelConfig* config);

}  // namespace sixfold

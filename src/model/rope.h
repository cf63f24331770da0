// Rotary position embedding: frequencies and their scalings, and the tables of one step.
// Su et al. 2021 (arXiv:2104.09864); YaRN: Peng et al. 2023 (arXiv:2309.00071); llama3 scaling as its checkpoints use it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace sixfold {

// What scores are multiplied by: query size ^ -1/2, under latent attention times the square of yarn's magnitude for
// mscale_all_dim.
float AttentionScale(const ModelConfig& config);

// [head_dim / 2] angles per position, in fp32 as the reference rounds them.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int head_dim);
// What cos and sin are multiplied by (1 unless yarn).
float RotationMagnitude(const RopeConfig& rope);

// cos and sin of the given positions: [positions][head_dim / 2], times the magnitude.
void FillRotation(std::span<const float> inverse_frequencies, float magnitude, std::span<const int64_t> positions,
                  std::vector<float>* cos, std::vector<float>* sin);

}  // namespace sixfold

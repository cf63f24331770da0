// One block of a block-quantised type as ggml stores it, taken apart: codes, scales and minima in
// natural order. Used where values are read one row at a time (dequantize, pack); the products read
// the packed stream instead.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace sixfold {

// Largest block: 256 elements, in groups of 16 or 32 with a scale each.
struct StoredBlock {
  int elements = 0;  // 32 or 256
  int group = 0;     // 16 or 32
  uint16_t d = 0;    // f16 bits of the scale; MXFP4: the E8M0 byte
  uint16_t m = 0;    // f16 bits of the minimum (Q4_1, Q5_1) or of the scale of minima (Q4_K, Q5_K)
  uint8_t codes[256];  // unsigned as stored: 4, 5 or 6 bits, or the byte of an int8
  int8_t scales[16];   // K types: one a group; 6 bits unsigned, or int8 (Q6_K)
  uint8_t minima[8];   // Q4_K, Q5_K
};

// `block` has InfoOf(dtype).block_bytes bytes at any alignment. dtype is one of Q4_0 Q4_1 Q5_0 Q5_1
// Q8_0 Q4_K Q5_K Q6_K MXFP4, or MXFP4_SPLIT, whose d is left 0 (MxScaleAt has it).
void ReadStoredBlock(DType dtype, const uint8_t* block, StoredBlock* out);

}  // namespace sixfold

// Matrix products of a range of panels on one thread, one entry an ISA. All give the oracle's bits.
#pragma once

#include <cstddef>

#include "kernels/matmul.h"

namespace sixfold {

// Panels [begin, end) of one task. `scratch` belongs to the calling thread, 64-byte aligned,
// MatMulScratchBytes long.
struct PanelRange {
  const MatMulTask* task = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  std::byte* scratch = nullptr;
  bool vnni = false;  // the processor has AVX512-VNNI
};

void MatMulPanelsAvx2(const PanelRange& range);
void MatMulPanelsAvx512(const PanelRange& range);
// int8 activations with AVX512-VNNI: HasVnni() and VnniReads(format) must hold. Group sums are
// exact integers in either form, so the bits are those of the other entries.
void MatMulPanelsVnni(const PanelRange& range);
bool HasVnni();
bool VnniReads(PackedFormat format);
// Tiles where they pay, AVX-512 for the rest.
void MatMulPanelsAmx(const PanelRange& range);

// Blocks of 32 k that are unpacked at once when there are many rows: 32 k x 32 columns x 4 bytes
// each, 70 KiB in all, so that they stay in L2 while every row passes over them.
inline constexpr int kMatMulChunkBlocks = 8;

// Enough for any of the entries above.
size_t MatMulScratchBytes(const MatMulTask& task);

}  // namespace sixfold

// Matrix products out[m][n] = sum_k a[m][k] * w[n][k], in the order of kernels/numerics.h on every
// ISA: one row equals the same row among many, and each output is a function of its row, its column
// of weights and the leaves alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/numerics.h"
#include "tensor/buffer.h"
#include "tensor/matrix_view.h"

namespace sixfold {

// How a packed matrix holds its weights. Dense forms are multiplied by the plain chain, the others
// by the grouped one.
// clang-format off
enum class PackedFormat : uint8_t {
  kF32, kF16, kBF16,  // dense
  kF8,                // E4M3 codes, one fp32 scale a 32-group and column (of its 128-block)
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K,
  kMXFP4,             // E2M1 codes, one E8M0 scale a 32-group and column
};
// clang-format on

// Weights reordered at load into one linear stream per 16 output columns, in no more bytes than
// stored (padding of the last panel and of leaf tails aside). Immutable after Pack; safe to read
// from any thread.
struct PackedMatrix {
  int64_t n = 0;  // output columns (rows of the stored matrix)
  int64_t k = 0;  // reduction length
  Leaves leaves;  // of k; each leaf is padded to a multiple of 32 in the stream
  PackedFormat format = PackedFormat::kF32;
  int64_t panel_bytes = 0;  // bytes of one panel of 16 columns
  Buffer stream;            // [ceil(n/16)][panel_bytes]
};

struct PackOptions {
  // F32 and F16 sources become bf16 when act is kBF16, and stay as stored otherwise.
  ActDType act = ActDType::kBF16;
  // Leaf bounds must be multiples of the source's block (1 for plain types). A group of 32 F8 codes
  // must not cross a border of the scales.
  Leaves leaves;
  // Optional: output column n comes from stored row row_order[n].
  std::span<const int32_t> row_order;
  // Optional: called between parts of some megabytes with the columns [begin, end) that are done,
  // so that the caller can give back the memory of a mapped source on the way.
  std::function<void(int64_t begin, int64_t end)> on_rows;
};

// Size of the stream that PackMatrix makes for n columns; any type that a kernel reads.
int64_t PackedBytes(DType dtype, ActDType act, int64_t n, const Leaves& leaves);

// kInvalidArgument when the leaves do not fit the source's blocks; kOutOfMemory when the stream
// does not fit.
Result<PackedMatrix> PackMatrix(const MatrixView& source, const PackOptions& options,
                                ThreadPool& pool);

// Rows of activations in the form that MatMul reads, shared by all products with the same input.
// Reused between steps: Prepare only grows the memory. Thread rule: one step thread.
struct Activations {
  ActDType act = ActDType::kBF16;
  int64_t rows = 0;
  int64_t k_padded = 0;             // sum over leaves of the leaf length rounded up to 32
  std::vector<int64_t> leaf_block;  // first 32-block of each leaf, and the end: size leaves + 1
  // Each of these may be longer than its shape says: memory of a larger step is kept.
  // [rows][k_padded]: fp32, or values rounded to bf16, or int8 codes as floats.
  std::vector<float> values;
  // [ceil(rows / 16)][k_padded / 32][16][32]: A tiles. Empty on an ISA without tiles or with kF32.
  std::vector<uint16_t> bf16;
  // [rows][k_padded] in packed_layout.h's kCodeOrder, only when act is kInt8.
  std::vector<int8_t> codes;
  // [rows][k_padded / 32]: amax / 127 of each group, only when act is kInt8.
  std::vector<float> scales;
  // [rows][k_padded / 32]: e + o of each group of values.
  std::vector<float> sums32;
};

// Memory that Prepare takes for rows of one shape.
int64_t ActivationsBytes(const Leaves& leaves, ActDType act, int64_t rows, Isa isa);

// One product. Several tasks of one call share a parallel region (q, k, v; gate, up; experts).
struct MatMulTask {
  const Activations* a = nullptr;
  const PackedMatrix* w = nullptr;  // a and w were made with equal leaves
  float* out = nullptr;             // [a->rows][out_stride]
  int64_t out_stride = 0;
};

// The matrix products of one rank, on one ISA and one team of threads. Thread rule: one step
// thread.
class MatMul {
 public:
  MatMul(Isa isa, ThreadPool& pool);
  ~MatMul();

  Isa isa() const;
  // Reads x [rows][k] with row stride `stride` floats. `row_index` (optional): row r of the result
  // is x's row row_index[r]. Rows are rounded to bf16 (nearest even, denormals flushed) or
  // quantised per 32-group when act asks: scale = amax / 127, code = x / scale rounded to nearest
  // even, both in fp32; a group with NaN or an infinity has codes 0 and scale NaN, so that it stays
  // visible in the result.
  void Prepare(const float* x, int64_t rows, int64_t stride, const Leaves& leaves, ActDType act,
               std::span<const int32_t> row_index, Activations* out);
  void Run(std::span<const MatMulTask> tasks);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Memory that each thread of a MatMul takes for products of up to `rows` rows over `leaves` leaves.
int64_t MatMulThreadBytes(int64_t rows, int leaves);

// The oracle: plain loops over DequantizeRow-free codes in the order of numerics.h. Slow; for tests
// and --isa scalar. out[n] for one prepared row. Call it, as Prepare and Run, on a thread that
// called SetFloatMode.
void RefMatMulRow(const Activations& a, int64_t row, const PackedMatrix& w, float* out);

}  // namespace sixfold

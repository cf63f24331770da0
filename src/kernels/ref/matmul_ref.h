// The products in plain loops: what --isa scalar runs and what every other ISA must equal bit for
// bit.
#pragma once

#include "kernels/matmul.h"

namespace sixfold {

// Columns [16 * panel, 16 * panel + 16) of w for rows [row_begin, row_end) of a; columns past w.n
// are not written. `out` is row_begin's row.
void RefMatMulPanel(const Activations& a, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                    int64_t panel, float* out, int64_t out_stride);

}  // namespace sixfold

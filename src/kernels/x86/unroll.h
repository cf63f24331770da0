// Loops over arrays of registers must be unrolled whole, or the arrays live in memory.
#pragma once

#if defined(__clang__)
#define SF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SF_UNROLL _Pragma("GCC unroll 16")
#endif

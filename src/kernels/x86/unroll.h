// Loops over arrays of registers must be unrolled whole, and functions that take one inlined, or the arrays live in
// memory. gcc -O3 by itself leaves some calls (a third of prefill attention).
#pragma once

#if defined(__clang__)
#define SF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SF_UNROLL _Pragma("GCC unroll 16")
#endif

#define SF_INLINE inline __attribute__((always_inline))

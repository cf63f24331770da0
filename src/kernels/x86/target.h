// Compiles one region of a file for a wider instruction set: SF_BEGIN_TARGET("avx2,fma") ...
// SF_END_TARGET. Put it after the last include and inside it only an anonymous namespace, so that
// no inline function shared with other files is compiled wide. No lambdas inside: clang does not
// hand the attribute on to them.
#pragma once

#define SF_TARGET_PRAGMA_(x) _Pragma(#x)
#if defined(__clang__)
#define SF_BEGIN_TARGET(features) \
  SF_TARGET_PRAGMA_(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SF_END_TARGET SF_TARGET_PRAGMA_(clang attribute pop)
#else
#define SF_BEGIN_TARGET(features) \
  SF_TARGET_PRAGMA_(GCC push_options) SF_TARGET_PRAGMA_(GCC target(features))
#define SF_END_TARGET SF_TARGET_PRAGMA_(GCC pop_options)
#endif

#define SF_TARGET_AVX2 "avx2,fma,f16c"
#define SF_TARGET_AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#define SF_TARGET_VNNI SF_TARGET_AVX512 ",avx512vnni"
#define SF_TARGET_AMX SF_TARGET_AVX512 ",amx-tile,amx-bf16"

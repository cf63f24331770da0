// How much a test repeats itself. Under a sanitizer code runs 5 to 30 times slower, and what it finds depends on the lines
// reached, not on how often: a test draws fewer cases there, and all of them in the other builds.
#pragma once

namespace sixfold {

#ifdef SIXFOLD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// `full`, or `sanitized` in a build with a sanitizer.
template <typename T>
constexpr T FullOr(T full, T sanitized) {
  return kSanitized ? sanitized : full;
}

}  // namespace sixfold

// SF_CHECK stops the process on a bug and prints what was compared. Nothing that a user sends or a file holds may
// reach one: input is refused with a Status before it gets here.
#pragma once

#include <sstream>
#include <string>

namespace sixfold::internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression, const std::string& detail);

template <typename A, typename B>
std::string DescribePair(const A& a, const B& b) {
  std::ostringstream out;
  out << a << " vs " << b;
  return out.str();
}

}  // namespace sixfold::internal

#define SF_CHECK(condition)                                                       \
  (__builtin_expect(static_cast<bool>(condition), 1)                              \
       ? static_cast<void>(0)                                                     \
       : ::sixfold::internal::CheckFailed(__FILE__, __LINE__, #condition, std::string()))

#define SF_CHECK_OP_(a, op, b)                                                    \
  do {                                                                            \
    const auto& sf_a_ = (a);                                                      \
    const auto& sf_b_ = (b);                                                      \
    if (__builtin_expect(!(sf_a_ op sf_b_), 0))                                   \
      ::sixfold::internal::CheckFailed(__FILE__, __LINE__, #a " " #op " " #b,     \
                                       ::sixfold::internal::DescribePair(sf_a_, sf_b_)); \
  } while (false)

#define SF_CHECK_EQ(a, b) SF_CHECK_OP_(a, ==, b)
#define SF_CHECK_NE(a, b) SF_CHECK_OP_(a, !=, b)
#define SF_CHECK_LT(a, b) SF_CHECK_OP_(a, <, b)
#define SF_CHECK_LE(a, b) SF_CHECK_OP_(a, <=, b)
#define SF_CHECK_GT(a, b) SF_CHECK_OP_(a, >, b)
#define SF_CHECK_GE(a, b) SF_CHECK_OP_(a, >=, b)

// How names and numbers from files appear in messages: bounded in length, unprintable bytes
// escaped.
#pragma once

#include <string>
#include <string_view>

namespace sixfold {

// 'text' with everything outside printable ASCII as \xNN, cut after about 100 characters.
std::string Quote(std::string_view text);

}  // namespace sixfold

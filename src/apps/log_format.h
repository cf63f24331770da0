// A LogLine as one line of text or JSON, without its time and level. Nothing in it, whoever it came
// from, can begin another line, end a value early or steer a terminal.
#pragma once

#include <string>

#include "base/log.h"

namespace sixfold::apps {

// A longer text of a field is cut.
inline constexpr size_t kLogTextBytesMax = 512;

// request id=chatcmpl-1 status=200 error="no \"such\" thing\n"
std::string LogText(const LogLine& line);
// "event":"request","id":"chatcmpl-1","status":200}: the rest of an object.
std::string LogJson(const LogLine& line);

}  // namespace sixfold::apps

#include "gateway/json_writer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace sixfold::gateway {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

void AppendEscape(unsigned char c, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default:
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

}  // namespace

// Table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
size_t Utf8SequenceLength(std::string_view text) {
  if (text.empty()) return 0;
  const auto at = [text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto tail = [&at](size_t i) { return (at(i) & 0xc0) == 0x80; };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const unsigned low = lead == 0xe0 ? 0xa0 : 0x80, high = lead == 0xed ? 0x9f : 0xbf;
    return at(1) >= low && at(1) <= high && tail(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const unsigned low = lead == 0xf0 ? 0x90 : 0x80, high = lead == 0xf4 ? 0x8f : 0xbf;
    return at(1) >= low && at(1) <= high && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

void JsonWriter::BeforeValue() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::Open(char bracket) {
  BeforeValue();
  out_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view name) {
  String(name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view text) {
  BeforeValue();
  out_ += '"';
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f) {
      AppendEscape(c, out_);
      ++i;
    } else if (c < 0x80) {
      out_ += static_cast<char>(c);
      ++i;
    } else {
      const size_t length = Utf8SequenceLength(text.substr(i));
      out_ += length == 0 ? kReplacement : text.substr(i, length);
      i += std::max<size_t>(length, 1);
    }
  }
  out_ += '"';
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  BeforeValue();
  out_ += std::to_string(value);
  return *this;
}

template <typename T>
JsonWriter& JsonWriter::Finite(T value, T bound) {
  BeforeValue();
  if (std::isnan(value)) value = 0;
  value = std::clamp(value, -bound, bound);
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out_.append(text, end);
  return *this;
}

JsonWriter& JsonWriter::Number(double value) { return Finite(value, 1e308); }
JsonWriter& JsonWriter::Float(float value) { return Finite(value, 1e38f); }

JsonWriter& JsonWriter::Bool(bool value) { return Raw(value ? "true" : "false"); }
JsonWriter& JsonWriter::Null() { return Raw("null"); }

JsonWriter& JsonWriter::Raw(std::string_view json) {
  BeforeValue();
  out_ += json;
  return *this;
}

}  // namespace sixfold::gateway

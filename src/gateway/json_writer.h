// Writes JSON straight into a string: a streamed chunk is made once a token, without a tree in
// between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sixfold::gateway {

// Commas are placed here; the caller balances Begin and End. Invalid UTF-8 becomes U+FFFD; numbers
// that are not finite are clamped to what JSON can say.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view name);
  JsonWriter& String(std::string_view text);
  JsonWriter& Int(int64_t value);
  JsonWriter& Number(double value);  // shortest form that reads back equal
  JsonWriter& Float(float value);    // the same for a float, which has fewer digits
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  JsonWriter& Raw(std::string_view json);  // a value that is JSON already

  const std::string& text() const { return out_; }
  std::string Take() && { return std::move(out_); }

 private:
  template <typename T>
  JsonWriter& Finite(T value, T bound);
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  void BeforeValue();

  std::string out_;
  bool needs_comma_ = false;
};

// Bytes of the UTF-8 sequence at the start of `text` (1 to 4), or 0 when it is ill-formed or cut
// off.
size_t Utf8SequenceLength(std::string_view text);

}  // namespace sixfold::gateway

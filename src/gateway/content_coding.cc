#include "gateway/content_coding.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

namespace sixfold::gateway {
namespace {

constexpr const char* kWhiteSpace = " \t";

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhiteSpace) - first + 1);
}

ApiError Unsupported(const std::string& what) {
  return {.status = 415,
          .message = what +
                     "; send the body as it is, or with 'Content-Encoding: gzip' or "
                     "'deflate'",
          .code = "unsupported_content_encoding"};
}

ApiError Damaged(const char* coding, const std::string& what) {
  return {.message = std::string("the body cannot be decoded as the ") + coding +
                     " that its Content-Encoding announces: " + what,
          .code = "invalid_content_encoding"};
}

ApiError TooLarge(int64_t bytes_max) {
  return {.status = 413,
          .message = "the decoded body is larger than the limit of " + std::to_string(bytes_max) +
                     " bytes",
          .code = "request_too_large"};
}

// zlib's windowBits, which choose the format.
constexpr int kGzipWindow = 16 + MAX_WBITS, kZlibWindow = MAX_WBITS, kBareWindow = -MAX_WBITS;

class Inflater {
 public:
  explicit Inflater(int window) : state_(inflateInit2(&stream_, window)) {}
  ~Inflater() {
    if (state_ == Z_OK) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // `members`: of the same format behind one another (gzip), else data behind the first's end is an
  // error.
  enum class Members : uint8_t { kOne, kAny };
  std::optional<ApiError> Run(const char* coding, std::string_view in, Members members,
                              int64_t bytes_max, std::string& out) {
    if (state_ != Z_OK) return Damaged(coding, "there is no memory for it now");
    out.clear();
    std::array<char, 16 << 10> piece;
    // avail_in has 32 bits.
    if (in.size() > std::numeric_limits<uInt>::max()) return TooLarge(bytes_max);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    while (true) {
      stream_.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream_.avail_out = static_cast<uInt>(piece.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const size_t made = piece.size() - stream_.avail_out;
      if (static_cast<int64_t>(out.size() + made) > bytes_max) return TooLarge(bytes_max);
      out.append(piece.data(), made);
      if (result == Z_STREAM_END) {
        if (stream_.avail_in == 0) return std::nullopt;
        if (members == Members::kOne || inflateReset(&stream_) != Z_OK) {
          return Damaged(coding, std::to_string(stream_.avail_in) + " bytes follow its end");
        }
      } else if (result == Z_BUF_ERROR) {  // no input is left, and nothing came of it
        return Damaged(coding, "it ends too early");
      } else if (result != Z_OK) {
        damaged_ = true;
        return Damaged(coding, result == Z_NEED_DICT    ? "it needs a dictionary"
                               : stream_.msg != nullptr ? stream_.msg
                                                        : "zlib failed");
      }
    }
  }
  bool damaged() const { return damaged_; }  // the data are of another format, or broken

 private:
  z_stream stream_{};
  const int state_;
  bool damaged_ = false;
};

// The two bytes of a zlib wrapper (RFC 1950); one bare stream in a thousand begins like that too.
bool LooksLikeZlib(std::string_view data) {
  if (data.size() < 2) return false;
  const auto first = static_cast<unsigned char>(data[0]);
  const auto second = static_cast<unsigned char>(data[1]);
  return (first & 15) == Z_DEFLATED && (first >> 4) <= 7 && (first * 256 + second) % 31 == 0;
}

std::optional<ApiError> InflateDeflate(std::string_view in, int64_t bytes_max, std::string& out) {
  std::optional<ApiError> error;
  if (LooksLikeZlib(in)) {
    Inflater wrapped(kZlibWindow);
    error = wrapped.Run("deflate", in, Inflater::Members::kOne, bytes_max, out);
    if (!error || !wrapped.damaged()) return error;
  }
  Inflater bare(kBareWindow);
  auto bare_error = bare.Run("deflate", in, Inflater::Members::kOne, bytes_max, out);
  if (!bare_error) return std::nullopt;
  return error ? error : bare_error;  // what looks wrapped is more likely a damaged wrapped one
}

}  // namespace

std::variant<std::vector<ContentCoding>, ApiError> ParseContentCodings(std::string_view header) {
  std::vector<ContentCoding> codings;
  while (!header.empty()) {
    const size_t comma = std::min(header.find(','), header.size());
    const std::string name = Lower(Trimmed(header.substr(0, comma)));
    header.remove_prefix(std::min(comma + 1, header.size()));
    if (name.empty() || name == "identity") continue;
    if (name == "gzip" || name == "x-gzip") {
      codings.push_back(ContentCoding::kGzip);
    } else if (name == "deflate") {
      codings.push_back(ContentCoding::kDeflate);
    } else {
      return Unsupported("the content encoding '" + name.substr(0, 64) + "' is not served");
    }
    if (codings.size() > kContentCodingsMax) {
      return Unsupported("more than " + std::to_string(kContentCodingsMax) +
                         " content encodings of one body are not served");
    }
  }
  return codings;
}

std::variant<std::string, ApiError> DecodeContent(const std::vector<ContentCoding>& codings,
                                                  std::string body, int64_t bytes_max) {
  for (auto coding = codings.rbegin(); coding != codings.rend() && !body.empty(); ++coding) {
    std::string decoded;
    std::optional<ApiError> error;
    if (*coding == ContentCoding::kDeflate) {
      error = InflateDeflate(body, bytes_max, decoded);
    } else {
      Inflater gzip(kGzipWindow);
      error = gzip.Run("gzip", body, Inflater::Members::kAny, bytes_max, decoded);
    }
    if (error) return std::move(*error);
    body = std::move(decoded);
  }
  return body;
}

}  // namespace sixfold::gateway

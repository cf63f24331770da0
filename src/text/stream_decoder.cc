#include "text/stream_decoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sixfold {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, SkipSpecial skip)
    : tokenizer_(tokenizer), skip_(skip), strip_left_(tokenizer->strip_count()), utf8_(tokenizer->utf8_repair()) {}

void Detokenizer::Append(TokenId id, std::string* out) {
  if (!tokenizer_->HasToken(id)) return;
  if (skip_ == SkipSpecial::kYes && tokenizer_->IsSpecial(id)) return;
  std::string_view piece = opened_ ? tokenizer_->TokenBytes(id) : tokenizer_->FirstTokenBytes(id);
  opened_ = true;
  while (strip_left_ > 0 && !piece.empty()) {
    if (piece.front() != tokenizer_->strip_byte()) {
      strip_left_ = 0;
      break;
    }
    piece.remove_prefix(1);
    --strip_left_;
  }
  utf8_.Append(piece, out);
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, SkipSpecial skip) const {
  Detokenizer detokenizer(this, skip);
  std::string out;
  for (const TokenId id : ids) detokenizer.Append(id, &out);
  detokenizer.Finish(&out);
  return out;
}

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, StreamOptions options)
    : options_(std::move(options)), detokenizer_(tokenizer, options_.skip_special) {}

void StreamDecoder::Append(TokenId id, std::string* delta, StopCheck check) {
  if (stopped()) return;
  detokenizer_.Append(id, &held_);
  Release(delta, check);
}

void StreamDecoder::Finish(std::string* delta) {
  if (stopped()) return;
  detokenizer_.Finish(&held_);
  if (FindStop(delta)) return;
  delta->append(held_);
  held_.clear();
}

void StreamDecoder::Release(std::string* delta, StopCheck check) {
  if (check == StopCheck::kYes && FindStop(delta)) return;
  const size_t shown = held_.size() - (check == StopCheck::kYes ? BytesToHold() : 0);
  delta->append(held_, 0, shown);
  held_.erase(0, shown);
}

bool StreamDecoder::FindStop(std::string* delta) {
  size_t best_start = 0;
  size_t best_end = std::string::npos;
  for (size_t i = 0; i < options_.stop.size(); ++i) {
    const std::string& stop = options_.stop[i];
    const size_t start = stop.empty() ? std::string::npos : held_.find(stop);
    if (start == std::string::npos) continue;
    const size_t end = start + stop.size();
    if (end > best_end || (end == best_end && start >= best_start)) continue;
    best_start = start;
    best_end = end;
    stop_index_ = i;
  }
  if (!stopped()) return false;
  delta->append(held_, 0, options_.include_stop == IncludeStop::kYes ? best_end : best_start);
  held_.clear();
  return true;
}

size_t StreamDecoder::BytesToHold() const {
  size_t hold = 0;
  for (const std::string& stop : options_.stop) {
    size_t length = std::min(held_.size(), stop.empty() ? 0 : stop.size() - 1);
    for (; length > hold; --length) {
      if (std::string_view(held_).substr(held_.size() - length) == std::string_view(stop).substr(0, length)) {
        hold = length;
      }
    }
  }
  return hold;
}

}  // namespace sixfold

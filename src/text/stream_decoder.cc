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

std::optional<StopSearch::Match> StopSearch::Append(const std::vector<std::string>& stops,
                                                    std::string_view piece, StopCheck check) {
  const size_t before = tail_.size();
  tail_ += piece;
  std::optional<Match> best;
  for (size_t i = 0; check == StopCheck::kYes && i < stops.size(); ++i) {
    const std::string& stop = stops[i];
    if (stop.empty()) continue;
    // It ends in the piece: what ended before did so while it did not count.
    const size_t start = tail_.find(stop, before + 1 > stop.size() ? before + 1 - stop.size() : 0);
    if (start == std::string::npos) continue;
    const Match match{.stop = i,
                      .begin = begin_ + static_cast<int64_t>(start),
                      .end = begin_ + static_cast<int64_t>(start + stop.size())};
    if (!best || match.end < best->end || (match.end == best->end && match.begin < best->begin))
      best = match;
  }
  if (best) return best;
  size_t keep = 0;
  for (const std::string& stop : stops) {
    size_t length = std::min(tail_.size(), stop.empty() ? 0 : stop.size() - 1);
    for (; length > keep; --length) {
      if (std::string_view(tail_).substr(tail_.size() - length) ==
          std::string_view(stop).substr(0, length))
        keep = length;
    }
  }
  begin_ += static_cast<int64_t>(tail_.size() - keep);
  tail_.erase(0, tail_.size() - keep);
  return std::nullopt;
}

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, StreamOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      detokenizer_(tokenizer, options_.skip_special) {}

void StreamDecoder::Append(TokenId id, std::string* delta, StopCheck check) {
  if (stopped()) return;
  if (options_.skip_special == SkipSpecial::kYes && tokenizer_->IsSpecial(id))
    return AppendHidden(id, delta, check);
  std::string piece;
  detokenizer_.Append(id, &piece);
  AppendShown(piece, delta, check);
}

void StreamDecoder::Finish(std::string* delta) {
  if (stopped()) return;
  std::string piece;
  detokenizer_.Finish(&piece);
  AppendShown(piece, delta, StopCheck::kYes);
  if (stopped()) return;
  delta->append(held_);
  held_.clear();
}

void StreamDecoder::AppendHidden(TokenId id, std::string* delta, StopCheck check) {
  const std::string_view piece = tokenizer_->TokenBytes(id);
  if (options_.stop.empty() || piece.empty()) return;
  if (!written_) written_ = shown_;
  hidden_.push_back({written_->size(), written_->size() + static_cast<int64_t>(piece.size())});
  if (const auto match = written_->Append(options_.stop, piece, check))
    return Stop(match->stop, ShownBefore(match->begin), delta);
  Release(delta);
}

void StreamDecoder::AppendShown(std::string_view piece, std::string* delta, StopCheck check) {
  held_ += piece;
  std::optional<StopSearch::Match> match = shown_.Append(options_.stop, piece, check);
  if (match) {
    // Both searches got the same piece: what ends farther from its end is first.
    match->begin -= shown_.size();
    match->end -= shown_.size();
  }
  if (written_) {
    if (auto other = written_->Append(options_.stop, piece, check)) {
      const int64_t begin = ShownBefore(other->begin) - shown_.size();
      const int64_t end = other->end - written_->size();
      if (!match || end < match->end || (end == match->end && begin < match->begin))
        match = {other->stop, begin, end};
    }
  }
  if (match) return Stop(match->stop, shown_.size() + match->begin, delta);
  Release(delta);
}

void StreamDecoder::Stop(size_t index, int64_t cut, std::string* delta) {
  stop_index_ = index;
  delta->append(held_, 0, static_cast<size_t>(cut - held_begin_));
  if (options_.include_stop == IncludeStop::kYes) delta->append(options_.stop[index]);
  held_.clear();
}

void StreamDecoder::Release(std::string* delta) {
  int64_t safe = shown_.tail_begin();
  if (written_) {
    safe = std::min(safe, ShownBefore(written_->tail_begin()));
    while (!hidden_.empty() && hidden_.front().begin < written_->tail_begin()) {
      Hidden& first = hidden_.front();
      const int64_t gone = std::min(first.end, written_->tail_begin());
      hidden_before_tail_ += gone - first.begin;
      first.begin = gone;
      if (first.begin < first.end) break;
      hidden_.erase(hidden_.begin());
    }
  }
  if (safe <= held_begin_) return;
  const auto count = static_cast<size_t>(safe - held_begin_);
  delta->append(held_, 0, count);
  held_.erase(0, count);
  held_begin_ = safe;
}

int64_t StreamDecoder::ShownBefore(int64_t written) const {
  int64_t shown = written - hidden_before_tail_;
  for (const Hidden& hidden : hidden_)
    shown -= std::clamp<int64_t>(written - hidden.begin, 0, hidden.end - hidden.begin);
  return shown;
}

}  // namespace sixfold

#include "mesh/context.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "kernels/ops.h"

namespace sixfold {

namespace {

constexpr std::array<std::string_view, 5> kFormNames = {"p2p", "all_gather", "a2a", "a2a+p2p", "striped"};

void AddRun(std::vector<RowRun>* runs, const RowRun& run) {
  if (run.rows > 0) runs->push_back(run);
}

// Calls piece(member, first, last) for runs of positions [first, last) of one owner.
template <typename Piece>
void ForEachOwned(const ContextRule& rule, const ContextSequence& s, int64_t begin, int64_t end, const Piece& piece) {
  const int64_t step = rule.by_token ? rule.interleave : rule.chunk;
  for (int64_t at = begin; at < end;) {
    const int owner = OwnerOf(rule, s, at);
    int64_t stop = at;
    do {
      stop = std::min(end, (stop / step + 1) * step);
    } while (stop < end && OwnerOf(rule, s, stop) == owner);
    piece(owner, at, stop);
    at = stop;
  }
}

}  // namespace

std::string_view NameOf(CpForm form) { return kFormNames[static_cast<size_t>(form)]; }

std::optional<CpForm> CpFormFromName(std::string_view name) {
  const auto* const at = std::find(kFormNames.begin(), kFormNames.end(), name);
  if (at == kFormNames.end()) return std::nullopt;
  return static_cast<CpForm>(at - kFormNames.begin());
}

int OwnerOf(const ContextRule& rule, const ContextSequence& sequence, int64_t position) {
  if (rule.by_token) return static_cast<int>(position / rule.interleave % rule.size);
  const int64_t chunk = position / rule.chunk;
  SF_CHECK_LT(chunk, static_cast<int64_t>(sequence.owners.size()));
  return sequence.owners[chunk];
}

int64_t KeysBelow(const ContextRule& rule, int member, int64_t end) {
  const int64_t round = rule.interleave * rule.size;
  return end / round * rule.interleave + std::clamp<int64_t>(end % round - member * rule.interleave, 0, rule.interleave);
}

LocalKeys KeysSeen(const ContextRule& rule, int member, int64_t position, int64_t window) {
  const int64_t begin = window > 0 && position >= window ? position - window + 1 : 0;
  return {KeysBelow(rule, member, begin), KeysBelow(rule, member, position + 1)};
}

std::vector<std::vector<RowRun>> DealRows(const ContextRule& rule, std::span<const ContextSequence> sequences) {
  std::vector<std::vector<RowRun>> of(rule.size);
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ContextSequence& s = sequences[i];
    const auto number = static_cast<int32_t>(i);
    const int64_t end = s.first_position + s.rows;
    const bool one_by_one = rule.by_token ? rule.interleave == 1 : rule.form == CpForm::kStriped;
    if (rule.size > 1 && s.rows > 1 && one_by_one) {
      for (int64_t r = 0; r < std::min<int64_t>(rule.size, s.rows); ++r) {
        const int64_t position = s.first_position + r;
        AddRun(&of[position % rule.size], {.sequence = number,
                                           .row = row + r,
                                           .position = position,
                                           .rows = (s.rows - r + rule.size - 1) / rule.size,
                                           .stride = rule.size});
      }
    } else if (rule.size == 1) {
      AddRun(&of[0], {.sequence = number, .row = row, .position = s.first_position, .rows = s.rows});
    } else {
      ForEachOwned(rule, s, s.first_position, end, [&](int owner, int64_t first, int64_t last) {
        AddRun(&of[owner], {.sequence = number, .row = row + first - s.first_position, .position = first, .rows = last - first});
      });
    }
    row += s.rows;
  }
  return of;
}

int64_t RowsOf(std::span<const RowRun> runs) {
  int64_t rows = 0;
  for (const RowRun& run : runs) rows += run.rows;
  return rows;
}

ChunkRange VisibleChunks(int64_t chunk, int64_t first, int64_t last, int64_t window) {
  const int64_t begin = window > 0 && first >= window ? first - window + 1 : 0;
  return {begin / chunk, last / chunk + 1};
}

namespace {

ChunkRange Clip(ChunkRange range, ChunkRange visible) {
  return {std::max(range.begin, visible.begin), std::min(range.end, visible.end)};
}

}  // namespace

std::vector<ChunkRange> MaximalNodes(ChunkRange visible, const std::vector<bool>& held) {
  std::vector<ChunkRange> nodes;
  for (int64_t at = visible.begin; at < visible.end;) {
    if (!held[at]) {
      ++at;
      continue;
    }
    int64_t end = at;  // of what is held without a gap
    while (end < visible.end && held[end]) ++end;
    // The largest node that begins here, as far as it exists, and lies inside.
    ChunkRange node{at, at + 1};
    for (int level = 1; level < 62; ++level) {
      const int64_t first = at >> level << level;
      const ChunkRange wider = Clip({first, first + (int64_t{1} << level)}, visible);
      if (wider.begin < at || wider.end > end) break;
      node = wider;
      if (node == visible) break;
    }
    nodes.push_back(node);
    at = node.end;
  }
  return nodes;
}

ChunkRange SiblingOf(ChunkRange visible, ChunkRange node) {
  if (node == visible) return {};
  for (int level = 0;; ++level) {
    const int64_t first = node.begin >> level << level;
    const int64_t size = int64_t{1} << level;
    if (Clip({first, first + size}, visible) != node) continue;
    const int64_t other = (first >> level & 1) != 0 ? first - size : first + size;
    const ChunkRange sibling = Clip({other, other + size}, visible);
    if (!sibling.empty()) return sibling;
  }
}

std::vector<bool> HeldBy(const ContextSequence& s, int member) {
  std::vector<bool> held(s.owners.size());
  for (size_t c = 0; c < held.size(); ++c) held[c] = s.owners[c] == member;
  return held;
}

namespace {

void AddPages(ContextBlock* block, int32_t sequence, int64_t first, int64_t pages) {
  if (pages <= 0) return;
  block->pages += pages;
  if (!block->runs.empty()) {
    PageRun& last = block->runs.back();
    if (last.sequence == sequence && last.first + last.pages == first) {
      last.pages += pages;
      return;
    }
  }
  block->runs.push_back({sequence, first, pages});
}

// Pages of the keys of a segment's chunks that the rows of one sequence see.
void AddBlocks(const ContextRule& rule, const ContextSequence& s, int32_t number, int64_t window, ContextSegment* segment) {
  std::vector<ContextBlock>& blocks = segment->blocks;
  const int64_t end = s.first_position + s.rows;
  if (rule.by_token) {
    const int64_t first_key = window > 0 && s.first_position >= window ? s.first_position - window + 1 : 0;
    for (int m = 0; m < rule.size; ++m) {
      const int64_t first = KeysBelow(rule, m, first_key) / kPageTokens;
      const int64_t last = (KeysBelow(rule, m, end) + kPageTokens - 1) / kPageTokens;
      AddPages(&blocks[m], number, first, last - first);
    }
    return;
  }
  const ChunkRange seen = Clip(VisibleChunks(rule.chunk, s.first_position, end - 1, window), segment->chunks);
  for (int64_t c = seen.begin; c < seen.end; ++c) {
    const int64_t last = std::min((c + 1) * rule.chunk, end);
    AddPages(&blocks[s.owners[c]], number, c * rule.chunk / kPageTokens,
             (last + kPageTokens - 1) / kPageTokens - c * rule.chunk / kPageTokens);
  }
}

ContextQuery QueryOf(const ContextRule& rule, const ContextSequence& s, int32_t number, int64_t row, int64_t window) {
  ContextQuery query{.sequence = number, .home = OwnerOf(rule, s, s.first_position), .row = row, .position = s.first_position};
  query.visible = VisibleChunks(rule.chunk, s.first_position, s.first_position, window);
  query.nodes.resize(rule.size);
  for (int m = 0; m < rule.size; ++m) {
    if (!rule.by_token) {
      query.nodes[m] = MaximalNodes(query.visible, HeldBy(s, m));
    } else if (const LocalKeys keys = KeysSeen(rule, m, s.first_position, window); keys.first < keys.last) {
      query.nodes[m] = {{0, 1}};
    }
  }
  return query;
}

}  // namespace

ContextPlan PlanContext(const ContextRule& rule, std::span<const ContextSequence> sequences, int64_t window) {
  ContextPlan plan{.rows = DealRows(rule, sequences), .segments = {}, .queries = {}};
  int64_t first_chunk = std::numeric_limits<int64_t>::max(), chunks = 0;  // that prefills see
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ContextSequence& s = sequences[i];
    if (s.rows == 1) {
      plan.queries.push_back(QueryOf(rule, s, static_cast<int32_t>(i), row, window));
    } else if (s.rows > 1) {
      plan.prefills = true;
      const ChunkRange seen = VisibleChunks(rule.chunk, s.first_position, s.first_position + s.rows - 1, window);
      first_chunk = std::min(first_chunk, seen.begin);
      chunks = std::max(chunks, seen.end);
    }
    row += s.rows;
  }
  if (!plan.prefills) return plan;
  const int64_t each = rule.by_token ? chunks : kSegmentChunks;
  for (int64_t at = rule.by_token ? 0 : first_chunk / each * each; at < chunks; at += each) {
    ContextSegment& segment = plan.segments.emplace_back();
    segment.chunks = {at, at + each};
    segment.blocks.resize(rule.size);
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].rows > 1) AddBlocks(rule, sequences[i], static_cast<int32_t>(i), window, &segment);
    }
  }
  return plan;
}

std::vector<std::vector<std::vector<RowRun>>> KeysToMove(const ContextRule& rule, std::span<const ContextSequence> sequences) {
  std::vector<std::vector<std::vector<RowRun>>> moves(rule.size, std::vector<std::vector<RowRun>>(rule.size));
  if (rule.form != CpForm::kStriped || rule.by_token) return moves;
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ContextSequence& s = sequences[i];
    if (s.rows > 1) {
      ForEachOwned(rule, s, s.first_position, s.first_position + s.rows, [&](int owner, int64_t first, int64_t last) {
        for (int64_t p = first; p < std::min(last, first + rule.size); ++p) {
          AddRun(&moves[p % rule.size][owner], {.sequence = static_cast<int32_t>(i),
                                                .row = row + p - s.first_position,
                                                .position = p,
                                                .rows = (last - p + rule.size - 1) / rule.size,
                                                .stride = rule.size});
        }
      });
    }
    row += s.rows;
  }
  return moves;
}

std::vector<int64_t> AttendedPairs(std::span<const std::vector<RowRun>> rows, int64_t window) {
  std::vector<int64_t> pairs;
  for (const std::vector<RowRun>& runs : rows) {
    int64_t sum = 0;
    for (const RowRun& run : runs) {
      for (int64_t i = 0; i < run.rows; ++i) {
        const int64_t keys = run.position + i * run.stride + 1;
        sum += window > 0 ? std::min(keys, window) : keys;
      }
    }
    pairs.push_back(sum);
  }
  return pairs;
}

}  // namespace sixfold

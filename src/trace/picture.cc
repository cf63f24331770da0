#include "trace/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "trace/itinerary.h"

namespace sixfold::trace {

namespace {

constexpr size_t kAllRanksMax = 64;  // as many columns as a page takes

// Pixels.
constexpr int kLeft = 250, kColumn = 26, kNodeGap = 12, kRight = 110, kTop = 104, kHop = 10, kRowPad = 8, kFoot = 34;

struct Style {
  std::string_view colour, meaning;
};

// Colours that differ in lightness too, so that a print in grey can be read.
Style StyleOf(Phase phase) {
  switch (phase) {
    case Phase::kAttentionGather:
    case Phase::kFfnGather:
    case Phase::kHeadGather:
    case Phase::kCombineGather:
    case Phase::kNormSums: return {"#3b6fd4", "gather"};
    case Phase::kKvHome:
    case Phase::kKvExchange:
    case Phase::kHeadExchange:
    case Phase::kQueryExchange:
    case Phase::kPartialReturn:
    case Phase::kOutputExchange: return {"#1c8a4b", "keys, values, queries"};
    case Phase::kAttentionSum:
    case Phase::kFfnSum:
    case Phase::kExpertSum:
    case Phase::kSharedSum: return {"#8a4fb5", "sum"};
    case Phase::kDispatch: return {"#d97a00", "dispatch"};
    case Phase::kCombine: return {"#00838f", "combine"};
    case Phase::kStageSend: return {"#222222", "pipeline send"};
    case Phase::kLogits: return {"#7a5230", "logits"};
    case Phase::kUnsaid: break;
  }
  return {"#999999", "unknown"};
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

std::string LayersText(int64_t first, int64_t end) {
  return end - first == 1 ? fmt::format("L{}", end) : fmt::format("L{}-{}", first + 1, end);
}

class Picture {
 public:
  Picture(const Journey& journey, const Map& map) : journey_(journey), map_(map) {
    const bool all = map.node_of.size() <= kAllRanksMax;
    int x = kLeft;
    int32_t node = -1;
    for (int32_t rank = 0; rank < static_cast<int32_t>(map.node_of.size()); ++rank) {
      x_.push_back(-1);
      if (!all && !std::binary_search(journey.ranks.begin(), journey.ranks.end(), rank)) continue;
      if (map.node_of[rank] != node) x += node < 0 ? 0 : kNodeGap;
      node = map.node_of[rank];
      x_.back() = x + kColumn / 2;
      x += kColumn;
    }
    width_ = x + kRight;
    bottom_ = kTop;
    for (const Operation& o : journey.operations) bottom_ += HeightOf(o);
    height_ = bottom_ + kFoot + kHop * 2 * (static_cast<int>(KvRows().size()) + 2);
  }

  std::string Draw() {
    Head();
    Nodes();
    int y = kTop;
    int32_t layer = -1;
    int64_t step = -1;
    for (const Operation& o : journey_.operations) {
      if (o.at.layer != layer || o.at.step != step) {
        Add(R"(<line x1="8" y1="{0}" x2="{1}" y2="{0}" stroke="#c8ccd2"/>)", y, width_ - 8);
        Text(12, y + 12, fmt::format("layer {}", o.at.layer + 1), R"(font-weight="bold")");
      }
      layer = o.at.layer;
      step = o.at.step;
      Row(o, y);
      y += HeightOf(o);
    }
    Kv(bottom_ + kHop * 2);
    Legend(height_ - 14);
    return svg_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void Add(std::string_view format, const Args&... args) {
    svg_ += fmt::vformat(format, fmt::make_format_args(args...)) + "\n";
  }
  void Text(int x, int y, std::string_view text, std::string_view more = "") {
    Add(R"(<text x="{}" y="{}" {}>{}</text>)", x, y, more, Escaped(text));
  }

  static int HeightOf(const Operation& o) {
    return kRowPad + kHop * std::max<int>(1, static_cast<int>(o.hops.size() + (o.stays.empty() ? 0 : 1)));
  }

  void Head() {
    Add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="11">)",
        width_, height_);
    Add(R"(<rect width="{}" height="{}" fill="#ffffff"/>)", width_, height_);
    svg_ += "<defs>\n";
    for (const auto& [colour, meaning] : Styles()) {
      Add(R"(<marker id="{}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 Z" fill="{}"/></marker>)",
          MarkerOf(colour), colour);
    }
    svg_ += "</defs>\n";
    Text(12, 24, fmt::format("The journey of the token at position {} of replica {}", journey_.token.position, journey_.token.replica),
         R"(font-size="17" font-weight="bold")");
    Text(12, 44, fmt::format("{}: {} of {} ranks, {} crossings between nodes, {} operations", map_.layout, journey_.ranks.size(),
                             map_.node_of.size(), journey_.crossings, journey_.operations.size()));
  }

  void Nodes() {
    for (size_t first = 0; first < x_.size();) {
      size_t last = first;
      while (last + 1 < x_.size() && map_.node_of[last + 1] == map_.node_of[first]) ++last;
      int left = 0, right = -1;
      for (size_t rank = first; rank <= last; ++rank) {
        if (x_[rank] < 0) continue;
        if (right < 0) left = x_[rank] - kColumn / 2;
        right = x_[rank] + kColumn / 2;
      }
      if (right >= 0) {
        Add(R"(<rect x="{}" y="58" width="{}" height="{}" rx="6" fill="#f4f6f9" stroke="#b9c0ca"/>)", left, right - left, bottom_ - 54);
        Text((left + right) / 2, 72, fmt::format("node {}", map_.node_of[first]), R"(text-anchor="middle" fill="#555555")");
      }
      first = last + 1;
    }
    for (size_t rank = 0; rank < x_.size(); ++rank) {
      if (x_[rank] < 0) continue;
      const bool touched = std::binary_search(journey_.ranks.begin(), journey_.ranks.end(), static_cast<int32_t>(rank));
      Text(x_[rank], 92, fmt::format("{}", rank), touched ? R"(text-anchor="middle" font-weight="bold")" : R"(text-anchor="middle" fill="#b0b5bd")");
      Add(R"(<line x1="{0}" y1="98" x2="{0}" y2="{1}" stroke="{2}"/>)", x_[rank], bottom_, touched ? "#cfd5de" : "#e9ecf0");
    }
    Text(width_ - kRight + 12, 92, "ranks", R"(fill="#555555")");
    Text(width_ - kRight + 52, 92, "crossings", R"(fill="#555555")");
  }

  void Row(const Operation& o, int y) {
    const auto [colour, meaning] = StyleOf(o.at.phase);
    Text(66, y + 12, fmt::format("{:>2}", o.number), R"(fill="#888888")");
    Text(86, y + 12, KindOf(o, map_.names), fmt::format(R"(fill="{}")", colour));
    int at = y + kRowPad;
    for (const int32_t rank : o.stays) Add(R"(<circle cx="{}" cy="{}" r="4" fill="{}"><title>stays on {}</title></circle>)", x_[rank], at, colour, rank);
    if (!o.stays.empty()) at += kHop;
    for (const Hop& hop : o.hops) {
      Arrow(hop, at, colour, std::binary_search(o.new_ranks.begin(), o.new_ranks.end(), hop.to));
      at += kHop;
    }
    Text(width_ - kRight + 16, y + 12, fmt::format("{}", o.ranks));
    const bool crosses = std::any_of(o.hops.begin(), o.hops.end(), [](const Hop& hop) { return hop.crosses; });
    Text(width_ - kRight + 68, y + 12, fmt::format("{}", o.crossings), crosses ? R"(font-weight="bold" fill="#c0392b")" : R"(fill="#888888")");
  }

  void Arrow(const Hop& hop, int y, std::string_view colour, bool is_new) {
    const int from = x_[hop.from], to = x_[hop.to];
    if (hop.crosses) Add(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#f9c6bd" stroke-width="8"/>)", from, y, to, y);
    Add(R"(<circle cx="{}" cy="{}" r="2.2" fill="{}"/>)", from, y, colour);
    if (is_new) Add(R"(<circle cx="{}" cy="{}" r="4.5" fill="none" stroke="{}"/>)", to, y, colour);
    Add(R"x(<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}" stroke-width="{}" marker-end="url(#{})"><title>{} to {}, {} bytes over {}</title></line>)x",
        from, y, to, y, colour, hop.crosses ? "2.2" : "1.5", MarkerOf(colour), hop.from, hop.to, hop.bytes,
        map_.names.links.at(hop.link));
  }

  // Places with the same layers share a line.
  std::vector<std::pair<int64_t, int64_t>> KvRows() const {
    std::set<std::pair<int64_t, int64_t>> rows;
    for (const KvPlace& kv : journey_.kv) rows.insert({kv.first_layer, kv.end_layer});
    return {rows.begin(), rows.end()};
  }

  void Kv(int y) {
    for (const auto& [first, end] : KvRows()) {
      Text(86, y + 4, "K/V stay, " + LayersText(first, end), R"(fill="#1c8a4b")");
      for (const KvPlace& kv : journey_.kv) {
        if (kv.first_layer != first || kv.end_layer != end) continue;
        Add(R"(<rect x="{}" y="{}" width="12" height="12" fill="#1c8a4b"><title>rank {}: heads {} to {}, {} bytes</title></rect>)",
            x_[kv.rank] - 6, y - 6, kv.rank, kv.head_begin, kv.head_end - 1, kv.bytes);
      }
      y += kHop * 2;
    }
  }

  // Those that occur, in the order of phases.
  std::vector<Style> Styles() const {
    std::set<Phase> phases;
    for (const Operation& o : journey_.operations) phases.insert(o.at.phase);
    std::vector<Style> styles;
    for (const Phase phase : phases) {
      const Style style = StyleOf(phase);
      if (std::none_of(styles.begin(), styles.end(), [&](const Style& s) { return s.colour == style.colour; })) styles.push_back(style);
    }
    return styles;
  }

  void Legend(int y) {
    int x = 12;
    for (const auto& [colour, meaning] : Styles()) {
      Add(R"(<line x1="{0}" y1="{1}" x2="{2}" y2="{1}" stroke="{3}" stroke-width="2"/>)", x, y - 4, x + 18, colour);
      Text(x + 23, y, meaning);
      x += 36 + 7 * static_cast<int>(meaning.size());
    }
    Add(R"(<line x1="{0}" y1="{1}" x2="{2}" y2="{1}" stroke="#f9c6bd" stroke-width="8"/>)", x, y - 4, x + 18);
    Text(x + 23, y, "between nodes");
    Add(R"(<circle cx="{}" cy="{}" r="4.5" fill="none" stroke="#555555"/>)", x + 125, y - 4);
    Text(x + 134, y, "first time on this rank");
  }

  static std::string MarkerOf(std::string_view colour) { return "a" + std::string(colour.substr(1)); }

  const Journey& journey_;
  const Map& map_;
  std::vector<int> x_;  // [ranks] middle of the column, -1: not drawn
  int width_ = 0, bottom_ = 0, height_ = 0;
  std::string svg_;
};

}  // namespace

std::string JourneySvg(const Journey& journey, const Map& map) { return Picture(journey, map).Draw(); }

}  // namespace sixfold::trace

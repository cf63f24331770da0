#include "trace/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/plural.h"
#include "trace/itinerary.h"

namespace sixfold::trace {

namespace {

constexpr size_t kAllRanksMax = 64;  // as many columns as a page takes

// Pixels. kRanks, kCrossings: of the two columns of figures, from the end of the ranks' columns.
constexpr int kColumn = 26, kNodeGap = 12, kRanks = 12, kCrossings = 52, kTop = 104, kHop = 10, kRowPad = 8, kMargin = 12,
              kLegendLine = 18;

struct Font {
  int size = 11;
  bool bold = false;
};
constexpr Font kPlain, kBold{.bold = true}, kTitle{.size = 17, .bold = true};

// Thousandths of the font's size that the widest of the usual sans-serif fonts (DejaVu Sans, Verdana) takes for a character.
// The picture is measured by it, because the reader's font is not known.
int AdvanceOf(unsigned char c, bool bold) {
  const std::string_view narrow = "ijlI.,:;'|!()[]-ft r/", wide = "mwMW@%";
  if (narrow.find(static_cast<char>(c)) != std::string_view::npos) return bold ? 550 : 460;
  if (wide.find(static_cast<char>(c)) != std::string_view::npos) return bold ? 1280 : 1080;
  if (c < 0x80 && (c < 'A' || c > 'Z')) return bold ? 730 : 690;
  return bold ? 880 : 800;
}

// Pixels that `text` takes at most. Continuation bytes of UTF-8 are no characters.
int WidthOf(std::string_view text, const Font& font) {
  int thousandths = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80) thousandths += AdvanceOf(byte, font.bold);
  }
  return (thousandths * font.size + 999) / 1000;
}

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
    PlaceColumns();
    bottom_ = kTop;
    for (const Operation& o : journey.operations) bottom_ += HeightOf(o);
    Measure();
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
        Text(kMargin, y + 12, LayerText(o), kBold);
      }
      layer = o.at.layer;
      step = o.at.step;
      Row(o, y);
      y += HeightOf(o);
    }
    Kv(bottom_ + kHop * 2);
    for (const LegendItem& item : legend_) Legend(item);
    return svg_ + "</svg>\n";
  }

 private:
  struct LegendItem {
    std::string_view colour;  // of a line; or one of the next two
    std::string_view meaning;
    enum class Mark : uint8_t { kLine, kCrossing, kNewRank } mark = Mark::kLine;
    int x = 0, line = 0;
    int width() const { return 23 + WidthOf(meaning, kPlain) + 14; }
  };

  static std::string LayerText(const Operation& o) { return fmt::format("layer {}", o.at.layer + 1); }
  std::string NodeText(int32_t node) const { return fmt::format("node {}", node); }
  static std::string KvText(int64_t first, int64_t end) { return "K/V stay, " + LayersText(first, end); }
  std::string TitleText() const {
    return fmt::format("The journey of the token at position {} of replica {}", journey_.token.position, journey_.token.replica);
  }
  std::string LayoutText() const {
    return fmt::format("{}: {} of {}, {} between nodes, {}; layers count from 1", map_.layout, journey_.ranks.size(),
                       Plural(static_cast<int64_t>(map_.node_of.size()), "rank"), Plural(journey_.crossings, "crossing"),
                       Plural(static_cast<int64_t>(journey_.operations.size()), "operation"));
  }

  // The ranks' columns: right of the longest word that stands left of them, and as wide as their numbers and nodes' names.
  void PlaceColumns() {
    int layer = 0, number = 0, kind = 0;
    for (const Operation& o : journey_.operations) {
      layer = std::max(layer, WidthOf(LayerText(o), kBold));
      number = std::max(number, WidthOf(fmt::format("{}", o.number), kPlain));
      kind = std::max(kind, WidthOf(KindOf(o, map_.names), kPlain));
    }
    for (const auto& [first, end] : KvRows()) kind = std::max(kind, WidthOf(KvText(first, end), kPlain));
    kind_ = kMargin + (number > 0 ? layer + 6 + number + 6 : 0);
    int x = kind_ + kind + kMargin;
    const bool all = map_.node_of.size() <= kAllRanksMax;
    std::vector<int32_t> drawn;
    for (int32_t rank = 0; rank < static_cast<int32_t>(map_.node_of.size()); ++rank) {
      if (all || std::binary_search(journey_.ranks.begin(), journey_.ranks.end(), rank)) drawn.push_back(rank);
    }
    if (!drawn.empty()) column_ = std::max(column_, WidthOf(fmt::format("{}", drawn.back()), kBold) + 4);
    x_.assign(map_.node_of.size(), -1);
    for (size_t first = 0; first < drawn.size();) {
      const int32_t node = map_.node_of[drawn[first]];
      size_t end = first;
      while (end < drawn.size() && map_.node_of[drawn[end]] == node) ++end;
      const int ranks = static_cast<int>(end - first) * column_;
      const int box = std::max(ranks, WidthOf(NodeText(node), kPlain) + 8);
      for (size_t i = first; i < end; ++i) x_[drawn[i]] = x + (box - ranks) / 2 + static_cast<int>(i - first) * column_ + column_ / 2;
      nodes_.push_back({node, x, box});
      x += box + kNodeGap;
      first = end;
    }
    figures_ = x - (nodes_.empty() ? 0 : kNodeGap);
  }

  // Width and height of all that is drawn; the legend breaks into lines of the width that the rest needs.
  void Measure() {
    int right = figures_ + kCrossings + WidthOf("crossings", kPlain);
    for (const Operation& o : journey_.operations)
      right = std::max(right, figures_ + kCrossings + 16 + WidthOf(fmt::format("{}", o.crossings), kBold));
    right = std::max({right, kMargin + WidthOf(TitleText(), kTitle), kMargin + WidthOf(LayoutText(), kPlain)});
    for (const Style& style : Styles()) legend_.push_back({style.colour, style.meaning});
    legend_.push_back({.meaning = "between nodes", .mark = LegendItem::Mark::kCrossing});
    legend_.push_back({.meaning = "first time on this rank", .mark = LegendItem::Mark::kNewRank});
    for (const LegendItem& item : legend_) right = std::max(right, kMargin + item.width());
    width_ = right + kMargin;
    int x = kMargin, line = 0;
    for (LegendItem& item : legend_) {
      if (x > kMargin && x + item.width() > width_) {
        x = kMargin;
        ++line;
      }
      item.x = x;
      item.line = line;
      x += item.width();
    }
    legend_top_ = bottom_ + kHop * 2 * (static_cast<int>(KvRows().size()) + 2);
    height_ = legend_top_ + kLegendLine * line + kMargin;
  }

  template <typename... Args>
  void Add(std::string_view format, const Args&... args) {
    svg_ += fmt::vformat(format, fmt::make_format_args(args...)) + "\n";
  }
  void Text(int x, int y, std::string_view text, const Font& font = kPlain, std::string_view more = "") {
    std::string style(more);
    if (font.size != kPlain.size) style += fmt::format(R"( font-size="{}")", font.size);
    if (font.bold) style += R"( font-weight="bold")";
    Add(R"(<text x="{}" y="{}" {}>{}</text>)", x, y, style, Escaped(text));
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
    Text(kMargin, 24, TitleText(), kTitle);
    Text(kMargin, 44, LayoutText());
  }

  void Nodes() {
    for (const auto& [node, left, width] : nodes_) {
      Add(R"(<rect x="{}" y="58" width="{}" height="{}" rx="6" fill="#f4f6f9" stroke="#b9c0ca"/>)", left, width, bottom_ - 54);
      Text(left + width / 2, 72, NodeText(node), kPlain, R"(text-anchor="middle" fill="#555555")");
    }
    for (size_t rank = 0; rank < x_.size(); ++rank) {
      if (x_[rank] < 0) continue;
      const bool touched = std::binary_search(journey_.ranks.begin(), journey_.ranks.end(), static_cast<int32_t>(rank));
      Text(x_[rank], 92, fmt::format("{}", rank), touched ? kBold : kPlain,
           touched ? R"(text-anchor="middle")" : R"(text-anchor="middle" fill="#b0b5bd")");
      Add(R"(<line x1="{0}" y1="98" x2="{0}" y2="{1}" stroke="{2}"/>)", x_[rank], bottom_, touched ? "#cfd5de" : "#e9ecf0");
    }
    Text(figures_ + kRanks, 92, "ranks", kPlain, R"(fill="#555555")");
    Text(figures_ + kCrossings, 92, "crossings", kPlain, R"(fill="#555555")");
  }

  void Row(const Operation& o, int y) {
    const auto [colour, meaning] = StyleOf(o.at.phase);
    Text(kind_ - 6, y + 12, fmt::format("{}", o.number), kPlain, R"(text-anchor="end" fill="#888888")");
    Text(kind_, y + 12, KindOf(o, map_.names), kPlain, fmt::format(R"(fill="{}")", colour));
    int at = y + kRowPad;
    for (const int32_t rank : o.stays) Add(R"(<circle cx="{}" cy="{}" r="4" fill="{}"><title>stays on {}</title></circle>)", x_[rank], at, colour, rank);
    if (!o.stays.empty()) at += kHop;
    for (const Hop& hop : o.hops) {
      Arrow(hop, at, colour, std::binary_search(o.new_ranks.begin(), o.new_ranks.end(), hop.to));
      at += kHop;
    }
    Text(figures_ + kRanks + 4, y + 12, fmt::format("{}", o.ranks));
    const bool crosses = std::any_of(o.hops.begin(), o.hops.end(), [](const Hop& hop) { return hop.crosses; });
    Text(figures_ + kCrossings + 16, y + 12, fmt::format("{}", o.crossings), crosses ? kBold : kPlain,
         crosses ? R"(fill="#c0392b")" : R"(fill="#888888")");
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
      Text(kind_, y + 4, KvText(first, end), kPlain, R"(fill="#1c8a4b")");
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

  void Legend(const LegendItem& item) {
    const int x = item.x, y = legend_top_ + kLegendLine * item.line;
    switch (item.mark) {
      case LegendItem::Mark::kLine:
        Add(R"(<line x1="{0}" y1="{1}" x2="{2}" y2="{1}" stroke="{3}" stroke-width="2"/>)", x, y - 4, x + 18, item.colour);
        break;
      case LegendItem::Mark::kCrossing:
        Add(R"(<line x1="{0}" y1="{1}" x2="{2}" y2="{1}" stroke="#f9c6bd" stroke-width="8"/>)", x, y - 4, x + 18);
        break;
      case LegendItem::Mark::kNewRank:
        Add(R"(<circle cx="{}" cy="{}" r="4.5" fill="none" stroke="#555555"/>)", x + 9, y - 4);
        break;
    }
    Text(x + 23, y, item.meaning);
  }

  static std::string MarkerOf(std::string_view colour) { return "a" + std::string(colour.substr(1)); }

  const Journey& journey_;
  const Map& map_;
  std::vector<int> x_;  // [ranks] middle of the column, -1: not drawn
  struct NodeBox {
    int32_t node = 0;
    int left = 0, width = 0;
  };
  std::vector<NodeBox> nodes_;
  std::vector<LegendItem> legend_;
  int column_ = kColumn;
  int kind_ = 0;        // where the operations' names begin
  int figures_ = 0;     // where the columns of ranks end
  int legend_top_ = 0;  // base line of its first line
  int width_ = 0, bottom_ = 0, height_ = 0;
  std::string svg_;
};

}  // namespace

std::string JourneySvg(const Journey& journey, const Map& map) { return Picture(journey, map).Draw(); }

}  // namespace sixfold::trace

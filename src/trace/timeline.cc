#include "trace/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "trace/itinerary.h"

namespace sixfold::trace {

namespace {

using nlohmann::ordered_json;

constexpr double kMicrosecond = 1e3;  // ns
constexpr double kArrivalUs = 1;      // how long an arrival is drawn; it takes no time of its own

struct Slice {
  Place at;
  uint8_t axis = 0, op = 0;
  int64_t begin_ns = std::numeric_limits<int64_t>::max(), end_ns = 0, bytes = 0, messages = 0;
};

class Timeline {
 public:
  Timeline(const Run& run, const Map& map) : map_(map) {
    for (const RankTrace& rank : run.ranks()) {
      for (const Message& m : rank.messages) start_ns_ = std::min(start_ns_, m.begin_ns);
    }
    for (size_t rank = 0; rank < map.node_of.size(); ++rank) {
      const int node = map.node_of[rank];
      if (rank == 0 || map.node_of[rank - 1] != node) Name("process_name", node, 0, fmt::format("node {}", node));
      Name("thread_name", node, static_cast<int>(rank), fmt::format("rank {}", rank));
    }
  }

  // What a rank sent for one operation, one after the other.
  void AddRank(const RankTrace& rank) {
    std::vector<Slice> slices;
    for (const Message& m : rank.messages) {
      const auto key = [](const Place& p) { return std::tuple(p.step, p.micro_batch, p.layer, p.phase); };
      if (slices.empty() || key(slices.back().at) != key(m.at)) slices.push_back({.at = m.at, .axis = m.axis, .op = m.op});
      Slice& slice = slices.back();
      slice.begin_ns = std::min(slice.begin_ns, m.begin_ns);
      slice.end_ns = std::max(slice.end_ns, m.end_ns);
      slice.bytes += m.bytes;
      ++slice.messages;
    }
    for (const Slice& s : slices) {
      Add(KindOf({.at = s.at, .axis = s.axis, .op = s.op}, map_.names), rank.rank, s.begin_ns,
          std::max(kArrivalUs, static_cast<double>(s.end_ns - s.begin_ns) / kMicrosecond),
          {{"step", s.at.step}, {"layer", s.at.layer + 1}, {"phase", NameOf(s.at.phase)}, {"axis", map_.names.axes.at(s.axis)},
           {"bytes", s.bytes}, {"messages", s.messages}});
    }
  }

  void AddHop(const Operation& operation, const Hop& hop, int64_t id) {
    const std::string name = fmt::format("token {}→{}", hop.from, hop.to);
    ordered_json arrow = {{"name", name}, {"cat", "token"}, {"id", id}, {"pid", map_.node_of[hop.from]}, {"tid", hop.from},
                          {"ts", Us(hop.begin_ns)}, {"ph", "s"}};
    events_.push_back(arrow);
    Add(fmt::format("token from {}", hop.from), hop.to, hop.end_ns, kArrivalUs,
        {{"operation", operation.number}, {"bytes", hop.bytes}, {"link", map_.names.links.at(hop.link)}});
    arrow["ph"] = "f";
    arrow["bp"] = "e";
    arrow["pid"] = map_.node_of[hop.to];
    arrow["tid"] = hop.to;
    arrow["ts"] = Us(hop.end_ns);
    events_.push_back(std::move(arrow));
  }

  std::string Text() { return ordered_json{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events_)}}.dump() + "\n"; }

 private:
  double Us(int64_t ns) const { return static_cast<double>(ns - start_ns_) / kMicrosecond; }

  void Name(const char* what, int node, int rank, std::string name) {
    events_.push_back({{"name", what}, {"ph", "M"}, {"pid", node}, {"tid", rank}, {"args", {{"name", std::move(name)}}}});
  }

  void Add(std::string name, int rank, int64_t begin_ns, double us, ordered_json args) {
    events_.push_back({{"name", std::move(name)}, {"cat", "operation"}, {"ph", "X"}, {"pid", map_.node_of[rank]}, {"tid", rank},
                       {"ts", Us(begin_ns)}, {"dur", us}, {"args", std::move(args)}});
  }

  const Map& map_;
  int64_t start_ns_ = std::numeric_limits<int64_t>::max();
  ordered_json events_ = ordered_json::array();
};

}  // namespace

std::string TimelineJson(const Run& run, const Journey& journey, const Map& map) {
  Timeline timeline(run, map);
  for (const RankTrace& rank : run.ranks()) timeline.AddRank(rank);
  int64_t id = 0;
  for (const Operation& operation : journey.operations) {
    for (const Hop& hop : operation.hops) timeline.AddHop(operation, hop, ++id);
  }
  return timeline.Text();
}

}  // namespace sixfold::trace

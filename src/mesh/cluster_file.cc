#include "mesh/cluster_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <vector>

#include "base/nearest.h"

namespace sixfold {

namespace {

constexpr double kBandwidthGbSMax = 1e6, kLatencyUsMax = 1e9;
constexpr std::string_view kTopKeys[] = {"nodes", "ranks-per-node", "inside", "between"};
constexpr std::string_view kLinkKeys[] = {"link", "bandwidth-gb-s", "latency-us"};

std::string_view Nearest(std::string_view name, std::span<const std::string_view> known) {
  return *std::min_element(known.begin(), known.end(), [&](auto a, auto b) {
    return EditDistance(name, a) < EditDistance(name, b);
  });
}

// '_' is as good as '-' in keys, as in every other file of ours.
std::string KeyName(const toml::key& key) {
  std::string name(key.str());
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// What a value is, as one would say it: "text 'x'", "3", "a list".
std::string Said(const toml::node& node) {
  if (const auto* text = node.as_string())
    return fmt::format("text '{}'", text->get().substr(0, 40));
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (node.is_array()) return "a list";
  if (node.is_table()) return "a table";
  return "a date or time";
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  Result<Cluster> Read(const toml::table& root) {
    Cluster cluster{{}, PresetLink(LinkClass::kShm), PresetLink(LinkClass::kEthernet)};
    SF_RETURN_IF_ERROR(CheckKeys(root, kTopKeys, ""));
    if (const toml::node* node = Find(root, "inside")) {
      SF_ASSIGN_OR_RETURN(cluster.inside, ReadLink(*node, "inside"));
    }
    if (const toml::node* node = Find(root, "between")) {
      SF_ASSIGN_OR_RETURN(cluster.between, ReadLink(*node, "between"));
    }
    SF_ASSIGN_OR_RETURN(cluster.ranks_per_node, ReadNodes(root));
    return cluster;
  }

 private:
  Status Wrong(const toml::source_region& place, const std::string& what) const {
    return InvalidFile(fmt::format("{}:{}: {}", file_, place.begin.line, what));
  }
  Status WrongValue(const toml::node& node, std::string_view key,
                    const std::string& expected) const {
    return Wrong(node.source(), fmt::format("{}: expected {}, got {}", key, expected, Said(node)));
  }

  static const toml::node* Find(const toml::table& table, std::string_view name) {
    for (const auto& [key, node] : table) {
      if (KeyName(key) == name) return &node;
    }
    return nullptr;
  }

  Status CheckKeys(const toml::table& table, std::span<const std::string_view> known,
                   std::string_view prefix) const {
    std::vector<std::string> seen;
    for (const auto& [key, node] : table) {
      const std::string name = KeyName(key);
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        return Wrong(key.source(),
                     fmt::format("{}{}: unknown key; expected {}, nearest is '{}'", prefix,
                                 key.str(), fmt::join(known, ", "), Nearest(name, known)));
      }
      if (std::find(seen.begin(), seen.end(), name) != seen.end())
        return Wrong(key.source(), fmt::format("{}{} stands twice", prefix, name));
      seen.push_back(name);
    }
    return OkStatus();
  }

  Result<int> ReadCount(const toml::node& node, std::string_view key) const {
    const auto* number = node.as_integer();
    if (number == nullptr || number->get() < 1 || number->get() > kClusterRanksMax)
      return WrongValue(node, key, fmt::format("an integer from 1 to {}", kClusterRanksMax));
    return static_cast<int>(number->get());
  }

  Result<std::vector<int>> ReadNodes(const toml::table& root) const {
    const toml::node* nodes_node = Find(root, "nodes");
    const toml::node* ranks_node = Find(root, "ranks-per-node");
    if (ranks_node == nullptr) {
      return InvalidFile(file_ +
                         ": ranks-per-node: expected a number such as 8 or a list such as "
                         "[8, 8, 4], got nothing");
    }
    std::optional<int> nodes;
    if (nodes_node != nullptr) {
      SF_ASSIGN_OR_RETURN(nodes, ReadCount(*nodes_node, "nodes"));
    }
    std::vector<int> ranks;
    if (const toml::array* list = ranks_node->as_array()) {
      if (nodes && static_cast<size_t>(*nodes) != list->size()) {
        return Wrong(ranks_node->source(),
                     fmt::format("ranks-per-node: expected {} numbers, one a node, got {}", *nodes,
                                 list->size()));
      }
      if (list->empty()) return WrongValue(*ranks_node, "ranks-per-node", "a number a node");
      for (const toml::node& element : *list) {
        SF_ASSIGN_OR_RETURN(const int count, ReadCount(element, "ranks-per-node"));
        ranks.push_back(count);
      }
    } else {
      SF_ASSIGN_OR_RETURN(const int count, ReadCount(*ranks_node, "ranks-per-node"));
      ranks.assign(nodes.value_or(1), count);
    }
    int64_t total = 0;
    for (const int count : ranks) total += count;
    if (total > kClusterRanksMax) {
      return Wrong(ranks_node->source(),
                   fmt::format("ranks-per-node: expected at most {} ranks on all nodes, got {}",
                               kClusterRanksMax, total));
    }
    return ranks;
  }

  // `inside = "nvlink"`, or a table with link, bandwidth-gb-s, latency-us.
  Result<Link> ReadLink(const toml::node& node, const std::string& name) const {
    if (node.is_string()) return ReadClass(node, name);
    const toml::table* table = node.as_table();
    if (table == nullptr) return WrongValue(node, name, "the name of a link class or a table");
    SF_RETURN_IF_ERROR(CheckKeys(*table, kLinkKeys, name + "."));
    const toml::node* link_node = Find(*table, "link");
    if (link_node == nullptr) {
      return Wrong(node.source(), fmt::format("{}.link: expected one of {}, got nothing", name,
                                              fmt::join(Classes(), ", ")));
    }
    SF_ASSIGN_OR_RETURN(Link link, ReadClass(*link_node, name + ".link"));
    if (const toml::node* value = Find(*table, "bandwidth-gb-s")) {
      SF_ASSIGN_OR_RETURN(link.bandwidth_gb_s,
                          ReadReal(*value, name + ".bandwidth-gb-s", kBandwidthGbSMax));
      if (link.bandwidth_gb_s <= 0)
        return WrongValue(*value, name + ".bandwidth-gb-s", "a number above 0");
    }
    if (const toml::node* value = Find(*table, "latency-us")) {
      SF_ASSIGN_OR_RETURN(link.latency_us, ReadReal(*value, name + ".latency-us", kLatencyUsMax));
    }
    return link;
  }

  static std::vector<std::string_view> Classes() {
    std::vector<std::string_view> names;
    for (int i = 0; i < kLinkClassCount; ++i) names.push_back(NameOf(static_cast<LinkClass>(i)));
    return names;
  }

  Result<Link> ReadClass(const toml::node& node, const std::string& key) const {
    const auto* text = node.as_string();
    const std::vector<std::string_view> classes = Classes();
    const std::string known = fmt::format("one of {}", fmt::join(classes, ", "));
    if (text == nullptr) return WrongValue(node, key, known);
    if (const auto link = LinkClassFromName(text->get())) return PresetLink(*link);
    return Wrong(node.source(), fmt::format("{}: expected {}, got {}, nearest is '{}'", key, known,
                                            Said(node), Nearest(text->get(), classes)));
  }

  Result<double> ReadReal(const toml::node& node, const std::string& key, double most) const {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !std::isfinite(*value) || *value < 0 || *value > most)
      return WrongValue(node, key, fmt::format("a number from 0 to {}", most));
    return *value;
  }

  const std::string& file_;
};

}  // namespace

Result<Cluster> ParseClusterFile(std::string_view text, const std::string& file) {
  try {
    const toml::table root = toml::parse(text, file);
    return Reader(file).Read(root);
  } catch (const toml::parse_error& error) {
    return InvalidFile(
        fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  }
}

Result<Cluster> ReadClusterFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return InvalidFile(fmt::format("{}: {}", path.string(), std::strerror(errno)));
  std::string text(kClusterFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof()))
    return InvalidFile(fmt::format("{}: cannot be read", path.string()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kClusterFileBytesMax) {
    return InvalidFile(
        fmt::format("{}: larger than {} bytes", path.string(), kClusterFileBytesMax));
  }
  return ParseClusterFile(text, path.string());
}

}  // namespace sixfold

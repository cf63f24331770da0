// The TOML config file.
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>

#include "base/nearest.h"
#include "apps/option_sources.h"

namespace sixfold::apps {
namespace {

std::string Place(const std::string& file, const toml::source_region& source) {
  return file + ":" + std::to_string(source.begin.line);
}

// A number, text or truth value as it would be typed behind a flag.
std::optional<std::string> Typed(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* real = node.as_floating_point()) {
    char text[64];
    const auto [end, error] = std::to_chars(text, text + sizeof text, real->get());
    return std::string(text, end);
  }
  return std::nullopt;
}

class FileReader {
 public:
  explicit FileReader(const std::string& file) : file_(file) {}

  Status Read(const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (node.is_table()) continue;
      SF_RETURN_IF_ERROR(ReadKey(key, node));
    }
    return OkStatus();
  }

  std::vector<RawSetting> Take() { return std::move(settings_); }

 private:
  Status ReadKey(const toml::key& key, const toml::node& node) {
    const std::string place = Place(file_, key.source());
    std::string name(key.str());
    std::replace(name.begin(), name.end(), '_', '-');
    const OptionSpec* spec = name.empty() || name[0] == '-' ? nullptr : FindOption(name);
    if (spec == nullptr || spec->name == "config") {
      std::vector<std::string> known;
      for (const std::string& spelling : OptionSpellings(~CommandSet{0})) {
        if (spelling[0] != '-' && spelling != "config") known.push_back(spelling);
      }
      return InvalidArgument(place + ": unknown key '" + std::string(key.str()) + "'" +
                             DidYouMean(name, known));
    }
    const bool list = spec->type == OptionType::kTexts || spec->type == OptionType::kIntegers;
    std::vector<std::string> values;
    const toml::array* array = node.as_array();
    if (array != nullptr && list) {
      for (const toml::node& element : *array) {
        const auto text = Typed(element);
        if (!text)
          return InvalidArgument(place + ": " + std::string(spec->name) +
                                 " takes a list of plain values");
        values.push_back(*text);
      }
    } else {
      const auto text = Typed(node);
      if (!text)
        return InvalidArgument(place + ": " + std::string(spec->name) + " takes one plain value");
      values.push_back(*text);
    }
    const auto same = std::find_if(settings_.begin(), settings_.end(),
                                   [&](const RawSetting& other) { return other.spec == spec; });
    RawSetting setting{spec, std::move(values), {Origin::Kind::kFile, place}};
    if (same == settings_.end()) {
      settings_.push_back(std::move(setting));
    } else {
      *same = std::move(setting);
    }
    return OkStatus();
  }

  const std::string& file_;
  std::vector<RawSetting> settings_;
};

}  // namespace

Result<std::vector<RawSetting>> ParseConfigFile(const std::string& text, const std::string& file,
                                                std::string_view command_name) {
  toml::table root;
  try {
    root = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(Place(file, error.source()) + ": " + std::string(error.description()));
  }
  std::vector<std::string> tables;
  for (int id = 0; id < kCommandCount; ++id)
    tables.emplace_back(CommandName(static_cast<CommandId>(id)));
  for (const auto& [key, node] : root) {
    const std::string name(key.str());
    if (node.is_table() && std::find(tables.begin(), tables.end(), name) == tables.end()) {
      return InvalidArgument(Place(file, key.source()) + ": unknown table [" + name + "]" +
                             DidYouMean(name, tables));
    }
  }
  // Tables of other commands are read as well, so that a wrong key shows up whichever command meets
  // it first.
  for (const auto& [key, node] : root) {
    if (node.is_table()) SF_RETURN_IF_ERROR(FileReader(file).Read(*node.as_table()));
  }
  FileReader reader(file);
  SF_RETURN_IF_ERROR(reader.Read(root));
  if (const toml::table* own = root[command_name].as_table()) SF_RETURN_IF_ERROR(reader.Read(*own));
  return reader.Take();
}

}  // namespace sixfold::apps

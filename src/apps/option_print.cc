// Settings for people: --print-config and the option lists of --help.
#include <algorithm>
#include <charconv>
#include <optional>

#include "apps/option_sources.h"

namespace sixfold::apps {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kHelpIndent = 34;

std::string TomlText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr char digits[] = "0123456789ABCDEF";
      out += {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + '"';
}

// TOML's integers have 64 bits and a sign; larger seeds are given back as text.
bool InTomlRange(const std::string& digits) {
  int64_t value = 0;
  return std::from_chars(digits.data(), digits.data() + digits.size(), value).ec == std::errc();
}

std::string TomlScalar(const OptionSpec& spec, const std::string& value) {
  const bool number = spec.type == OptionType::kInteger || spec.type == OptionType::kSeed || spec.type == OptionType::kReal ||
                      spec.type == OptionType::kBytes || spec.type == OptionType::kIntegers;
  if (spec.type == OptionType::kFlag) return value;
  if (number && value != "auto") {
    // TOML wants digits on both sides of a point.
    const bool plain = value.find_first_not_of("-0123456789") == std::string::npos && InTomlRange(value);
    const bool pointed = value.find('.') != std::string::npos && value.front() != '.' &&
                         value.back() != '.' && value.rfind("-.", 0) != 0 &&
                         value.find_first_of("eE") == std::string::npos;
    if (plain || pointed) return value;
  }
  return TomlText(value);
}

std::string TomlValue(const OptionSpec& spec, const Setting& setting) {
  if (spec.type != OptionType::kTexts && spec.type != OptionType::kIntegers) {
    return TomlScalar(spec, setting.values.front());
  }
  std::string list = "[";
  for (const std::string& value : setting.values)
    list += (list.size() > 1 ? ", " : "") + TomlScalar(spec, value);
  return list + "]";
}

std::string OriginText(const OptionSpec& spec, const Setting& setting) {
  switch (setting.origin.kind) {
    case Origin::Kind::kFlag:
      return (setting.origin.name[0] == '-' ? "flag " : "") + setting.origin.name;
    case Origin::Kind::kEnvironment: return "environment " + setting.origin.name;
    case Origin::Kind::kFile: return "file " + setting.origin.name;
    case Origin::Kind::kDefault: break;
  }
  if (!spec.auto_means.empty()) return "default: " + std::string(spec.auto_means);
  const bool empty = setting.values.empty() || setting.values.front().empty();
  return empty ? "default: not set" : "default";
}

std::string_view GroupTitle(OptionGroup group) {
  switch (group) {
    case OptionGroup::kCommand: return "This command";
    case OptionGroup::kModel: return "Model";
    case OptionGroup::kArithmetic: return "Arithmetic";
    case OptionGroup::kLayout: return "Layout";
    case OptionGroup::kEngine: return "Engine";
    case OptionGroup::kServer: return "Server";
    case OptionGroup::kSampling: return "Sampling";
    case OptionGroup::kGeneral: return "General";
  }
  return "";
}

// The words of `text` behind `out`, whose last line has `column` characters, wrapped at kColumns.
void AppendWrapped(std::string_view text, size_t column, size_t indent, std::string* out) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (column + word.size() > kColumns) {
      if (out->back() == ' ') out->pop_back();
      *out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    *out += word;
    *out += ' ';
    column += word.size() + 1;
    begin = end + 1;
  }
  while (!out->empty() && out->back() == ' ') out->pop_back();
  *out += '\n';
}

void AppendOption(const OptionSpec& spec, std::string* out) {
  std::string names, longer;
  for (const std::string_view alias : spec.aliases) {
    if (alias.size() == 2 && alias[0] == '-')
      names += std::string(alias) + ", ";
    else
      longer += (longer.empty() ? "" : ", ") +
                (alias[0] == '-' ? std::string(alias) : "--" + std::string(alias));
  }
  std::string line = "  " + names + "--" + std::string(spec.name);
  if (!spec.metavar.empty()) line += " " + std::string(spec.metavar);
  if (line.size() + 2 > kHelpIndent) {
    *out += line + "\n" + std::string(kHelpIndent, ' ');
  } else {
    *out += line + std::string(kHelpIndent - line.size(), ' ');
  }
  std::string help(spec.help);
  if (!spec.auto_means.empty()) {
    help += " [default: " + std::string(spec.auto_means) + "]";
  } else if (spec.type != OptionType::kFlag && !spec.fallback.empty()) {
    help += " [default: " + std::string(spec.fallback) + "]";
  }
  if (spec.type == OptionType::kFlag && spec.fallback == "true")
    help += " [default: on; --no-" + std::string(spec.name) + " turns it off]";
  if (!longer.empty()) help += " (also " + longer + ")";
  AppendWrapped(help, kHelpIndent, kHelpIndent, out);
}

}  // namespace

std::string PrintConfig(const Options& options, std::string_view command_name) {
  std::string out =
      "# sixfold " + std::string(command_name) +
      ": what each setting is and where it came from.\n"
      "# A flag wins over the environment, that over the file, that over the default.\n";
  OptionGroup group = OptionGroup::kCommand;
  for (const OptionSpec& spec : OptionTable()) {
    if ((spec.commands >> static_cast<int>(options.command()) & 1) == 0) continue;
    if (spec.group != group || out.back() != '\n')
      out += "\n# " + std::string(GroupTitle(spec.group)) + "\n";
    group = spec.group;
    const Setting& setting = options.Get(spec.name);
    const bool hidden = spec.secret && !setting.values.front().empty();
    std::string line =
        std::string(spec.name) + " = " + (hidden ? "\"hidden\"" : TomlValue(spec, setting));
    // A key may not name the file that it stands in, and a hidden one must not be read back.
    if (hidden || spec.name == "config") line = "# " + line;
    line += std::string(line.size() < 39 ? 39 - line.size() : 1, ' ') + " # " +
            OriginText(spec, setting);
    out += line + "\n";
  }
  return out;
}

std::string Wrapped(std::string_view text) {
  std::string out;
  AppendWrapped(text, 0, 0, &out);
  return out;
}

std::string OptionHelp(CommandId command) {
  std::string out;
  std::optional<OptionGroup> group;
  for (const OptionSpec& spec : OptionTable()) {
    if ((spec.commands >> static_cast<int>(command) & 1) == 0) continue;
    if (group != spec.group)
      out += (out.empty() ? "" : "\n") + std::string(GroupTitle(spec.group)) + ":\n";
    group = spec.group;
    AppendOption(spec, &out);
  }
  out += "  -h, --help                      this text\n";
  out += "  --print-config                  every setting and where it came from, as TOML\n";
  return out;
}

}  // namespace sixfold::apps

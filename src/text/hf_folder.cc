#include "text/hf_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "text/hf_special_tokens.h"
#include "text/utf8.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The largest published tokenizer.json has 42 MB.
constexpr uint64_t kTokenizerBytesMax = 512ull << 20;
constexpr uint64_t kConfigBytesMax = 64ull << 20;
constexpr uint64_t kTemplateBytesMax = 1ull << 20;
constexpr int kJsonDepthMax = 64;
constexpr size_t kTemplatesMax = 64;

// The file's bytes; nullopt if there is no such file.
Result<std::optional<std::string>> ReadFile(const fs::path& path, uint64_t bytes_max) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::optional<std::string>();
  if (!fs::is_regular_file(path, error)) return InvalidFile(path.string() + ": not a regular file");
  const uint64_t size = fs::file_size(path, error);
  if (error) return InvalidFile(path.string() + ": " + error.message());
  if (size > bytes_max) {
    return InvalidFile(path.string() + ": " + std::to_string(size) + " bytes; " + std::to_string(bytes_max) +
                       " is the limit");
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes(size, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!in) return InvalidFile(path.string() + ": cannot be read: " + std::strerror(errno));
  return std::optional<std::string>(std::move(bytes));
}

Result<std::string> ReadText(const fs::path& path) {
  SF_ASSIGN_OR_RETURN(std::optional<std::string> text, ReadFile(path, kTemplateBytesMax));
  const std::string bytes = text ? std::move(*text) : std::string();
  if (!IsValidUtf8(bytes)) {
    return InvalidFile(path.string() + ": not valid UTF-8 at byte " + std::to_string(ValidUtf8Prefix(bytes)));
  }
  return bytes;
}

// A JSON object from a file; an empty one if there is no such file.
Result<Json> ReadJson(const fs::path& path) {
  SF_ASSIGN_OR_RETURN(std::optional<std::string> text, ReadFile(path, kConfigBytesMax));
  if (!text) return Json::object();
  bool too_deep = false;
  const auto guard = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kJsonDepthMax;
    return !too_deep;  // values below are dropped as they are read
  };
  try {
    Json parsed = Json::parse(*text, guard);
    if (too_deep) {
      return InvalidFile(path.string() + ": nested deeper than " + std::to_string(kJsonDepthMax) + " levels");
    }
    if (!parsed.is_object()) return InvalidFile(path.string() + ": must hold a JSON object");
    return parsed;
  } catch (const Json::exception& e) {
    return InvalidFile(path.string() + ": " + e.what());
  }
}

std::optional<bool> FlagOf(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() ? std::optional<bool>(found->get<bool>())
                                                      : std::nullopt;
}

void AddTemplate(const std::string& name, std::string text, NamedTemplates* templates) {
  const auto same = [&name](const auto& known) { return known.first == name; };
  if (std::any_of(templates->begin(), templates->end(), same)) return;
  if (templates->size() < kTemplatesMax) templates->emplace_back(name, std::move(text));
}

// chat_template is one text, a list of {name, template}, or an object of name: text.
Status AddConfigTemplates(const Json& config, const std::string& file, NamedTemplates* templates) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return OkStatus();
  const Json& value = *found;
  if (value.is_string()) {
    AddTemplate("default", value.get<std::string>(), templates);
    return OkStatus();
  }
  const Status wrong = InvalidFile(file + ": chat_template must be a text, a list of {name, template} or an object");
  if (value.is_object()) {
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string()) return wrong;
      AddTemplate(name, text.get<std::string>(), templates);
    }
    return OkStatus();
  }
  if (!value.is_array()) return wrong;
  for (const Json& item : value) {
    if (!item.is_object() || !item.contains("name") || !item.contains("template")) return wrong;
    if (!item["name"].is_string() || !item["template"].is_string()) return wrong;
    AddTemplate(item["name"].get<std::string>(), item["template"].get<std::string>(), templates);
  }
  return OkStatus();
}

// Templates in files of their own win over those in a config.
Status AddTemplateFiles(const fs::path& folder, NamedTemplates* templates) {
  std::error_code error;
  if (fs::exists(folder / "chat_template.jinja", error)) {
    SF_ASSIGN_OR_RETURN(std::string text, ReadText(folder / "chat_template.jinja"));
    AddTemplate("default", std::move(text), templates);
  }
  for (const char* name : {"additional_chat_templates", "chat_templates"}) {
    std::map<std::string, fs::path> files;  // in order of name, whatever the directory's order is
    for (const auto& entry : fs::directory_iterator(folder / name, error)) {
      if (entry.path().extension() == ".jinja") files[entry.path().stem().string()] = entry.path();
      if (files.size() >= kTemplatesMax) break;
    }
    for (const auto& [stem, path] : files) {
      SF_ASSIGN_OR_RETURN(std::string text, ReadText(path));
      AddTemplate(stem, std::move(text), templates);
    }
  }
  SF_ASSIGN_OR_RETURN(Json processor, ReadJson(folder / "chat_template.json"));
  return AddConfigTemplates(processor, (folder / "chat_template.json").string(), templates);
}

}  // namespace

Result<HfTokenizerFiles> ReadHfTokenizerFiles(const std::string& folder) {
  const fs::path root(folder);
  HfTokenizerFiles files;
  SF_ASSIGN_OR_RETURN(std::optional<std::string> json, ReadFile(root / "tokenizer.json", kTokenizerBytesMax));
  if (!json) {
    return InvalidFile((root / "tokenizer.json").string() +
                       ": no such file; save the tokenizer with transformers' save_pretrained to get one");
  }
  files.tokenizer_json = std::move(*json);
  SF_ASSIGN_OR_RETURN(Json config, ReadJson(root / "tokenizer_config.json"));
  SF_ASSIGN_OR_RETURN(const Json map, ReadJson(root / "special_tokens_map.json"));
  SF_ASSIGN_OR_RETURN(const Json added, ReadJson(root / "added_tokens.json"));
  auto declared =
      DeclaredTokens({.config = config, .special_tokens_map = map, .added_tokens = added});
  if (!declared.ok()) return declared.status().WithContext(folder);
  files.special_tokens = std::move(declared->roles);
  files.eos_file = std::move(declared->eos_file);
  files.declared_json = std::move(declared->json);
  files.add_bos = FlagOf(config, "add_bos_token");
  files.add_eos = FlagOf(config, "add_eos_token");
  SF_RETURN_IF_ERROR(AddTemplateFiles(root, &files.chat_templates));
  SF_RETURN_IF_ERROR(
      AddConfigTemplates(config, (root / "tokenizer_config.json").string(), &files.chat_templates));
  return files;
}

}  // namespace sixfold

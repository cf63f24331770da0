#include "text/hf_special_tokens.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace sixfold {
namespace {

using Json = nlohmann::ordered_json;
using Roles = std::vector<std::pair<std::string, Json>>;

constexpr const char* kDecoder = "added_tokens_decoder";
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";  // the same in transformers 4
constexpr size_t kRolesMax = 256;
// In the order in which transformers adds them.
constexpr std::string_view kNamed[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

bool IsNamed(std::string_view key) {
  return std::find(std::begin(kNamed), std::end(kNamed), key) != std::end(kNamed);
}

bool IsRole(std::string_view key) {
  return key.size() > 6 && key.substr(key.size() - 6) == "_token";
}

// A token is written as its text, or as an AddedToken object with it under "content".
const std::string* TextOf(const Json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (!token.is_object()) return nullptr;
  const auto content = token.find("content");
  return content != token.end() && content->is_string() ? content->get_ptr<const std::string*>()
                                                        : nullptr;
}

// The token as an object with its flags alone.
Json Flags(const Json& token) {
  Json flags = {{"content", *TextOf(token)}};
  if (!token.is_object()) return flags;
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
    if (const auto found = token.find(flag); found != token.end() && found->is_boolean())
      flags[flag] = *found;
  }
  return flags;
}

Json Special(const Json& token) {
  Json flags = Flags(token);
  flags["special"] = true;
  return flags;
}

void SetRole(const std::string& role, const Json& token, Roles* roles) {
  const auto same = [&role](const auto& known) { return known.first == role; };
  const auto found = std::find_if(roles->begin(), roles->end(), same);
  if (found != roles->end())
    found->second = token;
  else if (roles->size() <= kRolesMax)  // one too many is kept, to be refused
    roles->emplace_back(role, token);
}

void SetRoles(const Json& tokens, Roles* roles) {
  for (const auto& [role, token] : tokens.items()) {
    if (TextOf(token) != nullptr) SetRole(role, token, roles);
  }
}

// Gathers what the config and, without an added_tokens_decoder, special_tokens_map.json say.
class Gatherer {
 public:
  explicit Gatherer(const HfTokenFiles& files)
      : config_(files.config), map_(files.special_tokens_map), added_(files.added_tokens) {
    const auto decoder = config_.find(kDecoder);
    has_decoder_ = decoder != config_.end() && !decoder->is_null();
    if (!has_decoder_) merged_ = map_;
    GatherExtras();
  }

  Result<HfDeclaredTokens> Gather() {
    SF_ASSIGN_OR_RETURN(Json by_id, has_decoder_ ? FromDecoder() : FromAddedTokens());
    HfDeclaredTokens out;
    Json roles = Json::array(), extras = Json::array();
    const Roles gathered = GatherRoles();
    if (gathered.size() > kRolesMax) {
      return InvalidFile("tokenizer_config.json: over " + std::to_string(kRolesMax) +
                         " keys that end in \"_token\"");
    }
    for (const auto& [role, token] : gathered) {
      out.roles.emplace_back(role, *TextOf(token));
      if (role == "eos_token")
        out.eos_file = merged_.contains(role) ? "special_tokens_map.json" : "tokenizer_config.json";
      roles.push_back(Special(token));
    }
    for (const Json& token : extras_) {
      if (TextOf(token) != nullptr)
        extras.push_back(token.is_string() ? Special(token) : Flags(token));
    }
    const Json all = {{"by_id", std::move(by_id)},
                      {"with_own", !has_decoder_},
                      {"roles", std::move(roles)},
                      {"extras", std::move(extras)}};
    out.json = all.dump(-1, ' ', false, Json::error_handler_t::replace);
    return out;
  }

 private:
  // The value of a key with special_tokens_map.json over the config; nullptr where neither has it.
  const Json* Find(std::string_view key) const {
    for (const Json* file : {&merged_, &config_}) {
      const auto found = file->find(std::string(key));
      if (found != file->end()) return &*found;
    }
    return nullptr;
  }

  Roles GatherRoles() const {
    Roles roles;
    for (const std::string_view role : kNamed) {
      const Json* token = Find(role);
      if (token != nullptr && TextOf(*token) != nullptr) roles.emplace_back(role, *token);
    }
    // A role of the model's own ("image_token"): a text in the config wins over an object there and
    // over the map.
    Roles of_config;
    for (const Json* file : {&config_, &merged_}) {
      for (const auto& [role, token] : file->items()) {
        if (!IsRole(role) || IsNamed(role) || TextOf(token) == nullptr) continue;
        SetRole(role, token, file == &config_ && token.is_string() ? &of_config : &roles);
      }
    }
    for (const auto& [role, token] : of_config) SetRole(role, token, &roles);
    SetRoles(named_extras_, &roles);
    return roles;
  }

  // Further special tokens: a list, or an object of roles. The two keys are of two versions of
  // transformers, and which of them counts depends on the other.
  void GatherExtras() {
    std::optional<Json> extra = Value(config_, kExtra), additional = Value(config_, kAdditional);
    if (additional && (!extra || extra->empty())) extra = std::exchange(additional, std::nullopt);
    TakeNamed(&extra);
    if (const std::optional<Json> more = Value(merged_, kExtra); more && more->is_array()) {
      Json all = extra && extra->is_array() ? *extra : Json::array();
      for (const Json& token : *more) {
        if (TextOf(token) != nullptr) all.push_back(token.is_string() ? token : Special(token));
      }
      extra = std::move(all);
    } else if (more) {
      extra = more;
    }
    TakeNamed(&extra);
    for (const Json& token : List(extra))
      listed_.insert(token.is_string() ? token.get<std::string>() : "");
    for (const Json& token : List(Value(merged_, kExtra))) {
      if (TextOf(token) != nullptr) listed_.insert(*TextOf(token));
    }
    if (const std::optional<Json> older = Value(merged_, kAdditional)) additional = older;
    extras_ = List(extra || !additional ? extra : additional);
  }

  static std::optional<Json> Value(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() ? std::nullopt : std::optional<Json>(*found);
  }

  static Json List(const std::optional<Json>& value) {
    return value && value->is_array() ? *value : Json::array();
  }

  void TakeNamed(std::optional<Json>* extra) {
    if (!*extra || !(*extra)->is_object()) return;
    named_extras_.update(**extra);
    extra->reset();
  }

  Result<Json> FromDecoder() const {
    const Json& decoder = config_[kDecoder];
    const Status wrong =
        InvalidFile("tokenizer_config.json: added_tokens_decoder must map ids to tokens");
    if (!decoder.is_object()) return wrong;
    Json by_id = Json::array();
    for (const auto& [key, token] : decoder.items()) {
      int64_t id = 0;
      const char* end = key.data() + key.size();
      const auto [after, error] = std::from_chars(key.data(), end, id);
      if (error != std::errc() || after != end || !token.is_object() || TextOf(token) == nullptr)
        return wrong;
      by_id.push_back({id, Flags(token)});
    }
    return by_id;
  }

  // added_tokens.json has texts and ids only: those with a role, and those that the config lists,
  // are special.
  Result<Json> FromAddedTokens() const {
    std::set<std::string> special;
    for (const std::string_view role : kNamed) {
      const Json* token = Find(role);
      const bool of_map = merged_.contains(std::string(role));
      if (token != nullptr && TextOf(*token) != nullptr && (token->is_string() || of_map))
        special.insert(*TextOf(*token));
    }
    special.insert(listed_.begin(), listed_.end());
    Json by_id = Json::array();
    for (const auto& [text, id] : added_.items()) {
      if (!id.is_number_integer())
        return InvalidFile("added_tokens.json: the id of '" + text + "' must be a number");
      const bool is_special = special.count(text) != 0;
      by_id.push_back(
          {id, {{"content", text}, {"special", is_special}, {"normalized", !is_special}}});
    }
    return by_id;
  }

  const Json& config_;
  const Json& map_;
  const Json& added_;
  bool has_decoder_ = false;
  Json merged_ = Json::object();        // special_tokens_map.json where it counts
  Json named_extras_ = Json::object();  // by role
  Json extras_ = Json::array();
  std::set<std::string> listed_;  // those of extras_ that make a token of added_tokens.json special
};

}  // namespace

Result<HfDeclaredTokens> DeclaredTokens(const HfTokenFiles& files) {
  return Gatherer(files).Gather();
}

}  // namespace sixfold

#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fnv.h"
#include "model/arch/common.h"
#include "model/arch/family.h"
#include "model/arch/known_fields.h"
#include "weights/error_text.h"
#include "weights/json_guard.h"
#include "weights/tensor_reader.h"
#include "weights/weight_store.h"

namespace sixfold {

namespace {

using nlohmann::json;

constexpr size_t kConfigBytesMax = size_t{8} << 20;
constexpr size_t kConfigDepthMax = 16;

Result<std::string> ReadSmallFile(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return InvalidFile(fmt::format("{}: {}", path.string(), error.message()));
  if (size > kConfigBytesMax) {
    return InvalidFile(fmt::format("{}: {} bytes; a config of at most {} is expected", path.string(), size,
                                   kConfigBytesMax));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return InvalidFile(fmt::format("{}: cannot be opened for reading", path.string()));
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// JSON with a bounded depth and no repeated key: which of two values a reader would take is anybody's guess.
Result<json> ParseStrict(std::string_view text, const std::string& name) {
  SF_RETURN_IF_ERROR(CheckJsonLimits(text, {.depth_max = kConfigDepthMax}, name));
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  const auto callback = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  try {
    json value = json::parse(text.begin(), text.end(), callback);
    if (!repeated.empty()) return InvalidFile(fmt::format("{}: key '{}' stands twice", name, repeated));
    if (!value.is_object()) return InvalidFile(fmt::format("{}: expected a JSON object, got {}", name, value.type_name()));
    return value;
  } catch (const json::exception& e) {
    return InvalidFile(fmt::format("{}: not valid JSON: {}", name, e.what()));
  }
}

FieldValue ArrayField(const json& array) {
  if (std::all_of(array.begin(), array.end(), [](const json& x) { return x.is_number_integer(); })) {
    return array.get<std::vector<int64_t>>();
  }
  if (std::all_of(array.begin(), array.end(), [](const json& x) { return x.is_string(); })) {
    return array.get<std::vector<std::string>>();
  }
  return FieldOther{"a list of other values"};
}

FieldValue ScalarField(const json& value) {
  if (value.is_null()) return FieldNull{};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return value.get<double>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return ArrayField(value);
  return FieldOther{value.empty() ? "an empty object" : "an object"};
}

// One level of nesting becomes "outer.inner"; the outer key itself stays as a marker that it was there.
Fields Flatten(const json& object, const std::string& name) {
  std::map<std::string, FieldValue> out;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_object() || value.empty()) {
      out.emplace(key, ScalarField(value));
      continue;
    }
    for (const auto& [inner_key, inner] : value.items()) out.emplace(key + "." + inner_key, ScalarField(inner));
  }
  return Fields(name, std::move(out));
}

std::string KnownNames(bool gguf) {
  std::string out;
  for (const Family& family : FamilyTable()) {
    for (const auto name : gguf ? family.gguf_architectures : family.hf_architectures) {
      out += fmt::format("{}{}", out.empty() ? "" : ", ", name);
    }
  }
  return out;
}

const Family* FamilyOf(const std::string& architecture, bool gguf) {
  for (const Family& family : FamilyTable()) {
    const auto& names = gguf ? family.gguf_architectures : family.hf_architectures;
    if (std::find(names.begin(), names.end(), architecture) != names.end()) return &family;
  }
  return nullptr;
}

Status UnknownArchitecture(const std::string& name, const std::string& architecture, bool gguf) {
  return InvalidFile(fmt::format("{}: architecture '{}' is not supported; supported are {}", name, architecture,
                                 KnownNames(gguf)));
}

Result<std::vector<TokenId>> TokenIds(Fields& fields, const std::string& key) {
  std::vector<int64_t> wide;
  if (fields.Has(key) && std::holds_alternative<std::vector<int64_t>>(fields.values().at(key))) {
    SF_ASSIGN_OR_RETURN(const auto list, fields.Ints(key, 4096));
    wide = *list;
  } else {
    SF_ASSIGN_OR_RETURN(const auto one, fields.Int(key, -1, INT32_MAX));
    if (one) wide.push_back(*one);
  }
  std::vector<TokenId> out;
  for (const int64_t id : wide) {
    if (id < -1 || id > INT32_MAX) return fields.Wrong(key, "token ids");
    if (id >= 0) out.push_back(static_cast<TokenId>(id));
  }
  return out;
}

// What the reference's classes take where a config says nothing.
void SetClassDefaults(const Fields& f, ModelConfig* c) {
  if (c->family == "mixtral" || c->family == "olmoe" || c->family == "gpt_oss") c->norm_eps = 1e-5f;
  if (c->family == "qwen3") c->head_dim = 128;  // whatever hidden / heads is
  if (c->family.starts_with("deepseek")) c->head_dim = 64;  // what this family means by it: the rotated part of a head
  if (c->family != "gpt_oss") return;
  if (!f.HasKey("head_dim")) c->head_dim = 64;  // null means hidden / heads
  if (!f.HasKey("num_key_value_heads")) c->kv_heads = 8;
  c->max_positions = 131072;
}

Status ReadQuantization(Fields& f, ModelConfig* c) {
  if (!f.HasPrefix("quantization_config.")) {
    f.MarkUsed("quantization_config");
    return OkStatus();
  }
  SF_ASSIGN_OR_RETURN(const auto method, f.String("quantization_config.quant_method"));
  if (method.value_or("") == "mxfp4" && c->family == "gpt_oss") {
    f.MarkUsed("quantization_config.modules_to_not_convert");  // the files say which tensors are blocks
    f.MarkUsed("quantization_config.dequantize");
    c->mxfp4_experts = true;
    return OkStatus();
  }
  if (method.value_or("") != "fp8") {
    return f.Wrong("quantization_config.quant_method",
                   "\"fp8\", or \"mxfp4\" in a gpt_oss model (other quantisations of safetensors are not implemented)");
  }
  SF_ASSIGN_OR_RETURN(const auto block, f.Ints("quantization_config.weight_block_size", 8));
  if (!block || *block != std::vector<int64_t>{128, 128}) return f.Wrong("quantization_config.weight_block_size", "[128, 128]");
  SF_ASSIGN_OR_RETURN(const auto format, f.String("quantization_config.fmt"));
  if (format.value_or("e4m3") != "e4m3") return f.Wrong("quantization_config.fmt", "\"e4m3\"");
  SF_ASSIGN_OR_RETURN(const auto scheme, f.String("quantization_config.activation_scheme"));
  if (scheme.value_or("dynamic") != "dynamic") return f.Wrong("quantization_config.activation_scheme", "\"dynamic\"");
  for (const char* rest : {"modules_to_not_convert", "ignored_layers", "scale_fmt", "dequantize", "kv_cache_scheme"}) {
    f.MarkUsed(std::string("quantization_config.") + rest);
  }
  c->fp8_blocks = true;
  return OkStatus();
}

// Type of most of the bytes.
DType BulkType(const WeightStore& store) {
  std::map<DType, uint64_t> bytes;
  for (const TensorInfo& t : store.tensors()) bytes[t.dtype] += t.bytes;
  DType best = DType::kF32;
  uint64_t most = 0;
  for (const auto& [dtype, count] : bytes) {
    if (count > most) {
      most = count;
      best = dtype;
    }
  }
  return best;
}

FieldValue GgufField(const GgufMetadata& metadata, const GgufEntry& entry) {
  switch (entry.type) {
    case GgufType::kString: {
      const auto text = metadata.GetString(entry.key);
      return text.ok() ? FieldValue(std::string(*text)) : FieldValue(FieldOther{"a damaged string"});
    }
    case GgufType::kBool: {
      const auto value = metadata.GetBool(entry.key);
      return value.ok() ? FieldValue(*value) : FieldValue(FieldOther{"a damaged bool"});
    }
    case GgufType::kF32: case GgufType::kF64: {
      const auto value = metadata.GetF64(entry.key);
      return value.ok() ? FieldValue(*value) : FieldValue(FieldOther{"a damaged number"});
    }
    case GgufType::kArray: {
      const auto values = metadata.GetI64s(entry.key);
      if (!values.ok() || values->empty()) return FieldOther{"an array"};
      // One value a layer, all equal: the same as the scalar.
      if (std::all_of(values->begin(), values->end(), [&](int64_t v) { return v == values->front(); })) {
        return values->front();
      }
      return *values;
    }
    default: {
      const auto value = metadata.GetI64(entry.key);
      return value.ok() ? FieldValue(*value) : FieldValue(FieldOther{"an integer beyond 2^63"});
    }
  }
}

}  // namespace

namespace {

// Over the fields in order of names, without spaces; who wrote the file is no part of a model.
uint64_t HashOf(json root) {
  for (const char* field : {"transformers_version", "_name_or_path"}) root.erase(field);
  Fnv1a hash;
  hash.Add(root.dump());
  return hash.value();
}

}  // namespace

Result<ModelConfig> ConfigFromHfText(std::string_view text, const std::string& name) {
  SF_ASSIGN_OR_RETURN(const json root, ParseStrict(text, name));
  Fields fields = Flatten(root, name);
  SF_ASSIGN_OR_RETURN(const auto architectures, fields.Strings("architectures", 16));
  if (!architectures || architectures->size() != 1) {
    return fields.Wrong("architectures", "a list with one model class, such as [\"LlamaForCausalLM\"]");
  }
  const Family* family = FamilyOf(architectures->front(), false);
  if (family == nullptr) return UnknownArchitecture(name, architectures->front(), false);

  ModelConfig c;
  c.source_hash = HashOf(root);
  c.architecture = architectures->front();
  c.family = family->name;
  SetClassDefaults(fields, &c);
  SF_RETURN_IF_ERROR(ReadHfCommon(fields, &c));
  SF_RETURN_IF_ERROR(family->read_hf(fields, &c));
  SF_RETURN_IF_ERROR(ReadQuantization(fields, &c));
  SF_ASSIGN_OR_RETURN(c.eos_ids, TokenIds(fields, "eos_token_id"));
  SF_ASSIGN_OR_RETURN(const auto bos, TokenIds(fields, "bos_token_id"));
  if (!bos.empty()) c.bos_id = bos.front();
  SF_RETURN_IF_ERROR(CheckUnreadHfFields(fields, &c));
  return c;
}

Result<ModelConfig> ConfigFromHf(const std::filesystem::path& config_json) {
  SF_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(config_json));
  return ConfigFromHfText(text, config_json.string());
}

Result<ModelConfig> ConfigFromGguf(const WeightStore& store) {
  const GgufMetadata& metadata = *store.gguf();
  SF_ASSIGN_OR_RETURN(const auto architecture, metadata.GetString("general.architecture"));
  const Family* family = FamilyOf(std::string(architecture), true);
  if (family == nullptr) return UnknownArchitecture(store.path(), std::string(architecture), true);

  std::map<std::string, FieldValue> values;
  const std::string prefix = std::string(architecture) + ".";
  for (const GgufEntry& entry : metadata.entries()) {
    if (entry.key.starts_with(prefix)) {
      values.emplace(std::string(entry.key.substr(prefix.size())), GgufField(metadata, entry));
    }
  }
  Fields fields(store.path(), std::move(values));
  ModelConfig c;
  c.architecture = architecture;
  c.family = family->name;
  SF_RETURN_IF_ERROR(ReadGgufCommon(fields, &c));
  SF_RETURN_IF_ERROR(family->read_gguf(fields, &c));
  SF_RETURN_IF_ERROR(CheckUnreadGgufFields(fields, &c));

  const TensorInfo* embedding = store.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    return InvalidFile(fmt::format("{}: tensor 'token_embd.weight' [vocabulary, {}] is missing", store.path(), c.hidden));
  }
  c.vocab = embedding->shape[0];
  c.tied_embeddings = store.Find("output.weight") == nullptr;
  c.qkv_bias = c.qkv_bias || store.Find("blk.0.attn_q.bias") != nullptr;
  c.o_bias = store.Find("blk.0.attn_output.bias") != nullptr;
  c.mlp_bias = store.Find("blk.0.ffn_down.bias") != nullptr;
  for (size_t l = 0; l < c.layers.size(); ++l) {
    c.layers[l].sparse = c.moe.experts > 0 && store.Find(fmt::format("blk.{}.ffn_gate_inp.weight", l)) != nullptr;
  }
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (!metadata.Has(key)) continue;
    SF_ASSIGN_OR_RETURN(const int64_t id, metadata.GetI64(key));
    if (id >= 0 && id < c.vocab && std::find(c.eos_ids.begin(), c.eos_ids.end(), id) == c.eos_ids.end()) {
      c.eos_ids.push_back(static_cast<TokenId>(id));
    }
  }
  if (metadata.Has("tokenizer.ggml.bos_token_id")) {
    SF_ASSIGN_OR_RETURN(c.bos_id, metadata.GetI64("tokenizer.ggml.bos_token_id"));
  }
  if (const TensorInfo* factors = store.Find("rope_freqs.weight")) {
    if (factors->shape != std::vector<int64_t>{c.head_dim / 2}) {
      return InvalidFile(fmt::format("{}: {} must have {} entries, half the head size", store.path(),
                                     DescribeTensor(*factors), c.head_dim / 2));
    }
    SF_ASSIGN_OR_RETURN(c.rope.freq_factors, ReadAll(store, *factors));
  }
  c.file_dtype = BulkType(store);
  return c;
}

Result<ModelConfig> ConfigFor(const WeightStore& store, const std::filesystem::path& model) {
  if (store.format() == WeightStore::Format::kGguf) return ConfigFromGguf(store);
  const auto folder = std::filesystem::is_directory(model) ? model : model.parent_path();
  SF_ASSIGN_OR_RETURN(ModelConfig c, ConfigFromHf(folder / "config.json"));
  c.file_dtype = BulkType(store);
  const auto generation = folder / "generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(generation, error)) {
    for (const TokenId id : GenerationDefaultsFromHf(generation).eos_ids) {
      if (std::find(c.eos_ids.begin(), c.eos_ids.end(), id) == c.eos_ids.end()) c.eos_ids.push_back(id);
    }
  }
  return c;
}

namespace {

// Reads advice field by field and notes what cannot be followed.
class Advice {
 public:
  explicit Advice(Fields* fields) : fields_(fields) {}

  enum class Low : uint8_t { kIncluded, kExcluded };
  void Number(const char* key, double min, double max, double* out, Low low = Low::kIncluded) {
    const auto value = fields_->Number(key, min, max);
    if (value.ok() && !*value && !IsObject(key)) return;
    if (value.ok() && *value && !(low == Low::kExcluded && **value == min)) {
      *out = **value;
      return;
    }
    const char* from = low == Low::kExcluded ? "above" : "from";
    Note(key, max == kRepetitionPenaltyMax ? "a positive number that fp32 holds"
                                           : fmt::format("a number {} {} to {}", from, min, max));
  }
  void Integer(const char* key, int64_t min, int64_t* out) {
    const auto value = fields_->Int(key, min, INT32_MAX);
    if (!value.ok() || IsObject(key))
      return Note(key, fmt::format("an integer of at least {}", min));
    if (*value) *out = **value;
  }
  void Ids(const char* key, std::vector<TokenId>* out) {
    Result<std::vector<TokenId>> ids = TokenIds(*fields_, key);
    if (!ids.ok() || IsObject(key)) return Note(key, "a token id or a list of them");
    *out = *std::move(ids);
  }
  // "" when all could be followed.
  std::string Warning() const {
    if (notes_.empty()) return "";
    return fmt::format("{}: passed over: {}", fields_->source(), notes_);
  }

 private:
  // An object's members are fields of their own; under its name there is nothing.
  bool IsObject(const char* key) const {
    return !fields_->HasKey(key) && fields_->HasPrefix(std::string(key) + ".");
  }

  void Note(const char* key, const std::string& expected) {
    const FieldValue value = IsObject(key) ? FieldOther{"an object"} : fields_->values().at(key);
    const auto* text = std::get_if<std::string>(&value);
    notes_ += fmt::format("{}{} {} ({} is expected)", notes_.empty() ? "" : ", ", key,
                          text != nullptr ? Quote(*text) : Describe(value), expected);
  }

  Fields* fields_;
  std::string notes_;
};

}  // namespace

GenerationDefaults GenerationDefaultsFromHf(const std::filesystem::path& path) {
  const Result<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return {.warning = "passed over: " + text.status().message()};
  return GenerationDefaultsFromHfText(*text, path.string());
}

GenerationDefaults GenerationDefaultsFromHfText(std::string_view text, const std::string& name) {
  const Result<json> root = ParseStrict(text, name);
  if (!root.ok()) return {.warning = "passed over: " + root.status().message()};
  Fields fields = Flatten(*root, name);
  GenerationDefaults out;
  Advice advice(&fields);
  advice.Number("temperature", 0.0, kTemperatureMax, &out.temperature);
  advice.Number("top_p", 0.0, 1.0, &out.top_p, Advice::Low::kExcluded);
  advice.Number("min_p", 0.0, 1.0, &out.min_p);
  advice.Number("repetition_penalty", kRepetitionPenaltyMin, kRepetitionPenaltyMax,
                &out.repetition_penalty);
  advice.Integer("top_k", -1, &out.top_k);
  advice.Integer("max_new_tokens", 1, &out.max_new_tokens);
  advice.Ids("eos_token_id", &out.eos_ids);
  out.warning = advice.Warning();
  return out;
}

}  // namespace sixfold

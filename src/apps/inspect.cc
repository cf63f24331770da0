// sixfold inspect: what a model, or any well-formed weight file, holds. Reads headers, the
// vocabulary, and all bytes for the fingerprint, once; JSON goes out piece by piece, so
// that the largest tensor lists need no memory of their own.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/loading.h"
#include "apps/output.h"
#include "apps/tensor_summary.h"
#include "apps/text_loading.h"
#include "base/machine.h"
#include "base/plural.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/turn_end.h"
#include "text/utf8.h"
#include "weights/weight_store.h"
#include "weights/weights_hash.h"

namespace sixfold::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kPatternsMax = 80;
constexpr size_t kFlushBytes = size_t{1} << 16;
constexpr size_t kConfigBytesMax = size_t{16} << 20;

struct Findings {
  std::string path;
  std::unique_ptr<WeightStore> store;
  TensorSummary summary;
  std::optional<ModelConfig> config;
  std::string not_a_model;  // why there is no config
  std::unique_ptr<Tokenizer> tokenizer;
  Digest256 weights{};  // WeightsHash
  std::vector<EndToken> end_tokens;  // a token that several places name is there several times
};

// Reads every byte of the files, unless the cache knows them.
Result<Digest256> HashWeights(const WeightStore& store, const std::string& name) {
  WeightsHash& hash = store.hash();
  hash.Start({.threads = 0, .cache = HashCacheFolder()});
  Progress progress("hashing " + name, Progress::Mode::kShown);
  return hash.Wait(UsableCores(), [&]() -> Status {
    progress.Update(hash.progress());
    return OkStatus();
  });
}

std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

int64_t KvBytesPerToken(const ModelConfig& config) {
  const int64_t element = config.file_dtype == DType::kF32 ? 4 : 2;
  const int64_t row = config.k_dim() + (config.latent.used() ? 0 : config.v_dim());
  return element * config.kv_heads * row *
         static_cast<int64_t>(config.layers.size());
}

// A folder whose config.json is damaged is an error; a model that we cannot run, or no model at
// all, is a finding.
Status ReadConfig(Findings* findings) {
  std::error_code error;
  const bool folder = fs::is_directory(findings->path, error);
  if (folder) {
    const std::string file = (fs::path(findings->path) / "config.json").string();
    SF_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kConfigBytesMax));
    const ordered_json json = ordered_json::parse(text, nullptr, false);
    if (!json.is_object()) return InvalidFile(file + ": no JSON object");
  } else if (findings->store->gguf() == nullptr) {
    findings->not_a_model = "a single file of tensors, without a config";
    return OkStatus();
  }
  Result<ModelConfig> config = ConfigFor(*findings->store, findings->path);
  if (config.ok())
    findings->config = *std::move(config);
  else
    findings->not_a_model = config.status().message();
  return OkStatus();
}

// Of the files that the model's config reads them from, then of the tokenizer's, then of the chat
// template.
Result<std::vector<EndToken>> FindEndTokens(const Findings& findings) {
  std::vector<EndToken> ends;
  const auto add = [&ends](TokenId id, std::string source) {
    const auto same = [&](const EndToken& known) {
      return known.id == id && known.source == source;
    };
    if (std::none_of(ends.begin(), ends.end(), same)) ends.push_back({id, std::move(source)});
  };
  if (const GgufMetadata* gguf = findings.store->gguf()) {
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
      const Result<int64_t> id = gguf->Has(key) ? gguf->GetI64(key) : Result<int64_t>(-1);
      if (findings.config && id.ok() && *id >= 0 && *id < findings.config->vocab)
        add(static_cast<TokenId>(*id), key);
    }
  } else if (findings.config) {
    const fs::path folder = fs::is_directory(findings.path) ? fs::path(findings.path)
                                                            : fs::path(findings.path).parent_path();
    SF_ASSIGN_OR_RETURN(const ModelConfig config, ConfigFromHf(folder / "config.json"));
    for (const TokenId id : config.eos_ids) add(id, "config.json");
    std::error_code error;
    if (const fs::path generation = folder / "generation_config.json";
        fs::exists(generation, error)) {
      for (const TokenId id : GenerationDefaultsFromHf(generation).eos_ids)
        add(id, "generation_config.json");
    }
  }
  if (findings.tokenizer != nullptr) {
    for (const EndToken& end : EndTokens(*findings.tokenizer, "")) add(end.id, end.source);
  }
  return ends;
}

Result<Findings> Look(const Options& options) {
  Findings findings;
  SF_ASSIGN_OR_RETURN(findings.path, FindModel(options));
  SF_ASSIGN_OR_RETURN(findings.store, WeightStore::Open(findings.path));
  findings.summary = Summarise(findings.store->tensors());
  SF_RETURN_IF_ERROR(ReadConfig(&findings));
  if (fs::path(findings.path).extension() != ".safetensors") {
    SF_ASSIGN_OR_RETURN(findings.tokenizer, FindTokenizer(findings.path));
  }
  SF_ASSIGN_OR_RETURN(findings.weights, HashWeights(*findings.store, ModelName(findings.path)));
  SF_ASSIGN_OR_RETURN(findings.end_tokens, FindEndTokens(findings));
  return findings;
}

ordered_json ConfigJson(const ModelConfig& c) {
  int64_t sparse = 0, windowed = 0;
  for (const LayerConfig& layer : c.layers) {
    sparse += layer.sparse ? 1 : 0;
    windowed += layer.window > 0 ? 1 : 0;
  }
  ordered_json json = {{"architecture", c.architecture},
                       {"family", c.family},
                       {"layers", c.layers.size()},
                       {"hidden", c.hidden},
                       {"intermediate", c.intermediate},
                       {"vocab", c.vocab},
                       {"heads", c.heads},
                       {"kv_heads", c.kv_heads},
                       {"head_dim", c.head_dim},
                       {"max_positions", c.max_positions},
                       {"tied_embeddings", c.tied_embeddings},
                       {"rope_theta", c.rope.theta},
                       {"rope_factor", c.rope.factor},
                       {"windowed_layers", windowed},
                       {"sparse_layers", sparse}};
  if (c.moe.experts > 0) {
    json["experts"] = c.moe.experts;
    json["experts_per_token"] = c.moe.top_k;
    json["expert_intermediate"] = c.moe.intermediate;
    if (c.moe.shared_intermediate > 0) json["shared_intermediate"] = c.moe.shared_intermediate;
    if (c.moe.groups > 1)
      json["expert_groups"] = {{"groups", c.moe.groups}, {"taken", c.moe.groups_taken}};
  }
  if (c.latent.used()) {
    json["latent_attention"] = {{"kv_rank", c.latent.kv_rank},
                                {"q_rank", c.latent.q_rank},
                                {"nope_dim", c.latent.nope_dim},
                                {"rope_dim", c.latent.rope_dim},
                                {"v_dim", c.latent.v_dim}};
  }
  json["eos_token_ids"] = c.eos_ids;
  json["kv_bytes_per_token"] = KvBytesPerToken(c);
  json["unknown_fields"] = c.unknown_fields;
  return json;
}

// Each token once, in order, with the sources that name it.
std::vector<std::pair<TokenId, std::vector<std::string>>> Grouped(
    const std::vector<EndToken>& ends) {
  std::vector<std::pair<TokenId, std::vector<std::string>>> grouped;
  for (const EndToken& end : ends) {
    const auto same = [&end](const auto& known) { return known.first == end.id; };
    auto found = std::find_if(grouped.begin(), grouped.end(), same);
    if (found == grouped.end()) found = grouped.insert(grouped.end(), {end.id, {}});
    found->second.push_back(end.source);
  }
  return grouped;
}

std::string TokenName(const Tokenizer* tokenizer, TokenId id) {
  return tokenizer == nullptr ? "" : tokenizer->TokenText(id);
}

ordered_json EndTokensJson(const Findings& findings) {
  ordered_json json = ordered_json::array();
  for (const auto& [id, sources] : Grouped(findings.end_tokens)) {
    json.push_back(
        {{"id", id}, {"token", TokenName(findings.tokenizer.get(), id)}, {"sources", sources}});
  }
  return json;
}

ordered_json WishJson(std::optional<bool> wish) {
  return wish ? ordered_json(*wish) : ordered_json();
}

ordered_json VocabularyJson(const Tokenizer& tokenizer) {
  ordered_json json = {{"tokens", tokenizer.vocab_size()}};
  json["bos_token_id"] = tokenizer.bos_id() ? ordered_json(*tokenizer.bos_id()) : ordered_json();
  json["eos_token_ids"] = tokenizer.eos_ids();
  json["adds_bos"] = tokenizer.AddsBos();
  json["adds_eos"] = tokenizer.AddsEos();
  json["add_bos_token"] = WishJson(tokenizer.wants_bos());
  json["add_eos_token"] = WishJson(tokenizer.wants_eos());
  json["warnings"] = tokenizer.warnings();
  ordered_json special = ordered_json::object();
  for (const auto& [role, text] : tokenizer.special_tokens()) special[role] = text;
  json["special_tokens"] = std::move(special);
  return json;
}

ordered_json TallyJson(const Tally& tally) {
  return {{"tensors", tally.tensors}, {"elements", tally.elements}, {"bytes", tally.bytes}};
}

ordered_json TalliesJson(const std::map<std::string, Tally>& tallies) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, tally] : tallies) json[name] = TallyJson(tally);
  return json;
}

// As a run with default settings would report it; of a file that is no model, the weights' own.
std::string ShownFingerprint(const Findings& findings) {
  if (!findings.config) return FingerprintText(findings.weights);
  const bool f32 = findings.config->file_dtype == DType::kF32;
  return ModelFingerprint(findings.weights, *findings.config,
                          {.act = f32 ? ActDType::kF32 : ActDType::kBF16});
}

ordered_json SummaryJson(const Findings& findings) {
  const WeightStore& store = *findings.store;
  ordered_json json = {
      {"path", findings.path},
      {"format", store.format() == WeightStore::Format::kGguf ? "gguf" : "safetensors"},
      {"file_bytes", store.file_bytes()},
      {"fingerprint", ShownFingerprint(findings)},
      {"weights_fingerprint", FingerprintText(findings.weights)},
      {"parameters", findings.summary.total.elements},
      {"total", TallyJson(findings.summary.total)},
      {"by_kind", TalliesJson(findings.summary.by_kind)},
      {"by_dtype", TalliesJson(findings.summary.by_dtype)}};
  json["architecture"] =
      findings.config ? ordered_json(findings.config->architecture) : ordered_json();
  json["model"] = findings.config ? ConfigJson(*findings.config) : ordered_json();
  if (!findings.config) json["not_a_model"] = findings.not_a_model;
  json["vocabulary"] = findings.tokenizer ? VocabularyJson(*findings.tokenizer) : ordered_json();
  json["end_tokens"] = EndTokensJson(findings);
  const std::string* chat =
      findings.tokenizer ? SelectChatTemplate(*findings.tokenizer, false) : nullptr;
  json["chat_template"] = chat != nullptr ? ordered_json(*chat) : ordered_json();
  return json;
}

// Appends `,"name":[` elements `]`, flushing as it goes.
class JsonList {
 public:
  JsonList(std::string* out, const char* name) : out_(out) {
    *out_ += fmt::format(",\"{}\":[", name);
  }
  Status Add(const ordered_json& element) {
    if (!first_) *out_ += ',';
    first_ = false;
    *out_ += Dump(element);
    if (out_->size() < kFlushBytes) return OkStatus();
    const Status printed = Print(*out_);
    out_->clear();
    return printed;
  }
  void End() { *out_ += ']'; }

 private:
  std::string* out_;
  bool first_ = true;
};

Status PrintJson(const Findings& findings) {
  std::string out = Dump(SummaryJson(findings));
  out.pop_back();  // the lists follow
  const WeightStore& store = *findings.store;
  JsonList metadata(&out, "metadata");
  if (const GgufMetadata* gguf = store.gguf()) {
    for (const GgufEntry& entry : gguf->entries()) {
      SF_RETURN_IF_ERROR(metadata.Add({{"key", entry.key},
                                       {"type", gguf->TypeName(entry.key).value_or("")},
                                       {"value", gguf->Describe(entry, 200)}}));
    }
  }
  for (const auto& [key, value] : store.safetensors_metadata()) {
    SF_RETURN_IF_ERROR(metadata.Add({{"key", key}, {"type", "string"}, {"value", value}}));
  }
  metadata.End();
  JsonList tensors(&out, "tensors");
  for (const TensorInfo& tensor : store.tensors()) {
    SF_RETURN_IF_ERROR(tensors.Add({{"name", tensor.name},
                                    {"dtype", NameOf(tensor.dtype)},
                                    {"shape", tensor.shape},
                                    {"bytes", tensor.bytes},
                                    {"kind", KindOf(tensor.name)}}));
  }
  tensors.End();
  return Print(out + "}\n");
}

std::string Line(std::string_view label, std::string_view text) {
  return fmt::format("{:<15}{}\n", label, text);
}

std::string RopeText(const RopeConfig& rope) {
  const char* scaling = "";
  switch (rope.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: scaling = "linear"; break;
    case RopeScaling::kLlama3: scaling = "llama3"; break;
    case RopeScaling::kYarn: scaling = "yarn"; break;
  }
  std::string text = fmt::format("theta {:g}", rope.theta);
  if (*scaling != '\0') text += fmt::format(", {} scaling by {:g}", scaling, rope.factor);
  if (!rope.freq_factors.empty()) text += ", with a table of frequency factors";
  return text;
}

std::string ConfigText(const ModelConfig& c) {
  std::string text = Line("architecture", fmt::format("{} (family {})", c.architecture, c.family));
  text += Line("layers", fmt::format("{} of hidden size {}, FFN {}", c.layers.size(), c.hidden,
                                     c.intermediate));
  text += Line("heads",
               fmt::format("{} query, {} key/value, {} wide", c.heads, c.kv_heads, c.head_dim));
  if (c.latent.used())
    text += Line("latent", fmt::format("{} wide beside a rotated key of {}, values of {}",
                                       c.latent.kv_rank, c.latent.rope_dim, c.latent.v_dim));
  if (c.moe.experts > 0) {
    std::string experts =
        fmt::format("{}, {} a token, FFN {}", c.moe.experts, c.moe.top_k, c.moe.intermediate);
    if (c.moe.groups > 1)
      experts += fmt::format(", from {} of {} groups", c.moe.groups_taken, c.moe.groups);
    if (c.moe.shared_intermediate > 0)
      experts += fmt::format(", shared FFN {}", c.moe.shared_intermediate);
    text += Line("experts", experts);
  }
  int64_t windowed = 0, window = 0;
  for (const LayerConfig& layer : c.layers) {
    windowed += layer.window > 0 ? 1 : 0;
    window = std::max(window, layer.window);
  }
  if (windowed > 0)
    text += Line("window",
                 fmt::format("{} in {} of {}", Plural(window, "token"), windowed, Plural(static_cast<int64_t>(c.layers.size()), "layer")));
  text += Line("rotation", RopeText(c.rope));
  text += Line("context", CountText(c.max_positions) + " tokens");
  const int64_t kv = KvBytesPerToken(c);
  text +=
      Line("K/V",
           fmt::format("{} a token, {} for the whole context", BytesText(static_cast<double>(kv)),
                       BytesText(static_cast<double>(kv) * static_cast<double>(c.max_positions))));
  std::string unknown;
  for (const std::string& field : c.unknown_fields)
    unknown += (unknown.empty() ? "" : ", ") + field;
  if (!unknown.empty()) text += Line("unknown fields", unknown);
  return text;
}

// What is put around texts, and where tokenizer_config.json asks for something else.
std::string FrameText(const Tokenizer& tokenizer) {
  const bool bos = tokenizer.AddsBos(), eos = tokenizer.AddsEos();
  std::string text = Line("texts", bos && eos ? "between BOS and EOS"
                                   : bos      ? "after BOS"
                                   : eos      ? "before EOS"
                                              : "as they are");
  const auto differs = [](std::optional<bool> wish, bool fact) { return wish && *wish != fact; };
  if (differs(tokenizer.wants_bos(), bos)) {
    text += Line(
        "",
        fmt::format(
            "add_bos_token is {0} in tokenizer_config.json; transformers 5 passes over it, as this "
            "does: --add-bos-token {0} follows it",
            *tokenizer.wants_bos()));
  }
  if (differs(tokenizer.wants_eos(), eos)) {
    text += Line("", fmt::format("add_eos_token is {} in tokenizer_config.json; transformers 5 "
                                 "passes over it, as this does",
                                 *tokenizer.wants_eos()));
  }
  return text;
}

std::string EndTokensText(const Findings& findings) {
  std::string text;
  for (const auto& [id, sources] : Grouped(findings.end_tokens)) {
    std::string all;
    for (const std::string& source : sources) all += (all.empty() ? "" : ", ") + source;
    text += Line(text.empty() ? "end tokens" : "",
                 fmt::format("{} {} ({})", id, TokenName(findings.tokenizer.get(), id), all));
  }
  return text.empty() ? Line("end tokens", "none") : text;
}

std::string VocabularyText(const Tokenizer& tokenizer, const std::string* chat_template) {
  std::string special;
  for (const auto& [role, text] : tokenizer.special_tokens())
    special += fmt::format(", {} {}", role, text);
  std::string text = Line("vocabulary", CountText(tokenizer.vocab_size()) + " tokens" + special);
  const std::string chat =
      chat_template == nullptr
          ? "none"
          : fmt::format("{} characters; `sixfold render` shows what it makes",
                        CountText(static_cast<int64_t>(chat_template->size())));
  return text + FrameText(tokenizer) + Line("chat template", chat);
}

std::string TalliesText(std::string_view label, const std::map<std::string, Tally>& tallies) {
  std::string text;
  for (const auto& [name, tally] : tallies) {
    text += Line(text.empty() ? label : "",
                 fmt::format("{:<12} {:>10}  {:>6} tensor{}", name,
                             BytesText(static_cast<double>(tally.bytes)), CountText(tally.tensors),
                             tally.tensors == 1 ? "" : "s"));
  }
  return text;
}

std::string TensorsText(const WeightStore& store) {
  int64_t left_out = 0;
  std::string text = "\ntensors\n";
  for (const TensorPattern& pattern : FoldLayers(store.tensors(), kPatternsMax, &left_out)) {
    const std::string times = pattern.count > 1 ? fmt::format("{} x", pattern.count) : "";
    text += fmt::format("  {:>6} {:<52} {:<8} {}\n", times, pattern.name, NameOf(pattern.dtype),
                        ShapeText(pattern.shape));
  }
  if (left_out > 0) text += fmt::format("  and {} more; --json lists all\n", CountText(left_out));
  return text;
}

Status PrintText(const Findings& findings) {
  const WeightStore& store = *findings.store;
  const TensorSummary& summary = findings.summary;
  const char* format = store.format() == WeightStore::Format::kGguf ? "GGUF" : "safetensors";
  std::string text = Line("file", fmt::format("{} ({}, {})", findings.path, format,
                                              BytesText(static_cast<double>(store.file_bytes()))));
  if (findings.config)
    text += ConfigText(*findings.config);
  else
    text += Line("model", "none that can be run: " + findings.not_a_model);
  if (findings.tokenizer)
    text += VocabularyText(*findings.tokenizer, SelectChatTemplate(*findings.tokenizer, false));
  else
    text += Line("vocabulary", "none");
  text += EndTokensText(findings);
  text += Line("parameters", CountText(summary.total.elements));
  text += TalliesText("by kind", summary.by_kind) + TalliesText("by type", summary.by_dtype);
  text +=
      Line("fingerprint", ShownFingerprint(findings) +
                              (findings.config ? " (with default numerics)" : " (of the weights)"));
  text += TensorsText(store);
  // Names come from the file: no escape sequence in them may reach the terminal.
  for (char& c : text)
    c = (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f ? '?' : c;
  return Print(ReplaceInvalidUtf8(text));
}

}  // namespace

Status RunInspect(const Options& options) {
  SF_ASSIGN_OR_RETURN(const Findings findings, Look(options));
  return options.Flag("json") ? PrintJson(findings) : PrintText(findings);
}

}  // namespace sixfold::apps

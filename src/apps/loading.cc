#include "apps/loading.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "apps/machine.h"
#include "apps/output.h"
#include "engine/memory.h"
#include "text/tokenizer.h"
#include "weights/weight_store.h"

namespace sixfold::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct.Q4_1.gguf";

// In the order of search: where `make run` puts it, seen from here and from the program, then the
// user's cache.
std::vector<fs::path> DefaultModelPlaces() {
  std::vector<fs::path> places = {fs::path("build/models") / kDefaultModel};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) places.push_back(program.parent_path().parent_path() / "models" / kDefaultModel);
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    places.push_back(fs::path(cache) / "sixfold" / kDefaultModel);
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    places.push_back(fs::path(home) / ".cache/sixfold" / kDefaultModel);
  }
  return places;
}

bool HasDefaultModel(CommandId command) {
  return command == CommandId::kRun || command == CommandId::kServe ||
         command == CommandId::kInspect;
}

Status NotThere(const Options& options, const std::string& path) {
  std::string hint;
  // "org/name" is how the Hub names models; a word with spaces is a prompt that lacks its MODEL.
  if (options.command() == CommandId::kRun && path.find(' ') != std::string::npos) {
    hint = "; to ask the default model, write it as --prompt";
  } else if (path.find('/') != std::string::npos && path.find('/') == path.rfind('/') &&
             path[0] != '.') {
    hint = "; models are read from local folders and files, nothing is downloaded";
  }
  return InvalidFile(path + ": no such file or folder" + hint);
}

std::string DtypeSummary(const sixfold::ModelOptions& options) {
  return fmt::format("{}, {}, {} thread{}", NameOf(options.act), NameOf(options.isa),
                     options.threads, options.threads == 1 ? "" : "s");
}

void AddEosTokens(const Tokenizer& tokenizer, ModelConfig* config) {
  std::vector<TokenId>& ids = config->eos_ids;
  for (const TokenId id : tokenizer.eos_ids()) {
    if (id < config->vocab && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

}  // namespace

std::optional<std::string> DefaultModelPath() {
  std::error_code error;
  for (const fs::path& place : DefaultModelPlaces()) {
    if (fs::exists(place, error)) return place.string();
  }
  return std::nullopt;
}

Result<std::string> FindModel(const Options& options) {
  std::error_code error;
  const std::string& named = options.Text("model");
  if (!named.empty()) {
    if (!fs::exists(named, error)) return NotThere(options, named);
    return named;
  }
  if (!HasDefaultModel(options.command()))
    return InvalidArgument("MODEL is missing: name a folder or a .gguf file");
  if (const std::optional<std::string> found = DefaultModelPath()) return *found;
  return InvalidArgument(
      "no MODEL is named and the default model is not here; `make run` in the source tree fetches "
      "it to build/models (98 MB), or name a folder or a .gguf file");
}

std::string ModelName(const std::string& path) {
  fs::path clean = fs::path(path).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  if (clean == "." || clean == "..") {
    std::error_code error;
    clean = fs::canonical(path, error);
  }
  const std::string extension = clean.extension().string();
  const std::string name =
      (extension == ".gguf" || extension == ".safetensors" ? clean.stem() : clean.filename())
          .string();
  return name.empty() ? "model" : name;
}

Result<sixfold::ModelOptions> ModelOptionsFrom(const Options& options, const ModelConfig& config) {
  sixfold::ModelOptions out;
  out.numerics = options.Text("numerics") == "fast" ? Numerics::kFast : Numerics::kReproducible;
  const std::string& dtype = options.Text("dtype");
  const bool f32 = dtype == "f32" || (dtype == "auto" && config.file_dtype == DType::kF32);
  out.act = dtype == "int8" ? ActDType::kInt8 : f32 ? ActDType::kF32 : ActDType::kBF16;
  const Isa widest = DetectIsa();
  out.isa = widest;
  if (const std::string& isa = options.Text("isa"); isa != "auto") {
    out.isa = *IsaFromName(isa);
    if (out.isa > widest) {
      return InvalidArgument(fmt::format("{}: this machine has no {}; its widest is {}",
                                         options.Get("isa").origin.name, isa, NameOf(widest)));
    }
  }
  out.threads = static_cast<int>(options.MaybeInteger("threads").value_or(UsableCores()));
  out.attention_chunk = static_cast<int>(options.Integer("attention-chunk"));
  out.reduction_leaves = static_cast<int>(options.Integer("reduction-leaves"));
  return out;
}

Result<LoadedModel> LoadModel(const Options& options, const Tokenizer* tokenizer,
                              const std::function<void()>& while_loading) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel loaded;
  SF_ASSIGN_OR_RETURN(loaded.path, FindModel(options));
  loaded.name = ModelName(loaded.path);
  SF_ASSIGN_OR_RETURN(std::unique_ptr<WeightStore> store, WeightStore::Open(loaded.path));
  SF_ASSIGN_OR_RETURN(ModelConfig config, ConfigFor(*store, loaded.path));
  if (tokenizer != nullptr) AddEosTokens(*tokenizer, &config);
  SF_ASSIGN_OR_RETURN(sixfold::ModelOptions model_options, ModelOptionsFrom(options, config));
  const fs::path folder =
      fs::is_directory(loaded.path) ? fs::path(loaded.path) : fs::path(loaded.path).parent_path();
  const fs::path generation = folder / "generation_config.json";
  std::error_code error;
  if (store->format() == WeightStore::Format::kSafetensors && fs::exists(generation, error)) {
    SF_ASSIGN_OR_RETURN(loaded.generation, GenerationDefaultsFromHf(generation));
  }
  const int64_t available = AvailableMemoryBytes();
  const uint64_t needed = store->file_bytes();
  if (available > 0 && needed > static_cast<uint64_t>(available)) {
    return OutOfMemory(fmt::format("{}: the weights take {}, and {} of memory are free",
                                   loaded.path, BytesText(static_cast<double>(needed)),
                                   BytesText(static_cast<double>(available))));
  }
  const bool quiet = options.Flag("quiet");
  {
    Progress progress("loading " + loaded.name,
                      quiet ? Progress::Mode::kQuiet : Progress::Mode::kShown);
    model_options.on_progress = [&](double done) {
      progress.Update(done);
      if (while_loading) while_loading();
    };
    SF_ASSIGN_OR_RETURN(loaded.model, Model::Load(std::move(store), config, model_options));
  }
  if (!quiet) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    Remark(fmt::format("{}: {}, {}, {}, loaded in {:.1f} s", loaded.name, config.family,
                       BytesText(static_cast<double>(needed)), DtypeSummary(model_options),
                       took.count()));
  }
  return loaded;
}

Status CheckTokens(const std::vector<int64_t>& tokens, int64_t vocab, const char* flag) {
  if (tokens.empty()) return InvalidArgument(std::string(flag) + " needs at least one token id");
  for (const int64_t token : tokens) {
    if (token < 0 || token >= vocab) {
      return InvalidArgument(
          fmt::format("{}: token {} is outside the vocabulary, 0 to {}", flag, token, vocab - 1));
    }
  }
  return OkStatus();
}

}  // namespace sixfold::apps

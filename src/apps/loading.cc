#include "apps/loading.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "apps/layout_options.h"
#include "apps/memory_table.h"
#include "apps/output.h"
#include "apps/text_loading.h"
#include "base/machine.h"
#include "model/inventory.h"
#include "model/shape.h"
#include "text/tokenizer.h"
#include "text/turn_end.h"
#include "weights/folder_contents.h"
#include "weights/weight_store.h"
#include "weights/weights_hash.h"

namespace sixfold::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr const char* kBundledModel = "models/toy";

// In the order of search: where `make run` puts it, seen from here and from the program, then the
// user's cache, then the model that the source tree brings along (build/release/sixfold).
std::vector<fs::path> DefaultModelPlaces() {
  std::vector<fs::path> places = {fs::path("build/models") / kDefaultModel};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) places.push_back(program.parent_path().parent_path() / "models" / kDefaultModel);
  if (const fs::path cache = CacheFolder(); !cache.empty()) places.push_back(cache / kDefaultModel);
  places.push_back(kBundledModel);
  if (!error) places.push_back(program.parent_path().parent_path().parent_path() / kBundledModel);
  return places;
}

bool HasDefaultModel(CommandId command) {
  return command == CommandId::kRun || command == CommandId::kServe ||
         command == CommandId::kInspect;
}

bool NeedsWeights(CommandId command) {
  return command != CommandId::kTokenize && command != CommandId::kDetokenize && command != CommandId::kRender;
}

Status NotThere(const Options& options, const std::string& path) {
  std::string hint;
  // "org/name" is how the Hub names models; words, or one without the marks of a path, are a prompt that lacks its MODEL.
  const bool named_like_a_file = path.find('/') != std::string::npos || path.ends_with(".gguf") || path.ends_with(".safetensors");
  if (options.command() == CommandId::kRun && (path.find_first_of(" \n?!") != std::string::npos || !named_like_a_file)) {
    std::string prompt = path;
    if (!options.arguments().empty()) prompt += " " + options.arguments().front();
    hint = "; if it is meant as a prompt for the default model: sixfold run --prompt " + ShellQuoted(prompt) +
           " (the first argument is MODEL, and a prompt of several words needs quotes)";
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

// The tokens that end an answer by the tokenizer's files and by the chat template in use.
Status AddEndTokens(const Options& options, const Tokenizer& tokenizer, ModelConfig* config) {
  std::optional<std::string> given;
  if (options.command() == CommandId::kRun || options.command() == CommandId::kServe) {
    SF_ASSIGN_OR_RETURN(given, ChatTemplateFrom(options));
  }
  std::vector<TokenId>& ids = config->eos_ids;
  for (const EndToken& end : EndTokens(tokenizer, given.value_or(""))) {
    if (end.id < config->vocab && std::find(ids.begin(), ids.end(), end.id) == ids.end())
      ids.push_back(end.id);
  }
  return OkStatus();
}

}  // namespace

std::filesystem::path CacheFolder() {
  // Of the XDG base directories a relative one does not count.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "sixfold";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) / ".cache/sixfold" : fs::path();
}

std::filesystem::path HashCacheFolder() {
  const fs::path cache = CacheFolder();
  return cache.empty() ? cache : cache / "hashes";
}

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
    // Said before a tokenizer is looked for, which such a folder lacks as well.
    if (NeedsWeights(options.command()) && fs::is_directory(named, error)) SF_RETURN_IF_ERROR(CheckHoldsWeights(named));
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

int AttentionChunkOf(const Options& options) {
  const int otherwise = options.command() == CommandId::kVerify ? 16 : 256;
  return static_cast<int>(options.MaybeInteger("attention-chunk").value_or(otherwise));
}

int64_t BatchedTokensOf(const Options& options) {
  constexpr int64_t kRows = 512;
  if (const auto given = options.MaybeInteger("max-num-batched-tokens")) return *given;
  const Result<Mesh> mesh = MeshFrom(options);  // a wrong one is refused where the layout is made
  const int64_t cp = mesh.ok() ? mesh->size(Axis::kCp) : 1;
  return cp == 1 ? kRows : std::max(kRows, 2 * cp * AttentionChunkOf(options));
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
  out.attention_chunk = AttentionChunkOf(options);
  out.reduction_leaves = static_cast<int>(options.Integer("reduction-leaves"));
  return out;
}

namespace {

// Ranks that are processes compare their weights once they have loaded: each begins with its own
// share of the work.
void StartHash(const WeightStore& store, const Launch& launch) {
  HashOptions hash{.threads = std::clamp(UsableCores() / 4, 1, 8), .cache = HashCacheFolder()};
  if (launch.mpi != nullptr) {
    hash.shares = std::max(1, launch.mpi->ranks_on_host());
    hash.share = launch.mpi->rank() % hash.shares;
    hash.threads = std::max(1, hash.threads / hash.shares);
  }
  store.hash().Start(hash);
}

}  // namespace

Result<PlannedModel> PlanModel(const Options& options, const Launch& launch,
                               const Tokenizer* tokenizer) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_ASSIGN_OR_RETURN(std::shared_ptr<const WeightStore> store, WeightStore::Open(path));
  SF_ASSIGN_OR_RETURN(ModelConfig config, ConfigFor(*store, path));
  if (tokenizer != nullptr) SF_RETURN_IF_ERROR(AddEndTokens(options, *tokenizer, &config));
  SF_RETURN_IF_ERROR(CheckTensors(*store, config));
  SF_ASSIGN_OR_RETURN(sixfold::ModelOptions model_options, ModelOptionsFrom(options, config));
  SF_ASSIGN_OR_RETURN(const ModelShape shape, ShapeOf(*store, config, model_options));
  SF_ASSIGN_OR_RETURN(const sixfold::LayoutOptions wanted, LayoutOptionsFrom(options));
  SF_RETURN_IF_ERROR(CheckLaunch(launch, wanted.mesh));
  SF_ASSIGN_OR_RETURN(Layout layout, Layout::Make(shape, wanted));
  if (launch.mpi != nullptr && layout.world() > 1) StartHash(*store, launch);
  if (!options.MaybeInteger("threads")) {
    model_options.threads = launch.ThreadsOfRank(layout.world());
  }
  PlannedModel planned{.path = path,
                       .name = ModelName(path),
                       .store = std::move(store),
                       .config = std::move(config),
                       .options = std::move(model_options),
                       .layout = std::move(layout)};
  const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
  const fs::path generation = folder / "generation_config.json";
  std::error_code error;
  if (planned.store->format() == WeightStore::Format::kSafetensors &&
      fs::exists(generation, error)) {
    planned.generation = GenerationDefaultsFromHf(generation);
  }
  return planned;
}

namespace {

InstanceSpec SpecOf(const PlannedModel& planned) {
  return {.store = planned.store,
          .config = planned.config,
          .options = planned.options,
          .layout = planned.layout};
}

Result<std::unique_ptr<StepModel>> StartRanks(const PlannedModel& planned, const Options& options,
                                              const Launch& launch, LoadedModel* loaded) {
  if (planned.layout.world() == 1) {
    SF_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        Model::LoadShard(planned.store, planned.config, planned.options, planned.layout, 0));
    return AdaptModel(std::move(model));
  }
  const RankGroupOptions group_options = GroupOptionsFrom(options);
  Result<std::unique_ptr<RankGroup>> group =
      launch.mpi != nullptr ? RankGroup::StartLeader(SpecOf(planned), *launch.mpi, group_options)
                            : RankGroup::StartThreads(SpecOf(planned), group_options);
  SF_RETURN_IF_ERROR(group.status());
  loaded->group = group->get();
  return std::unique_ptr<StepModel>(std::move(*group));
}

bool ShowsFingerprint(const Options& options) {
  return options.command() == CommandId::kServe ||
         (options.command() == CommandId::kLogits && options.Flag("json"));
}

}  // namespace

std::optional<Result<std::string>> LoadedModel::PollFingerprint() const {
  const std::optional<Result<Digest256>> weights = store->hash().Poll();
  if (!weights) return std::nullopt;
  if (!weights->ok()) return weights->status();
  return ModelFingerprint(**weights, config, options);
}

Result<std::string> LoadedModel::WaitForFingerprint() const {
  SF_ASSIGN_OR_RETURN(const Digest256 weights, store->hash().Wait(UsableCores()));
  return ModelFingerprint(weights, config, options);
}

Result<LoadedModel> LoadModel(const Options& options, const Launch& launch,
                              const Tokenizer* tokenizer,
                              const std::function<void()>& while_loading,
                              const std::function<void(const std::string&)>& remark) {
  const auto start = std::chrono::steady_clock::now();
  SF_ASSIGN_OR_RETURN(PlannedModel planned, PlanModel(options, launch, tokenizer));
  if (const std::string& warning = planned.generation.warning; !warning.empty())
    remark ? remark("warning: " + warning) : Remark("warning: " + warning);
  SF_RETURN_IF_ERROR(CheckMemory(options, planned, launch));
  LoadedModel loaded{.path = planned.path,
                     .name = planned.name,
                     .config = planned.config,
                     .layout = planned.layout,
                     .generation = planned.generation,
                     .store = planned.store,
                     .options = planned.options};
  if (ShowsFingerprint(options)) StartHash(*planned.store, launch);
  const bool quiet = options.Flag("quiet");
  {
    Progress progress("loading " + loaded.name,
                      quiet ? Progress::Mode::kQuiet : Progress::Mode::kShown);
    std::mutex mutex;  // rank 0 may load in a thread of its own
    planned.options.on_progress = [&](double done) {
      const std::lock_guard lock(mutex);
      progress.Update(done);
      if (while_loading) while_loading();
    };
    SF_ASSIGN_OR_RETURN(loaded.model, StartRanks(planned, options, launch, &loaded));
  }
  if (!quiet) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const int world = planned.layout.world();
    const std::string summary =
        fmt::format("{}: {}, {}, {}{}, loaded in {:.1f} s", loaded.name, loaded.config.family,
                    BytesText(static_cast<double>(planned.store->file_bytes())),
                    DtypeSummary(planned.options),
                    world > 1 ? fmt::format(" each, {} ranks ({})", world, planned.layout.ToString())
                              : "",
                    took.count());
    remark ? remark(summary) : Remark(summary);
  }
  return loaded;
}

Status RunFollower(const Options& options, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const PlannedModel planned, PlanModel(options, launch, nullptr));
  // The leader speaks for its own machine.
  if (launch.mpi->rank() >= launch.mpi->ranks_on_host())
    SF_RETURN_IF_ERROR(CheckMemory(options, planned, launch));
  return RunRank(SpecOf(planned), *launch.mpi);
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

// From MODEL and the options to what a command works on.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/launch.h"
#include "apps/options.h"
#include "base/status.h"
#include "engine/rank_group.h"
#include "engine/step_model.h"
#include "mesh/layout.h"
#include "model/config.h"
#include "model/model.h"

namespace sixfold {
class Tokenizer;
class WeightStore;
}  // namespace sixfold

namespace sixfold::apps {

// The path that the options name. run, serve and inspect fall back on the default model (README.md
// says where it is looked for). kInvalidArgument when none is named, kInvalidFile when there is
// nothing at the path.
Result<std::string> FindModel(const Options& options);

// Where this program keeps what can be made again: $XDG_CACHE_HOME/sixfold or ~/.cache/sixfold; ""
// without either.
std::filesystem::path CacheFolder();
// Where hashes of weight files are kept (weights/weights_hash.h).
std::filesystem::path HashCacheFolder();

// Where the default model lies, nullopt when it is nowhere.
std::optional<std::string> DefaultModelPath();

// "Qwen3-0.6B" of "models/Qwen3-0.6B/": what a server calls the model.
std::string ModelName(const std::string& path);

// --attention-chunk with auto resolved, for any command that computes.
int AttentionChunkOf(const Options& options);
// --max-num-batched-tokens: rows of a step; if nobody says, 512, or as many as give every rank that shares a context two chunks.
int64_t BatchedTokensOf(const Options& options);

// What --dtype, --isa, --threads, --numerics, --attention-chunk and --reduction-leaves say, with
// auto resolved. kInvalidArgument for an ISA that this machine lacks.
Result<sixfold::ModelOptions> ModelOptionsFrom(const Options& options, const ModelConfig& config);

// A model and the way it will be cut, nothing loaded yet.
struct PlannedModel {
  std::string path;
  std::string name;
  std::shared_ptr<const WeightStore> store;  // shared by the ranks of this process
  ModelConfig config;
  sixfold::ModelOptions options;  // threads: of one rank
  Layout layout;
  GenerationDefaults generation;  // of generation_config.json, if there is one
};

// Opens the files and makes the layout that the options ask for. kInvalidArgument for one that
// cannot run, with the nearest that can, and for one that does not fit the launched processes.
Result<PlannedModel> PlanModel(const Options& options, const Launch& launch,
                               const Tokenizer* tokenizer);

struct LoadedModel {
  std::string path;
  std::string name;
  ModelConfig config;
  std::unique_ptr<StepModel> model;
  RankGroup* group = nullptr;  // the same object when there is more than one rank
  Layout layout;
  GenerationDefaults generation;
  std::shared_ptr<const WeightStore> store;
  sixfold::ModelOptions options;

  // ModelFingerprint; nullopt while the weights are being hashed, which LoadModel begins for the
  // commands that show it.
  std::optional<Result<std::string>> PollFingerprint() const;
  Result<std::string> WaitForFingerprint() const;
};

// Opens, checks the memory, loads; progress and one line of summary on stderr unless --quiet.
// kOutOfMemory when the ranks of this machine do not fit into what is free (memory_table.h): better
// said now than by the kernel's killer later. tokenizer: the one in use, null for none; its end-of-sequence tokens join those of
// the config. while_loading: called now and then in the caller's thread; may be empty. remark: takes
// the summary instead of stderr; may be empty.
Result<LoadedModel> LoadModel(const Options& options, const Launch& launch,
                              const Tokenizer* tokenizer,
                              const std::function<void()>& while_loading = {},
                              const std::function<void(const std::string&)>& remark = {});

// What a process with a rank above 0 does instead of a command: its share of whatever the leader
// wants, until that ends.
Status RunFollower(const Options& options, const Launch& launch);

// kInvalidArgument naming the flag when a token is no row of the vocabulary.
Status CheckTokens(const std::vector<int64_t>& tokens, int64_t vocab, const char* flag);

}  // namespace sixfold::apps

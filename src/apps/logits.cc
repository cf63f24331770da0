// sixfold logits: the logits of given tokens, for comparing with any other engine.
#include <fmt/format.h>

#include <algorithm>

#include "apps/commands.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/output.h"
#include "apps/prefill.h"
#include "apps/routes_file.h"
#include "apps/tensor_output.h"

namespace sixfold::apps {

Status RunLogits(const Options& options, const Launch& launch) {
  SF_RETURN_IF_ERROR(FindModel(options).status());
  const std::string& output_path = options.Text("output");
  if (output_path.empty())
    return InvalidArgument("--output is missing: the safetensors file to write");
  if (!options.IsGiven("tokens"))
    return InvalidArgument("--tokens is missing: token ids such as 1,2,3");
  const std::vector<int64_t> given = options.Integers("tokens");
  SF_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(options, launch, nullptr));
  StepModel& model = *loaded.model;
  if (options.IsGiven("record-routes") && loaded.config.moe.experts == 0)
    return InvalidArgument("--record-routes: the model has no experts");
  const int64_t vocab = loaded.config.vocab;
  SF_RETURN_IF_ERROR(CheckTokens(given, vocab, "--tokens"));
  const std::vector<TokenId> tokens(given.begin(), given.end());
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t chunk = std::min(BatchedTokensOf(options), count);
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Prefill> prefill, Prefill::Create(model, count, chunk));
  SF_ASSIGN_OR_RETURN(const auto output, TensorOutput::Create(output_path, "logits",
                                                              std::vector<int64_t>{count, vocab}));
  TokenRoutes recorded, replayed;
  if (options.IsGiven("replay-routes")) {
    SF_ASSIGN_OR_RETURN(replayed, ReadRoutes(options.Text("replay-routes"), loaded.layout.shape(), tokens));
    prefill->Replay(&replayed, count);
  }
  if (options.IsGiven("record-routes")) {
    prefill->Record(&recorded);
  }
  Progress progress("prefill",
                    options.Flag("quiet") ? Progress::Mode::kQuiet : Progress::Mode::kShown);
  SF_RETURN_IF_ERROR(prefill->Run(tokens, 0, [&](int64_t first, std::span<const float> logits) {
    progress.Update(static_cast<double>(first) / static_cast<double>(count));
    return output->Append(logits);
  }));
  SF_RETURN_IF_ERROR(output->Commit());
  if (options.IsGiven("record-routes"))
    SF_RETURN_IF_ERROR(WriteRoutes(options.Text("record-routes"), loaded.layout.shape(), tokens, recorded));
  SF_RETURN_IF_ERROR(WriteStats(options, loaded.layout, model.expert_load(), loaded.group));
  if (options.Flag("json")) {
    SF_ASSIGN_OR_RETURN(const std::string fingerprint, loaded.WaitForFingerprint());
    return Print(fmt::format("{{\"tokens\": {}, \"vocab\": {}, \"fingerprint\": \"{}\"}}\n", count,
                             vocab, fingerprint));
  }
  if (!options.Flag("quiet"))
    Remark(fmt::format("{}: logits f32 [{}, {}]", output_path, count, vocab));
  return OkStatus();
}

}  // namespace sixfold::apps

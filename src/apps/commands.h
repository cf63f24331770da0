// The subcommands: one table, one file each.
#pragma once

#include <span>
#include <string_view>

#include "apps/launch.h"
#include "apps/options.h"
#include "base/status.h"

namespace sixfold::apps {

struct CommandInfo {
  CommandId id = CommandId::kRun;
  std::string_view name;
  std::string_view summary;  // one line of `sixfold --help`
  ArgumentShape shape;
  std::string_view about;     // a paragraph of `sixfold NAME --help`
  std::string_view examples;  // lines that can be pasted
};

std::span<const CommandInfo> CommandTable();

// Each prints its answer on stdout and its progress on stderr, and returns what went wrong.
Status RunChat(const Options& options, const Launch& launch);
Status RunServe(const Options& options, const Launch& launch);
Status RunInspect(const Options& options);
Status RunDoctor(const Options& options);
Status RunGenerate(const Options& options, const Launch& launch);
Status RunLogits(const Options& options, const Launch& launch);
Status RunTokenize(const Options& options);
Status RunDetokenize(const Options& options);
Status RunRender(const Options& options);
Status RunDump(const Options& options);
Status RunPerplexity(const Options& options, const Launch& launch);
Status RunBytes(const Options& options);
Status RunLayout(const Options& options);
Status RunVerify(const Options& options, const Launch& launch);
Status RunTrace(const Options& options, const Launch& launch);
// The part of ranks above 0 in these two.
Status FollowVerify(const Options& options, const Launch& launch);
Status FollowTrace(const Options& options, const Launch& launch);

}  // namespace sixfold::apps

// What the leader tells the other ranks, as bytes: one command a broadcast. All ranks run the same program, so that numbers
// cross as they lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/ledger.h"
#include "mesh/collectives.h"
#include "model/step_batch.h"
#include "trace/record.h"

namespace sixfold {

enum class CommandKind : uint8_t { kAllocateKv, kStep, kReport, kTrace, kStop };

struct RankCommand {
  CommandKind kind = CommandKind::kStop;
  int32_t blocks = 0;               // kAllocateKv
  int64_t step = 0;                 // kStep
  std::vector<StepBatch> batches;   // kStep: [dp]
  bool record_routes = false;       // kStep: every rank tells the leader its routes
  StepRoutes forced;                // kStep: routes that replace the gate's choice; empty without
};

void Encode(const RankCommand& command, std::vector<std::byte>* out);
// kInternal when the bytes are not a command: ranks of different builds.
Result<RankCommand> DecodeCommand(std::span<const std::byte> bytes);

// What a rank has to report since start.
struct RankReport {
  int32_t rank = 0;
  Ledger ledger;
  ControlTraffic control;
  int64_t comm_ns = 0;     // waiting for other ranks inside steps
  int64_t idle_ns = 0;     // waiting for the next command
  int64_t step_ns = 0;     // in steps, comm_ns included
  std::vector<int64_t> expert_tokens;          // ExpertCounters
  int64_t dispatch_ns = 0, combine_ns = 0;
  // K/V of all layers of the rank: the most that the sequences of one step had at rest here. And the most of others' (and of own
  // copies) that was under way at once, of one layer (ContextAttention).
  int64_t kv_bytes_max = 0, kv_transit_bytes_max = 0;
};

void Encode(const RankReport& report, std::vector<std::byte>* out);
Result<RankReport> DecodeReport(std::span<const std::byte> bytes);

// What a rank has recorded.
void Encode(const trace::RankTrace& trace, std::vector<std::byte>* out);
Result<trace::RankTrace> DecodeTrace(std::span<const std::byte> bytes);

}  // namespace sixfold

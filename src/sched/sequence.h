// One answer in the making, as the scheduler sees it: counts, never tokens or tensors.
//
//            Admit             Finish
//   waiting ───────▶ running ─────────▶ finished
//      ▲               │                   ▲
//      └── Preempt ────┘     (waiting ─────┘ Finish: aborted in the queue)
//
// A running sequence computes K/V for its known tokens in as many steps as the budgets ask for (Advance). When the
// last known token is computed, its logits decide one more (Append). Nothing tells prefill from decode but the number
// of rows that are missing, so a sequence that lost its blocks recomputes prompt and answer the same way.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "kv/geometry.h"

namespace sixfold {

enum class SequenceState : uint8_t { kWaiting, kRunning, kFinished };

// Value type; the engine holds one for each choice of a request. Transitions that the diagram lacks are bugs.
struct SequenceProgress {
  SequenceState state = SequenceState::kWaiting;
  int64_t known = 0;     // tokens whose ids are known: prompt, then prompt and answer
  int64_t computed = 0;  // of those, how many have K/V; < known while the sequence is alive
  int64_t blocks = 0;    // held: units of K/V memory (kv/placement.h), blocks of 16 positions when one rank holds all
  int32_t replica = 0;   // that holds them; while it runs

  int64_t missing() const { return known - computed; }

  void Admit(int32_t on_replica) {
    SF_CHECK(state == SequenceState::kWaiting);
    SF_CHECK_EQ(computed, 0);
    SF_CHECK_EQ(blocks, 0);
    state = SequenceState::kRunning;
    replica = on_replica;
  }
  // K/V of `rows` more positions is in the blocks; the caller has seen to it that there are enough.
  void Advance(int64_t rows) {
    SF_CHECK(state == SequenceState::kRunning);
    SF_CHECK_GE(rows, 1);
    SF_CHECK_LE(rows, missing());
    computed += rows;
  }
  // The logits of the last known token decided the next one.
  void Append() {
    SF_CHECK(state == SequenceState::kRunning);
    SF_CHECK_EQ(missing(), 0);
    ++known;
  }
  // Gives up its blocks (the caller returns them to the pool) and starts over when there is room.
  void Preempt() {
    SF_CHECK(state == SequenceState::kRunning);
    state = SequenceState::kWaiting;
    computed = 0;
    blocks = 0;
  }
  void Finish() {
    SF_CHECK(state != SequenceState::kFinished);
    state = SequenceState::kFinished;
    blocks = 0;
  }
};

}  // namespace sixfold

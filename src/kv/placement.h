// Where the keys and values of a replica's sequences rest, when several ranks (owners) share its context: pure functions that
// the scheduler's accounting, the engine and every other user of block tables share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/geometry.h"

namespace sixfold {

// A unit is what is allocated at once. With one owner: a block of 16 positions. With several: one attention chunk, all of it on
// one owner; or, by_token, the blocks of equal number on all owners.
struct KvPlacement {
  int owners = 1;
  int64_t chunk = kPageTokens;     // positions that rest together
  int64_t interleave = kPageTokens;  // positions of new tokens after which the next owner takes over
  bool by_token = false;           // position p rests on owner (p / interleave) mod owners, whatever is free
  int stages = 1;                  // pipeline stages: each micro-batch of a step is dealt by itself

  int64_t unit_tokens() const { return owners == 1 ? kPageTokens : by_token ? kPageTokens * owners : chunk; }
  // Blocks of a unit on each owner that has any.
  int64_t unit_blocks() const { return owners == 1 || by_token ? 1 : chunk / kPageTokens; }
  int64_t UnitsFor(int64_t tokens) const { return (tokens + unit_tokens() - 1) / unit_tokens(); }
  // Units that fit into `blocks` blocks of each owner: of a pool, and of all.
  // Pools are numbered by owner; units by token have parts on all owners and one pool.
  int pools() const { return by_token ? 1 : owners; }
  int64_t UnitsOfPool(int64_t blocks) const { return blocks / unit_blocks(); }
  int64_t UnitsIn(int64_t blocks) const { return UnitsOfPool(blocks) * pools(); }
  int64_t TokensIn(int64_t blocks) const { return UnitsIn(blocks) * unit_tokens(); }
  // Blocks of each owner that `sequences` sequences of `tokens` tokens take at most.
  int64_t BlocksOfOwner(int64_t tokens, int64_t sequences) const {
    return (UnitsFor(tokens) * sequences + pools() - 1) / pools() * unit_blocks();
  }
};

// Rows of one sequence in a step, whose units are to be dealt.
struct KvDemand {
  int64_t first_position = 0, rows = 0;
  int64_t units = 0;       // that it has
  int64_t batch_row = 0;   // of its first row in the replica's batch
};
// The owners of the units that it lacks, one after the other. Several rows (prefill): the new chunks are cut into 2C runs, and
// owner r gets runs r and 2C-1-r, so that every owner has as many (query, key) pairs; what does not come out even goes to the
// owners with most free units. One row (decode): owners take turns. An owner without a free unit is passed over: `free` [owners]
// must hold enough in all, and is what is left afterwards. micro_batches: bounds of the batch's rows.
std::vector<int> DealUnits(const KvPlacement& placement, const KvDemand& demand, std::span<const int64_t> micro_batches,
                           std::span<int64_t> free);

// The block table of a sequence, for StepSequence::blocks: block numbers of its first `tokens` positions. units: numbers of its
// units, owner * units of an owner + n. blocks: of an owner.
std::vector<int32_t> BlockTable(const KvPlacement& placement, std::span<const int32_t> units, int64_t tokens, int64_t blocks);

}  // namespace sixfold

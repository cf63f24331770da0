// The way of one token through a run, built from what the ranks recorded and from nothing else.
//
// Counting. All messages of a layer and a phase are one operation (both legs of a dispatch, all groups of an exchange). A token
// takes part in an operation when a message of it carries the token, or when its rank took it there and it stayed. Messages of
// an operation between the same two ranks in the same direction are one hop; a hop between nodes is a crossing. The ranks are
// those where the token is at home before its first hop, and both ends of every hop.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "trace/record.h"

namespace sixfold::trace {

// What a run took place on.
struct Map {
  std::string layout;            // for people
  std::vector<int32_t> node_of;  // [ranks]
  int64_t layers = 0;
  Names names;
};

// Of one sequence a micro-batch: the number of the sequence in it.
struct Token {
  int32_t replica = 0, sequence = 0;
  int64_t position = 0;
  bool operator==(const Token&) const = default;
};

struct Hop {
  int32_t from = 0, to = 0;
  uint8_t axis = 0, op = 0, link = 0;
  std::vector<int32_t> group;  // the ranks of the operation's group that it belongs to
  bool crosses = false;        // to another node
  int64_t bytes = 0;           // of the token
  int64_t begin_ns = 0, end_ns = 0;
};

struct Operation {
  Place at;
  uint8_t axis = 0, op = 0;
  std::vector<std::vector<int32_t>> groups;  // that the token takes part with
  std::vector<Hop> hops;                     // one that leaves where another arrives comes after it
  std::vector<int32_t> stays;                // ranks on which (also) the token stays
  std::vector<int32_t> new_ranks;            // ascending
  // Counted up to and with this operation.
  int64_t number = 0, ranks = 0, crossings = 0;

  int64_t bytes() const;
};

// Where the token's residual stream is, outside of operations.
struct Home {
  int64_t first_layer = 0, end_layer = 0;
  std::vector<int32_t> ranks;  // ascending
};

// Keys and values at rest.
struct KvPlace {
  int32_t rank = 0;
  int64_t first_layer = 0, end_layer = 0;
  int64_t head_begin = 0, head_end = 0;
  int64_t bytes = 0;  // of all these layers
};

struct Journey {
  Token token;
  std::vector<Home> homes;  // by first_layer
  std::vector<Operation> operations;
  std::vector<KvPlace> kv;      // by rank, layer
  std::vector<int32_t> ranks;   // ascending
  int64_t crossings = 0;
  int64_t bytes = 0;
};

// Bytes of all messages by axis, operation and link, and how many of them belong to a token.
struct Total {
  int64_t bytes = 0, carried = 0;
  bool operator==(const Total&) const = default;
};
using TotalKey = std::tuple<uint8_t, uint8_t, uint8_t>;  // axis, op, link

// What all ranks recorded, [world]. Thread rule: const functions from any thread.
class Run {
 public:
  explicit Run(std::vector<RankTrace> ranks);
  Run(Run&&) = default;  // a copy would point into the original
  Run& operator=(Run&&) = default;

  std::span<const RankTrace> ranks() const { return ranks_; }
  std::map<TotalKey, Total> Totals() const;
  int64_t metadata_bytes() const;
  // Bytes sent of each position of a sequence, [positions]: what Journey::bytes says, of all tokens at once.
  std::vector<int64_t> BytesByPosition(int32_t replica, int32_t sequence, int64_t positions) const;
  // Where nobody said what a message carries, as "phase of axis op"; empty when all did.
  std::string FirstUnsaid(const Names& names) const;
  // Without homes when no rank had such a row.
  Journey Follow(const Map& map, const Token& token) const;
  // Bytes of `token` in a message; 0: it is not in it.
  int64_t BytesOf(const RankTrace& rank, const Message& message, const Token& token) const;

 private:
  const RowList* ListOf(int32_t rank, const Place& at) const;
  Token TokenOf(const RowRef& row, const Place& at) const;
  bool Is(const RowRef& row, const Place& at, const Token& token) const;
  std::vector<int32_t> GroupOf(const RankTrace& rank, int32_t id) const;
  std::vector<Operation> OperationsOf(const Map& map, const Token& token) const;
  void FindHomes(Journey* journey) const;
  void FindKv(Journey* journey) const;

  std::vector<RankTrace> ranks_;
  std::map<std::tuple<int32_t, int64_t, int32_t>, const RowList*> lists_;  // rank, step, micro-batch
};

}  // namespace sixfold::trace

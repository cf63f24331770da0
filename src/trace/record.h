// What a rank sent and which tokens were in it: the raw material of journeys (trace/journey.h) and timelines. Plain values.
// Axes, operations and links are numbers here; whoever reads them says what they are called (Names).
//
// Only payload counts: messages that say who needs which rows (metadata of the expert exchange) and control messages are no
// part of a journey nor of its ledger; the former are summed up in RankTrace::metadata_bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sixfold::trace {

// Which part of a layer an operation serves, in the order in which a layer comes to them. All messages of a layer and a phase
// are one operation of a journey, however many groups and legs it takes.
enum class Phase : uint8_t {
  kAttentionGather,  // normed rows to all that share the heads (sp)
  kNormSums,         // sums of squares of heads, where a norm spans them
  kHeadExchange,     // queries, keys and values by heads instead of positions (cp: a2a)
  kKvHome,           // keys and values to the rank where they rest (cp)
  kKvExchange,       // keys and values to the queries (cp, prefill)
  kQueryExchange,    // queries to the keys and values (cp, decode)
  kPartialReturn,    // what they found there (cp, decode)
  kOutputExchange,   // outputs by positions again (cp: a2a)
  kAttentionSum,     // parts of the output projection
  kFfnGather,        // normed rows to all that share the FFN, or the shared experts (sp)
  kFfnSum,           // parts of a dense FFN
  kDispatch,         // rows to experts
  kExpertSum,        // parts of experts' outputs
  kCombine,          // outputs back to their rows
  kCombineGather,    // combined rows to all that hold them (without sp)
  kSharedSum,        // parts of the shared experts
  kStageSend,        // rows to the next pipeline stage
  kHeadGather,       // rows whose logits are wanted, to all that share the vocabulary (sp)
  kLogits,           // logits to rank 0
  kUnsaid,           // nobody said: a bug of the call site, which journeys report
};
inline constexpr int kPhaseCount = static_cast<int>(Phase::kUnsaid) + 1;
std::string_view NameOf(Phase phase);  // "attention_gather"

// A token, as a rank knows it in the micro-batch in work: kList: number of a row in the list of `rank`; kShare: the same,
// counted from the first row that it sends to experts (RowList::share_begin); kPosition: position of a sequence, of rank's
// replica.
struct RowRef {
  enum class By : uint8_t { kList, kShare, kPosition };
  int32_t rank = 0;
  int32_t number = 0;    // of the row, or the position
  int32_t sequence = 0;  // kPosition: of the micro-batch
  By by = By::kList;
};

// Bytes of a message that belong to one row.
struct Load {
  RowRef row;
  int64_t bytes = 0;
};

// Where an operation stands in the program.
struct Place {
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t layer = -1;
  Phase phase = Phase::kUnsaid;
};

// One part of an operation that left a rank.
struct Message {
  Place at;
  uint8_t axis = 0, op = 0, link = 0;
  int32_t group = 0;  // key of RankTrace::groups
  int32_t from = 0, to = 0;
  int64_t bytes = 0;
  int64_t begin_ns = 0, end_ns = 0;   // of the machine's steady clock; a send that ends later: the start twice
  int64_t first_load = 0, loads = 0;  // in RankTrace::loads
};

// A row: which sequence of the micro-batch, which position.
struct RowPlace {
  int32_t sequence = 0;
  int64_t position = 0;
};

// The rows that a rank works on in a micro-batch.
struct RowList {
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t replica = 0;
  int64_t first_layer = 0, end_layer = 0;  // of the rank's stage
  int64_t own_begin = 0, own_end = 0;      // rows of its residual stream: there the tokens are at home
  int64_t share_begin = 0;                 // first row that it sends to experts
  std::vector<RowPlace> rows;
};

// Keys and values that came to rest on a rank, in one layer.
struct KvRest {
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t layer = 0;
  int64_t head_begin = 0, head_end = 0;  // K/V heads
  int64_t bytes_a_row = 0;
  std::vector<RowRef> rows;
};

// Rows that took part in an operation, whether a message carried them or not; `stays`: those of which something stays here.
struct Attendance {
  Place at;
  uint8_t axis = 0, op = 0;
  int32_t group = 0;
  int64_t rows = 0;  // the first ones of the share
  std::vector<int32_t> stays;
};

struct GroupMembers {
  int32_t id = 0;
  std::vector<int32_t> ranks;
};

struct RankTrace {
  int32_t rank = 0;
  std::vector<Message> messages;
  std::vector<Load> loads;
  std::vector<RowList> rows;
  std::vector<KvRest> kv;
  std::vector<Attendance> attendance;
  std::vector<GroupMembers> groups;
  int64_t metadata_bytes = 0;
};

// What the numbers of axes, operations and links are called.
struct Names {
  std::vector<std::string> axes, ops, links;
};

}  // namespace sixfold::trace

// Writes down what one rank sends. A call site says what the buffer of its next operation holds (Carry…), the communicator
// calls Begin and Sent. Everything that may be traced holds a Recorder*, null unless tracing is on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trace/record.h"

namespace sixfold::trace {

// What the communicator knows of one part.
struct SentPart {
  int32_t member = 0, to = 0;  // the receiver in the group, and in the world
  uint8_t axis = 0, op = 0, link = 0;
  int32_t group = 0;
  int64_t offset = 0;  // bytes from the start of the operation's buffer, as the call site sees it
  int64_t bytes = 0;
};

// Thread rule: the rank's step thread.
class Recorder {
 public:
  explicit Recorder(int rank);

  // --- The model says where it is.
  void BeginMicroBatch(RowList rows);
  void EnterLayer(int layer);
  RowRef Own(int64_t row) const;  // a row of this rank's list
  RowRef At(int32_t sequence, int64_t position) const;  // of the micro-batch, whoever has the row

  // --- The model says what the next operation carries. Holds for one operation; one that nobody spoke for is kUnsaid.
  // The buffer is [vectors][rows of this rank's list][row_bytes]. base: the offset at which it starts, below 0 when the first
  // of the rows are not in it.
  void CarryRows(Phase phase, int64_t row_bytes, int64_t base = 0);
  // [vectors][items][item_bytes], each item one row's.
  void CarryItems(Phase phase, int64_t item_bytes, std::vector<RowRef> items, int64_t base = 0);
  // Something of its own for each member of the group: pieces in the order in which they lie in its part.
  void CarryPieces(Phase phase, int members);
  // `bytes` that `rows` share, as a page of keys does; one row: its own. After CarryPieces.
  void AddPiece(int member, int64_t bytes, std::span<const RowRef> rows);

  // The first `rows` rows of this rank's share take part in the operation that the last Carry… spoke of, carried or not.
  void Attend(uint8_t axis, uint8_t op, int32_t group, int64_t rows, std::vector<int32_t> stays);
  // Keys and values of `rows` rest here from now on, in the layer entered last.
  void RestKv(int64_t head_begin, int64_t head_end, int64_t bytes_a_row, std::vector<RowRef> rows);
  void RestKvOfAll(int64_t head_begin, int64_t head_end, int64_t bytes_a_row);

  // --- The communicator says what it does.
  void AddGroup(int32_t id, std::span<const int> ranks);
  void Begin();                      // an operation; Sent until the next one
  void Sent(const SentPart& part);
  void SentMetadata(int64_t bytes);
  void End();                        // of the exchange: what was sent since Begin has arrived

  // What was recorded since the last call; groups stay.
  RankTrace Take();

 private:
  struct Piece {
    int64_t bytes = 0;
    size_t first = 0, count = 0;  // in items_
  };
  enum class Form : uint8_t { kRows, kItems, kPieces };

  void Carry(Phase phase, Form form);
  RowRef ItemAt(int64_t index) const;
  int64_t Items() const;
  void LoadLinear(const SentPart& part);
  void LoadPieces(const SentPart& part);

  RankTrace trace_;
  Place at_;
  int64_t list_rows_ = 0;
  size_t open_ = 0;  // first message of the operation in work

  // What the next operation carries.
  bool fresh_ = false;
  Form form_ = Form::kRows;
  int64_t item_bytes_ = 0, base_ = 0;
  std::vector<RowRef> items_;
  std::vector<std::vector<Piece>> pieces_;  // [members]
};

}  // namespace sixfold::trace

#include "model/expert_tensors.h"

#include <algorithm>

#include <fmt/format.h>

#include "weights/tensor_reader.h"

namespace sixfold {

namespace {

constexpr int64_t kMxBlock = 32;

}  // namespace

bool ExpertTensors::Blocks(const std::string& base) const {
  return c_.mxfp4_experts && store_.Find(base + "_blocks") != nullptr;
}

Status ExpertTensors::VisitBlocks(const std::string& base, int64_t rows, int64_t cols, const TensorVisit& visit) const {
  if (cols % kMxBlock != 0) {
    return InvalidFile(fmt::format("{}: tensor '{}_blocks': {} inputs are not whole blocks of {} MXFP4 values", store_.path(),
                                   base, cols, kMxBlock));
  }
  const int64_t experts = c_.moe.experts;
  SF_RETURN_IF_ERROR(visit(base + "_blocks", {experts, rows, cols / kMxBlock, kMxBlock / 2}, DType::kU8));
  return visit(base + "_scales", {experts, rows, cols / kMxBlock}, DType::kU8);
}

Status ExpertTensors::Visit(int l, const TensorVisit& visit) const {
  const int64_t width = c_.moe.intermediate, hidden = c_.hidden, experts = c_.moe.experts;
  if (interleaved()) {
    const std::string gate_up = FillName(n_.expert_gate_up, l), down = FillName(n_.expert_down, l);
    SF_RETURN_IF_ERROR(Blocks(gate_up) ? VisitBlocks(gate_up, 2 * width, hidden, visit)
                                       : visit(gate_up, {experts, hidden, 2 * width}, {}));
    SF_RETURN_IF_ERROR(Blocks(down) ? VisitBlocks(down, hidden, width, visit) : visit(down, {experts, width, hidden}, {}));
    if (!c_.moe.bias) return OkStatus();
    SF_RETURN_IF_ERROR(visit(gate_up + "_bias", {experts, 2 * width}, {}));
    return visit(down + "_bias", {experts, hidden}, {});
  }
  if (n_.stacked_experts) {
    const std::string gate = FillName(n_.expert_gate, l), up = FillName(n_.expert_up, l), down = FillName(n_.expert_down, l);
    SF_RETURN_IF_ERROR(visit(gate + n_.weight, {experts, width, hidden}, {}));
    SF_RETURN_IF_ERROR(visit(up + n_.weight, {experts, width, hidden}, {}));
    SF_RETURN_IF_ERROR(visit(down + n_.weight, {experts, hidden, width}, {}));
    if (!c_.moe.bias) return OkStatus();
    SF_RETURN_IF_ERROR(visit(gate + n_.bias, {experts, width}, {}));
    SF_RETURN_IF_ERROR(visit(up + n_.bias, {experts, width}, {}));
    return visit(down + n_.bias, {experts, hidden}, {});
  }
  for (int e = 0; e < c_.moe.experts; ++e) {
    SF_RETURN_IF_ERROR(visit(FillName(n_.expert_gate, l, e) + n_.weight, {width, hidden}, {}));
    SF_RETURN_IF_ERROR(visit(FillName(n_.expert_up, l, e) + n_.weight, {width, hidden}, {}));
    SF_RETURN_IF_ERROR(visit(FillName(n_.expert_down, l, e) + n_.weight, {hidden, width}, {}));
  }
  return OkStatus();
}

Result<MatrixView> ExpertTensors::View(const std::string& pattern, int l, int e) const {
  SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(FillName(pattern, l, e) + n_.weight));
  return n_.stacked_experts ? store_.Slice(*t, e) : store_.Matrix(*t);
}

// [outputs, inputs], whichever way it is stored.
Result<MatrixView> ExpertTensors::InterleavedView(const std::string& base, int e) const {
  if (Blocks(base)) {
    SF_ASSIGN_OR_RETURN(const TensorInfo* blocks, store_.Require(base + "_blocks"));
    SF_ASSIGN_OR_RETURN(const TensorInfo* scales, store_.Require(base + "_scales"));
    return store_.Mxfp4Slice(*blocks, *scales, e);
  }
  SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(base));
  return store_.SliceTransposed(*t, e);
}

Result<ExpertViews> ExpertTensors::Views(int l, int e) const {
  ExpertViews out;
  if (interleaved()) {
    SF_ASSIGN_OR_RETURN(const MatrixView both, InterleavedView(FillName(n_.expert_gate_up, l), e));
    out.gate = both.EveryRow(0, 2);
    out.up = both.EveryRow(1, 2);
    SF_ASSIGN_OR_RETURN(out.down, InterleavedView(FillName(n_.expert_down, l), e));
    return out;
  }
  SF_ASSIGN_OR_RETURN(out.gate, View(n_.expert_gate, l, e));
  SF_ASSIGN_OR_RETURN(out.up, View(n_.expert_up, l, e));
  SF_ASSIGN_OR_RETURN(out.down, View(n_.expert_down, l, e));
  return out;
}

// Elements of row e of a [experts, n] tensor.
Result<std::vector<float>> ExpertTensors::BiasRow(const std::string& name, int e, Share elements) const {
  SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(name));
  std::vector<float> out(static_cast<size_t>(elements.size()));
  SF_RETURN_IF_ERROR(ReadRows(
      store_, *t, {.row_begin = e, .row_end = e + 1, .col_begin = elements.begin, .col_end = elements.end}, out.data()));
  return out;
}

Result<ExpertBiases> ExpertTensors::Biases(int l, int e, Share rows) const {
  ExpertBiases out;
  const std::string down = FillName(n_.expert_down, l);
  const Share hidden = {0, c_.hidden};
  if (!interleaved()) {
    SF_ASSIGN_OR_RETURN(out.gate, BiasRow(FillName(n_.expert_gate, l) + n_.bias, e, rows));
    SF_ASSIGN_OR_RETURN(out.up, BiasRow(FillName(n_.expert_up, l) + n_.bias, e, rows));
    SF_ASSIGN_OR_RETURN(out.down, BiasRow(down + n_.bias, e, hidden));
    return out;
  }
  const std::string gate_up = FillName(n_.expert_gate_up, l) + "_bias";
  SF_ASSIGN_OR_RETURN(const std::vector<float> both, BiasRow(gate_up, e, {2 * rows.begin, 2 * rows.end}));
  for (size_t i = 0; i < both.size(); ++i) (i % 2 == 0 ? out.gate : out.up).push_back(both[i]);
  SF_ASSIGN_OR_RETURN(out.down, BiasRow(down + "_bias", e, hidden));
  return out;
}

std::vector<std::span<const std::byte>> ExpertTensors::StridedBytes(int l, int e) const {
  std::vector<std::span<const std::byte>> out;
  if (!interleaved()) return out;
  for (const std::string& base : {FillName(n_.expert_gate_up, l), FillName(n_.expert_down, l)}) {
    for (const char* suffix : {"", "_blocks", "_scales"}) {
      const TensorInfo* t = store_.Find(base + suffix);
      if (t == nullptr) continue;
      const auto bytes = store_.Bytes(*t);
      const size_t slice = bytes.size() / static_cast<size_t>(c_.moe.experts);
      out.push_back(bytes.subspan(slice * static_cast<size_t>(e), slice));
    }
  }
  return out;
}

Result<int> ExpertTensors::DownBlock(int l) const {
  if (interleaved()) return Blocks(FillName(n_.expert_down, l)) ? static_cast<int>(kMxBlock) : 1;
  SF_ASSIGN_OR_RETURN(const TensorInfo* t, store_.Require(FillName(n_.expert_down, l) + n_.weight));
  return ScaleBlock(t->dtype);
}

}  // namespace sixfold

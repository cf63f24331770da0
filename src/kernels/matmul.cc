#include "kernels/matmul.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/packed_layout.h"
#include "kernels/scratch.h"
#include "kernels/prepare.h"
#include "kernels/ref/matmul_ref.h"
#include "kernels/x86/matmul_x86.h"

namespace sixfold {

namespace {

// Below this many elements the team costs more than it saves.
constexpr int64_t kMinParallelElements = 1 << 14;
constexpr int64_t kMinParallelProducts = 1 << 17;
// A piece of fewer is done before it pays to hand it over.
constexpr int64_t kPieceElements = 1 << 12;
constexpr int64_t kPieceProducts = 1 << 16;

// A cache line, so that vectors of them are aligned.
struct alignas(64) Line {
  std::byte bytes[64];
};

int64_t Panels(const MatMulTask& task) { return (task.w->n + kPanelColumns - 1) / kPanelColumns; }

// Time of one panel in units of one row's products; a block of weights is read and unpacked once
// for all rows.
int64_t PanelCost(const MatMulTask& task) {
  return task.a->rows == 0 ? 0 : (task.a->rows + 2) * task.a->k_padded;
}

// On the calling thread.
void RunPanels(Isa isa, const PanelRange& range) {
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return MatMulPanelsAvx2(range);
    case Isa::kAvx512: return MatMulPanelsAvx512(range);
    case Isa::kAmx: return MatMulPanelsAmx(range);
  }
  const MatMulTask& task = *range.task;
  for (int64_t panel = range.begin; panel < range.end; ++panel) {
    RefMatMulPanel(*task.a, 0, task.a->rows, *task.w, panel, task.out, task.out_stride);
  }
}

size_t ScratchBytes(Isa isa, std::span<const MatMulTask> tasks) {
  size_t bytes = 0;
  if (isa == Isa::kScalar) return 0;
  for (const MatMulTask& task : tasks) bytes = std::max(bytes, MatMulScratchBytes(task));
  return bytes;
}

// The panels of a call in a row, in units that lie in one task, each at its cost.
struct Shares {
  std::span<const MatMulTask> tasks;
  int64_t unit = 1;  // panels
  int64_t total_cost = 0;
};

Shares SharesOf(std::span<const MatMulTask> tasks, int members) {
  int64_t panels = 0;
  for (const MatMulTask& task : tasks) {
    if (task.a->rows > 0) panels += Panels(task);
  }
  // Kernels that unpack weights for many rows take two panels at once.
  Shares shares{.tasks = tasks, .unit = panels >= int64_t{8} * members ? 2 : 1};
  for (const MatMulTask& task : tasks) {
    shares.total_cost +=
        PanelCost(task) * shares.unit * ((Panels(task) + shares.unit - 1) / shares.unit);
  }
  return shares;
}

}  // namespace

struct MatMul::Impl {
  Isa isa;
  ThreadPool& pool;
  bool vnni;
  std::vector<std::vector<Line>>
      scratch;  // one a member of the team; grows to the largest product seen

  // Runs what begins in [begin, end) of the total cost on the calling thread.
  void RunShare(const Shares& shares, int64_t share_begin, int64_t share_end, int member) {
    int64_t passed = 0;
    for (const MatMulTask& task : shares.tasks) {
      if (passed >= share_end) break;
      const int64_t panels = Panels(task);
      const int64_t cost = PanelCost(task) * shares.unit;
      const int64_t units = (panels + shares.unit - 1) / shares.unit;
      const int64_t task_begin = std::exchange(passed, passed + cost * units);
      if (cost == 0 || passed <= share_begin) continue;
      const auto first_at = [&](int64_t share) {
        return std::clamp<int64_t>((share - task_begin + cost - 1) / cost, 0, units) * shares.unit;
      };
      const int64_t begin = share_begin <= task_begin ? 0 : first_at(share_begin);
      const int64_t end = std::min(panels, first_at(share_end));
      if (begin < end) {
        RunPanels(isa,
                  {&task, begin, end, scratch[static_cast<size_t>(member)].data()->bytes, vnni});
      }
    }
  }
};

MatMul::MatMul(Isa isa, ThreadPool& pool)
    : impl_(new Impl{isa, pool, isa >= Isa::kAvx512 && HasVnni(), {}}) {
  impl_->scratch.resize(static_cast<size_t>(pool.size()));
}
MatMul::~MatMul() = default;

Isa MatMul::isa() const { return impl_->isa; }

void MatMul::Prepare(const float* x, int64_t rows, int64_t stride, const Leaves& leaves,
                     ActDType act, std::span<const int32_t> row_index, Activations* out) {
  SF_CHECK(row_index.empty() || static_cast<int64_t>(row_index.size()) == rows);
  ShapeActivations(leaves, act, rows, impl_->isa == Isa::kAmx, out);
  const PrepareArgs args{x, stride, &leaves, row_index};
  if (rows < 2 || rows * out->k_padded < kMinParallelElements) {
    PrepareRows(args, 0, rows, out);
    return;
  }
  const int64_t least = std::max<int64_t>(1, kPieceElements / out->k_padded);
  impl_->pool.ParallelFor(
      rows, impl_->pool.GrainFor(rows, least),
      [&](int64_t begin, int64_t end, int) { PrepareRows(args, begin, end, out); });
}

void MatMul::Run(std::span<const MatMulTask> tasks) {
  for (const MatMulTask& task : tasks) {
    SF_CHECK_EQ(task.a->leaf_block.size(), task.w->leaves.begin.size());
    SF_CHECK_EQ(task.a->k_padded / kBlock, LeafBlockCount(task.w->leaves));
    SF_CHECK_GE(task.out_stride, task.w->n);
  }
  const auto lines = static_cast<int64_t>(ScratchBytes(impl_->isa, tasks) / sizeof(Line) + 1);
  for (auto& own : impl_->scratch) GrowTo(own, lines);
  const Shares shares = SharesOf(tasks, impl_->pool.size());
  const int64_t products = shares.total_cost * kPanelColumns;
  if (products < kMinParallelProducts) {
    impl_->RunShare(shares, 0, shares.total_cost, 0);
    return;
  }
  // A piece is an equal part of the cost, whatever tasks it lies in.
  const int64_t grain = impl_->pool.GrainFor(products, kPieceProducts);
  const int64_t pieces = (products + grain - 1) / grain;
  impl_->pool.ParallelFor(pieces, 1, [&](int64_t begin, int64_t end, int member) {
    impl_->RunShare(shares, shares.total_cost * begin / pieces, shares.total_cost * end / pieces,
                    member);
  });
}

}  // namespace sixfold

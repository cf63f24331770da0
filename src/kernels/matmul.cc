#include "kernels/matmul.h"

#include <algorithm>

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

// A cache line, so that vectors of them are aligned.
struct alignas(64) Line {
  std::byte bytes[64];
};

int64_t Panels(const MatMulTask& task) { return (task.w->n + kPanelColumns - 1) / kPanelColumns; }

// Time of one panel in units of one row's products; a block of weights is read and unpacked once
// for all rows.
int64_t PanelCost(const MatMulTask& task) { return (task.a->rows + 2) * task.a->k_padded; }

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

}  // namespace

struct MatMul::Impl {
  Isa isa;
  ThreadPool& pool;
  bool vnni;
  std::vector<std::vector<Line>>
      scratch;  // one a member of the team; grows to the largest product seen

  // Runs the panels of member's share of the total cost: a contiguous range over all tasks.
  void RunShare(std::span<const MatMulTask> tasks, int64_t total_cost, int member, int members) {
    const int64_t share_begin = total_cost * member / members;
    const int64_t share_end = total_cost * (member + 1) / members;
    int64_t passed = 0;
    for (const MatMulTask& task : tasks) {
      const int64_t cost = PanelCost(task);
      const int64_t panels = Panels(task);
      // Panel i of this task belongs to the share in which its first unit of cost lies.
      const auto first_at = [&](int64_t share) {
        return std::clamp<int64_t>((share - passed + cost - 1) / cost, 0, panels);
      };
      const int64_t begin = share_begin <= passed ? 0 : first_at(share_begin);
      const int64_t end = share_end <= passed ? 0 : first_at(share_end);
      if (task.a->rows > 0 && begin < end) {
        RunPanels(isa,
                  {&task, begin, end, scratch[static_cast<size_t>(member)].data()->bytes, vnni});
      }
      passed += cost * panels;
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
  struct Context {
    PrepareArgs args;
    Activations* out;
    int members;
  } context{{x, stride, &leaves, row_index}, out, impl_->pool.size()};
  if (rows < 2 || rows * out->k_padded < kMinParallelElements) {
    PrepareRows(context.args, 0, rows, out);
    return;
  }
  // One captured reference: std::function keeps it without allocating.
  impl_->pool.Run([&context](int member) {
    const int64_t rows = context.out->rows;
    PrepareRows(context.args, rows * member / context.members,
                rows * (member + 1) / context.members, context.out);
  });
}

void MatMul::Run(std::span<const MatMulTask> tasks) {
  int64_t total_cost = 0;
  for (const MatMulTask& task : tasks) {
    SF_CHECK_EQ(task.a->leaf_block.size(), task.w->leaves.begin.size());
    SF_CHECK_EQ(task.a->k_padded / kBlock, LeafBlockCount(task.w->leaves));
    SF_CHECK_GE(task.out_stride, task.w->n);
    total_cost += PanelCost(task) * Panels(task);
  }
  const auto lines = static_cast<int64_t>(ScratchBytes(impl_->isa, tasks) / sizeof(Line) + 1);
  for (auto& own : impl_->scratch) GrowTo(own, lines);
  struct Context {
    Impl& impl;
    std::span<const MatMulTask> tasks;
    int64_t total_cost;
  } context{*impl_, tasks, total_cost};
  if (total_cost * kPanelColumns < kMinParallelProducts) {
    impl_->RunShare(tasks, total_cost, 0, 1);
    return;
  }
  impl_->pool.Run([&context](int member) {
    context.impl.RunShare(context.tasks, context.total_cost, member, context.impl.pool.size());
  });
}

}  // namespace sixfold

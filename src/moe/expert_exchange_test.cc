// Rows to experts and back over real messages between threads, against plain loops over all rows; any traffic, however
// lopsided, on every form of group.
#include "moe/expert_exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>

#include "base/random.h"
#include "comm/testing/run_ranks.h"
#include "kernels/dequantize.h"

namespace sixfold {
namespace {

constexpr int64_t kHidden = 6;

float Round(WireType type, float x) { return type == WireType::kF32 ? x : BF16ToF32(F32ToBF16(x)); }

// What an expert makes of a row: depends on both, and on the position.
float Expert(int expert, float x, int64_t i) { return x * static_cast<float>(expert + 1) + 0.25f * static_cast<float>(i - expert); }

struct Scene {
  int nodes = 1, each = 1, etp = 1;
  All2AllBackend backend = All2AllBackend::kFlat;
  CombineForm form = CombineForm::kSlots;
  WireType wire = WireType::kBF16;
  int experts = 1, top_k = 1;
  std::vector<int32_t> ep_of;                // [experts]
  std::vector<std::vector<int32_t>> routes;  // [members]
  int ranks() const { return nodes * each; }
};

float RowValue(int member, int64_t row, int64_t i) {
  return static_cast<float>(RandomUniform({.seed = 31, .choice = static_cast<uint32_t>(member),
                                           .position = static_cast<uint32_t>(row * kHidden + i),
                                           .purpose = RandomPurpose::kTest})) - 0.5f;
}
float Weight(int member, int64_t slot) { return 0.125f + 0.0625f * static_cast<float>((member * 7 + slot * 5) % 11); }

std::vector<float> Reference(const Scene& s, int member) {
  const std::vector<int32_t>& routes = s.routes[member];
  const auto rows = static_cast<int64_t>(routes.size()) / s.top_k;
  std::vector<float> out(rows * kHidden, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < kHidden; ++i) {
      float& sum = out[r * kHidden + i];
      for (int64_t slot = r * s.top_k; slot < (r + 1) * s.top_k; ++slot) {
        const float in = Round(s.wire, RowValue(member, r, i));
        sum = std::fma(Weight(member, slot), Round(s.wire, Expert(routes[slot], in, i)), sum);
      }
    }
  }
  return out;
}

// One member's part; `out` gets its rows.
Status RunMember(const Scene& s, const DispatchPlanner& planner, Communicator* group, int me, std::vector<float>* out) {
  ThreadPool pool(1);
  Ops ops(Isa::kScalar, pool);
  ExpertExchange exchange(group, {.hidden = kHidden, .dispatch = s.wire, .combine = s.wire}, ops);
  std::vector<int64_t> rows;
  for (const auto& of : s.routes) rows.push_back(static_cast<int64_t>(of.size()) / s.top_k);
  std::vector<float> x, weights;
  for (int64_t r = 0; r < rows[me]; ++r) {
    for (int64_t i = 0; i < kHidden; ++i) x.push_back(Round(s.wire, RowValue(me, r, i)));
  }
  for (size_t slot = 0; slot < s.routes[me].size(); ++slot) weights.push_back(Weight(me, static_cast<int64_t>(slot)));
  for (int round = 0; round < 2; ++round) {  // the second finds the first one's memory
    SF_RETURN_IF_ERROR(exchange.Dispatch(planner, rows, x.data(), s.routes[me].data(), weights.data()));
    std::vector<float> outputs;
    for (int64_t w = exchange.own_work().begin; w < exchange.own_work().end; ++w) {
      const float* row = exchange.rows().data() + exchange.work_rows()[w] * kHidden;
      for (int64_t i = 0; i < kHidden; ++i) outputs.push_back(Expert(exchange.work()[w].expert, row[i], i));
    }
    SF_RETURN_IF_ERROR(exchange.Combine(outputs));
  }
  out->resize(rows[me] * kHidden);
  ops.Combine({.slots = exchange.terms(),
               .slot_place = exchange.places().data(),
               .weights = exchange.weights().data(),
               .rows = rows[me],
               .top_k = s.top_k,
               .n = kHidden,
               .rounding = CombineArgs::Rounding::kNone,
               .out = out->data()});
  return OkStatus();
}

void Check(const Scene& s) {
  const Cluster cluster = Cluster::EqualNodes(s.ranks(), s.nodes).value();
  ExpertGroup group{.etp = s.etp, .ep_of = s.ep_of};
  for (int r = 0; r < s.ranks(); ++r) group.ranks.push_back(r);
  const DispatchPlanner planner(s.backend, s.form, cluster, group, s.top_k);
  LocalWorld world(s.ranks(), {.timeout = std::chrono::seconds(60)});
  std::mutex mutex;
  Ledger counted;
  std::vector<std::vector<float>> got(s.ranks());
  const auto results = RunRanks(world, [&](Transport& transport) {
    Ledger ledger;
    ControlTraffic control;
    Communicator comm(transport, cluster, {Axis::kEp, 3, group.ranks}, ledger, control);
    const Status status = RunMember(s, planner, s.ranks() == 1 ? nullptr : &comm, transport.rank(), &got[transport.rank()]);
    if (!status.ok()) transport.Abort(status);
    const std::lock_guard lock(mutex);
    AddTo(&counted, ledger);
    return status;
  });
  for (const Status& status : results) ASSERT_TRUE(status.ok()) << status.message();
  for (int m = 0; m < s.ranks(); ++m) {
    const std::vector<float> want = Reference(s, m);
    ASSERT_EQ(got[m].size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      if (s.form == CombineForm::kSlots) {
        ASSERT_EQ(got[m][i], want[i]) << "member " << m << " value " << i;
      } else {
        ASSERT_NEAR(got[m][i], want[i], 0.02 * (std::abs(want[i]) + 1)) << "member " << m << " value " << i;
      }
    }
  }
  // What was sent is what the plan says, twice.
  std::erase_if(counted, [](const auto& entry) { return entry.first.op == CommOp::kRoutes; });
  const int64_t row = kHidden * (s.wire == WireType::kF32 ? 4 : 2);
  const DispatchPlan plan = planner.Plan(std::vector<std::span<const int32_t>>(s.routes.begin(), s.routes.end()));
  Ledger predicted;
  for (int round = 0; round < 2; ++round) AddTo(&predicted, planner.TrafficOf(plan, {.dispatch = row, .combine = row}));
  EXPECT_EQ(counted, predicted);
}

// Calls with every backend, form and element type that differ.
void CheckAll(Scene s) {
  for (const auto backend : {All2AllBackend::kFlat, All2AllBackend::kHierarchical}) {
    if (backend == All2AllBackend::kHierarchical && s.nodes == 1) continue;
    for (const auto form : {CombineForm::kSlots, CombineForm::kNodeSums}) {
      for (const auto wire : {WireType::kBF16, WireType::kF32}) {
        s.backend = backend;
        s.form = form;
        s.wire = wire;
        Check(s);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Groups of many forms, with routes from `choose(member, row)`: different experts each, as many as top_k.
void OnManyGroups(int top_k_of_experts, const std::function<int(int member, int members)>& rows_of,
                  const std::function<std::vector<int32_t>(int member, int64_t row, const Scene&)>& choose) {
  struct Form {
    int nodes, each, etp, experts;
  };
  for (const Form f : {Form{1, 1, 1, 4}, Form{1, 4, 1, 7}, Form{2, 2, 1, 5}, Form{2, 4, 2, 6}, Form{4, 2, 1, 9}, Form{2, 3, 3, 4}}) {
    Scene s{.nodes = f.nodes, .each = f.each, .etp = f.etp, .experts = f.experts};
    s.top_k = top_k_of_experts == 0 ? f.experts : std::min(top_k_of_experts, f.experts);
    for (int e = 0; e < f.experts; ++e) s.ep_of.push_back(e % (s.ranks() / s.etp));
    for (int m = 0; m < s.ranks(); ++m) {
      std::vector<int32_t>& routes = s.routes.emplace_back();
      for (int r = 0; r < rows_of(m, s.ranks()); ++r) {
        const std::vector<int32_t> experts = choose(m, r, s);
        routes.insert(routes.end(), experts.begin(), experts.end());
      }
    }
    CheckAll(s);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Different experts, from anywhere.
std::vector<int32_t> Scattered(int member, int64_t row, const Scene& s) {
  std::vector<int32_t> experts;
  const auto first = static_cast<int>((member * 5 + row * 3) % s.experts);
  for (int k = 0; k < s.top_k; ++k) experts.push_back((first + k) % s.experts);
  return experts;
}

TEST(ExpertExchange, ScatteredRows) {
  OnManyGroups(2, [](int member, int) { return 3 + member % 3; }, Scattered);
}

TEST(ExpertExchange, AllRowsToTheSameExperts) {
  OnManyGroups(2, [](int, int) { return 4; }, [](int, int64_t, const Scene& s) {
    std::vector<int32_t> experts(s.top_k);
    for (int k = 0; k < s.top_k; ++k) experts[k] = s.experts - 1 - k;
    return experts;
  });
}

TEST(ExpertExchange, EveryExpertForEveryRow) { OnManyGroups(0, [](int, int) { return 2; }, Scattered); }

TEST(ExpertExchange, OneSenderInEachPosition) {
  for (int sender = 0; sender < 8; ++sender) {
    OnManyGroups(2, [&](int member, int members) { return member == sender % members ? 5 : 0; }, Scattered);
  }
}

TEST(ExpertExchange, OneIdleMemberInEachPosition) {
  for (int idle = 0; idle < 8; ++idle) {
    OnManyGroups(2, [&](int member, int members) { return member == idle % members ? 0 : 2; }, Scattered);
  }
}

TEST(ExpertExchange, OneRowInAll) {
  OnManyGroups(2, [](int member, int members) { return member == members - 1 ? 1 : 0; }, Scattered);
}

TEST(ExpertExchange, NoRowAtAll) { OnManyGroups(2, [](int, int) { return 0; }, Scattered); }

}  // namespace
}  // namespace sixfold

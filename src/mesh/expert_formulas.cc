#include "mesh/expert_formulas.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "mesh/axes.h"
#include "mesh/formulas.h"

namespace sixfold::formulas {

namespace {

constexpr int64_t kFp8ScaleChannels = 128, kFp8ScaleBytes = 4;

double RemoteOfPhase(const MoeTraffic& t, int64_t row_bytes, double remote_share) {
  return static_cast<double>(t.tokens) * static_cast<double>(t.top_k) *
         static_cast<double>(row_bytes) * remote_share;
}

}  // namespace

int64_t RowBytes(int64_t hidden, int64_t dtype_bytes) { return Product({hidden, dtype_bytes}); }

int64_t Fp8RowBytes(int64_t hidden) {
  const int64_t scales = hidden / kFp8ScaleChannels + (hidden % kFp8ScaleChannels != 0);
  return Sum({hidden, Product({scales, kFp8ScaleBytes})});
}

int64_t DispatchLogicalBytes(const MoeTraffic& t) {
  return Product({t.tokens, t.top_k, t.dispatch_row_bytes});
}

int64_t CombineLogicalBytes(const MoeTraffic& t) {
  return Product({t.tokens, t.top_k, t.combine_row_bytes});
}

double UniformRemoteShare(int ranks) {
  SF_CHECK_GE(ranks, 1);
  return static_cast<double>(ranks - 1) / ranks;
}

double DispatchRemoteBytes(const MoeTraffic& t, double remote_share) {
  return RemoteOfPhase(t, t.dispatch_row_bytes, remote_share);
}

double RemoteBytes(const MoeTraffic& t, double remote_share) {
  return RemoteOfPhase(t, t.dispatch_row_bytes, remote_share) +
         RemoteOfPhase(t, t.combine_row_bytes, remote_share);
}

double RankBytes(const MoeTraffic& t) {
  return RemoteBytes(t, UniformRemoteShare(t.ranks)) / t.ranks;
}

double PairBytes(const MoeTraffic& t) {
  return RemoteOfPhase(t, t.dispatch_row_bytes, 1) / t.ranks / t.ranks;
}

double TokensPerExpert(int64_t tokens, int64_t top_k, int64_t experts) {
  SF_CHECK_GE(experts, 1);
  return static_cast<double>(tokens) * static_cast<double>(top_k) / static_cast<double>(experts);
}

std::vector<SendReceive> BytesOfRanks(const TrafficMatrix& matrix, int64_t row_bytes) {
  const auto ranks = static_cast<size_t>(matrix.ranks);
  SF_CHECK_EQ(matrix.rows.size(), ranks * ranks);
  std::vector<SendReceive> bytes(ranks);
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      if (from == to) continue;
      const int64_t sent = Product({matrix.rows[from * ranks + to], row_bytes});
      bytes[from].send = Sum({bytes[from].send, sent});
      bytes[to].receive = Sum({bytes[to].receive, sent});
    }
  }
  return bytes;
}

CriticalPath DispatchCriticalPath(const TrafficMatrix& matrix, int64_t row_bytes,
                                  std::span<const RankBandwidth> bandwidths, double fixed_us) {
  SF_CHECK(bandwidths.size() == 1 || bandwidths.size() == static_cast<size_t>(matrix.ranks));
  CriticalPath path;
  double slowest_us = 0;
  const std::vector<SendReceive> bytes = BytesOfRanks(matrix, row_bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const RankBandwidth& b = bandwidths[bandwidths.size() == 1 ? 0 : i];
    SF_CHECK(b.send_gb_s > 0 && b.receive_gb_s > 0);
    const double send_us = static_cast<double>(bytes[i].send) / (b.send_gb_s * 1e3);
    const double receive_us = static_cast<double>(bytes[i].receive) / (b.receive_gb_s * 1e3);
    if (std::max(send_us, receive_us) <= slowest_us) continue;
    slowest_us = std::max(send_us, receive_us);
    path.rank = static_cast<int>(i);
    path.direction =
        send_us >= receive_us ? CriticalPath::Direction::kSend : CriticalPath::Direction::kReceive;
  }
  path.us = fixed_us + slowest_us;
  return path;
}

int64_t EpScaleBytes(int64_t activation_bytes, int64_t top_k) {
  return Product({top_k, activation_bytes});
}

int64_t FusedTpScaleBytes(int64_t activation_bytes, int64_t machines) {
  return Product({machines, activation_bytes});
}

int64_t UnfusedTpScaleBytes(int64_t activation_bytes, int64_t machines, int64_t top_k) {
  return Product({top_k, machines, activation_bytes});
}

double EpOverUnfusedTp(int64_t machines) {
  SF_CHECK_GE(machines, 1);
  return 1.0 / static_cast<double>(machines);
}

double EpOverFusedTp(int64_t machines, int64_t top_k) {
  return static_cast<double>(top_k) * EpOverUnfusedTp(machines);
}

double EpOverFusedTpDedup(int64_t machines, int64_t top_k) {
  return 1 - std::pow(1 - EpOverUnfusedTp(machines), static_cast<double>(top_k));
}

double MissProbability(int64_t experts, int64_t held, int64_t top_k) {
  SF_CHECK_GE(held, 0);
  SF_CHECK_LE(held, experts);
  SF_CHECK_LE(top_k, experts);
  if (held > experts - top_k) return 0;
  // k factors or `held` of them give the same number: C(E-e, k)/C(E, k) = C(E-k, e)/C(E, e).
  const int64_t factors = std::min(held, top_k), others = std::max(held, top_k);
  double miss = 1;
  for (int64_t i = 0; i < factors; ++i) {
    miss *= static_cast<double>(experts - others - i) / static_cast<double>(experts - i);
  }
  return miss;
}

double ExpectedDistinctGroups(int64_t experts, int groups, int64_t top_k) {
  // Shares have two sizes at most: the larger one first.
  double distinct = 0, hit = 0;
  int64_t size = -1;
  for (int g = 0; g < groups; ++g) {
    const Share share = ShareOf(experts, groups, g);
    if (share.size() != size) hit = 1 - MissProbability(experts, share.size(), top_k);
    size = share.size();
    distinct += hit;
  }
  return distinct;
}

double ExpectedDistinctGroupsLimit(int groups, int64_t top_k) {
  SF_CHECK_GE(groups, 1);
  return groups * (1 - std::pow(1 - 1.0 / groups, static_cast<double>(top_k)));
}

double ExpectedDistinctGroupsLimited(int64_t experts, int groups, int kept, int64_t top_k) {
  SF_CHECK_GE(kept, 1);
  SF_CHECK_LE(kept, groups);
  SF_CHECK_EQ(experts % groups, 0);
  return ExpectedDistinctGroups(experts / groups * kept, kept, top_k);
}

double ExpectedRemoteCopies(int64_t experts, int nodes, int64_t top_k, Copies copies) {
  const double reached = copies == Copies::kPerNode ? ExpectedDistinctGroups(experts, nodes, top_k)
                                                    : static_cast<double>(top_k);
  return reached * UniformRemoteShare(nodes);
}

double RelayBytesBetweenNodes(const RelayTraffic& t) {
  const double out = ExpectedRemoteCopies(t.experts, t.nodes, t.top_k, Copies::kPerNode);
  const double back = ExpectedRemoteCopies(t.experts, t.nodes, t.top_k, t.combine);
  return t.tokens_per_rank * (out * static_cast<double>(t.dispatch_row_bytes) +
                              back * static_cast<double>(t.combine_row_bytes));
}

double RelayBytesInsideNodes(const RelayTraffic& t) {
  SF_CHECK_EQ(t.ranks % t.nodes, 0);
  // On each node the token starts at one rank, its own or the relay: P-N ranks are left to reach.
  const double left = static_cast<double>(t.ranks - t.nodes) / t.ranks;
  const double out = left * ExpectedDistinctGroups(t.experts, t.ranks, t.top_k);
  const double back = t.combine == Copies::kPerNode ? out : left * static_cast<double>(t.top_k);
  return t.tokens_per_rank * (out * static_cast<double>(t.dispatch_row_bytes) +
                              back * static_cast<double>(t.combine_row_bytes));
}

}  // namespace sixfold::formulas

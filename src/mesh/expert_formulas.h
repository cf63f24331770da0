// Bytes that experts on many ranks move: dispatch and combine, with and without one copy a node.
// Pure functions; conventions and sources as in mesh/formulas.h. 000 §3.4 and §4.1 count every
// assignment apart (no dedup); 004 hop 4 sends one copy to each remote node.
//
// int64 where the number is exact for every routing, double where it is an expectation over
// uniform routing: k different experts of E, each set as likely as another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sixfold::formulas {

// Bytes of one token's row.
int64_t RowBytes(int64_t hidden, int64_t dtype_bytes);
// E4M3 with one f32 scale for each 128 channels.
int64_t Fp8RowBytes(int64_t hidden);

// --- Assignments one by one (000 §3.4), one MoE layer ------------------------------------------

struct MoeTraffic {
  int ranks = 1;                                          // P of the EP group
  int64_t tokens = 0;                                     // T in the whole group
  int64_t top_k = 1;                                      // k
  int64_t dispatch_row_bytes = 0, combine_row_bytes = 0;  // H·b of each phase
};
// T·k·H·b, assignments that stay on their rank included.
int64_t DispatchLogicalBytes(const MoeTraffic& traffic);
int64_t CombineLogicalBytes(const MoeTraffic& traffic);
// (P-1)/P: how many assignments leave their rank when experts are dealt evenly.
double UniformRemoteShare(int ranks);
// T·k·H·b·r_remote; both phases: 2·T·k·H·b·r_remote when rows are equal.
double DispatchRemoteBytes(const MoeTraffic& traffic, double remote_share);
double RemoteBytes(const MoeTraffic& traffic, double remote_share);
// Sent by a rank in both phases: 2·T·k·H·b/P·(P-1)/P.
double RankBytes(const MoeTraffic& traffic);
// A dispatch message from one rank to another: T·k·H·b/P².
double PairBytes(const MoeTraffic& traffic);
// T·k/E: tokens that an expert gets (000 §4.1: T/56 for 16 of 896).
double TokensPerExpert(int64_t tokens, int64_t top_k, int64_t experts);

// --- The busiest rank (000 §3.4) ---------------------------------------------------------------

// n_{i→j}: rows that rank i sends to rank j. What stays (i = j) crosses no link and counts nowhere.
struct TrafficMatrix {
  int ranks = 0;
  std::vector<int64_t> rows;  // [from · ranks + to]
};
struct SendReceive {
  int64_t send = 0, receive = 0;
  bool operator==(const SendReceive&) const = default;
};
std::vector<SendReceive> BytesOfRanks(const TrafficMatrix& matrix, int64_t row_bytes);

struct RankBandwidth {
  double send_gb_s = 0, receive_gb_s = 0;  // 1e9 bytes a second
};
// T_fixed + max over ranks of (sent / B_send, received / B_receive).
struct CriticalPath {
  int rank = 0;  // the lowest of the slowest
  enum class Direction : uint8_t { kSend, kReceive } direction = Direction::kSend;
  double us = 0;
};
// `bandwidths`: one a rank, or one for all.
CriticalPath DispatchCriticalPath(const TrafficMatrix& matrix, int64_t row_bytes,
                                  std::span<const RankBandwidth> bandwidths, double fixed_us);

// --- EP against tensor parallelism across nodes (001 chapters 17 and 20) -----------------------

// For an activation of S = N·d·β on M machines, up to the constant that all three share.
int64_t EpScaleBytes(int64_t activation_bytes, int64_t top_k);  // K·S
// M·S: an all-reduce whose result every machine takes, the K experts fused into one.
int64_t FusedTpScaleBytes(int64_t activation_bytes, int64_t machines);
// K·M·S: one all-reduce for each expert.
int64_t UnfusedTpScaleBytes(int64_t activation_bytes, int64_t machines, int64_t top_k);
// EP over cross-host TP: 1/M, and K/M against a fused one.
double EpOverUnfusedTp(int64_t machines);
double EpOverFusedTp(int64_t machines, int64_t top_k);
// The same with one copy a machine, 1 - (1 - 1/M)^K: K/M exceeds 1 where K > M, this never does.
double EpOverFusedTpDedup(int64_t machines, int64_t top_k);

// --- One copy a node (004 hop 4) ---------------------------------------------------------------

// How likely none of k different experts of `experts` is among `held`:
// C(E-e, k) / C(E, k) = Π (E-e-i)/(E-i).
double MissProbability(int64_t experts, int64_t held, int64_t top_k);
// How many of the groups (nodes or ranks) that `experts` are dealt to by ShareOf a token reaches:
// Σ (1 - miss); for equal groups G·(1 - C(E-E/G, k)/C(E, k)).
double ExpectedDistinctGroups(int64_t experts, int groups, int64_t top_k);
// Its limit for many experts, G·(1 - (1-1/G)^k).
double ExpectedDistinctGroupsLimit(int groups, int64_t top_k);
// Group-limited gates: the k experts come from `kept` of the groups, all groups as likely:
// M·(1 - C((M-1)e, k)/C(M·e, k)) with e = E/G. `groups` divides `experts`.
double ExpectedDistinctGroupsLimited(int64_t experts, int groups, int kept, int64_t top_k);

// Copies of one token that cross to other nodes, its own being any node alike.
enum class Copies : uint8_t {
  kPerNode,  // dispatch with dedup, combine summed in the node: D(N)·(N-1)/N
  kPerSlot,  // each assignment apart; also a combine that a relay sends unsummed: k·(N-1)/N
};
double ExpectedRemoteCopies(int64_t experts, int nodes, int64_t top_k, Copies copies);

// The traffic of a rank under the relay rule: one copy to the rank with the same local index on
// each remote node that is needed, and from there on inside the node.
struct RelayTraffic {
  int ranks = 1, nodes = 1;  // of the EP group; equal nodes
  int64_t experts = 0, top_k = 1;
  double tokens_per_rank = 0;  // t
  int64_t dispatch_row_bytes = 0, combine_row_bytes = 0;
  Copies combine = Copies::kPerNode;
};
// Sent between nodes by a rank in both phases, as source of dispatch and relay of combine: with
// rows of H·b and R remote copies 2·R·t·H·b.
double RelayBytesBetweenNodes(const RelayTraffic& traffic);
// Sent inside nodes by a rank, both phases: (P-N)·(1 - C(E-E/P, k)/C(E, k))·t·H·b each way, one
// copy a rank. kPerSlot returns a row for each expert of the rank that was chosen: k·(P-N)/P.
double RelayBytesInsideNodes(const RelayTraffic& traffic);

}  // namespace sixfold::formulas

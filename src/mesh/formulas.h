// Bytes that cutting a model moves, as closed formulas: what a person with a calculator would find.
// Pure functions without model, mesh or cluster; what an engine's own step moves, message by
// message, is counted elsewhere and tested against these. Experts: mesh/expert_formulas.h.
//
// Sources are the three seed documents, by number and section: 000 §2.3 (handoff), §3.2 (TP, SP),
// §3.5 (CP); 001 chapters 16, 17 and 20; 004 (one token's way).
//
// Units: bytes, exact in int64; a value beyond int64 is kBytesMax. Ranks send what is counted here:
// what a rank keeps is not in it. Where shares do not come out equal they differ by one
// (ShareOf, mesh/axes.h), `per_rank` is the busiest rank's and `total` is exact. Negative sizes and
// fewer than one rank are bugs of the caller (CHECK).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>

namespace sixfold::formulas {

inline constexpr int64_t kBytesMax = std::numeric_limits<int64_t>::max();
// Of factors and terms that are not negative; kBytesMax where int64 does not hold the result.
int64_t Product(std::initializer_list<int64_t> factors);
int64_t Sum(std::initializer_list<int64_t> terms);

// S = s·b·h·β, the activation at a layer's border (000 §3.2).
struct Activation {
  int64_t seq = 0, batch = 1, hidden = 0, dtype_bytes = 2;
};
int64_t ActivationBytes(const Activation& activation);

// --- Ring collectives (000 §3.2), p ranks, S bytes of the whole tensor -------------------------

struct Volume {
  int64_t per_rank = 0, total = 0;
  bool operator==(const Volume&) const = default;
};
// per rank (p-1)/p·S, together (p-1)·S: each rank ends with all, having held one share.
Volume AllGather(int ranks, int64_t bytes);
// The same volumes: each rank ends with one share of the sum.
Volume ReduceScatter(int ranks, int64_t bytes);
// per rank 2·(p-1)/p·S: a reduce-scatter and an all-gather.
Volume AllReduce(int ranks, int64_t bytes);
// per rank (p-1)/p²·S, together (p-1)/p·S: of its share of S each rank keeps one p-th.
Volume AllToAll(int ranks, int64_t bytes);

// --- Tensor and sequence parallelism (000 §3.2), one transformer layer -------------------------

enum class Collective : uint8_t { kNone, kAllReduce, kAllGather, kReduceScatter };
std::string_view NameOf(Collective collective);  // "none", "all_reduce", …
// How often the collective sends (p-1)/p·S: 0, 2, 1, 1.
int UnitsOf(Collective collective);

enum class TpForm : uint8_t {
  kTp,           // four all-reduces: 4 / 4 / 8 units forward / backward / both
  kTpSp,         // the same boundaries as all-gather and reduce-scatter: 4 / 4 / 8
  kTpSpRebuild,  // keeps the sequence shard alone and gathers inputs again: 4 / 6 / 10
};

// A place in a layer where ranks communicate.
struct TpBoundary {
  std::string_view site;  // "attention_in", "attention_out", "ffn_in", "ffn_out", and the two
                          // gathers for weight gradients: "attention_rebuild", "ffn_rebuild"
  Collective forward = Collective::kNone, backward = Collective::kNone;
};
std::span<const TpBoundary> TpBoundaries(TpForm form);

// Units of (p-1)/p·S that a rank sends in a layer. Serving pays `forward` alone.
struct TpUnits {
  int forward = 0, backward = 0;
  int both() const { return forward + backward; }
  bool operator==(const TpUnits&) const = default;
};
TpUnits UnitsOf(TpForm form);

// Bytes that a rank sends in a layer.
struct TpBytes {
  int64_t forward = 0, backward = 0, both = 0;
  bool operator==(const TpBytes&) const = default;
};
TpBytes TpLayerBytes(TpForm form, int ranks, int64_t activation_bytes);

// --- Pipeline parallelism (001 chapter 20; 004 hop 5) ------------------------------------------

// One step through P stages: P-1 sends of S, one after the other.
struct PpTraffic {
  int64_t sends = 0, send_bytes = 0, total_bytes = 0;
};
PpTraffic PpStepBytes(int stages, int64_t activation_bytes);
// What one rank of a stage sends to the next when sequence and context parallelism cut the tokens
// of the activation `parts` ways (tp·cp with sp, cp without it): [tokens/parts, h].
int64_t PpSliceBytes(const Activation& activation, int parts);

// --- K/V and its handoff (000 §2.3, 001 chapter 20, 004 hop 6) ---------------------------------

// 2·L·n_kv·d_h·β for one token.
struct KvShape {
  int64_t layers = 1, kv_heads = 0, head_dim = 0, dtype_bytes = 2;
};
int64_t KvBytesPerToken(const KvShape& shape);
// L·(r + d_rope)·β for one token: one compressed row a layer, for all heads (MLA).
struct MlaShape {
  int64_t layers = 1, kv_rank = 0, rope_dim = 0, dtype_bytes = 2;
};
int64_t KvBytesPerToken(const MlaShape& shape);
// S_KV of `tokens` positions.
int64_t HandoffBytes(int64_t bytes_per_token, int64_t tokens);
// T_handoff ≈ T_fixed + S_KV / B, with B in 1e9 bytes a second.
double TransferMs(int64_t bytes, double bandwidth_gb_s, double fixed_ms);

// --- Context parallelism (000 §3.5, 001 chapter 16, 004 hop 3), attention of one layer ---------

struct CpShape {
  int64_t seq = 0, batch = 1, heads = 0, kv_heads = 0, head_dim = 0, dtype_bytes = 2;
};
struct CpTraffic {
  Volume bytes;
  int64_t rounds = 0;         // messages that a rank sends one after the other
  int64_t kv_peak_bytes = 0;  // K and V that the busiest rank holds during attention
};
// K and V of the whole context: 2·s·b·n_kv·d_h·β.
int64_t CpKvBytes(const CpShape& shape);
// all_gather: per rank (C-1)/C·KV, and all of K/V in memory.
CpTraffic CpAllGather(const CpShape& shape, int ranks);
// p2p and striped: C-1 times a block of KV/C, so the same bytes; two blocks in memory.
CpTraffic CpRing(const CpShape& shape, int ranks);
// a2a (Ulysses): Q, K and V to whole sequences of n/C heads, and O back: per rank about
// (C-1)/C²·2·s·b·(n + n_kv)·d_h·β. A K/V head goes to each rank whose query heads read it, so below
// C K/V heads more is sent.
CpTraffic CpUlysses(const CpShape& shape, int ranks);
// a2a+p2p (USP): C = U·R; a2a among U ranks that hold s/R tokens, then a ring of R over K/V of the
// whole sequence for one U-th of the heads.
CpTraffic CpUlyssesRing(const CpShape& shape, int ulysses, int ring);
// pass-Q (decode): the queries of `query_tokens` new tokens, dealt over the ranks, go to the C-1
// ranks that hold the rest of K/V; partial outputs with their two softmax numbers a head, both of
// `partial_bytes` an element, come back: together t·(C-1)·n·(d_h·β + (d_h + 2)·partial_bytes).
CpTraffic CpPassQ(const CpShape& shape, int ranks, int64_t query_tokens, int64_t partial_bytes);

// --- The table of 001 chapter 20 ---------------------------------------------------------------

enum class Mode : uint8_t { kTp, kPp, kCp, kEp, kHandoff };
enum class Occasion : uint8_t { kStep, kRequest };
struct ModelScale {
  int64_t layers = 1, moe_layers = 0;               // L, L_MoE
  int64_t tokens = 0, hidden = 0, dtype_bytes = 2;  // N, d, β
  int64_t top_k = 0;                                // K
  int64_t stages = 1, machines = 1;                 // P, M
};
// The columns of the table as it has them: how often, and the expressions inside its O(…) times β,
// constants left out. They compare scales; exact bytes come from the functions above.
//   TP       2·L a step          N·d        L·N·d
//   PP       P-1 a step          N·d        P·N·d
//   CP       (M-1)·L a request   N/M·d      L·N·d
//   EP       2·L_MoE a step      K·N/M·d    L_MoE·K·N·d
//   handoff  1 a request         L·N·d      L·N·d
struct ModeScale {
  Occasion occasion = Occasion::kStep;
  int64_t events = 0, single_bytes = 0, total_bytes = 0;
  bool operator==(const ModeScale&) const = default;
};
ModeScale ScaleOf(Mode mode, const ModelScale& scale);

}  // namespace sixfold::formulas

// The modes of `sixfold bytes`: which formulas each shows, and with which numbers.
#include <fmt/format.h>

#include "apps/bytes_report.h"
#include "base/plural.h"
#include "mesh/expert_formulas.h"
#include "mesh/formulas.h"

namespace sixfold::apps {
namespace {

using namespace formulas;  // NOLINT: this file is about them
using Kind = BytesRow::Kind;

constexpr auto kCount = Kind::kCount;
constexpr auto kTimed = Kind::kTimed;

int Int(const Options& options, std::string_view name) {
  return static_cast<int>(options.Integer(name));
}

Activation ActivationOf(const Options& options) {
  return {.seq = options.Integer("seq"),
          .batch = options.Integer("batch"),
          .hidden = options.Integer("hidden"),
          .dtype_bytes = options.Integer("dtype-bytes")};
}

BytesRow ActivationRow(const Activation& a) {
  return {"activation", "activation S", "s·b·h·β",
          fmt::format("{}·{}·{}·{}", a.seq, a.batch, a.hidden, a.dtype_bytes), ActivationBytes(a)};
}

// "L·x" and "80·x"; x alone where one layer is asked for.
struct Layers {
  int64_t count = 1;
  std::string Formula(const std::string& x) const { return count == 1 ? x : "L·" + x; }
  std::string Filled(const std::string& x) const {
    return count == 1 ? x : fmt::format("{}·{}", count, x);
  }
  std::string Title() const {
    return count == 1 ? "in one layer" : fmt::format("in {} layers", count);
  }
};

Layers LayersOf(const Options& options) { return {options.Integer("layers")}; }

// u = (p-1)/p·S.
BytesRow UnitRow(int ranks, int64_t activation) {
  return {"unit",
          "unit u",
          "(p-1)/p·S",
          fmt::format("{}/{}·{}", ranks - 1, ranks, activation),
          AllGather(ranks, activation).per_rank,
          kTimed};
}

BytesRow UnitsRow(const std::string& key, const std::string& label, const Layers& layers, int units,
                  int64_t unit) {
  return {key,
          label,
          layers.Formula(fmt::format("{}·u", units)),
          layers.Filled(fmt::format("{}·{}", units, unit)),
          Product({layers.count, units, unit}),
          kTimed};
}

constexpr struct {
  TpForm form;
  const char *key, *label;
} kTpForms[] = {{TpForm::kTp, "tp", "TP"},
                {TpForm::kTpSp, "tp_sp", "TP+SP"},
                {TpForm::kTpSpRebuild, "tp_sp_rebuild", "TP+SP, inputs gathered again"}};

std::string WithShareNote(int64_t bytes, int ranks) {
  if (bytes % ranks == 0) return "";
  return fmt::format("S does not come out equal on {}: bytes are the busiest rank's.", Plural(ranks, "rank"));
}

}  // namespace

Result<BytesReport> TpBytesReport(const Options& options) {
  const int ranks = Int(options, "ranks");
  const Activation activation = ActivationOf(options);
  const int64_t s = ActivationBytes(activation);
  const Layers layers = LayersOf(options);
  BytesReport report{
      .title = fmt::format("tp: what each of {} sends {}, rings", Plural(ranks, "rank"), layers.Title())};
  const BytesRow unit = UnitRow(ranks, s);
  const int64_t u = std::get<int64_t>(unit.value);
  report.rows = {ActivationRow(activation), unit};
  for (const auto& [form, key, label] : kTpForms) {
    const TpUnits units = UnitsOf(form);
    const std::string k = key, l = label;
    report.rows.push_back(UnitsRow(k + "_forward", l + ": forward", layers, units.forward, u));
    report.rows.push_back(UnitsRow(k + "_backward", l + ": backward", layers, units.backward, u));
    report.rows.push_back(UnitsRow(k + "_both", l + ": both", layers, units.both(), u));
  }
  const int64_t all = Product({layers.count, 2, AllReduce(ranks, s).total});
  report.rows.push_back({"tp_forward_all_ranks", "TP: forward, all ranks",
                         layers.Formula("4·(p-1)·S"),
                         layers.Filled(fmt::format("4·{}·{}", ranks - 1, s)), all});
  report.rows.push_back({"collectives_per_step", "all-reduces of a forward step", "2·L",
                         fmt::format("2·{}", layers.count), Product({2, layers.count}), kCount});
  report.notes = {
      "Serving runs forward alone: two all-reduces a layer, one behind attention, one "
      "behind the FFN."};
  if (const std::string note = WithShareNote(s, ranks); !note.empty()) report.notes.push_back(note);
  return report;
}

Result<BytesReport> SpBytesReport(const Options& options) {
  const int ranks = Int(options, "ranks");
  const Activation activation = ActivationOf(options);
  const int64_t s = ActivationBytes(activation);
  const Layers layers = LayersOf(options);
  BytesReport report{
      .title = fmt::format("sp: what each of {} of a tp group sends {} with sequence "
                           "parallelism, rings",
                           Plural(ranks, "rank"), layers.Title())};
  const BytesRow unit = UnitRow(ranks, s);
  const int64_t u = std::get<int64_t>(unit.value);
  report.rows = {ActivationRow(activation),
                 unit,
                 {"shard", "activation that a rank keeps", "S/p", fmt::format("{}/{}", s, ranks),
                  PpSliceBytes(activation, ranks)}};
  for (const TpBoundary& boundary : TpBoundaries(TpForm::kTpSpRebuild)) {
    const std::string site(boundary.site);
    const auto row = [&](const char* way, Collective collective) {
      if (collective == Collective::kNone) return;
      report.rows.push_back(UnitsRow(site + "_" + way,
                                     fmt::format("{} {}: {}", site, way, NameOf(collective)),
                                     layers, UnitsOf(collective), u));
    };
    row("forward", boundary.forward);
    row("backward", boundary.backward);
  }
  for (const auto& [form, key, label] : kTpForms) {
    const TpUnits units = UnitsOf(form);
    report.rows.push_back(UnitsRow(std::string(key) + "_forward", std::string(label) + ": forward",
                                   layers, units.forward, u));
    report.rows.push_back(UnitsRow(std::string(key) + "_both", std::string(label) + ": both",
                                   layers, units.both(), u));
  }
  report.notes = {
      "An all-reduce is a reduce-scatter and an all-gather, so forward costs as much as without "
      "sp. The two rebuilds are training's: weight gradients need inputs of which only the shard "
      "was kept."};
  if (const std::string note = WithShareNote(s, ranks); !note.empty()) report.notes.push_back(note);
  return report;
}

Result<BytesReport> PpBytesReport(const Options& options) {
  const int stages = Int(options, "ranks");
  const Activation activation = ActivationOf(options);
  const PpTraffic traffic = PpStepBytes(stages, ActivationBytes(activation));
  BytesReport report{.title = fmt::format("pp: one step through {}", Plural(stages, "stage"))};
  BytesRow send = ActivationRow(activation);
  send.key = "send";
  send.label = "a send S";
  send.kind = kTimed;
  report.rows = {
      send,
      {"sends", "sends, one after the other", "P-1", fmt::format("{}-1", stages), traffic.sends,
       kCount},
      {"total", "all sends", "(P-1)·S", fmt::format("{}·{}", traffic.sends, traffic.send_bytes),
       traffic.total_bytes, kTimed}};
  report.notes = {
      "With tensor parallelism and sp each of p ranks of a stage sends S/p; without sp "
      "each has all of S and one of them need send it."};
  return report;
}

Result<BytesReport> HandoffBytesReport(const Options& options) {
  const int64_t layers = options.Integer("layers"), dtype = options.Integer("dtype-bytes");
  const auto heads = options.MaybeInteger("kv-heads"), dim = options.MaybeInteger("head-dim");
  const auto mla = options.MaybeInteger("mla-rank");
  if (mla && (heads || dim))
    return InvalidArgument("handoff takes --mla-rank or --kv-heads and --head-dim, not both");
  if (!mla && (!heads || !dim))
    return InvalidArgument("handoff needs --kv-heads and --head-dim, or --mla-rank");
  const int64_t seq = options.Integer("seq"), batch = options.Integer("batch");
  BytesRow token{"token", "K/V of a token"};
  if (mla) {
    const MlaShape shape{layers, *mla, options.Integer("rope-dim"), dtype};
    token.formula = "L·(r+d_rope)·β";
    token.filled = fmt::format("{}·({}+{})·{}", layers, *mla, shape.rope_dim, dtype);
    token.value = KvBytesPerToken(shape);
  } else {
    token.formula = "2·L·n_kv·d_h·β";
    token.filled = fmt::format("2·{}·{}·{}·{}", layers, *heads, *dim, dtype);
    token.value = KvBytesPerToken(KvShape{layers, *heads, *dim, dtype});
  }
  const int64_t per_token = std::get<int64_t>(token.value);
  BytesReport report{.title = "handoff: K/V from prefill to decode, once a request"};
  report.rows = {token,
                 {"request", "K/V of a request S_KV", "s·token",
                  fmt::format("{}·{}", seq, per_token), HandoffBytes(per_token, seq), kTimed}};
  if (batch > 1) {
    report.rows.push_back({"batch", "K/V of all requests", "b·s·token",
                           fmt::format("{}·{}·{}", batch, seq, per_token),
                           Product({batch, HandoffBytes(per_token, seq)}), kTimed});
  }
  report.notes = {
      "ms = T_fixed + S_KV/B at --bandwidth-gb-s B, all links of the transfer together: "
      "a bound, not a measurement."};
  return report;
}

namespace {

struct CpForm {
  std::string name, key, formula, filled;
  CpTraffic traffic;
};

void AddCpForm(const CpForm& form, const Layers& layers, BytesReport* report) {
  const auto total = [&](int64_t bytes) { return Product({layers.count, bytes}); };
  report->rows.push_back({form.key + "_per_rank", form.name + ": a rank sends",
                          layers.Formula(form.formula), layers.Filled(form.filled),
                          total(form.traffic.bytes.per_rank), kTimed});
  report->rows.push_back({form.key + "_all_ranks", form.name + ": all ranks", "sum over ranks",
                          layers.Filled(fmt::format("{}", form.traffic.bytes.total)),
                          total(form.traffic.bytes.total)});
  report->rows.push_back({form.key + "_kv_peak", form.name + ": K/V in memory", "of one layer",
                          fmt::format("{}", form.traffic.kv_peak_bytes),
                          form.traffic.kv_peak_bytes});
  report->rows.push_back(
      {form.key + "_rounds", form.name + ": messages in a row", layers.Formula("rounds"),
       layers.Filled(fmt::format("{}", form.traffic.rounds)), total(form.traffic.rounds), kCount});
}

CpForm A2aForm(const CpShape& shape, int ranks) {
  return {"a2a", "a2a", "(C-1)/C²·2·s·b·(n+n_kv)·d_h·β",
          fmt::format("{}/{}²·2·{}·{}·({}+{})·{}·{}", ranks - 1, ranks, shape.seq, shape.batch,
                      shape.heads,
                      std::max<int64_t>(shape.kv_heads, std::min<int64_t>(ranks, shape.heads)),
                      shape.head_dim, shape.dtype_bytes),
          CpUlysses(shape, ranks)};
}

CpForm MixedForm(const CpShape& shape, int ulysses, int ring) {
  return {"a2a+p2p", "a2a_p2p", "a2a of U on s/R + (R-1)/R·KV/U",
          fmt::format("a2a of {} on {}/{} + {}/{}·{}/{}", ulysses, shape.seq, ring, ring - 1, ring,
                      CpKvBytes(shape), ulysses),
          CpUlyssesRing(shape, ulysses, ring)};
}

// f32 partials and softmax numbers, as attention keeps them.
constexpr int64_t kPartialBytes = 4;

CpForm PassQForm(const CpShape& shape, int ranks, int64_t queries) {
  return {"pass_q", "pass_q", "queries to C-1 ranks, partials back",
          fmt::format("{}: {}·{}·{} B out, {}·({}+2)·{} B back, a token and rank", Plural(queries, "token"),
                      shape.heads, shape.head_dim, shape.dtype_bytes, shape.heads, shape.head_dim,
                      kPartialBytes),
          CpPassQ(shape, ranks, queries, kPartialBytes)};
}

}  // namespace

Result<BytesReport> CpBytesReport(const Options& options) {
  const int ranks = Int(options, "ranks");
  CpShape shape{.seq = options.Integer("seq"),
                .batch = options.Integer("batch"),
                .heads = options.MaybeInteger("heads").value_or(options.Integer("kv-heads")),
                .kv_heads = options.Integer("kv-heads"),
                .head_dim = options.Integer("head-dim"),
                .dtype_bytes = options.Integer("dtype-bytes")};
  if (shape.heads % shape.kv_heads != 0) {
    return InvalidArgument(
        fmt::format("--heads {} is no multiple of --kv-heads {}", shape.heads, shape.kv_heads));
  }
  const std::string& wanted = options.Text("form");
  const auto ulysses = options.MaybeInteger("ulysses-ranks");
  if (wanted == "a2a+p2p" && !ulysses)
    return InvalidArgument("a2a+p2p needs --ulysses-ranks, the ranks of an all-to-all group");
  if (ulysses && ranks % *ulysses != 0) {
    return InvalidArgument(
        fmt::format("--ulysses-ranks {} does not divide --ranks {}", *ulysses, ranks));
  }
  const auto want = [&](std::string_view name) { return wanted == "all" || wanted == name; };
  const Layers layers = LayersOf(options);
  BytesReport report{.title = fmt::format("cp: attention {} over {}", layers.Title(), Plural(ranks, "rank"))};
  const int64_t kv = CpKvBytes(shape);
  report.rows = {{"kv", "K/V of the context KV", "2·s·b·n_kv·d_h·β",
                  fmt::format("2·{}·{}·{}·{}·{}", shape.seq, shape.batch, shape.kv_heads,
                              shape.head_dim, shape.dtype_bytes),
                  kv}};
  const std::string share = fmt::format("{}/{}·{}", ranks - 1, ranks, kv);
  if (want("all_gather")) {
    AddCpForm({"all_gather", "all_gather", "(C-1)/C·KV", share, CpAllGather(shape, ranks)}, layers,
              &report);
  }
  for (const char* ring : {"p2p", "striped"}) {
    if (want(ring))
      AddCpForm({ring, ring, "(C-1)/C·KV", share, CpRing(shape, ranks)}, layers, &report);
  }
  if (want("a2a")) AddCpForm(A2aForm(shape, ranks), layers, &report);
  if (ulysses && want("a2a+p2p")) {
    AddCpForm(MixedForm(shape, static_cast<int>(*ulysses), ranks / static_cast<int>(*ulysses)),
              layers, &report);
  }
  if (want("pass_q"))
    AddCpForm(PassQForm(shape, ranks, options.Integer("query-tokens")), layers, &report);
  report.notes = {
      "Bytes are the busiest rank's where tokens or heads do not come out equal; in a2a "
      "a K/V head goes to every rank whose query heads read it."};
  if (wanted == "all" && !ulysses) report.notes.emplace_back("--ulysses-ranks adds a2a+p2p.");
  return report;
}

namespace {

struct EpInputs {
  int ranks = 1, nodes = 1;
  Activation activation;
  int64_t tokens = 0, top_k = 0, combine_bytes = 0;
  std::optional<int64_t> experts;
  Layers layers;
  MoeTraffic moe;
};

Result<EpInputs> EpInputsOf(const Options& options) {
  EpInputs in{.ranks = Int(options, "ranks"),
              .nodes = Int(options, "nodes"),
              .activation = ActivationOf(options),
              .top_k = options.Integer("top-k"),
              .experts = options.MaybeInteger("experts"),
              .layers = LayersOf(options)};
  in.tokens = Product({in.activation.seq, in.activation.batch});
  in.combine_bytes =
      options.MaybeInteger("combine-dtype-bytes").value_or(in.activation.dtype_bytes);
  if (in.ranks % in.nodes != 0) {
    return InvalidArgument(
        fmt::format("--ranks {} do not come out equal on --nodes {}", in.ranks, in.nodes));
  }
  if (in.experts && in.top_k > *in.experts)
    return InvalidArgument(fmt::format("--top-k {} is above --experts {}", in.top_k, *in.experts));
  if (in.experts && in.ranks > *in.experts)
    return InvalidArgument(fmt::format("--ranks {} is above --experts {}", in.ranks, *in.experts));
  in.moe = {.ranks = in.ranks,
            .tokens = in.tokens,
            .top_k = in.top_k,
            .dispatch_row_bytes = RowBytes(in.activation.hidden, in.activation.dtype_bytes),
            .combine_row_bytes = RowBytes(in.activation.hidden, in.combine_bytes)};
  return in;
}

// Assignments one by one, as the first seed document counts.
void AddEpAssignments(const EpInputs& in, BytesReport* report) {
  const double layers = static_cast<double>(in.layers.count);
  const double remote = UniformRemoteShare(in.ranks);
  const int64_t h = in.activation.hidden, b = in.activation.dtype_bytes;
  const std::string all = fmt::format("{}·{}·{}·{}", in.tokens, in.top_k, h, b);
  // b + b' is 2·b where both phases have the same elements.
  const std::string two =
      fmt::format("{}·{}·{}·({}+{})", in.tokens, in.top_k, h, b, in.combine_bytes);
  const auto f = [&](const char* x) { return in.layers.Formula(x); };
  const auto n = [&](const std::string& x) { return in.layers.Filled(x); };
  report->rows = {
      {"row", "a token's row", "H·b", fmt::format("{}·{}", h, b), in.moe.dispatch_row_bytes},
      {"dispatch_logical", "dispatch, logical", f("T·k·H·b"), n(all),
       Product({in.layers.count, DispatchLogicalBytes(in.moe)})},
      {"logical", "dispatch and combine, logical", f("T·k·H·(b+b')"), n(two),
       Product(
           {in.layers.count, Sum({DispatchLogicalBytes(in.moe), CombineLogicalBytes(in.moe)})})},
      {"remote_share", "share that leaves its rank", "(P-1)/P",
       fmt::format("{}/{}", in.ranks - 1, in.ranks), remote, kCount},
      {"dispatch_remote", "dispatch, remote", f("T·k·H·b·(P-1)/P"),
       n(fmt::format("{}·{}/{}", all, in.ranks - 1, in.ranks)),
       layers * DispatchRemoteBytes(in.moe, remote)},
      {"remote", "dispatch and combine, remote", f("T·k·H·(b+b')·(P-1)/P"),
       n(fmt::format("{}·{}/{}", two, in.ranks - 1, in.ranks)),
       layers * RemoteBytes(in.moe, remote)},
      {"per_rank", "a rank sends, both phases", f("T·k·H·(b+b')/P·(P-1)/P"),
       n(fmt::format("{}/{}·{}/{}", two, in.ranks, in.ranks - 1, in.ranks)),
       layers * RankBytes(in.moe), kTimed},
      {"per_pair", "a dispatch message of a pair", "T·k·H·b/P²",
       fmt::format("{}/{}²", all, in.ranks), PairBytes(in.moe), kTimed},
      {"exchanges_per_step", "all-to-alls of a step", "2·L", fmt::format("2·{}", in.layers.count),
       Product({2, in.layers.count}), kCount},
  };
}

// The relay rule: t tokens of a rank, which reach `distinct` ranks each.
void AddEpRelay(const EpInputs& in, int64_t experts, double t, double distinct,
                BytesReport* report) {
  const double layers = static_cast<double>(in.layers.count);
  RelayTraffic relay{.ranks = in.ranks,
                     .nodes = in.nodes,
                     .experts = experts,
                     .top_k = in.top_k,
                     .tokens_per_rank = t,
                     .dispatch_row_bytes = in.moe.dispatch_row_bytes,
                     .combine_row_bytes = in.moe.combine_row_bytes};
  const double remote = ExpectedRemoteCopies(experts, in.nodes, in.top_k, Copies::kPerNode);
  const double apart = ExpectedRemoteCopies(experts, in.nodes, in.top_k, Copies::kPerSlot);
  const int64_t out = in.moe.dispatch_row_bytes, back = in.moe.combine_row_bytes;
  const auto row = [&](const char* key, const char* label, const char* formula,
                       const std::string& filled, double value) {
    report->rows.push_back({key, label, in.layers.Formula(formula),
                            in.layers.Filled(fmt::format("{:.6g}·({})", t, filled)), layers * value,
                            kTimed});
  };
  row("between_nodes", "a rank sends to other nodes, relay", "T/P·(H·b·R+H·b'·R)",
      fmt::format("{}·{:.6g}+{}·{:.6g}", out, remote, back, remote), RelayBytesBetweenNodes(relay));
  relay.combine = Copies::kPerSlot;
  row("between_nodes_unsummed", "the same, parts sent home unsummed", "T/P·(H·b·R+H·b'·k·(N-1)/N)",
      fmt::format("{}·{:.6g}+{}·{:.6g}", out, remote, back, apart), RelayBytesBetweenNodes(relay));
  relay.combine = Copies::kPerNode;
  row("inside_nodes", "a rank sends inside its node, relay", "T/P·(H·b+H·b')·D(P)·(P-N)/P",
      fmt::format("{}+{})·({:.6g}·{}/{}", out, back, distinct, in.ranks - in.nodes, in.ranks),
      RelayBytesInsideNodes(relay));
}

// One copy a rank or a node.
void AddEpDedup(const EpInputs& in, int64_t experts, BytesReport* report) {
  const double layers = static_cast<double>(in.layers.count);
  const double t = static_cast<double>(in.tokens) / in.ranks;
  const auto rows =
      static_cast<double>(in.moe.dispatch_row_bytes + in.moe.combine_row_bytes) * layers;
  const double ranks = ExpectedDistinctGroups(experts, in.ranks, in.top_k);
  const std::string choose = fmt::format("{}·(1-C({}-{}/{},{})/C({},{}))", in.ranks, experts,
                                         experts, in.ranks, in.top_k, experts, in.top_k);
  report->rows.push_back({"distinct_ranks", "ranks that a token reaches D(P)",
                          "P·(1-C(E-E/P,k)/C(E,k))", choose, ranks, kCount});
  const double remote_ranks = ranks * UniformRemoteShare(in.ranks);
  report->rows.push_back({"per_rank_dedup", "a rank sends, one copy a rank",
                          in.layers.Formula("T/P·H·(b+b')·D(P)·(P-1)/P"),
                          in.layers.Filled(fmt::format(
                              "{:.6g}·{}·{:.6g}", t,
                              in.moe.dispatch_row_bytes + in.moe.combine_row_bytes, remote_ranks)),
                          t * rows * remote_ranks, kTimed});
  if (in.nodes == 1) return;
  const double distinct = ExpectedDistinctGroups(experts, in.nodes, in.top_k);
  report->rows.push_back({"distinct_nodes", "nodes that a token reaches D(N)",
                          "N·(1-C(E-E/N,k)/C(E,k))",
                          fmt::format("{}·(1-C({}-{}/{},{})/C({},{}))", in.nodes, experts, experts,
                                      in.nodes, in.top_k, experts, in.top_k),
                          distinct, kCount});
  report->rows.push_back({"remote_nodes", "of them not its own R", "D(N)·(N-1)/N",
                          fmt::format("{:.6g}·{}/{}", distinct, in.nodes - 1, in.nodes),
                          ExpectedRemoteCopies(experts, in.nodes, in.top_k, Copies::kPerNode),
                          kCount});
  AddEpRelay(in, experts, t, ranks, report);
}

void AddEpAgainstTp(const EpInputs& in, BytesReport* report) {
  report->rows.push_back({"ep_over_unfused_tp", "EP over TP across nodes", "1/N",
                          fmt::format("1/{}", in.nodes), EpOverUnfusedTp(in.nodes), kCount});
  report->rows.push_back({"ep_over_fused_tp", "EP over fused TP across nodes", "k/N",
                          fmt::format("{}/{}", in.top_k, in.nodes),
                          EpOverFusedTp(in.nodes, in.top_k), kCount});
  report->rows.push_back({"ep_over_fused_tp_dedup", "the same, one copy a node", "1-(1-1/N)^k",
                          fmt::format("1-(1-1/{})^{}", in.nodes, in.top_k),
                          EpOverFusedTpDedup(in.nodes, in.top_k), kCount});
}

}  // namespace

Result<BytesReport> EpBytesReport(const Options& options) {
  SF_ASSIGN_OR_RETURN(const EpInputs in, EpInputsOf(options));
  BytesReport report{.title = fmt::format("ep: {} over {} on {} {}, routes "
                                          "uniform",
                                          Plural(in.tokens, "token"), Plural(in.ranks, "rank"), Plural(in.nodes, "node"),
                                          in.layers.Title())};
  AddEpAssignments(in, &report);
  if (in.experts) AddEpDedup(in, *in.experts, &report);
  if (in.nodes > 1) AddEpAgainstTp(in, &report);
  report.notes = {
      "T counts the tokens of all ranks together. Rows without 'one copy' or 'relay' "
      "send every assignment apart. b' is the combine's element size."};
  if (!in.experts) report.notes.emplace_back("--experts adds what one copy a rank or node saves.");
  return report;
}

}  // namespace sixfold::apps

#include "comm/testing/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "comm/communicator.h"
#include "comm/testing/reference_sum.h"

namespace sixfold {

namespace {

using Bytes = std::vector<std::byte>;

constexpr ReduceType kTypes[] = {ReduceType::kF32, ReduceType::kF64, ReduceType::kBF16,
                                 ReduceType::kI32, ReduceType::kI64};

// What `from` gives to `to` in one operation.
Bytes Pattern(uint64_t key, int from, int to, int64_t bytes) {
  std::minstd_rand random(static_cast<uint32_t>(key * 131071 + from * 977 + to * 31 + 7));
  Bytes data(static_cast<size_t>(bytes));
  for (std::byte& b : data) b = static_cast<std::byte>(random() >> 3);
  return data;
}

class Program {
 public:
  Program(Transport& transport, const ConformanceOptions& options)
      : transport_(transport),
        cluster_(Cluster::OneNode(transport.world())),
        random_(options.seed) {
    std::vector<int> all(transport.world());
    std::iota(all.begin(), all.end(), 0);
    AddGroup(Axis::kDp, all);
    for (int g = 0; g < 5; ++g) {
      std::vector<int> members = all;
      std::shuffle(members.begin(), members.end(), random_);
      members.resize(1 + Draw(static_cast<int>(members.size())));
      AddGroup(Axis::kTp, members);
    }
  }

  Status Run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      key_ = static_cast<uint64_t>(round) + 1;
      const size_t group = static_cast<size_t>(Draw(static_cast<int>(groups_.size())));
      SF_RETURN_IF_ERROR(Step(group, Draw(8)));
      transport_.Progress({.step = round, .layer = Draw(3) - 1});
    }
    SF_RETURN_IF_ERROR(groups_[0].communicator->Barrier());
    return CompareLedger();
  }

 private:
  struct Group {
    std::vector<int> members;
    std::unique_ptr<Communicator> communicator;  // null on ranks outside
  };

  // All ranks draw the same numbers, members or not.
  int Draw(int below) { return static_cast<int>(random_() % static_cast<uint64_t>(below)); }

  void AddGroup(Axis axis, const std::vector<int>& members) {
    Group group{members, nullptr};
    if (std::find(members.begin(), members.end(), transport_.rank()) != members.end()) {
      group.communicator = std::make_unique<Communicator>(
          transport_, cluster_, CommGroup{axis, static_cast<int>(groups_.size()), members}, ledger_,
          control_);
    }
    groups_.push_back(std::move(group));
  }

  Status Step(size_t number, int what) {
    Group& group = groups_[number];
    const int members = static_cast<int>(group.members.size());
    Communicator* comm = group.communicator.get();
    switch (what) {
      case 0: return Reduce(members, comm, CommOp::kAllReduce);
      case 1: return Reduce(members, comm, CommOp::kReduceScatter);
      case 2: return GatherAll(members, comm);
      case 3: return GatherToOne(members, comm);
      case 4: return AllToAll(members, comm);
      case 5: return LateSends(members, comm);
      case 6: return Broadcast(members, comm);
      default: return comm == nullptr ? OkStatus() : comm->Barrier();
    }
  }

  // Sizes from nothing to some that go in several packets.
  int64_t DrawSize() {
    static constexpr int64_t kScales[] = {1, 7, 64, 1000, 20000, 300000};
    const int64_t scale = kScales[Draw(6)];
    return Draw(5) == 0 ? 0 : Draw(static_cast<int>(scale) + 1);
  }

  Bounds DrawBounds(int members, int64_t most) {
    Bounds bounds = {0};
    for (int m = 0; m < members; ++m)
      bounds.push_back(bounds.back() + (Draw(4) == 0 ? 0 : Draw(static_cast<int>(most) + 1)));
    return bounds;
  }

  TreeCut DrawCut(int members) {
    const int leaves = 1 + Draw(20);
    if (Draw(2) == 0) return CutTree(leaves, members);
    TreeCut cut{.leaves = leaves};
    std::vector<int64_t> ends = {leaves};
    for (int m = 1; m < members; ++m) ends.push_back(Draw(leaves + 1));
    std::sort(ends.begin(), ends.end());
    int64_t begin = 0;
    for (const int64_t end : ends) {
      cut.shares.push_back({begin, end});
      cut.nodes.push_back(MaximalNodes(leaves, cut.shares.back()));
      begin = end;
    }
    return cut;
  }

  void Expect(Communicator& comm, CommOp op, int64_t bytes) {
    LedgerEntry& entry = expected_[{comm.group().axis, op, LinkClass::kShm}];
    entry.bytes += bytes;
    if (comm.index() == 0 && comm.size() > 1 && op != CommOp::kSend) ++entry.count;
  }

  Status Compare(const Communicator& comm, const char* what, const std::byte* got,
                 const std::byte* want, int64_t bytes) {
    for (int64_t i = 0; i < bytes; ++i) {
      if (got[i] != want[i]) {
        return Internal(
            fmt::format("rank {}, round {}, group {} of {}: {} differs at byte {} of {}",
                        transport_.rank(), key_, comm.group().id, comm.size(), what, i, bytes));
      }
    }
    return OkStatus();
  }

  Status Reduce(int members, Communicator* comm, CommOp op) {
    ReferenceSum sum{.type = kTypes[Draw(static_cast<int>(std::size(kTypes)))], .cut = DrawCut(members), .seed = random_()};
    const bool all = op == CommOp::kAllReduce;
    const Bounds bounds =
        all ? EqualBounds(std::min<int64_t>(DrawSize(), 20000), members) : DrawBounds(members, 700);
    sum.elements = bounds.back();
    if (comm == nullptr) return OkStatus();
    const int64_t element = SizeOf(sum.type);
    const Bytes nodes = sum.NodesOf(comm->index()), total = sum.Total();
    const int64_t own = bounds[comm->index() + 1] - bounds[comm->index()];
    const int64_t out_elements = all ? sum.elements : own;
    Bytes out(static_cast<size_t>(out_elements * element));
    const auto sent_nodes = static_cast<int64_t>(sum.cut.nodes[comm->index()].size());
    Expect(*comm, op,
           ((sum.elements - own) * sent_nodes + (all ? own * (members - 1) : 0)) * element);
    SF_RETURN_IF_ERROR(
        all ? comm->AllReduce(sum.type, sum.cut, sum.elements, nodes.data(), out.data())
            : comm->ReduceScatter(sum.type, sum.cut, bounds, nodes.data(), out.data()));
    return Compare(*comm, all ? "all_reduce" : "reduce_scatter", out.data(),
                   total.data() + (all ? 0 : bounds[comm->index()] * element),
                   out_elements * element);
  }

  Status GatherAll(int members, Communicator* comm) {
    const Bounds bounds = DrawBounds(members, DrawSize());
    if (comm == nullptr) return OkStatus();
    Bytes all(static_cast<size_t>(bounds.back())), want;
    for (int m = 0; m < members; ++m) {
      const Bytes part = Pattern(key_, m, 0, bounds[m + 1] - bounds[m]);
      want.insert(want.end(), part.begin(), part.end());
      if (m == comm->index()) std::copy(part.begin(), part.end(), all.begin() + bounds[m]);
    }
    Expect(*comm, CommOp::kAllGather,
           (bounds[comm->index() + 1] - bounds[comm->index()]) * (members - 1));
    SF_RETURN_IF_ERROR(comm->AllGather(bounds, all.data()));
    return Compare(*comm, "all_gather", all.data(), want.data(), bounds.back());
  }

  Status GatherToOne(int members, Communicator* comm) {
    const Bounds bounds = DrawBounds(members, DrawSize());
    const int root = Draw(members);
    if (comm == nullptr) return OkStatus();
    const int64_t own = bounds[comm->index() + 1] - bounds[comm->index()];
    const Bytes mine = Pattern(key_, comm->index(), 0, own);
    Bytes all(static_cast<size_t>(comm->index() == root ? bounds.back() : 0));
    Expect(*comm, CommOp::kGather, comm->index() == root ? 0 : own);
    SF_RETURN_IF_ERROR(comm->Gather(root, bounds, mine.data(), all.data()));
    if (comm->index() != root) return OkStatus();
    Bytes want;
    for (int m = 0; m < members; ++m) {
      const Bytes part = Pattern(key_, m, 0, bounds[m + 1] - bounds[m]);
      want.insert(want.end(), part.begin(), part.end());
    }
    return Compare(*comm, "gather", all.data(), want.data(), bounds.back());
  }

  Status AllToAll(int members, Communicator* comm) {
    std::vector<Bounds> to(members);  // [from] bounds of what goes to whom
    for (Bounds& bounds : to) bounds = DrawBounds(members, DrawSize() / members);
    if (comm == nullptr) return OkStatus();
    const int me = comm->index();
    std::vector<Bytes> out(members), in(members);
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> recv;
    int64_t sent = 0;
    for (int m = 0; m < members; ++m) {
      out[m] = Pattern(key_, me, m, to[me][m + 1] - to[me][m]);
      in[m].resize(static_cast<size_t>(to[m][me + 1] - to[m][me]));
      send.emplace_back(out[m]);
      recv.emplace_back(in[m]);
      if (m != me) sent += static_cast<int64_t>(out[m].size());
    }
    Expect(*comm, CommOp::kAllToAll, sent);
    SF_RETURN_IF_ERROR(comm->AllToAll(send, recv));
    for (int m = 0; m < members; ++m) {
      const Bytes want = Pattern(key_, m, me, static_cast<int64_t>(in[m].size()));
      SF_RETURN_IF_ERROR(Compare(*comm, "all_to_all", in[m].data(), want.data(),
                                 static_cast<int64_t>(want.size())));
    }
    return OkStatus();
  }

  // Several sends of one member are under way while all ranks do other things.
  Status LateSends(int members, Communicator* comm) {
    if (members < 2) return OkStatus();
    const int from = Draw(members);
    const int to = (from + 1 + Draw(members - 1)) % members;
    std::vector<int64_t> sizes(1 + static_cast<size_t>(Draw(4)));
    for (int64_t& size : sizes) size = DrawSize();
    std::vector<Bytes> data;
    std::vector<SendTicket> tickets;
    if (comm != nullptr && comm->index() == from) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        data.push_back(Pattern(key_ * 64 + i, from, to, sizes[i]));
        Expect(*comm, CommOp::kSend, sizes[i]);
        ++expected_[{comm->group().axis, CommOp::kSend, LinkClass::kShm}].count;
        SF_ASSIGN_OR_RETURN(const SendTicket ticket, comm->StartSend(to, data.back()));
        tickets.push_back(ticket);
      }
    }
    const bool in_same_group = Draw(2) == 0;
    if (in_same_group) {
      SF_RETURN_IF_ERROR(Reduce(members, comm, CommOp::kAllReduce));
    } else {
      Group& world = groups_[0];
      SF_RETURN_IF_ERROR(
          GatherAll(static_cast<int>(world.members.size()), world.communicator.get()));
    }
    if (comm != nullptr && comm->index() == to) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        Bytes in(static_cast<size_t>(sizes[i]));
        SF_RETURN_IF_ERROR(comm->Recv(from, in));
        const Bytes want = Pattern(key_ * 64 + i, from, to, sizes[i]);
        SF_RETURN_IF_ERROR(Compare(*comm, "send", in.data(), want.data(), sizes[i]));
      }
    }
    std::reverse(tickets.begin(), tickets.end());
    for (const SendTicket ticket : tickets) SF_RETURN_IF_ERROR(comm->FinishSend(ticket));
    return OkStatus();
  }

  Status Broadcast(int members, Communicator* comm) {
    const int root = Draw(members);
    const int64_t bytes = DrawSize();
    if (comm == nullptr) return OkStatus();
    const Bytes want = Pattern(key_, root, 0, bytes);
    Bytes data = comm->index() == root ? want : Bytes(3);
    SF_RETURN_IF_ERROR(comm->Broadcast(root, &data));
    if (data.size() != want.size()) return Internal("broadcast: wrong size");
    return Compare(*comm, "broadcast", data.data(), want.data(), bytes);
  }

  Status CompareLedger() {
    std::erase_if(expected_, [](const auto& row) { return row.second == LedgerEntry{}; });
    if (ledger_ == expected_) return OkStatus();
    std::string text =
        fmt::format("rank {}: the ledger differs from the count:", transport_.rank());
    for (const Ledger* ledger : {&ledger_, &expected_}) {
      for (const auto& [key, entry] : *ledger) {
        text += fmt::format(" {} {} {} times {} bytes,", ledger == &ledger_ ? "ledger" : "expected",
                            NameOf(key.op), entry.count, entry.bytes);
      }
    }
    return Internal(text);
  }

  Transport& transport_;
  const Cluster cluster_;
  std::mt19937_64 random_;
  std::vector<Group> groups_;  // [0]: all ranks
  uint64_t key_ = 0;
  Ledger ledger_, expected_;
  ControlTraffic control_;
};

}  // namespace

Status RunConformance(Transport& transport, const ConformanceOptions& options) {
  return Program(transport, options).Run(options.rounds);
}

}  // namespace sixfold

// The experts' mesh over the ranks of an attention mesh: in each pipeline stage the same ranks,
// counted anew. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mesh/axes.h"

namespace sixfold {

// What a user asks for: --enable-expert-parallel, --ep, --etp.
struct ExpertMeshRequest {
  enum class ExpertParallel : uint8_t { kOff, kOn } expert_parallel = ExpertParallel::kOff;
  std::optional<int> ep, etp;
};

// Per stage tp·cp·dp = ep·etp·edp. ep deals experts, etp cuts each of them, edp copies all. The
// ranks of a stage are those of one pp coordinate, in ascending order; among them etp counts
// fastest, then ep, then edp. An etp group is thus a tp group when tp counts fastest in the
// attention mesh and etp = tp, and other ranks otherwise. A value.
class ExpertMesh {
 public:
  // Neither `ep` nor kOn: ep = 1, etp = tp unless given. `ep`: etp = 1 unless given. kOn alone:
  // ep = tp·cp·dp, or that over `etp` if it is given. `experts` is 0 for a model without.
  // kInvalidArgument, with the sizes that would do: a size below 1, ep·etp that does not divide the
  // ranks of a stage, ep above the experts.
  static Result<ExpertMesh> Make(const Mesh& mesh, const ExpertMeshRequest& request, int experts);

  int ep() const { return ep_; }
  int etp() const { return etp_; }
  int edp() const { return edp_; }
  int stages() const { return static_cast<int>(stage_ranks_.size()); }
  int ranks_per_stage() const { return ep_ * etp_ * edp_; }
  int world() const { return stages() * ranks_per_stage(); }
  int size(Axis axis) const;  // kEp, kEtp, kEdp, kPp; others are a bug
  std::span<const int> StageRanks(int stage) const { return stage_ranks_[stage]; }

  struct Place {
    int stage = 0, edp = 0, ep = 0, etp = 0;
    bool operator==(const Place&) const = default;
  };
  Place PlaceOf(int rank) const;
  int RankAt(const Place& place) const;
  int Coordinate(int rank, Axis axis) const;
  // Ranks that differ from `rank` on `axes` (of kEp, kEtp, kEdp, kPp) alone, in ascending order of
  // coordinates, the first of `axes` fastest.
  std::vector<int> Group(int rank, std::span<const Axis> axes) const;
  std::vector<int> Group(int rank, Axis axis) const { return Group(rank, std::span(&axis, 1)); }
  // All groups along `axes`, by their lowest rank.
  std::vector<std::vector<int>> Groups(std::span<const Axis> axes) const;

  // Experts in ascending order to ascending ep coordinates; shares differ by at most one.
  Share ExpertsAt(int ep) const { return ShareOf(experts_, ep_, ep); }
  Share ExpertsOf(int rank) const { return ExpertsAt(PlaceOf(rank).ep); }
  int EpOf(int expert) const;  // which ep coordinate has it
  int experts() const { return experts_; }

  std::string ToString() const;  // "ep8,etp2,edp1"
  bool operator==(const ExpertMesh&) const = default;

 private:
  int ep_ = 1, etp_ = 1, edp_ = 1, experts_ = 0;
  std::vector<std::vector<int>> stage_ranks_;  // [stages][ranks_per_stage]
  std::vector<int> index_;                     // [world] a rank's place in its stage
  std::vector<int> stage_;                     // [world]
};

}  // namespace sixfold

#include "mesh/expert_mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace sixfold {

namespace {

using ExpertParallel = ExpertMeshRequest::ExpertParallel;

constexpr int kSizesNamedMax = 8;

// "1, 2, 4 or 8": what `size` of `units` may be so that it divides them, at most `most`.
std::string DivisorsText(int units, int most) {
  std::vector<int> sizes;
  for (int d = 1; d <= std::min(units, most); ++d) {
    if (units % d == 0) sizes.push_back(d);
  }
  // Beyond a line's worth the largest say most.
  if (static_cast<int>(sizes.size()) > kSizesNamedMax)
    sizes.erase(sizes.begin(), sizes.end() - kSizesNamedMax);
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += i == 0 ? "" : i + 1 == sizes.size() ? " or " : ", ";
    text += std::to_string(sizes[i]);
  }
  return text;
}

Status CheckGiven(const char* name, std::optional<int> size, int ranks) {
  if (!size || (*size >= 1 && *size <= ranks)) return OkStatus();
  return InvalidArgument(fmt::format(
      "{} is {}; it must be from 1 to {}, the ranks of a stage (tp·cp·dp)", name, *size, ranks));
}

Status CheckSizes(int ranks, int ep, int etp, int experts) {
  if (ep > std::max(experts, 1)) {
    const std::string what =
        experts == 0 ? "the model has no experts to deal; leave the flags of expert parallelism out"
                     : fmt::format(
                           "it is above the model's {} experts, so that ranks would have "
                           "none; ep may be {}",
                           experts, DivisorsText(ranks / etp, experts));
    return InvalidArgument(fmt::format("ep is {}: {}", ep, what));
  }
  if (static_cast<int64_t>(ep) * etp <= ranks && ranks % (ep * etp) == 0) return OkStatus();
  if (ranks % etp != 0) {
    return InvalidArgument(
        fmt::format("etp {} does not divide the {} ranks of a stage (tp·cp·dp); etp may be {}", etp,
                    ranks, DivisorsText(ranks, ranks)));
  }
  return InvalidArgument(fmt::format(
      "ep {} times etp {} does not divide the {} ranks of a stage (tp·cp·dp); with etp {}, ep may "
      "be {}",
      ep, etp, ranks, etp, DivisorsText(ranks / etp, std::max(experts, 1))));
}

}  // namespace

Result<ExpertMesh> ExpertMesh::Make(const Mesh& mesh, const ExpertMeshRequest& request,
                                    int experts) {
  SF_CHECK_GE(experts, 0);
  const int stages = mesh.size(Axis::kPp), ranks = mesh.world() / stages;
  SF_RETURN_IF_ERROR(CheckGiven("ep", request.ep, ranks));
  SF_RETURN_IF_ERROR(CheckGiven("etp", request.etp, ranks));
  const bool parallel = request.ep || request.expert_parallel == ExpertParallel::kOn;
  const int etp = request.etp.value_or(parallel ? 1 : mesh.size(Axis::kTp));
  const int ep = request.ep.value_or(parallel ? ranks / etp : 1);
  SF_RETURN_IF_ERROR(CheckSizes(ranks, ep, etp, experts));

  ExpertMesh made;
  made.ep_ = ep;
  made.etp_ = etp;
  made.edp_ = ranks / (ep * etp);
  made.experts_ = experts;
  made.stage_ranks_.resize(stages);
  made.index_.resize(mesh.world());
  made.stage_.resize(mesh.world());
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const int stage = mesh.Coordinate(rank, Axis::kPp);
    made.stage_[rank] = stage;
    made.index_[rank] = static_cast<int>(made.stage_ranks_[stage].size());
    made.stage_ranks_[stage].push_back(rank);
  }
  return made;
}

int ExpertMesh::size(Axis axis) const {
  switch (axis) {
    case Axis::kEp: return ep_;
    case Axis::kEtp: return etp_;
    case Axis::kEdp: return edp_;
    case Axis::kPp: return stages();
    default: break;
  }
  SF_CHECK(false);  // an axis of the attention mesh
  return 0;
}

ExpertMesh::Place ExpertMesh::PlaceOf(int rank) const {
  SF_CHECK_GE(rank, 0);
  SF_CHECK_LT(rank, world());
  const int index = index_[rank];
  return {.stage = stage_[rank],
          .edp = index / (etp_ * ep_),
          .ep = index / etp_ % ep_,
          .etp = index % etp_};
}

int ExpertMesh::RankAt(const Place& place) const {
  SF_CHECK(place.stage >= 0 && place.stage < stages());
  SF_CHECK(place.edp >= 0 && place.edp < edp_);
  SF_CHECK(place.ep >= 0 && place.ep < ep_);
  SF_CHECK(place.etp >= 0 && place.etp < etp_);
  return stage_ranks_[place.stage][place.etp + etp_ * (place.ep + ep_ * place.edp)];
}

int ExpertMesh::Coordinate(int rank, Axis axis) const {
  const Place place = PlaceOf(rank);
  switch (axis) {
    case Axis::kEp: return place.ep;
    case Axis::kEtp: return place.etp;
    case Axis::kEdp: return place.edp;
    case Axis::kPp: return place.stage;
    default: break;
  }
  SF_CHECK(false);
  return 0;
}

std::vector<int> ExpertMesh::Group(int rank, std::span<const Axis> axes) const {
  std::vector<Place> members = {PlaceOf(rank)};
  for (const Axis axis : axes) {
    const auto coordinate = [axis](Place& place) -> int& {
      return axis == Axis::kEp    ? place.ep
             : axis == Axis::kEtp ? place.etp
             : axis == Axis::kEdp ? place.edp
                                  : place.stage;
    };
    const std::vector<Place> before = std::move(members);
    members.clear();
    for (int c = 0; c < size(axis); ++c) {
      for (Place place : before) {
        coordinate(place) = c;
        members.push_back(place);
      }
    }
  }
  std::vector<int> ranks;
  for (const Place& place : members) ranks.push_back(RankAt(place));
  return ranks;
}

std::vector<std::vector<int>> ExpertMesh::Groups(std::span<const Axis> axes) const {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world(); ++rank) {
    std::vector<int> group = Group(rank, axes);
    if (*std::min_element(group.begin(), group.end()) == rank) groups.push_back(std::move(group));
  }
  return groups;
}

int ExpertMesh::EpOf(int expert) const {
  SF_CHECK_GE(expert, 0);
  SF_CHECK_LT(expert, experts_);
  // The first `more` shares have each + 1 experts.
  const int each = experts_ / ep_, more = experts_ % ep_;
  const int in_larger = more * (each + 1);
  return expert < in_larger ? expert / (each + 1) : more + (expert - in_larger) / each;
}

std::string ExpertMesh::ToString() const {
  return fmt::format("ep{},etp{},edp{}", ep_, etp_, edp_);
}

}  // namespace sixfold

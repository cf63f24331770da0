#include "mesh/expert_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace sixfold {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kOn = ExpertMeshRequest::ExpertParallel::kOn;

Mesh MeshOf(const char* text) {
  auto mesh = Mesh::Parse(text);
  EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  return *mesh;
}

Result<ExpertMesh> Make(const char* mesh, const ExpertMeshRequest& request, int experts) {
  return ExpertMesh::Make(MeshOf(mesh), request, experts);
}

std::string SizesOf(const char* mesh, const ExpertMeshRequest& request, int experts = 64) {
  const auto made = Make(mesh, request, experts);
  return made.ok() ? made->ToString() : made.status().message();
}

TEST(ExpertMesh, SizesFollowFromWhatIsGiven) {
  EXPECT_EQ(SizesOf("tp2,cp2,dp4,pp2", {}), "ep1,etp2,edp8");
  EXPECT_EQ(SizesOf("tp2,cp2,dp4,pp2", {.ep = 16}), "ep16,etp1,edp1");
  EXPECT_EQ(SizesOf("tp2,cp2,dp4,pp2", {.ep = 4}), "ep4,etp1,edp4");
  EXPECT_EQ(SizesOf("tp2,cp2,dp4,pp2", {.ep = 4, .etp = 2}), "ep4,etp2,edp2");
  EXPECT_EQ(SizesOf("tp2,cp2,dp4,pp2", {.expert_parallel = kOn}), "ep16,etp1,edp1");
  EXPECT_EQ(SizesOf("tp2,cp2,dp4,pp2", {.expert_parallel = kOn, .ep = 8}), "ep8,etp1,edp2");
  EXPECT_EQ(SizesOf("tp2,cp2,dp4,pp2", {.expert_parallel = kOn, .etp = 4}), "ep4,etp4,edp1");
  EXPECT_EQ(SizesOf("tp2,dp4", {.etp = 4}), "ep1,etp4,edp2");
  EXPECT_EQ(SizesOf("tp2", {.ep = 1, .etp = 2}), "ep1,etp2,edp1");
  EXPECT_EQ(SizesOf("tp4", {}, 0), "ep1,etp4,edp1");
  EXPECT_EQ(SizesOf("tp1", {.expert_parallel = kOn}, 0), "ep1,etp1,edp1");
}

TEST(ExpertMesh, The64RanksOfTheSeed) {
  // 000 §3.7: PP4 × TP2 × EP8, as --mesh tp2,dp8,pp4 --ep 8 --etp 2; 64 experts, 8 a rank.
  const auto mesh = Make("tp2,dp8,pp4", {.ep = 8, .etp = 2}, 64);
  ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  EXPECT_EQ(mesh->world(), 64);
  EXPECT_EQ(mesh->ToString(), "ep8,etp2,edp1");
  for (int rank = 0; rank < 64; ++rank) {
    EXPECT_EQ(mesh->PlaceOf(rank), (ExpertMesh::Place{rank / 16, 0, rank / 2 % 8, rank % 2}));
    EXPECT_EQ(mesh->ExpertsOf(rank).size(), 8);
  }
  EXPECT_THAT(mesh->Group(19, Axis::kEtp), ElementsAre(18, 19));
  EXPECT_THAT(mesh->Group(19, Axis::kEp), ElementsAre(17, 19, 21, 23, 25, 27, 29, 31));
  EXPECT_THAT(mesh->Group(19, Axis::kPp), ElementsAre(3, 19, 35, 51));
}

TEST(ExpertMesh, TheJourneysExpertsLieWhereItSays) {
  // 004: TP2 × CP2 × DP4 × PP2 with EP16 × PP2; expert e of stage s on rank 16·s + e div 2.
  const auto mesh = Make("tp2,cp2,dp4,pp2", {.ep = 16}, 32);
  ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  EXPECT_EQ(mesh->stages(), 2);
  for (int stage = 0; stage < 2; ++stage) {
    for (int expert = 0; expert < 32; ++expert) {
      const int rank = mesh->RankAt({.stage = stage, .ep = mesh->EpOf(expert)});
      EXPECT_EQ(rank, 16 * stage + expert / 2);
      EXPECT_LE(mesh->ExpertsOf(rank).begin, expert);
      EXPECT_GT(mesh->ExpertsOf(rank).end, expert);
    }
  }
}

TEST(ExpertMesh, StagesAreFoundWhereverPpCounts) {
  // 004's swap, rank = tp + 2·cp + 4·pp + 8·dp: a stage lies on all four nodes.
  const auto swapped = Make("tp2,cp2,pp2,dp4", {.ep = 16}, 32);
  ASSERT_TRUE(swapped.ok());
  EXPECT_THAT(swapped->StageRanks(0),
              ElementsAre(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27));
  EXPECT_EQ(swapped->PlaceOf(9), (ExpertMesh::Place{.stage = 0, .ep = 5}));
  const auto first = Make("pp2,tp2", {.ep = 2}, 4);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(first->StageRanks(1), ElementsAre(1, 3));
}

TEST(ExpertMesh, PlacesAndRanksAreInverse) {
  for (const char* text : {"tp2,cp2,dp3,pp2", "pp3,dp4,tp3", "tp1"}) {
    const Mesh attention = MeshOf(text);
    const int stage = attention.world() / attention.size(Axis::kPp);
    for (int ep = 1; ep <= stage; ++ep) {
      for (int etp = 1; etp <= stage; ++etp) {
        const auto mesh = ExpertMesh::Make(attention, {.ep = ep, .etp = etp}, 64);
        EXPECT_EQ(mesh.ok(), stage % (ep * etp) == 0) << text << " ep" << ep << " etp" << etp;
        if (!mesh.ok()) continue;
        std::set<int> seen;
        for (int rank = 0; rank < mesh->world(); ++rank) {
          const ExpertMesh::Place place = mesh->PlaceOf(rank);
          EXPECT_EQ(mesh->RankAt(place), rank);
          EXPECT_EQ(place.stage, attention.Coordinate(rank, Axis::kPp));
          EXPECT_EQ(place.edp, mesh->Coordinate(rank, Axis::kEdp));
          seen.insert(rank);
        }
        EXPECT_EQ(seen.size(), static_cast<size_t>(attention.world()));
      }
    }
  }
}

TEST(ExpertMesh, GroupsPartTheRanks) {
  const auto mesh = Make("tp2,cp2,dp3,pp2", {.ep = 3, .etp = 2}, 7);
  ASSERT_TRUE(mesh.ok());
  for (const std::vector<Axis>& axes :
       std::vector<std::vector<Axis>>{{Axis::kEp},
                                      {Axis::kEtp},
                                      {Axis::kEdp},
                                      {Axis::kPp},
                                      {Axis::kEtp, Axis::kEp},
                                      {Axis::kEtp, Axis::kEp, Axis::kEdp}}) {
    std::multiset<int> seen;
    for (const std::vector<int>& group : mesh->Groups(axes)) {
      seen.insert(group.begin(), group.end());
      for (const int rank : group) EXPECT_EQ(mesh->Group(rank, axes), group);
    }
    EXPECT_EQ(seen.size(), 24u);
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 24u);
  }
  // All three axes together are the stage, in its own order.
  const Axis all[] = {Axis::kEtp, Axis::kEp, Axis::kEdp};
  const auto stage = mesh->StageRanks(1);
  EXPECT_EQ(mesh->Group(13, all), std::vector<int>(stage.begin(), stage.end()));
}

TEST(ExpertMesh, ExpertsThatEpDoesNotDivideDifferByOne) {
  const auto mesh = Make("dp4", {.ep = 4}, 10);
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->ExpertsAt(0), (Share{0, 3}));
  EXPECT_EQ(mesh->ExpertsAt(3), (Share{8, 10}));
  for (int expert = 0; expert < 10; ++expert) {
    const Share share = mesh->ExpertsAt(mesh->EpOf(expert));
    EXPECT_TRUE(share.begin <= expert && expert < share.end) << expert;
  }
}

TEST(ExpertMesh, RefusalsSayWhyAndWhatWouldDo) {
  const auto refusal = [](const char* mesh, const ExpertMeshRequest& request, int experts) {
    const auto made = Make(mesh, request, experts);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    return made.status().message();
  };
  EXPECT_EQ(
      refusal("tp2,dp4", {.ep = 3}, 64),
      "ep 3 times etp 1 does not divide the 8 ranks of a stage (tp·cp·dp); with etp 1, ep may "
      "be 1, 2, 4 or 8");
  EXPECT_THAT(refusal("tp2,dp4", {.ep = 8, .etp = 2}, 64),
              HasSubstr("with etp 2, ep may be 1, 2 or 4"));
  EXPECT_THAT(refusal("tp2,dp4", {.etp = 3}, 64), HasSubstr("etp may be 1, 2, 4 or 8"));
  EXPECT_EQ(
      refusal("dp8", {.expert_parallel = kOn}, 4),
      "ep is 8: it is above the model's 4 experts, so that ranks would have none; ep may be 1, "
      "2 or 4");
  EXPECT_THAT(refusal("dp8", {.ep = 2}, 0), HasSubstr("no experts"));
  EXPECT_THAT(refusal("dp8", {.ep = 0}, 8), HasSubstr("ep is 0; it must be from 1 to 8"));
  EXPECT_THAT(refusal("dp8,pp2", {.ep = 16}, 64), HasSubstr("from 1 to 8"));
  EXPECT_THAT(refusal("dp8", {.etp = -1}, 8), HasSubstr("etp is -1"));
  EXPECT_THAT(refusal("dp8", {.ep = 2147483647, .etp = 2147483647}, 8), HasSubstr("from 1 to 8"));
}

}  // namespace
}  // namespace sixfold

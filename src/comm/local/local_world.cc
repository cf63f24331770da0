#include "comm/local/local_world.h"

#include <vector>

#include "base/check.h"
#include "comm/local/local_transport.h"

namespace sixfold {

struct LocalWorld::Impl {
  Impl(int ranks, const LocalWorldOptions& options) : shared(ranks, options) {
    for (int r = 0; r < ranks; ++r)
      transports.push_back(std::make_unique<local::LocalTransport>(shared, r));
  }

  local::Shared shared;
  std::vector<std::unique_ptr<local::LocalTransport>> transports;  // [ranks]
};

LocalWorld::LocalWorld(int ranks, const LocalWorldOptions& options)
    : impl_(std::make_unique<Impl>(ranks, options)) {}

LocalWorld::~LocalWorld() = default;

int LocalWorld::world() const { return impl_->shared.ranks(); }

Transport& LocalWorld::transport(int rank) {
  SF_CHECK(rank >= 0 && rank < world());
  return *impl_->transports[rank];
}

}  // namespace sixfold

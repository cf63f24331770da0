#include "engine/shared_hash.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "weights/weights_hash.h"

namespace sixfold {

namespace {

// What a rank tells the others before any work.
struct Locality {
  Digest256 token{};  // of its mapping
  Digest256 files{};
  uint64_t done = 0;  // it knows its hash already
};

}  // namespace

Result<std::vector<std::vector<std::byte>>> SharedHash::GatherFromAll(
    std::span<const std::byte> mine) {
  const auto world = static_cast<size_t>(world_.size());
  const auto rank = static_cast<size_t>(world_.index());
  std::vector<int64_t> lengths(world);
  lengths[rank] = static_cast<int64_t>(mine.size());
  Bounds bounds;
  for (size_t r = 0; r <= world; ++r) bounds.push_back(static_cast<int64_t>(r * sizeof(int64_t)));
  SF_RETURN_IF_ERROR(world_.AllGather(bounds, reinterpret_cast<std::byte*>(lengths.data())));
  bounds = {0};
  for (const int64_t length : lengths) bounds.push_back(bounds.back() + length);
  std::vector<std::byte> joined(static_cast<size_t>(bounds.back()));
  std::copy(mine.begin(), mine.end(), joined.begin() + bounds[rank]);
  SF_RETURN_IF_ERROR(world_.AllGather(bounds, joined.data()));
  std::vector<std::vector<std::byte>> out;
  for (size_t r = 0; r < world; ++r)
    out.emplace_back(joined.begin() + bounds[r], joined.begin() + bounds[r + 1]);
  return out;
}

Status SharedHash::Exchange(std::span<const uint32_t> units, std::vector<bool>* known) {
  SF_ASSIGN_OR_RETURN(const auto all, GatherFromAll(hash_.Known(units)));
  std::vector<uint32_t> which;
  for (const int rank : group_)
    SF_RETURN_IF_ERROR(hash_.Add(all[static_cast<size_t>(rank)], &which));
  for (const uint32_t unit : which) (*known)[unit] = true;
  return OkStatus();
}

// Every rank of a group sees the same messages, so all of them deal out the same units.
Status SharedHash::ShareWork() {
  std::vector<uint32_t> units(group_.empty() ? 0 : hash_.unit_count());
  std::iota(units.begin(), units.end(), 0u);
  std::vector<bool> known(units.size());
  SF_RETURN_IF_ERROR(Exchange(units, &known));
  const auto own = std::find(group_.begin(), group_.end(), world_.index()) - group_.begin();
  std::vector<uint32_t> mine;
  size_t missing = 0;
  for (const uint32_t unit : units) {
    if (known[unit]) continue;
    if (missing++ % group_.size() == static_cast<size_t>(own)) mine.push_back(unit);
  }
  const auto tick = [this]() -> Status {
    transport_.Progress({});
    return transport_.Failed();
  };
  SF_RETURN_IF_ERROR(hash_.HashUnits(mine, threads_, tick));
  return Exchange(mine, &known);
}

Result<std::optional<Digest256>> SharedHash::Run() {
  const Locality own{
      .token = hash_.token(), .files = hash_.FilesIdentity(), .done = hash_.Poll().has_value()};
  SF_ASSIGN_OR_RETURN(const auto gathered, GatherFromAll(std::as_bytes(std::span(&own, 1))));
  std::vector<Locality> places(gathered.size());
  for (size_t r = 0; r < places.size(); ++r) {
    if (gathered[r].size() != sizeof(Locality)) return Internal("a rank of another build");
    std::memcpy(&places[r], gathered[r].data(), sizeof(Locality));
    if (places[r].files == own.files && !places[r].done && !own.done)
      group_.push_back(static_cast<int>(r));
  }
  if (std::all_of(places.begin(), places.end(),
                  [&](const Locality& p) { return p.token == own.token; })) {
    return std::optional<Digest256>();
  }
  if (!std::all_of(places.begin(), places.end(), [](const Locality& p) { return p.done != 0; }))
    SF_RETURN_IF_ERROR(ShareWork());
  // What is left: units whose rank has failed, or that the cache had for some ranks only.
  SF_ASSIGN_OR_RETURN(const Digest256 root, hash_.Wait(threads_, [this]() -> Status {
    transport_.Progress({});
    return transport_.Failed();
  }));
  return std::optional<Digest256>(root);
}

}  // namespace sixfold

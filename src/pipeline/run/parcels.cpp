#include "pipeline/run/parcels.h"

#include <algorithm>
#include <utility>

#include "intarsia/boxes.h"
#include "tensor/core/in_bytes.h"

namespace intarsia::pipeline {
namespace {

constexpr std::size_t kMostBoundaries = 256;

Shape piece_sizes(const TensorType& type, const Mesh& mesh, std::int64_t rank) {
  return boxes(type.layout, type.shape, *mesh.coordinate_of(rank)).local_shape();
}

std::int64_t bytes_of(const PassedType& value, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(c10::elementSize(value.dtype()));
}

}  // namespace

ParcelTable::ParcelTable(World& world, Mesh from, Mesh to, bool may_miss)
    : world_(world), from_(std::move(from)), to_(std::move(to)), may_miss_(may_miss) {}

std::shared_ptr<const Parcels> ParcelTable::of(const Boundary& boundary, bool sending) {
  std::string key = boundary.to_string();
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  if (known_.size() >= kMostBoundaries) known_.clear();
  auto parcels = std::make_shared<const Parcels>(made(boundary, sending));
  known_.emplace(std::move(key), parcels);
  return parcels;
}

Parcels ParcelTable::made(const Boundary& boundary, bool sending) const {
  const std::int64_t me = world_.rank();
  const Mesh& mine = sending ? from_ : to_;
  const Mesh& other = sending ? to_ : from_;
  const bool alike = are_alike(from_, to_);
  const std::vector<Mesh> both{from_, to_};
  const std::vector<std::int64_t> everyone = ranks_of(both);
  Parcels out{.boundary = boundary};
  if (may_miss_) out.marks = aligned(static_cast<std::int64_t>(boundary.values.size()));
  const auto parcel_for = [&](std::int64_t peer) -> Parcel& {
    const auto found =
        std::ranges::find_if(out.list, [&](const Parcel& p) { return p.peer == peer; });
    if (found != out.list.end()) return *found;
    return out.list.emplace_back(Parcel{.peer = peer, .bytes = out.marks});
  };
  const auto add = [&](std::int64_t peer, std::size_t value, const Shape& sizes,
                       std::optional<Part> part) {
    Parcel& parcel = parcel_for(peer);
    parcel.slices.push_back({value, parcel.bytes, sizes, std::move(part)});
    parcel.bytes += aligned(bytes_of(*boundary.values[value], elements(sizes)));
  };
  // Everything comes from the partner, or of a plain tensor from the first rank.
  if (alike) parcel_for(other.rank_at(*mine.coordinate_of(me)));
  for (std::size_t i = 0; i < boundary.values.size(); ++i) {
    if (!boundary.values[i]) {
      out.pieces.emplace_back();
      continue;
    }
    const PassedType& value = *boundary.values[i];
    const TensorType& type = sending ? value.from : value.to;
    out.pieces.push_back(value.is_plain ? type.shape : piece_sizes(type, mine, me));
    if (alike) {
      add(out.list[0].peer, i, out.pieces[i], std::nullopt);
    } else if (value.is_plain) {
      const std::int64_t first = from_.rank_at(Coordinate(from_.axes(), 0));
      if (!sending) add(first, i, type.shape, std::nullopt);
      if (sending && me == first) {
        for (const std::int64_t rank : everyone) {
          if (to_.contains(rank)) add(rank, i, type.shape, std::nullopt);
        }
      }
    } else {
      const auto way =
          make_route_between(world_, value.from.layout, value.to.layout, type.shape, everyone);
      const MemberRoute& route = way->route.members[0];
      const std::vector<Part>& parts = sending ? route.to : route.from;
      for (std::size_t j = 0; j < parts.size(); ++j) {
        if (everyone[j] != me && parts[j].count > 0) add(everyone[j], i, parts[j].sizes, parts[j]);
      }
    }
  }
  return out;
}

}  // namespace intarsia::pipeline

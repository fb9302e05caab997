#include "checkpoint/plan/write_plan.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "layout/chunk.h"
#include "layout/coordinates.h"

namespace intarsia::checkpoint {
namespace {

/// a * b / c without overflow.
std::uint64_t scaled(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b / c);
}

std::vector<std::size_t> replicated_axes(const Layout& layout) {
  std::vector<std::size_t> out;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_replicate()) out.push_back(a);
  }
  return out;
}

/// Finds the coordinates, along the axes that shard, of pieces that may have elements of `wanted`.
/// The others are 0. Where axes shard a dimension in contiguous chunks, only those that are needed
/// are looked at.
class Search {
 public:
  Search(const TensorType& type, const Part& wanted) : type_(type), wanted_(wanted) {}

  template <class Visit>
  void for_each(const Visit& visit) {
    Coordinate at(type_.layout.mesh().axes(), 0);
    descend(0, -1, {}, at, visit);
  }

 private:
  /// `left`: what the axes before left of the dimension, where it is contiguous.
  template <class Visit>
  void descend(std::size_t depth, int dim, std::optional<Range> left, Coordinate& at,
               const Visit& visit) {
    const auto axes = type_.layout.sharding_axes();
    if (depth == axes.size()) return visit(static_cast<const Coordinate&>(at));
    const auto axis = static_cast<std::size_t>(axes[depth]);
    const Placement& placement = type_.layout.placement(axis);
    const auto d = static_cast<std::size_t>(placement.dim());
    if (placement.dim() != dim) left = Range{0, type_.shape[d]};
    if (placement.is_strided()) left.reset();
    const std::int64_t n = type_.layout.mesh().size(axis);
    const Range indices = left ? needed(*left, n, wanted_.runs[d]) : Range{0, n};
    for (std::int64_t i = indices.begin; i < indices.end; ++i) {
      at[axis] = i;
      std::optional<Range> rest;
      if (left) {
        const Range piece = chunk(left->size(), n, i);
        rest = Range{left->begin + piece.begin, left->begin + piece.end};
      }
      descend(depth + 1, placement.dim(), rest, at, visit);
    }
    at[axis] = 0;
  }

  /// Which of n chunks of `left` are between the first and the last that is wanted.
  static Range needed(Range left, std::int64_t n, std::span<const Range> wanted) {
    if (wanted.empty() || left.size() == 0) return {0, 0};
    const std::int64_t first = std::max(wanted.front().begin, left.begin) - left.begin;
    const std::int64_t last = std::min(wanted.back().end, left.end) - left.begin;
    if (first >= last) return {0, 0};
    const std::int64_t size = ceil_div(left.size(), n);
    return {first / size, ceil_div(last, size)};
  }

  const TensorType& type_;
  const Part& wanted_;
};

}  // namespace

WritePlan::WritePlan(std::span<const SavedTensor> tensors, std::uint64_t least_shared)
    : tensors_(tensors) {
  std::map<std::pair<std::size_t, std::vector<std::size_t>>, std::size_t> known;
  std::vector<Mesh> meshes;  // few
  std::map<const void*, std::size_t> line_of_layout;
  for (const SavedTensor& tensor : tensors) {
    const Layout& layout = tensor.type.layout;
    const auto [found, is_new] = line_of_layout.try_emplace(layout.id(), 0);
    if (is_new) {
      const auto mesh = static_cast<std::size_t>(
          std::find(meshes.begin(), meshes.end(), layout.mesh()) - meshes.begin());
      if (mesh == meshes.size()) meshes.push_back(layout.mesh());
      Line line{.mesh = layout.mesh(), .axes = replicated_axes(layout)};
      for (const std::size_t axis : line.axes) line.ranks *= layout.mesh().size(axis);
      const auto [place, made] = known.try_emplace({mesh, line.axes}, lines_.size());
      if (made) lines_.push_back(std::move(line));
      found->second = place->second;
    }
    Line& line = lines_[found->second];
    const std::uint64_t bytes = bytes_of(tensor.type.dtype, tensor.type.shape);
    const auto shards = static_cast<std::uint64_t>(layout.mesh().size() / line.ranks);
    places_.push_back({found->second, line.bytes, bytes, bytes / shards >= least_shared});
    line.bytes += bytes;
  }
}

std::optional<std::int64_t> WritePlan::first_sharer(std::size_t line, std::int64_t rank) const {
  const auto at = lines_[line].mesh.coordinate_of(rank);
  if (!at) return std::nullopt;
  return lines_[line].mesh.rank_at(coordinate_along(lines_[line].mesh, lines_[line].axes, 0, *at));
}

std::uint64_t WritePlan::boundary(const Line& line, std::int64_t sharer) const {
  return scaled(line.bytes, static_cast<std::uint64_t>(sharer),
                static_cast<std::uint64_t>(line.ranks));
}

std::int64_t WritePlan::sharer_at(const Line& line, std::uint64_t position) const {
  // The last whose share begins at or before the position; rounding puts it at most one off.
  auto sharer = static_cast<std::int64_t>(
      scaled(position, static_cast<std::uint64_t>(line.ranks), line.bytes));
  while (sharer + 1 < line.ranks && boundary(line, sharer + 1) <= position) ++sharer;
  return sharer;
}

Range WritePlan::rows_of(const Place& place, std::int64_t sharer, std::int64_t rows) const {
  const Line& line = lines_[place.line];
  if (!place.shared) {
    return sharer == sharer_at(line, place.begin) ? Range{0, rows} : Range{0, 0};
  }
  const auto row_at = [&](std::uint64_t position) {
    const std::uint64_t inside =
        std::clamp(position, place.begin, place.begin + place.bytes) - place.begin;
    return static_cast<std::int64_t>(scaled(static_cast<std::uint64_t>(rows), inside, place.bytes));
  };
  return {row_at(boundary(line, sharer)), row_at(boundary(line, sharer + 1))};
}

std::vector<Share> WritePlan::of_rank(std::int64_t rank) const {
  std::vector<Share> out;
  // What is the same for all tensors of a layout: where the rank stands.
  struct Standing {
    std::optional<Coordinate> at;
    std::int64_t sharer = 0;
  };
  std::map<const void*, Standing> standings;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const TensorType& type = tensors_[t].type;
    const Place& place = places_[t];
    if (place.bytes == 0) continue;
    const auto [found, is_new] = standings.try_emplace(type.layout.id());
    Standing& standing = found->second;
    if (is_new) {
      standing.at = type.layout.mesh().coordinate_of(rank);
      if (standing.at) {
        for (const std::size_t axis : lines_[place.line].axes) {
          standing.sharer = standing.sharer * type.layout.mesh().size(axis) + (*standing.at)[axis];
        }
      }
    }
    if (!standing.at) continue;
    // Most tensors are another rank's: told before boxes are made.
    const Shape local = local_shape(type.layout, type.shape, *standing.at);
    const std::int64_t length = local.empty() ? 1 : local[row_dim(local)];
    const Range rows = rows_of(place, standing.sharer, length);
    if (rows.size() == 0) continue;
    Part part = part_of(boxes(type.layout, type.shape, *standing.at), rows);
    if (part.numel() > 0) out.push_back({t, rows, std::move(part)});
  }
  return out;
}

std::vector<Holder> WritePlan::holders(std::size_t tensor, const Part& wanted) const {
  std::vector<Holder> out;
  const TensorType& type = tensors_[tensor].type;
  const Place& place = places_[tensor];
  if (place.bytes == 0 || wanted.numel() == 0) return out;
  const Line& line = lines_[place.line];
  Search(type, wanted).for_each([&](const Coordinate& at) {
    const Boxes held = boxes(type.layout, type.shape, at);
    if (held.numel() == 0 || !overlap(part_of(held), wanted)) return;
    const std::int64_t rows =
        held.dims() == 0 ? 1 : held.local_shape()[row_dim(held.local_shape())];
    for (std::int64_t s = sharer_at(line, place.begin);
         s < line.ranks && boundary(line, s) < place.begin + place.bytes; ++s) {
      const Range share = rows_of(place, s, rows);
      if (share.size() == 0) continue;
      Part part = part_of(held, share);
      if (!overlap(part, wanted)) continue;
      const Coordinate writer = coordinate_along(type.layout.mesh(), line.axes, s, at);
      out.push_back({type.layout.mesh().rank_at(writer), std::move(part)});
    }
  });
  return out;
}

std::string part_name(const SavedTensor& tensor, const Part& part) {
  return part.covers(tensor.type.shape) ? tensor.name : concat(tensor.name, ' ', part);
}

}  // namespace intarsia::checkpoint

#include "intarsia/boxes.h"

#include "base/text.h"
#include "intarsia/error.h"
#include "layout/chunk.h"
#include "layout/coordinates.h"

namespace intarsia {
namespace {

using DimShards = FixedVector<DimShard, kMaxAxes>;

/// How axes shard one dimension, in order; each shards what the one before left. `next` is the
/// position in layout.sharding_axes(), which lists the axes by dimension.
DimShards shards_of(const Layout& layout, int dim, std::int64_t length, const Coordinate& at,
                    std::size_t& next) {
  DimShards out;
  const auto axes = layout.sharding_axes();
  for (; next < axes.size() && layout.placement(axes[next]).dim() == dim; ++next) {
    const auto axis = static_cast<std::uint8_t>(axes[next]);
    out.push_back({length, layout.mesh().size(axis), at[axis], layout.placement(axis).split()});
    length = out.back().held();
  }
  return out;
}

/// Calls `visit(range)` with the global ranges of the local positions [begin, end), which are
/// positions in what the first `depth` of `shards` leave.
template <class Visit>
void for_each_run(const DimShards& shards, std::size_t depth, Range local, const Visit& visit) {
  if (local.begin >= local.end) return;
  if (depth == 0) return visit(local);
  const DimShard& shard = shards[depth - 1];
  const Range piece = chunk(shard.block(), shard.n, shard.i);
  const std::int64_t full = shard.full_blocks();
  // Positions are stored block after block: `piece.size()` of each full block, then those of the
  // rest.
  if (piece.size() > 0) {
    const std::int64_t last = std::min(ceil_div(local.end, piece.size()), full);
    for (std::int64_t b = local.begin / piece.size(); b < last; ++b) {
      const std::int64_t shift = b * shard.block() + piece.begin - b * piece.size();
      for_each_run(shards, depth - 1,
                   {std::max(local.begin, b * piece.size()) + shift,
                    std::min(local.end, (b + 1) * piece.size()) + shift},
                   visit);
    }
  }
  const std::int64_t tail = full * piece.size();
  if (local.end > tail) {
    const std::int64_t shift =
        full * shard.block() + chunk(shard.rest(), shard.n, shard.i).begin - tail;
    for_each_run(shards, depth - 1, {std::max(local.begin, tail) + shift, local.end + shift},
                 visit);
  }
}

/// Joins neighbouring ranges, so that equal sets of indices have equal runs.
template <class Visit>
void for_each_joined_run(const DimShards& shards, std::int64_t held, const Visit& visit) {
  Range pending{0, 0};
  for_each_run(shards, shards.size(), {0, held}, [&](Range r) {
    if (pending.end == r.begin && pending.size() > 0) {
      pending.end = r.end;
    } else {
      if (pending.size() > 0) visit(pending);
      pending = r;
    }
  });
  if (pending.size() > 0) visit(pending);
}

std::int64_t held_length(const DimShards& shards, std::int64_t length) {
  return shards.empty() ? length : shards.back().held();
}

void check(std::string_view where, const Layout& layout, std::span<const std::int64_t> shape,
           const Coordinate& at) {
  check_dims(where, layout, shape.size());
  if (at.size() != layout.mesh().axes()) {
    fail<ValueError>(where, "(", join(at), ") is not a coordinate of ", layout.mesh());
  }
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (at[a] < 0 || at[a] >= layout.mesh().size(a)) {
      fail<ValueError>(where, "(", join(at), ") is not a coordinate of ", layout.mesh());
    }
  }
  check_shape(where, shape);
}

}  // namespace

void check_dims(std::string_view where, const Layout& layout, std::size_t dims) {
  if (dims > kMaxDims) {
    fail<ValueError>(where, "a distributed tensor has at most ", kMaxDims, " dimensions, got ",
                     dims);
  }
  if (layout.least_dims() <= dims) return;
  fail<ValueError>(where, layout, " shards dimension ", layout.least_dims() - 1,
                   ", but the tensor has only ", dims, dims == 1 ? " dimension" : " dimensions",
                   dims == 0 ? "" : concat("; shard one of 0..", dims - 1));
}

void check_shape(std::string_view where, std::span<const std::int64_t> shape) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 56;
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) fail<ValueError>(where, "the shape (", join(shape), ") has a negative size");
    if (size > kMostElements / std::max<std::int64_t>(elements, 1)) {
      fail<ValueError>(where, "the shape (", join(shape), ") holds more than 2^56 elements");
    }
    elements *= std::max<std::int64_t>(size, 1);
  }
}

std::string Range::to_string() const { return concat('[', begin, ',', end, ')'); }

std::int64_t Boxes::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes_) n *= s;
  return n;
}

std::int64_t Boxes::count() const {
  std::int64_t n = 1;
  for (std::size_t d = 0; d < dims(); ++d) n *= static_cast<std::int64_t>(runs(d).size());
  return n;
}

Box Boxes::box(std::int64_t i) const {
  if (i < 0 || i >= count()) {
    fail<ValueError>("Boxes::box", "there is no box ", i, " among ", count(), " of ", *this);
  }
  Box out;
  out.resize(dims());
  for (std::size_t d = dims(); d-- > 0;) {
    const auto n = static_cast<std::int64_t>(runs(d).size());
    out[d] = runs(d)[static_cast<std::size_t>(i % n)];
    i /= n;
  }
  return out;
}

std::string Boxes::to_string() const {
  std::vector<std::string> parts;
  for (std::size_t d = 0; d < dims(); ++d) {
    parts.push_back(runs(d).empty() ? "[)" : join(runs(d), "+"));
  }
  return parts.empty() ? "scalar" : join(parts, "x");
}

Boxes boxes(const Layout& layout, std::span<const std::int64_t> shape, const Coordinate& at) {
  check("boxes", layout, shape, at);
  Boxes out;
  // Two passes, so that the result is allocated once and at its exact size.
  std::size_t next = 0;
  std::uint32_t total = 0;
  out.starts_.push_back(0);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const DimShards shards = shards_of(layout, static_cast<int>(d), shape[d], at, next);
    const std::int64_t held = held_length(shards, shape[d]);
    out.sizes_.push_back(held);
    for_each_joined_run(shards, held, [&](Range) { ++total; });
    out.starts_.push_back(total);
  }
  out.runs_.reserve(total);
  next = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const DimShards shards = shards_of(layout, static_cast<int>(d), shape[d], at, next);
    for_each_joined_run(shards, out.sizes_[d], [&](Range r) { out.runs_.push_back(r); });
    const auto runs = out.runs(d);
    const bool untouched = shards.empty() && shape[d] == 0;
    out.offset_.push_back(!runs.empty() ? runs[0].begin : untouched ? 0 : shape[d]);
  }
  return out;
}

Shape local_shape(const Layout& layout, std::span<const std::int64_t> shape, const Coordinate& at) {
  check("local_shape", layout, shape, at);
  Shape out;
  std::size_t next = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    out.push_back(
        held_length(shards_of(layout, static_cast<int>(d), shape[d], at, next), shape[d]));
  }
  return out;
}

std::vector<std::int64_t> lengths_along(const Layout& layout, std::span<const std::int64_t> shape,
                                        int dim, std::span<const std::string> axes,
                                        const Coordinate& at) {
  constexpr std::string_view where = "lengths_along";
  const auto d = static_cast<std::size_t>(normalize_dim(where, dim, shape.size()));
  std::vector<std::size_t> indices;
  std::int64_t count = 1;
  for (const std::string& name : axes) {
    indices.push_back(layout.mesh().axis_index(name));
    count *= layout.mesh().size(indices.back());
  }
  std::vector<std::int64_t> out;
  for (std::int64_t place = 0; place < count; ++place) {
    const Coordinate other = coordinate_along(layout.mesh(), indices, place, at);
    out.push_back(local_shape(layout, shape, other)[d]);
  }
  return out;
}

std::vector<std::int64_t> lengths_along(const Layout& layout, std::span<const std::int64_t> shape,
                                        int dim, std::initializer_list<std::string> axes,
                                        const Coordinate& at) {
  return lengths_along(layout, shape, dim, std::span(axes.begin(), axes.size()), at);
}

}  // namespace intarsia

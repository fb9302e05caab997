#include "tensor/move/route.h"

#include <algorithm>

#include "intarsia/between.h"
#include "layout/coordinates.h"

namespace intarsia {
namespace {

/// Positions along one dimension that two pieces share.
struct Overlap {
  std::int64_t in_old;
  std::int64_t in_new;
  std::int64_t in_part;
  std::int64_t length;
};

/// The old runs [0,2) and [4,6) and the new run [0,8) share two: {in_old 0, in_new 0, in_part 0,
/// length 2} and {2, 4, 2, 2}, since 4 and 5 stand after 0 and 1 in the old piece and in the part,
/// and after 0 to 3 in the new piece.
std::vector<Overlap> overlaps(std::span<const Range> old, std::span<const Range> next) {
  std::vector<Overlap> out;
  std::int64_t old_at = 0;
  std::int64_t new_at = 0;
  std::int64_t part_at = 0;
  for (std::size_t i = 0, j = 0; i < old.size() && j < next.size();) {
    const std::int64_t begin = std::max(old[i].begin, next[j].begin);
    const std::int64_t end = std::min(old[i].end, next[j].end);
    if (begin < end) {
      out.push_back(
          {old_at + begin - old[i].begin, new_at + begin - next[j].begin, part_at, end - begin});
      part_at += end - begin;
    }
    if (old[i].end < next[j].end) {
      old_at += old[i++].size();
    } else {
      new_at += next[j++].size();
    }
  }
  return out;
}

std::int64_t product(const Shape& sizes) {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n *= s;
  return n;
}

/// Whether a block of these sizes is one run of memory in a piece.
bool is_run(const Shape& block, const Shape& piece) {
  std::size_t d = 0;
  while (d < block.size() && block[d] == 1) ++d;
  for (++d; d < block.size(); ++d) {
    if (block[d] != piece[d]) return false;
  }
  return true;
}

/// The coordinates of the ranks of a member's group, in their order.
std::vector<Coordinate> group_of(const Mesh& mesh, const AxisList& axes, const Coordinate& at) {
  std::int64_t n = 1;
  for (const std::int8_t a : axes) n *= mesh.size(static_cast<std::size_t>(a));
  std::vector<Coordinate> out(static_cast<std::size_t>(n), at);
  for (std::int64_t i = 0; i < n; ++i) {
    out[static_cast<std::size_t>(i)] = coordinate_along(mesh, axes, i, at);
  }
  return out;
}

MemberRoute exchange_route(const Step& step, const Shape& shape, const Coordinate& at,
                           const AxisList& reduced) {
  const Mesh& mesh = step.before.mesh();
  const Boxes held = boxes(step.before, shape, at);
  const Boxes wanted = boxes(step.after, shape, at);
  MemberRoute out;
  out.before = held.local_shape();
  out.after = wanted.local_shape();
  const auto group = group_of(mesh, step.axes, at);
  for (std::size_t j = 0; j < group.size(); ++j) {
    if (group[j] == at) out.me = j;
    out.to.push_back(shared_part(held, boxes(step.after, shape, group[j])));
    out.from.push_back(shared_part(boxes(step.before, shape, group[j]), wanted));
    std::int64_t index = 0;
    for (const std::int8_t a : reduced) {
      const auto axis = static_cast<std::size_t>(a);
      index = index * mesh.size(axis) + group[j][axis];
    }
    out.partial_index.push_back(index);
  }
  out.sends_in_place = in_order(out.to, out.before, &Block::in_old);
  if (reduced.empty()) {
    out.lands_in_place = in_order(out.from, out.after, &Block::in_new);
  } else {
    // Where every part is all of a partial value, and in order, what arrives is a row for each.
    const std::int64_t all = product(out.after);
    out.lands_in_place = true;
    for (std::size_t j = 0; j < out.from.size(); ++j) {
      out.lands_in_place = out.lands_in_place && out.from[j].count == all &&
                           out.partial_index[j] == static_cast<std::int64_t>(j);
    }
  }
  return out;
}

AxisList reduced_axes(const Step& step) {
  AxisList out;
  for (std::size_t a = 0; a < step.before.mesh().axes(); ++a) {
    if (step.before.placement(a).is_partial() && !step.after.placement(a).is_partial() &&
        step.before.mesh().size(a) > 1) {
      out.push_back(static_cast<std::int8_t>(a));
    }
  }
  return out;
}

bool gathers_evenly(const Step& step, std::span<const MemberRoute> members) {
  if (step.kind != StepKind::all_gather) return false;
  for (const MemberRoute& m : members) {
    for (const Part& p : m.from) {
      if (p.count != m.from[0].count || p.count != product(m.before)) return false;
    }
  }
  return true;
}

StepRoute step_route(World& world, const Plan& plan, const Step& step) {
  StepRoute out;
  out.step = &step;
  const Mesh& mesh = step.before.mesh();
  const AxisList reduced = step.communicates() ? reduced_axes(step) : AxisList();
  if (step.communicates()) {
    std::vector<std::string> names;
    for (const std::int8_t a : step.axes) names.push_back(mesh.name(static_cast<std::size_t>(a)));
    out.comm = world.along(mesh, names);
  }
  for (const std::int8_t a : reduced) {
    out.how = step.before.placement(static_cast<std::size_t>(a));
    out.partial_count *= mesh.size(static_cast<std::size_t>(a));
  }
  for (const std::int64_t rank : world.hosted()) {
    const auto at = mesh.coordinate_of(rank);
    if (!at) continue;
    out.bytes += static_cast<std::uint64_t>(product(local_shape(step.before, plan.shape, *at)) *
                                            plan.element_size);
    if (step.kind == StepKind::all_reduce || step.kind == StepKind::relabel) continue;
    Step here = step;
    if (!step.communicates()) here.axes.clear();  // a rank by itself
    if (step.kind == StepKind::make_partial) {
      // Where the part that a rank holds stands in its partial value.
      const Boxes held = boxes(step.before, plan.shape, *at);
      const Boxes wanted = boxes(step.after, plan.shape, *at);
      MemberRoute m;
      m.before = held.local_shape();
      m.after = wanted.local_shape();
      m.to.push_back(shared_part(held, wanted));
      out.members.push_back(std::move(m));
      continue;
    }
    out.members.push_back(exchange_route(here, plan.shape, *at, reduced));
  }
  out.even = gathers_evenly(step, out.members);
  return out;
}

}  // namespace

Shape strides_of(const Shape& sizes) {
  Shape out = sizes;
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    out[d] = stride;
    stride *= sizes[d];
  }
  return out;
}

Part shared_part(const Boxes& old, const Boxes& next) {
  Part part;
  std::vector<std::vector<Overlap>> shared;
  part.count = 1;
  std::size_t blocks = 1;
  for (std::size_t d = 0; d < old.dims(); ++d) {
    shared.push_back(overlaps(old.runs(d), next.runs(d)));
    std::int64_t length = 0;
    for (const Overlap& o : shared.back()) length += o.length;
    part.sizes.push_back(length);
    part.count *= length;
    blocks *= shared.back().size();
  }
  if (part.count == 0) return part;
  const Shape old_strides = strides_of(old.local_shape());
  const Shape new_strides = strides_of(next.local_shape());
  const Shape part_strides = strides_of(part.sizes);
  part.blocks.resize(blocks);
  for (std::size_t b = 0; b < blocks; ++b) {
    Block& block = part.blocks[b];
    block.sizes.resize(old.dims());
    std::size_t rest = b;
    for (std::size_t d = old.dims(); d-- > 0;) {
      const Overlap& o = shared[d][rest % shared[d].size()];
      rest /= shared[d].size();
      block.sizes[d] = o.length;
      block.in_old += o.in_old * old_strides[d];
      block.in_new += o.in_new * new_strides[d];
      block.in_part += o.in_part * part_strides[d];
    }
  }
  return part;
}

namespace {

/// Calls `visit(start, sizes)` for the boxes that make up the flat range [begin, end) of an array.
/// [2, 9) of 3x4 elements is the end of row 0, row 1 and the beginning of row 2: (0,2) with 1x2
/// elements, (1,0) with 1x4 and (2,0) with 1x1.
template <class Visit>
void for_each_box(const Shape& sizes, std::int64_t begin, std::int64_t end, const Visit& visit) {
  Shape start = sizes;
  Shape length = sizes;
  const Shape strides = strides_of(sizes);
  const auto down = [&](auto&& self, std::size_t d, std::int64_t lo, std::int64_t hi) -> void {
    if (lo >= hi) return;
    if (d == sizes.size()) return visit(start, length);
    const std::int64_t row = strides[d];
    const std::int64_t first = lo / row;
    const std::int64_t last = (hi - 1) / row;
    const bool full_first = lo % row == 0;
    const bool full_last = hi % row == 0;
    const auto part = [&](std::int64_t from, std::int64_t count, std::int64_t a, std::int64_t b) {
      start[d] = from;
      length[d] = count;
      self(self, d + 1, a, b);
    };
    if (first == last) return part(first, 1, lo - first * row, hi - first * row);
    if (!full_first) part(first, 1, lo - first * row, row);
    const std::int64_t middle = full_first ? first : first + 1;
    const std::int64_t stop = full_last ? last + 1 : last;
    if (middle < stop) part(middle, stop - middle, 0, row);
    if (!full_last) part(last, 1, 0, hi - last * row);
  };
  down(down, 0, begin, end);
}

}  // namespace

std::vector<Block> blocks_within(const Part& part, std::int64_t begin, std::int64_t end,
                                 const Shape& old_sizes, const Shape& new_sizes) {
  std::vector<Block> out;
  const Shape strides = strides_of(part.sizes);
  const Shape old_strides = strides_of(old_sizes);
  const Shape new_strides = strides_of(new_sizes);
  for_each_box(part.sizes, begin, end, [&](const Shape& start, const Shape& length) {
    for (const Block& b : part.blocks) {
      Block clipped = b;
      std::int64_t rest = b.in_part;
      bool empty = false;
      for (std::size_t d = 0; d < start.size(); ++d) {
        const std::int64_t first = rest / strides[d];
        rest %= strides[d];
        const std::int64_t lo = std::max(first, start[d]);
        const std::int64_t hi = std::min(first + b.sizes[d], start[d] + length[d]);
        empty = empty || lo >= hi;
        clipped.sizes[d] = hi - lo;
        clipped.in_old += (lo - first) * old_strides[d];
        clipped.in_new += (lo - first) * new_strides[d];
        clipped.in_part += (lo - first) * strides[d];
      }
      clipped.in_part -= begin;
      if (!empty) out.push_back(clipped);
    }
  });
  return out;
}

bool in_order(std::span<const Part> parts, const Shape& sizes, std::int64_t Block::*place) {
  std::int64_t at = 0;
  for (const Part& p : parts) {
    for (const Block& b : p.blocks) {
      // Several blocks of one part follow each other only where entire rows do.
      if (b.*place != at || !is_run(b.sizes, sizes) || !is_run(b.sizes, p.sizes)) return false;
      at += product(b.sizes);
    }
  }
  return at == product(sizes);
}

namespace {

std::vector<std::int64_t> ranks_of(const Mesh& mesh) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < mesh.size(); ++i)
    out.push_back(mesh.rank_at(coordinate_at(mesh, i)));
  return out;
}

/// The opposite of `coordinate_at`.
std::int64_t place_of(const Mesh& mesh, const Coordinate& at) {
  std::int64_t place = 0;
  for (std::size_t a = 0; a < mesh.axes(); ++a) place = place * mesh.size(a) + at[a];
  return place;
}

/// Whether the rank at `at` is one of those that serve: it has the coordinates of `replica` along
/// all axes that do not shard.
bool serves(const Layout& from, const Coordinate& at, const Coordinate& replica) {
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (!from.placement(a).is_shard() && at[a] != replica[a]) return false;
  }
  return true;
}

MemberRoute route_between(const Layout& from, const Layout& to, const Shape& shape,
                          const std::vector<std::int64_t>& everyone, std::int64_t rank) {
  MemberRoute out;
  out.before = out.after = Shape{0};
  const auto old_at = from.mesh().coordinate_of(rank);
  const auto new_at = to.mesh().coordinate_of(rank);
  const auto replica_for = [&](const Coordinate& target) {
    return serving_replica(from, to.mesh(), place_of(to.mesh(), target));
  };
  if (old_at) out.before = local_shape(from, shape, *old_at);
  if (new_at) out.after = local_shape(to, shape, *new_at);
  for (std::size_t j = 0; j < everyone.size(); ++j) {
    const std::int64_t other = everyone[j];
    if (other == rank) out.me = j;
    Part sent;
    Part received;
    const auto target = to.mesh().coordinate_of(other);
    const auto source = from.mesh().coordinate_of(other);
    if (old_at && target && serves(from, *old_at, replica_for(*target))) {
      sent = shared_part(boxes(from, shape, *old_at), boxes(to, shape, *target));
    }
    if (new_at && source && serves(from, *source, replica_for(*new_at))) {
      received = shared_part(boxes(from, shape, *source), boxes(to, shape, *new_at));
    }
    out.to.push_back(std::move(sent));
    out.from.push_back(std::move(received));
  }
  out.partial_index.assign(everyone.size(), 0);
  return out;
}

}  // namespace

std::vector<std::int64_t> ranks_of(std::span<const Mesh> meshes) {
  std::vector<std::int64_t> out;
  for (const Mesh& mesh : meshes) {
    const std::vector<std::int64_t> more = ranks_of(mesh);
    out.insert(out.end(), more.begin(), more.end());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::shared_ptr<const RouteBetween> make_route_between(World& world, const Layout& from,
                                                       const Layout& to, const Shape& shape,
                                                       const std::vector<std::int64_t>& everyone) {
  auto out = std::make_shared<RouteBetween>();
  out->step = {StepKind::all_to_all, {}, from, to};
  out->route.step = &out->step;
  const Mesh all =
      Mesh::of_ranks({{"ranks", static_cast<std::int64_t>(everyone.size())}}, everyone);
  out->route.comm = world.along(all, {"ranks"});
  for (const std::int64_t rank : world.hosted()) {
    if (!all.contains(rank)) continue;
    out->ranks.push_back(rank);
    out->route.members.push_back(route_between(from, to, shape, everyone, rank));
  }
  return out;
}

std::shared_ptr<const Route> make_route(World& world, std::shared_ptr<const Plan> plan) {
  auto route = std::make_shared<Route>();
  for (const Step& step : plan->steps) route->steps.push_back(step_route(world, *plan, step));
  route->plan = std::move(plan);
  return route;
}

}  // namespace intarsia

#include "intarsia/redistribute.h"

#include <ATen/ATen.h>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "layout/chunk.h"
#include "tensor/neutral.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lengths = std::vector<std::int64_t>;

/// How the ranks along one axis cut `length` positions of a dimension.
struct AxisCut {
  std::int64_t length;
  std::int64_t n;
  std::int64_t split;

  Lengths lengths() const {
    Lengths out;
    for (std::int64_t i = 0; i < n; ++i) out.push_back(Cut{length, n, i, split}.held());
    return out;
  }

  /// The positions, rank after rank: what joining the pieces of all ranks gives. [0,2,1,3] for two
  /// ranks that each hold one position of each of two blocks.
  at::Tensor positions() const {
    Lengths out;
    const std::int64_t block = ceil_div(length, split);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t start = 0; start < length; start += block) {
        const Range part = chunk(std::min(block, length - start), n, i);
        for (std::int64_t p = part.begin; p < part.end; ++p) out.push_back(start + p);
      }
    }
    return at::tensor(out, at::kLong);
  }
};

/// Orders a dimension rank after rank, so that each rank's part is one run.
at::Tensor by_rank(const at::Tensor& t, std::int64_t dim, const AxisCut& cut) {
  return cut.split == 1 ? t : t.index_select(dim, cut.positions().to(t.device()));
}

/// Undoes `by_rank`.
at::Tensor by_position(const at::Tensor& t, std::int64_t dim, const AxisCut& cut) {
  return cut.split == 1 ? t : t.index_select(dim, cut.positions().argsort().to(t.device()));
}

/// One step, for all hosted members of the mesh.
class StepRun {
 public:
  StepRun(World& world, const Step& step, std::span<const std::int64_t> shape, const Call& call,
          const std::source_location& where)
      : step_(step), call_(call), where_(where) {
    const Mesh& mesh = step.before.mesh();
    const std::vector<std::string> axis{mesh.name(step.axis)};
    comm_ = world.along(mesh, axis);
    n_ = mesh.size(step.axis);
    const Layout open = step.before.with(step.axis, Placement::replicate());
    for (const Member& member : comm_->members()) {
      const Coordinate at = *mesh.coordinate_of(member.rank);
      members_.push_back({at[step.axis], local_shape(open, shape, at)});
    }
  }

  Tensors operator()(const Tensors& pieces) const {
    switch (step_.kind) {
      case StepKind::relabel:
        return pieces;
      case StepKind::slice:
        return each(pieces, &StepRun::slice);
      case StepKind::make_partial:
        return each(pieces, &StepRun::make_partial);
      case StepKind::all_gather:
        return gather(pieces);
      case StepKind::all_reduce:
        return all_reduce(*comm_, pieces, step_.from(), call_, where_).wait();
      case StepKind::reduce_scatter:
        return scatter(pieces);
      case StepKind::all_to_all:
        return exchange(pieces);
    }
    return pieces;
  }

 private:
  struct Here {
    std::int64_t index;  // along the axis
    Shape uncut;         // the sizes of the piece if the axis did not cut it
  };

  AxisCut cut_of(const Placement& p, std::size_t member) const {
    return {members_[member].uncut[static_cast<std::size_t>(p.dim())], n_, p.split()};
  }

  /// The lengths along the axis, for each member's group.
  Lengths lengths_of(const Placement& p) const {
    Lengths out;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const AxisCut cut = cut_of(p, m);
      for (std::int64_t i = 0; i < n_; ++i) {
        out.push_back(Cut{cut.length, n_, i, cut.split}.held());
      }
    }
    return out;
  }

  template <class Function>
  Tensors each(const Tensors& pieces, Function f) const {
    Tensors out;
    for (std::size_t m = 0; m < pieces.size(); ++m) out.push_back((this->*f)(pieces[m], m));
    return out;
  }

  at::Tensor slice(const at::Tensor& t, std::size_t m) const {
    const Placement& to = step_.to();
    const AxisCut cut = cut_of(to, m);
    const Lengths lengths = cut.lengths();
    std::int64_t start = 0;
    for (std::int64_t i = 0; i < members_[m].index; ++i)
      start += lengths[static_cast<std::size_t>(i)];
    return by_rank(t, to.dim(), cut)
        .narrow(to.dim(), start, lengths[static_cast<std::size_t>(members_[m].index)])
        .contiguous();
  }

  at::Tensor make_partial(const at::Tensor& t, std::size_t m) const {
    return members_[m].index == 0 ? t : neutral_term(t, step_.to());
  }

  Tensors gather(const Tensors& pieces) const {
    const Placement& from = step_.from();
    if (pieces.empty()) return pieces;
    Tensors out = all_gather(*comm_, pieces, from.dim(), lengths_of(from), call_, where_).wait();
    for (std::size_t m = 0; m < out.size(); ++m)
      out[m] = by_position(out[m], from.dim(), cut_of(from, m));
    return out;
  }

  Tensors scatter(Tensors pieces) const {
    const Placement& to = step_.to();
    if (pieces.empty()) return pieces;
    for (std::size_t m = 0; m < pieces.size(); ++m)
      pieces[m] = by_rank(pieces[m], to.dim(), cut_of(to, m));
    return reduce_scatter(*comm_, pieces, to.dim(), step_.from(), lengths_of(to), call_, where_)
        .wait();
  }

  Tensors exchange(Tensors pieces) const {
    const Placement& from = step_.from();
    const Placement& to = step_.to();
    if (pieces.empty()) return pieces;
    for (std::size_t m = 0; m < pieces.size(); ++m)
      pieces[m] = by_rank(pieces[m], to.dim(), cut_of(to, m));
    Tensors out = all_to_all(*comm_, pieces, to.dim(), from.dim(), lengths_of(to), lengths_of(from),
                             call_, where_)
                      .wait();
    for (std::size_t m = 0; m < out.size(); ++m)
      out[m] = by_position(out[m], from.dim(), cut_of(from, m));
    return out;
  }

  const Step& step_;
  const Call& call_;
  const std::source_location& where_;
  std::optional<Comm> comm_;
  std::int64_t n_ = 1;
  std::vector<Here> members_;
};

void check_pieces(World& world, at::TensorList pieces, std::span<const std::int64_t> shape,
                  const Plan& plan) {
  constexpr std::string_view where = "redistribute_pieces";
  check_dims(where, plan.from, shape.size());
  check_dims(where, plan.to, shape.size());
  const Mesh& mesh = plan.from.mesh();
  std::size_t m = 0;
  for (const std::int64_t rank : world.hosted()) {
    const auto at = mesh.coordinate_of(rank);
    if (!at) continue;
    const Shape expected = local_shape(plan.from, shape, *at);
    if (m < pieces.size() &&
        pieces[m].sizes() != at::IntArrayRef(expected.begin(), expected.size())) {
      fail<ValueError>(where, "the piece of rank ", rank, " has sizes (", join(pieces[m].sizes()),
                       "), but ", plan.from, " gives it (", join(expected), ") of (", join(shape),
                       ")");
    }
    ++m;
  }
  if (m != pieces.size()) {
    fail<ValueError>(where, "this process hosts ", m, " ranks of ", mesh, ", but ", pieces.size(),
                     " pieces were given");
  }
}

}  // namespace

std::vector<at::Tensor> redistribute_pieces(World& world, at::TensorList pieces,
                                            std::span<const std::int64_t> shape, const Plan& plan,
                                            const Call& call, std::source_location where) {
  check_pieces(world, pieces, shape, plan);
  Tensors now = pieces.vec();
  for (const Step& step : plan.steps) now = StepRun(world, step, shape, call, where)(now);
  return now;
}

at::Tensor cut_piece(const at::Tensor& full, const Layout& layout, const Coordinate& at) {
  const Boxes held = boxes(layout, std::span(full.sizes().data(), full.sizes().size()), at);
  at::Tensor piece = full;
  for (std::size_t d = 0; d < held.dims(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    Tensors parts;
    for (const Range& r : held.runs(d)) parts.push_back(piece.narrow(dim, r.begin, r.size()));
    piece = parts.empty()       ? piece.narrow(dim, 0, 0)
            : parts.size() == 1 ? parts[0]
                                : at::cat(parts, dim);
  }
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_partial() && at[a] > 0)
      piece = neutral_term(piece, layout.placement(a));
  }
  return piece;
}

}  // namespace intarsia

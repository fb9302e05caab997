// The norm of many gradients at once: sums on each rank, then one reduction.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/optim.h"
#include "intarsia/tensor.h"
#include "tensor/move/route.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

/// The tensors of one call, sorted.
struct Parted {
  Tensors plain;
  Tensors distributed;  ///< none partial
  std::vector<Mesh> meshes;
  at::ScalarType dtype = at::kFloat;  ///< of the norm
};

Parted parted(std::string_view where, const Tensors& tensors) {
  Parted out;
  for (const at::Tensor& t : tensors) {
    if (!at::isFloatingType(t.scalar_type()) && !at::isComplexType(t.scalar_type())) {
      fail<ValueError>(where, describe(t), " has no norm; give floating or complex tensors");
    }
    if (c10::toRealValueType(t.scalar_type()) == at::kDouble) out.dtype = at::kDouble;
    if (!has_layout(t)) {
      out.plain.push_back(t);
      continue;
    }
    if (!out.distributed.empty() && &world_of(t) != &world_of(out.distributed[0])) {
      fail<ValueError>(where, describe(t), " and ", describe(out.distributed[0]),
                       " belong to different worlds; take the norm of each world's by itself");
    }
    const Layout layout = layout_of(t);
    out.distributed.push_back(redistribute(t, without_partial(layout)));
    if (std::find(out.meshes.begin(), out.meshes.end(), layout.mesh()) == out.meshes.end()) {
      out.meshes.push_back(layout.mesh());
    }
  }
  return out;
}

bool is_sharded_by(const Layout& layout, std::size_t axis) {
  return layout.placement(axis).is_shard() && layout.mesh().size(axis) > 1;
}

/// Over which ranks partial values are summed.
struct Sum {
  std::optional<Comm> comm;
  std::vector<bool> axes;  ///< of the one mesh: whether it goes along them; empty: along all
  std::string over;        ///< for the bill

  /// Whether the tensor's piece at `at` counts in the sum, and is not a copy of one that does.
  bool counts(const Layout& layout, const Coordinate& at) const {
    for (std::size_t a = 0; a < at.size(); ++a) {
      const bool summed = comm && (axes.empty() || axes[a]);
      if (summed && !is_sharded_by(layout, a) && at[a] > 0) return false;
    }
    return true;
  }
};

Sum sum_over(const Parted& tensors) {
  Sum out;
  if (tensors.distributed.empty()) return out;
  World& world = world_of(tensors.distributed[0]);
  if (tensors.meshes.size() == 1) {
    const Mesh& mesh = tensors.meshes[0];
    out.axes.resize(mesh.axes());
    std::vector<std::string> names;
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      out.axes[a] =
          std::any_of(tensors.distributed.begin(), tensors.distributed.end(),
                      [&](const at::Tensor& t) { return is_sharded_by(layout_of(t), a); });
      if (out.axes[a]) names.push_back(mesh.name(a));
    }
    if (names.empty()) return out;
    out.over = join(names);
    out.comm = world.along(mesh, names);
    return out;
  }
  const std::vector<std::int64_t> everyone = ranks_of(tensors.meshes);
  bool needed = false;
  for (const Mesh& mesh : tensors.meshes) {
    needed |= mesh.size() != static_cast<std::int64_t>(everyone.size());
  }
  for (const at::Tensor& t : tensors.distributed) {
    const Layout layout = layout_of(t);
    for (std::size_t a = 0; a < layout.mesh().axes(); ++a) needed |= is_sharded_by(layout, a);
  }
  if (!needed) return out;
  const Mesh all =
      Mesh::of_ranks({{"ranks", static_cast<std::int64_t>(everyone.size())}}, everyone);
  out.over = concat("the ranks of ", tensors.meshes.size(), " meshes");
  out.comm = world.along(all, {"ranks"});
  return out;
}

/// The pieces that count on a hosted rank.
Tensors counted_pieces(const Parted& tensors, const Sum& sum, std::int64_t rank) {
  Tensors out;
  for (const at::Tensor& t : tensors.distributed) {
    const DistributedImpl& impl = impl_of(t);
    const Layout& layout = impl.spec()->layout;
    const auto at = layout.mesh().coordinate_of(rank);
    if (!at || !sum.counts(layout, *at)) continue;
    std::size_t m = 0;
    for (const std::int64_t other : impl.world().hosted()) {
      if (other == rank) break;
      if (layout.mesh().contains(other)) ++m;
    }
    out.push_back(impl.pieces()[m]);
  }
  return out;
}

bool is_largest(double order) { return std::isinf(order); }

/// The sum of |x|^order over all elements, or the largest |x|: one number, in f64.
at::Tensor power_sum(const Tensors& tensors, double order, const at::Device& device) {
  std::map<at::ScalarType, Tensors> by_dtype;
  for (const at::Tensor& t : tensors) {
    if (t.numel() > 0) by_dtype[t.scalar_type()].push_back(t);
  }
  Tensors norms;
  for (const auto& [dtype, list] : by_dtype) {
    const at::ScalarType real = c10::toRealValueType(dtype);
    const at::ScalarType wide = at::isReducedFloatingType(real) ? at::kFloat : real;
    const auto as = at::isComplexType(dtype) ? std::nullopt : std::optional(wide);
    for (const at::Tensor& norm : at::_foreach_norm(list, order, as)) {
      norms.push_back(norm.to(device, at::kDouble));
    }
  }
  if (norms.empty()) return at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  const at::Tensor all = at::stack(norms);
  return is_largest(order) ? all.amax() : all.pow(order).sum();
}

at::Tensor combined(const at::Tensor& a, const at::Tensor& b, double order) {
  return is_largest(order) ? at::maximum(a, b) : a + b;
}

/// A number that ranks with the same list of tensors have in common: small, so that sums of its
/// squares are exact.
double mark_of(const Parted& tensors) {
  std::uint64_t hash = tensors.distributed.size();
  for (const at::Tensor& t : tensors.distributed) {
    hash = hash_mix(hash, layout_of(t).hash());
    for (const std::int64_t size : t.sizes())
      hash = hash_mix(hash, static_cast<std::uint64_t>(size));
  }
  constexpr std::uint64_t kMarks = 1U << 16;
  return static_cast<double>(hash % kMarks);
}

/// The partial values of all ranks, reduced. With several meshes each rank also says which list it
/// has: a rank with other meshes than the rest would count what is not there.
at::Tensor reduced(std::string_view where, const Parted& tensors, const Sum& sum, double order) {
  World& world = world_of(tensors.distributed[0]);
  const bool largest = is_largest(order);
  const bool marked = tensors.meshes.size() > 1;
  const double mark = marked ? mark_of(tensors) : 0;
  Tensors partials;
  for (const Member& member : sum.comm->members()) {
    at::Tensor partial =
        power_sum(counted_pieces(tensors, sum, member.rank), order, world.piece_device());
    if (marked) {
      const std::vector<double> marks{mark, largest ? -mark : mark * mark};
      partial = at::cat({partial.reshape({1}), at::tensor(marks, partial.options())});
    }
    partials.push_back(partial);
  }
  const std::string name = concat(tensors.distributed.size(), " tensors");
  const Placement how = Placement::partial(largest ? Reduction::max : Reduction::sum);
  LedgerTotals sent;
  const Call call{.tensor = name, .op = where, .module = module_path(), .sent = &sent};
  const Tensors all = all_reduce(*sum.comm, partials, how, call).wait();
  TensorState::of(world).bill().charge_own(where, name, sum.over, "P->R", sent);
  if (!marked) return all[0];
  const auto n = static_cast<double>(sum.comm->size());
  const at::Tensor got = all[0].cpu();
  const double first = got[1].item<double>();
  const double second = got[2].item<double>();
  const bool same =
      largest ? first == mark && second == -mark : first == n * mark && second == n * mark * mark;
  if (!same) {
    fail<ValueError>(where, "the ranks of ", join(tensors.meshes, ", "),
                     " were given different tensors; pass all of them the same list, with layouts "
                     "on meshes that name every rank which holds the tensor: R for ranks that hold "
                     "the same, not a mesh for each rank's group");
  }
  return all[0][0];
}

at::Tensor norm_of(std::string_view where, const Tensors& tensors, const NormOptions& options) {
  const double order = options.norm_type;
  if (!(order > 0)) {
    fail<ValueError>(where, "norm_type is ", order, "; give a number above 0, or infinity");
  }
  const at::NoGradGuard no_grad;
  const Parted parts = parted(where, tensors);
  const Sum sum = sum_over(parts);
  const BelowAutograd below;
  const at::Device device = !parts.distributed.empty() ? world_of(parts.distributed[0]).device()
                            : !parts.plain.empty()     ? parts.plain[0].device()
                                                       : at::Device(at::kCPU);
  at::Tensor powers = power_sum(parts.plain, order, device);
  if (!parts.distributed.empty()) {
    World& world = world_of(parts.distributed[0]);
    std::optional<std::int64_t> here;  // a hosted rank of one of the meshes
    for (const std::int64_t rank : world.hosted()) {
      const bool inside = std::any_of(parts.meshes.begin(), parts.meshes.end(),
                                      [&](const Mesh& mesh) { return mesh.contains(rank); });
      if (inside && !here) here = rank;
    }
    if (!here && !parts.plain.empty()) {
      fail<ValueError>(
          where, "no rank of this process is in ", join(parts.meshes, ", "),
          ", so that it cannot know the norm which plain tensors belong to; distribute "
          "these too, as R");
    }
    if (!here) return at::full({}, std::nan(""), at::TensorOptions(device).dtype(parts.dtype));
    const at::Tensor others = sum.comm
                                  ? reduced(where, parts, sum, order)
                                  : power_sum(counted_pieces(parts, sum, *here), order, device);
    powers = combined(powers, others, order);
  }
  const at::Tensor norm = (is_largest(order) ? powers : powers.pow(1 / order)).to(parts.dtype);
  if (options.error_if_nonfinite && !std::isfinite(norm.item<double>())) {
    fail<ValueError>(where, "the norm of order ", order, " over ", tensors.size(), " tensors is ",
                     norm.item<double>(),
                     "; look for infinite or undefined values, or pass error_if_nonfinite=false");
  }
  return norm;
}

Tensors gradients_of(const Tensors& parameters) {
  Tensors out;
  for (const at::Tensor& p : parameters) {
    if (p.defined() && p.grad().defined()) out.push_back(p.grad());
  }
  return out;
}

/// Whether the values of one of them are in the memory of the CPU, whatever device it says: those
/// that are offloaded are.
bool any_on_host(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) {
    if (!has_layout(t)) return t.is_cpu();
    const auto& pieces = impl_of(t).pieces();
    return !pieces.empty() && pieces[0].is_cpu();
  });
}

/// Multiplies all tensors by one number. Lists of one mesh, or of plain tensors, are one call.
void scale(const Tensors& tensors, const at::Tensor& factor) {
  std::vector<std::pair<std::optional<Mesh>, Tensors>> lists;
  for (const at::Tensor& t : tensors) {
    const auto mesh = has_layout(t) ? std::optional(layout_of(t).mesh()) : std::nullopt;
    auto list = std::find_if(lists.begin(), lists.end(),
                             [&](const auto& known) { return known.first == mesh; });
    if (list == lists.end()) list = lists.insert(list, {mesh, {}});
    list->second.push_back(t);
  }
  for (auto& [mesh, list] : lists) {
    // On the host a number: a plain tensor beside distributed ones would be hashed. Elsewhere the
    // host would have to wait for it.
    if (factor.is_cpu() || any_on_host(list)) {
      at::_foreach_mul_(list, factor.item());
    } else {
      at::_foreach_mul_(list, factor);
    }
  }
}

}  // namespace

at::Tensor total_norm(const std::vector<at::Tensor>& tensors, const NormOptions& options) {
  return norm_of("total_norm", tensors, options);
}

at::Tensor get_grad_norm(const std::vector<at::Tensor>& parameters, const NormOptions& options) {
  return norm_of("get_grad_norm", gradients_of(parameters), options);
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           const NormOptions& options) {
  constexpr std::string_view where = "clip_grad_norm_";
  if (!(max_norm >= 0)) fail<ValueError>(where, "max_norm is ", max_norm, "; give at least 0");
  const at::NoGradGuard no_grad;
  const Tensors gradients = gradients_of(parameters);
  const at::Tensor norm = norm_of(where, gradients, options);
  constexpr double kEpsilon = 1e-6;  // torch's
  scale(gradients, (max_norm / (norm + kEpsilon)).clamp_max(1));
  return norm;
}

}  // namespace intarsia

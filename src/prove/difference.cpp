#include "prove/difference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "prove/made_pieces.h"
#include "tensor/core/impl.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

double tolerance(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
    case at::kComplexHalf:
      return 1e-2;
    case at::kBFloat16:
      return 6e-2;
    case at::kFloat:
    case at::kComplexFloat:
      return 2e-4;
    default:
      return 1e-8;
  }
}

std::string values_text(const at::Tensor& t) {
  std::ostringstream out;
  const at::Tensor flat = t.detach().reshape(-1);
  out << '[';
  for (std::int64_t i = 0; i < std::min<std::int64_t>(flat.numel(), 6); ++i) {
    if (i > 0) out << ", ";
    out << flat[i].item();
  }
  out << (flat.numel() > 6 ? ", ...]" : "]");
  return out.str();
}

/// Whether two tensors of these sizes have their dimensions in the same order in memory.
bool same_order(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t j = i + 1; j < sizes.size(); ++j) {
      if (sizes[i] < 2 || sizes[j] < 2) continue;
      if ((a[i] < a[j]) != (b[i] < b[j]) || (a[i] == 0) != (b[i] == 0)) return false;
    }
  }
  return true;
}

}  // namespace

double tolerance(const Tensors& inputs, const at::Tensor& result) {
  double t = tolerance(result.scalar_type());
  for (const at::Tensor& i : inputs) {
    if (i.is_floating_point() || i.is_complex()) t = std::max(t, tolerance(i.scalar_type()));
  }
  return t;
}

bool all_close(const at::Tensor& a, const at::Tensor& b, double t) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.numel() == 0) return true;
  if (!a.is_floating_point() && !a.is_complex()) return at::equal(a, b);
  // Many small tensors: allclose would take longer than the ops that it compares.
  const auto numbers = [](const at::Tensor& x) {
    const at::Tensor real = x.is_complex() ? at::view_as_real(x.resolve_conj()) : x;
    return real.resolve_neg().to(at::kDouble).contiguous();
  };
  const at::Tensor x = numbers(a);
  const at::Tensor y = numbers(b);
  const double* p = x.const_data_ptr<double>();
  const double* q = y.const_data_ptr<double>();
  return std::equal(p, p + x.numel(), q, [t](double u, double v) {
    return u == v || (std::isnan(u) && std::isnan(v)) || std::abs(u - v) <= t + t * std::abs(v);
  });
}

std::string difference(const at::Tensor& got, const at::Tensor& want, const Tensors& inputs,
                       bool check_order) {
  if (!got.defined() || !want.defined()) {
    return got.defined() == want.defined() ? ""
           : got.defined()                 ? "is there, but should not be"
                                           : "is not there";
  }
  if (!is_ours(got)) return concat("is ", describe(got), " where a distributed tensor is due");
  const DistributedImpl& impl = impl_of(got);
  const Spec& spec = impl.spec();
  if (got.sizes() != want.sizes()) {
    return concat("has sizes (", join(got.sizes()), ") instead of (", join(want.sizes()), ")");
  }
  if (got.scalar_type() != want.scalar_type()) {
    return concat("is ", dtype_text(got.scalar_type()), " instead of ",
                  dtype_text(want.scalar_type()));
  }
  if (check_order && want.numel() > 0 && !same_order(got.sizes(), got.strides(), want.strides())) {
    return concat("has strides (", join(got.strides()), ") instead of (", join(want.strides()),
                  ")");
  }
  const Layout& layout = spec->layout;
  const Layout reduced = without_partial(layout);
  const auto all = coordinates(layout.mesh());
  for (std::size_t m = 0; m < all.size(); ++m) {
    const Shape sizes = local_shape(layout, spec->sizes, all[m]);
    const at::Tensor& piece = impl.pieces()[m];
    if (piece.sizes() != to_ref(sizes) || piece.scalar_type() != spec->dtype) {
      return concat("as ", spec, " has a piece ", describe(piece), " on rank ", m,
                    ", where the layout gives (", join(sizes), ")");
    }
  }
  for (std::size_t m = 0; m < all.size(); ++m) {
    if (index_among_partial(layout, all[m]) != 0) continue;
    const at::Tensor expected = local_piece(want, reduced, all[m]);
    const at::Tensor value = value_at(impl.pieces(), layout, all[m], 0);
    if (all_close(value, expected, tolerance(inputs, want))) continue;
    return concat("as ", spec, " is ", values_text(value), " on rank ", m, " instead of ",
                  values_text(expected));
  }
  return "";
}

}  // namespace intarsia

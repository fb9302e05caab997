#include "tensor/local/window_forms.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tensor/local/convolution_form.h"
#include "tensor/local/pool_form.h"
#include "tensor/local/sharded_windows.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

void pad(const Frame& f, const Question& q, const std::vector<Shape>& sizes, Decision& d) {
  const std::vector<Window> windows = rules::windows(q);
  const ShardedWindows sharded(f, windows, d.in[0].with(d.layouts[0]), d.out_layouts[0], sizes[0]);
  if (sharded.empty()) return;
  d.local.runs_empty = true;
  d.local.beforehand = [sharded](std::vector<Pieces>& in) { in[0] = sharded.fetch(in[0]); };
  const std::size_t members = hosted_coordinates(f.lead->world(), f.mesh()).size();
  for (std::size_t m = 0; m < members; ++m) {
    Sizes widths = q.arg("pad")->toIntVector();
    for (const Window& w : windows) {
      const Edge* e = sharded.edge(w.dim, m);
      if (e == nullptr) continue;
      const std::size_t at = 2 * (sizes[0].size() - 1 - w.dim);
      widths[at] = e->before();
      widths[at + 1] = e->after();
    }
    d.local.arguments.push_back({{f.place_of("pad"), c10::IValue(widths)}});
  }
}

/// Sets the exchange for ops that only move elements along dimensions: `reads` says from where, for
/// a run of the result along a dimension of some size. Returns the dimensions that are sharded.
template <class Reads>
std::vector<std::size_t> move_along(const Frame& f, const std::vector<std::size_t>& dims,
                                    Decision& d, const Reads& reads) {
  const Spec spec = d.in[0].with(d.layouts[0]);
  std::vector<std::size_t> sharded;
  std::vector<Halo> halos;
  for (const std::size_t dim : dims) {
    const bool again = std::find(sharded.begin(), sharded.end(), dim) != sharded.end();
    if (again || !is_sharded(d.layouts[0], dim)) continue;
    sharded.push_back(dim);
    halos.emplace_back(f.lead->world(), f.info.name, spec, dim,
                       [&](const Coordinate& at) -> Halo::Runs {
                         const Range result = run_of(d.out_layouts[0], spec->sizes, dim, at);
                         return result.size() == 0 ? Halo::Runs{} : reads(dim, result);
                       });
  }
  if (halos.empty()) return sharded;
  d.local.runs_empty = true;
  d.local.beforehand = [halos](std::vector<Pieces>& in) {
    for (const Halo& h : halos) in[0] = h.fetch(in[0]);
  };
  return sharded;
}

void flip(const Frame& f, const Question& q, Decision& d) {
  const Shape& sizes = d.in[0]->sizes;
  // The op itself turns the window round.
  move_along(f, q.dims("dims").value_or(std::vector<std::size_t>{}), d,
             [&](std::size_t dim, const Range& result) -> Halo::Runs {
               return {{sizes[dim] - result.end, sizes[dim] - result.begin}};
             });
}

void roll(const Frame& f, const Question& q, Decision& d) {
  const auto dims = q.dims("dims").value_or(std::vector<std::size_t>{});
  const Shape& sizes = d.in[0]->sizes;
  std::vector<std::size_t> shifted;
  for (const std::size_t dim : dims) {
    if (rules::shift_of(q, dim) != 0) shifted.push_back(dim);
  }
  const auto sharded =
      move_along(f, shifted, d, [&](std::size_t dim, const Range& result) -> Halo::Runs {
        const std::int64_t size = sizes[dim];
        const std::int64_t begin = (result.begin - rules::shift_of(q, dim) + size) % size;
        const std::int64_t end = begin + result.size();
        if (end <= size) return {{begin, end}};
        return {{begin, size}, {0, end - size}};
      });
  // A shift by a multiple of the size is none, on pieces of any size.
  Sizes shifts = q.arg("shifts")->toIntVector();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const bool fetched = std::find(sharded.begin(), sharded.end(), dims[i]) != sharded.end();
    if (fetched || rules::shift_of(q, dims[i]) == 0) shifts[i] = 0;
  }
  if (shifts == q.arg("shifts")->toIntVector()) return;
  const auto here = hosted_coordinates(f.lead->world(), f.mesh());
  d.local.arguments.assign(here.size(), {{f.place_of("shifts"), c10::IValue(shifts)}});
}

}  // namespace

void set_window_form(const Frame& f, const Question& q, const std::vector<Shape>& sizes,
                     Decision& d) {
  const std::string& name = f.info.base_name;
  if (name == "convolution") {
    if (q.in(0).dims() == q.in(1).dims()) set_convolution(f, q, sizes, d);
  } else if (name == "convolution_backward") {
    set_convolution_backward(f, q, sizes, d);
  } else if (name == "constant_pad_nd") {
    pad(f, q, sizes, d);
  } else if (name == "flip") {
    flip(f, q, d);
  } else if (name == "roll") {
    roll(f, q, d);
  } else if (name.ends_with("_backward")) {
    set_pool_backward(f, q, d);
  } else {
    set_pool(f, q, sizes, d);
  }
}

}  // namespace intarsia

#include "tensor/local/sharded_windows.h"

#include "intarsia/boxes.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {

bool is_sharded(const Layout& layout, std::size_t dim) {
  std::int64_t parts = 1;
  for (const std::int8_t a : layout.axes_of(static_cast<int>(dim))) {
    parts *= layout.mesh().size(static_cast<std::size_t>(a));
  }
  return parts > 1;
}

Range run_of(const Layout& layout, const Shape& sizes, std::size_t dim, const Coordinate& at) {
  const Boxes held = boxes(layout, sizes, at);
  return held.runs(dim).empty() ? Range{} : held.runs(dim)[0];
}

ShardedWindows::ShardedWindows(const Frame& f, const std::vector<Window>& windows, const Spec& read,
                               const Layout& result, const Shape& result_sizes) {
  World& world = f.lead->world();
  const auto here = hosted_coordinates(world, f.mesh());
  for (const Window& w : windows) {
    if (w.is_alone() || !is_sharded(read->layout, w.dim)) continue;
    const auto edge_at = [&](const Coordinate& at) {
      return Edge(w, run_of(result, result_sizes, w.dim, at), read->sizes[w.dim]);
    };
    Dim dim{w,
            Halo(world, f.info.name, read, w.dim,
                 [&](const Coordinate& at) -> Halo::Runs {
                   const Range need = edge_at(at).need;
                   return need.size() == 0 ? Halo::Runs{} : Halo::Runs{need};
                 }),
            {}};
    for (const Coordinate& at : here) dim.edges.push_back(edge_at(at));
    dims_.push_back(std::move(dim));
  }
}

at::Tensor ShardedWindows::padded(const at::Tensor& window, std::size_t m,
                                  const at::Scalar& fill) const {
  Sizes widths(2 * static_cast<std::size_t>(window.dim()), 0);
  bool any = false;
  for (const Dim& d : dims_) {
    const std::size_t at = widths.size() - 2 * d.window.dim - 2;
    widths[at] = d.edges[m].before();
    widths[at + 1] = d.edges[m].after();
    any |= widths[at] != 0 || widths[at + 1] != 0;
  }
  return any ? at::constant_pad_nd(window, widths, fill) : window;
}

at::Tensor ShardedWindows::stripped(at::Tensor padded, std::size_t m) const {
  for (const Dim& d : dims_) {
    const Edge& e = d.edges[m];
    padded = padded.narrow(static_cast<std::int64_t>(d.window.dim), e.before(), e.need.size());
  }
  return padded;
}

Sizes ShardedWindows::sizes(at::IntArrayRef piece, std::size_t m, bool with_padding) const {
  Sizes out = piece.vec();
  for (const Dim& d : dims_) {
    const Edge& e = d.edges[m];
    out[d.window.dim] = (with_padding ? e.read : e.need).size();
  }
  return out;
}

at::Tensor ShardedWindows::blank(const at::Tensor& piece, std::size_t m) const {
  return at::empty(sizes(piece.sizes(), m, true),
                   piece.options().memory_format(piece.suggest_memory_format()));
}

Sizes ShardedWindows::without_padding(Sizes padding, std::size_t first) const {
  for (const Dim& d : dims_) padding[d.window.dim - first] = 0;
  return padding;
}

const Edge* ShardedWindows::edge(std::size_t dim, std::size_t m) const {
  for (const Dim& d : dims_) {
    if (d.window.dim == dim) return &d.edges[m];
  }
  return nullptr;
}

std::vector<Shape> local_shapes(const Frame& f, const Layout& layout, const Shape& sizes) {
  std::vector<Shape> out;
  for (const Coordinate& at : hosted_coordinates(f.lead->world(), f.mesh())) {
    out.push_back(local_shape(layout, sizes, at));
  }
  return out;
}

bool has_elements(const Shape& sizes) { return c10::multiply_integers(to_ref(sizes)) > 0; }

void replace_stack(torch::jit::Stack& stack, std::vector<at::Tensor> results) {
  stack.clear();
  for (at::Tensor& t : results) stack.emplace_back(std::move(t));
}

}  // namespace intarsia

#include "tensor/window_forms.h"

#include <ATen/ATen.h>

#include <limits>

#include "intarsia/boxes.h"
#include "rules/windows.h"
#include "tensor/decide.h"
#include "tensor/windows.h"

namespace intarsia {
namespace {

using rules::int_list;
using rules::Window;
using Sizes = std::vector<std::int64_t>;

bool is_cut(const Layout& layout, std::size_t dim) {
  std::int64_t parts = 1;
  for (const std::int8_t a : layout.axes_of(static_cast<int>(dim))) {
    parts *= layout.mesh().size(static_cast<std::size_t>(a));
  }
  return parts > 1;
}

/// What a rank holds of a dimension that is not cut in blocks.
Range run_of(const Layout& layout, const Shape& sizes, std::size_t dim, const Coordinate& at) {
  const Boxes held = boxes(layout, sizes, at);
  return held.runs(dim).empty() ? Range{} : held.runs(dim)[0];
}

/// What one rank reads along one cut dimension.
struct Edge {
  Edge(const Window& window, const Range& result, std::int64_t size)
      : result(result), read(window.read(result)), need(read) {
    // All of it may be padding: then an empty run is needed.
    const std::int64_t before = std::clamp<std::int64_t>(-read.begin, 0, read.size());
    need.begin += before;
    need.end -= std::clamp<std::int64_t>(read.end - size, 0, need.size());
  }

  Range result;
  Range read;  ///< with padding
  Range need;  ///< without
  std::int64_t before() const { return need.begin - read.begin; }
  std::int64_t after() const { return read.end - need.end; }
};

/// The cut dimensions along which an op reads windows of one operand.
class CutWindows {
 public:
  /// `read`: the operand, laid out as the op runs; `result`: what is computed from its windows.
  CutWindows(const Frame& f, const std::vector<Window>& windows, const Spec& read,
             const Layout& result, const Shape& result_sizes) {
    World& world = f.lead->world();
    const auto here = hosted_coordinates(world, f.mesh());
    for (const Window& w : windows) {
      if (w.is_alone() || !is_cut(read->layout, w.dim)) continue;
      const auto edge_at = [&](const Coordinate& at) {
        return Edge(w, run_of(result, result_sizes, w.dim, at), read->sizes[w.dim]);
      };
      Dim dim{w,
              Windows(world, f.info.name, read, w.dim,
                      [&](const Coordinate& at) -> Windows::Runs {
                        const Range need = edge_at(at).need;
                        return need.size() == 0 ? Windows::Runs{} : Windows::Runs{need};
                      }),
              {}};
      for (const Coordinate& at : here) dim.edges.push_back(edge_at(at));
      dims_.push_back(std::move(dim));
    }
  }

  bool empty() const { return dims_.empty(); }

  Pieces fetch(Pieces pieces) const {
    for (const Dim& d : dims_) pieces = d.windows.fetch(pieces);
    return pieces;
  }

  Pieces give_back(Pieces windows) const {
    for (auto d = dims_.rbegin(); d != dims_.rend(); ++d) windows = d->windows.give_back(windows);
    return windows;
  }

  /// A window with the padding that the op would have added at the ends of the whole.
  at::Tensor padded(const at::Tensor& window, std::size_t m, const at::Scalar& fill) const {
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

  /// The window without its padding.
  at::Tensor stripped(at::Tensor padded, std::size_t m) const {
    for (const Dim& d : dims_) {
      const Edge& e = d.edges[m];
      padded = padded.narrow(static_cast<std::int64_t>(d.window.dim), e.before(), e.need.size());
    }
    return padded;
  }

  /// The sizes of the window of a piece.
  Sizes sizes(at::IntArrayRef piece, std::size_t m, bool with_padding) const {
    Sizes out = piece.vec();
    for (const Dim& d : dims_) {
      const Edge& e = d.edges[m];
      out[d.window.dim] = (with_padding ? e.read : e.need).size();
    }
    return out;
  }

  /// A window, with its padding, of which only sizes matter.
  at::Tensor blank(const at::Tensor& piece, std::size_t m) const {
    return at::empty(sizes(piece.sizes(), m, true),
                     piece.options().memory_format(piece.suggest_memory_format()));
  }

  /// The same list of numbers, one per dimension from `first` on, with 0 for those that are cut.
  Sizes without_padding(Sizes padding, std::size_t first) const {
    for (const Dim& d : dims_) padding[d.window.dim - first] = 0;
    return padding;
  }

  const Edge* edge(std::size_t dim, std::size_t m) const {
    for (const Dim& d : dims_) {
      if (d.window.dim == dim) return &d.edges[m];
    }
    return nullptr;
  }

 private:
  struct Dim {
    Window window;
    Windows windows;
    std::vector<Edge> edges;  // of the hosted ranks
  };
  std::vector<Dim> dims_;
};

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

// ---- convolution -----------------------------------------------------------------------------

/// The numbers of a convolution on a window.
struct ConvolutionArguments {
  ConvolutionArguments(const Question& q, const CutWindows& cut, const Shape& input)
      : stride(int_list(q, "stride", input.size() - 2)),
        padding(cut.without_padding(int_list(q, "padding", input.size() - 2), 2)),
        dilation(int_list(q, "dilation", input.size() - 2)),
        output_padding(int_list(q, "output_padding", input.size() - 2)),
        transposed(q.flag("transposed")),
        groups(q.integer("groups", 1)),
        channels(input[1]) {}

  /// How many groups a piece with so many channels has.
  std::int64_t groups_of(std::int64_t piece_channels) const {
    return groups == 1 ? 1 : piece_channels / (channels / groups);
  }

  Sizes stride;
  Sizes padding;
  Sizes dilation;
  Sizes output_padding;
  bool transposed;
  std::int64_t groups;
  std::int64_t channels;
};

void convolution(const Frame& f, const Question& q, const std::vector<Shape>& sizes, Decision& d) {
  const CutWindows cut(f, rules::windows(q), d.in[0].with(d.layouts[0]), d.out_layouts[0],
                       sizes[0]);
  // Without channels in, the bias is still a term.
  const bool channels_in = is_cut(d.layouts[0], 1);
  if (cut.empty() && !channels_in) return;
  d.runs_empty = true;
  if (!cut.empty()) {
    d.beforehand = [cut](std::vector<Pieces>& in) { in[0] = cut.fetch(in[0]); };
  }
  const auto out_sizes = local_shapes(f, d.out_layouts[0], sizes[0]);
  d.local_call = [cut, out_sizes, a = ConvolutionArguments(q, cut, d.in[0]->sizes)](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor x = cut.padded(stack[0].toTensor(), m, 0);
    const at::Tensor weight = stack[1].toTensor();
    const auto bias = stack[2].toOptional<at::Tensor>();
    at::Tensor out;
    if (has_elements(out_sizes[m]) && x.numel() > 0 && weight.numel() > 0) {
      out = at::convolution(x, weight, bias, a.stride, a.padding, a.dilation, a.transposed,
                            a.output_padding, a.groups_of(x.size(1)));
    } else {
      out = at::zeros(to_ref(out_sizes[m]), x.options());
      Sizes along(out_sizes[m].size() - 1, 1);
      along[0] = out.size(1);
      if (bias && bias->defined()) out.add_(bias->view(along));
    }
    replace_stack(stack, {out});
  };
}

void convolution_backward(const Frame& f, const Question& q, const std::vector<Shape>& sizes,
                          Decision& d) {
  const CutWindows cut(f, rules::windows(q), d.in[1].with(d.layouts[1]), d.layouts[0],
                       d.in[0]->sizes);
  // Without channels in, the gradient of the bias is still the sum of what comes in.
  const bool channels_in = is_cut(d.layouts[1], 1);
  if (cut.empty() && !channels_in) return;
  d.runs_empty = true;
  const auto mask = q.arg("output_mask")->toBoolList();
  const std::array<bool, 3> wanted{mask.get(0), mask.get(1), mask.get(2)};
  // Of the input itself, only the gradient of the weight depends on values.
  if (!cut.empty() && wanted[1]) {
    d.beforehand = [cut](std::vector<Pieces>& in) { in[1] = cut.fetch(in[1]); };
  }
  const auto weights = local_shapes(f, d.layouts[2], sizes[1]);
  d.local_call = [cut, wanted, weights, a = ConvolutionArguments(q, cut, d.in[1]->sizes)](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor grad = stack[0].toTensor();
    const at::Tensor input = stack[1].toTensor();
    const at::Tensor x = wanted[1] ? cut.padded(input, m, 0) : cut.blank(input, m);
    const at::Tensor weight = stack[2].toTensor();
    at::Tensor of_input;
    at::Tensor of_weight;
    at::Tensor of_bias;
    if (grad.numel() > 0 && x.numel() > 0 && weight.numel() > 0) {
      const Sizes bias_sizes{grad.size(1)};
      std::tie(of_input, of_weight, of_bias) =
          at::convolution_backward(grad, x, weight, bias_sizes, a.stride, a.padding, a.dilation,
                                   a.transposed, a.output_padding, a.groups_of(x.size(1)), wanted);
      if (wanted[0]) of_input = cut.stripped(of_input, m);
    } else {
      if (wanted[0]) of_input = at::zeros(cut.sizes(input.sizes(), m, false), input.options());
      if (wanted[1]) of_weight = at::zeros(to_ref(weights[m]), weight.options());
      if (wanted[2]) of_bias = grad.transpose(0, 1).flatten(1).sum(1);
    }
    replace_stack(stack, {of_input, of_weight, of_bias});
  };
  if (!cut.empty() && wanted[0]) {
    d.afterwards = [cut](std::vector<std::vector<at::Tensor>>& results) {
      const Pieces home = cut.give_back(Pieces(results[0].begin(), results[0].end()));
      results[0].assign(home.begin(), home.end());
    };
  }
}

// ---- pooling ---------------------------------------------------------------------------------

/// A place in a plane, as the number of its element: moves it to another plane.
class PlaneMove {
 public:
  /// `space`: where the plane's dimensions begin; `whole`: sizes of the whole tensor; `local`: of
  /// the window.
  PlaneMove(std::vector<Window> windows, const CutWindows& cut, std::size_t m, const Shape& whole,
            at::IntArrayRef local)
      : windows_(std::move(windows)) {
    for (const Window& w : windows_) {
      const Edge* e = cut.edge(w.dim, m);
      whole_.push_back(whole[w.dim]);
      local_.push_back(local[w.dim]);
      held_.push_back(e != nullptr ? Range{e->before(), e->before() + e->need.size()}
                                   : Range{0, whole[w.dim]});
      shift_.push_back(e != nullptr ? e->read.begin : 0);
    }
  }

  at::Tensor to_whole(const at::Tensor& index) const {
    return move(index, local_, whole_, [&](const at::Tensor& place, std::size_t k) {
      const at::Tensor moved = place + shift_[k];
      // Where all that a window reads is -inf, its first place counts, which is not in padding.
      return shift_[k] < 0 ? at::where(moved.lt(0), moved.remainder(windows_[k].dilation), moved)
                           : moved;
    });
  }

  at::Tensor to_local(const at::Tensor& index, std::string_view op) const {
    return move(index, whole_, local_, [&](const at::Tensor& place, std::size_t k) {
      const at::Tensor moved = place - shift_[k];
      if (moved.is_cpu()) {
        const auto [least, most] = moved.aminmax();
        TORCH_CHECK_INDEX(least.item<std::int64_t>() >= held_[k].begin &&
                              most.item<std::int64_t>() < held_[k].end,
                          "[", op, "] indices lie outside of the windows of their elements, and ",
                          "the dimensions of space are cut; pass those that the forward gave, or ",
                          "redistribute so that batch or channels are cut");
      }
      return moved;
    });
  }

 private:
  template <class Place>
  at::Tensor move(const at::Tensor& index, const Sizes& from, const Sizes& to,
                  const Place& place) const {
    at::Tensor rest = index;
    at::Tensor out;
    std::int64_t scale = 1;
    for (std::size_t k = from.size(); k-- > 0;) {
      const at::Tensor part = place(k == 0 ? rest : rest.remainder(from[k]), k) * scale;
      out = out.defined() ? out + part : part;
      if (k > 0) rest = rest.floor_divide(from[k]);
      scale *= to[k];
    }
    return out;
  }

  std::vector<Window> windows_;
  Sizes whole_;
  Sizes local_;
  Sizes shift_;              // from places in the window to those in the whole
  std::vector<Range> held_;  // of the window, what is not padding
};

at::Scalar lowest(at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) return -std::numeric_limits<double>::infinity();
  std::int64_t value = 0;
  AT_DISPATCH_INTEGRAL_TYPES(dtype, "lowest",
                             [&] { value = std::numeric_limits<scalar_t>::lowest(); });
  return value;
}

/// By how much the means of one rank are larger than those over all taps of a kernel, where its
/// windows end outside of the whole; undefined where none do.
at::Tensor mean_factors(const Question& q, const std::vector<Window>& windows, const Shape& sizes,
                        const Shape& result_sizes, const CutWindows& cut, std::size_t m) {
  const bool with_padding = q.flag("count_include_pad");
  at::Tensor out;
  for (const Window& w : windows) {
    const Edge* e = cut.edge(w.dim, m);
    const Range result = e != nullptr ? e->result : Range{0, result_sizes[w.dim]};
    const std::int64_t size = sizes[w.dim];
    std::vector<double> factors;
    bool any = false;
    for (std::int64_t o = result.begin; o < result.end; ++o) {
      Range read = w.read({o, o + 1});
      read.end = std::min(read.end, size + w.before);
      if (!with_padding) read = {std::max<std::int64_t>(read.begin, 0), std::min(read.end, size)};
      const auto taps = static_cast<double>(w.taps);
      factors.push_back(read.size() > 0 ? taps / static_cast<double>(read.size()) : 1);
      any |= factors.back() != 1;
    }
    if (!any) continue;
    Sizes along(sizes.size() - w.dim, 1);
    along[0] = result.size();
    const at::Tensor factor = at::tensor(factors, at::kDouble).view(along);
    out = out.defined() ? out * factor : factor;
  }
  return out;
}

at::Tensor scaled(const at::Tensor& t, const at::Tensor& factors) {
  if (!factors.defined()) return t;
  const bool half = t.element_size() < 4;
  const at::Tensor f = factors.to(t.device(), half ? at::kFloat : t.scalar_type());
  return half ? (t.to(at::kFloat) * f).to(t.scalar_type()) : t * f;
}

/// What forward and backward of a pool on windows have in common.
struct PoolForm {
  PoolForm(const Frame& f, const Question& q, const CutWindows& cut, const Shape& input,
           const Shape& result)
      : cut(cut),
        windows(rules::windows(q)),
        input(input),
        op(f.info.op),
        is_max(f.info.base_name.starts_with("max")),
        padding_at(f.place_of("padding")) {
    const std::size_t n = windows.size();
    Sizes given = int_list(q, "padding", n);
    given.resize(n, 0);
    padding = cut.without_padding(given, windows[0].dim);
    if (is_max || !q.arg("divisor_override")->isNone()) return;
    divisor_at = f.place_of("divisor_override");
    for (const Window& w : windows) divisor *= w.taps;
    const std::size_t members = hosted_coordinates(f.lead->world(), f.mesh()).size();
    for (std::size_t m = 0; m < members; ++m) {
      factors.push_back(mean_factors(q, windows, input, result, cut, m));
    }
  }

  void set_arguments(torch::jit::Stack& stack) const {
    stack[padding_at] = padding;
    if (divisor_at) stack[*divisor_at] = divisor;
  }

  at::Tensor rescaled(const at::Tensor& t, std::size_t m) const {
    return divisor_at ? scaled(t, factors[m]) : t;
  }

  PlaneMove plane(std::size_t m, at::IntArrayRef window) const {
    return PlaneMove(windows, cut, m, input, window);
  }

  CutWindows cut;
  std::vector<Window> windows;
  Shape input;
  c10::OperatorHandle op;
  bool is_max;
  std::size_t padding_at;
  Sizes padding;
  /// Means are taken over all taps, and then scaled where a window ends outside.
  std::optional<std::size_t> divisor_at = std::nullopt;
  std::int64_t divisor = 1;
  std::vector<at::Tensor> factors = {};
};

void pool(const Frame& f, const Question& q, const std::vector<Shape>& sizes, Decision& d) {
  const CutWindows cut(f, rules::windows(q), d.in[0].with(d.layouts[0]), d.out_layouts[0],
                       sizes[0]);
  if (cut.empty()) return;
  d.runs_empty = true;
  d.beforehand = [cut](std::vector<Pieces>& in) { in[0] = cut.fetch(in[0]); };
  const auto out_sizes = local_shapes(f, d.out_layouts[0], sizes[0]);
  d.local_call = [out_sizes, form = PoolForm(f, q, cut, d.in[0]->sizes, sizes[0])](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor window = stack[0].toTensor();
    if (!has_elements(out_sizes[m])) {
      std::vector<at::Tensor> none{at::empty(to_ref(out_sizes[m]), window.options())};
      if (form.is_max) none.push_back(at::empty(to_ref(out_sizes[m]), at::kLong));
      return replace_stack(stack, none);
    }
    const at::Scalar fill = form.is_max ? lowest(window.scalar_type()) : at::Scalar(0);
    const at::Tensor x = form.cut.padded(window, m, fill);
    stack[0] = x;
    form.set_arguments(stack);
    form.op.callBoxed(&stack);
    if (form.is_max) {
      stack[1] = form.plane(m, x.sizes()).to_whole(stack[1].toTensor());
    } else {
      stack[0] = form.rescaled(stack[0].toTensor(), m);
    }
  };
}

void pool_backward(const Frame& f, const Question& q, Decision& d) {
  const CutWindows cut(f, rules::windows(q), d.in[1].with(d.layouts[1]), d.layouts[0],
                       d.in[0]->sizes);
  if (cut.empty()) return;
  d.runs_empty = true;
  const auto indices = argument_index(f.info.op.schema(), "indices");
  d.local_call = [indices, name = f.info.name,
                  form = PoolForm(f, q, cut, d.in[1]->sizes, d.in[0]->sizes)](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor grad = stack[0].toTensor();
    const at::Tensor piece = stack[1].toTensor();
    if (grad.numel() == 0) {
      const Sizes sizes = form.cut.sizes(piece.sizes(), m, false);
      return replace_stack(stack, {at::zeros(sizes, grad.options())});
    }
    const at::Tensor window = form.cut.blank(piece, m);
    stack[0] = form.rescaled(grad, m);
    stack[1] = window;
    form.set_arguments(stack);
    if (indices) {
      c10::IValue& index = stack[*indices];
      index = form.plane(m, window.sizes()).to_local(index.toTensor(), name);
    }
    form.op.callBoxed(&stack);
    stack[0] = form.cut.stripped(stack[0].toTensor(), m);
  };
  d.afterwards = [cut](std::vector<std::vector<at::Tensor>>& results) {
    const Pieces home = cut.give_back(Pieces(results[0].begin(), results[0].end()));
    results[0].assign(home.begin(), home.end());
  };
}

// ---- padding and moving along a dimension ----------------------------------------------------

void pad(const Frame& f, const Question& q, const std::vector<Shape>& sizes, Decision& d) {
  const std::vector<Window> windows = rules::windows(q);
  const CutWindows cut(f, windows, d.in[0].with(d.layouts[0]), d.out_layouts[0], sizes[0]);
  if (cut.empty()) return;
  d.runs_empty = true;
  d.beforehand = [cut](std::vector<Pieces>& in) { in[0] = cut.fetch(in[0]); };
  const std::size_t members = hosted_coordinates(f.lead->world(), f.mesh()).size();
  for (std::size_t m = 0; m < members; ++m) {
    Sizes widths = q.arg("pad")->toIntVector();
    for (const Window& w : windows) {
      const Edge* e = cut.edge(w.dim, m);
      if (e == nullptr) continue;
      const std::size_t at = 2 * (sizes[0].size() - 1 - w.dim);
      widths[at] = e->before();
      widths[at + 1] = e->after();
    }
    d.local_arguments.push_back({{f.place_of("pad"), c10::IValue(widths)}});
  }
}

/// Sets the exchange for ops that only move elements along dimensions: `reads` says from where, for
/// a run of the result along a dimension of some size. Returns the dimensions that are cut.
template <class Reads>
std::vector<std::size_t> move_along(const Frame& f, const std::vector<std::size_t>& dims,
                                    Decision& d, const Reads& reads) {
  const Spec spec = d.in[0].with(d.layouts[0]);
  std::vector<std::size_t> cut;
  std::vector<Windows> windows;
  for (const std::size_t dim : dims) {
    const bool again = std::find(cut.begin(), cut.end(), dim) != cut.end();
    if (again || !is_cut(d.layouts[0], dim)) continue;
    cut.push_back(dim);
    windows.emplace_back(f.lead->world(), f.info.name, spec, dim,
                         [&](const Coordinate& at) -> Windows::Runs {
                           const Range result = run_of(d.out_layouts[0], spec->sizes, dim, at);
                           return result.size() == 0 ? Windows::Runs{} : reads(dim, result);
                         });
  }
  if (windows.empty()) return cut;
  d.runs_empty = true;
  d.beforehand = [windows](std::vector<Pieces>& in) {
    for (const Windows& w : windows) in[0] = w.fetch(in[0]);
  };
  return cut;
}

void flip(const Frame& f, const Question& q, Decision& d) {
  const Shape& sizes = d.in[0]->sizes;
  // The op itself turns the window round.
  move_along(f, q.dims("dims").value_or(std::vector<std::size_t>{}), d,
             [&](std::size_t dim, const Range& result) -> Windows::Runs {
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
  const auto cut =
      move_along(f, shifted, d, [&](std::size_t dim, const Range& result) -> Windows::Runs {
        const std::int64_t size = sizes[dim];
        const std::int64_t begin = (result.begin - rules::shift_of(q, dim) + size) % size;
        const std::int64_t end = begin + result.size();
        if (end <= size) return {{begin, end}};
        return {{begin, size}, {0, end - size}};
      });
  // A shift by a multiple of the size is none, on pieces of any size.
  Sizes shifts = q.arg("shifts")->toIntVector();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const bool fetched = std::find(cut.begin(), cut.end(), dims[i]) != cut.end();
    if (fetched || rules::shift_of(q, dims[i]) == 0) shifts[i] = 0;
  }
  if (shifts == q.arg("shifts")->toIntVector()) return;
  const auto here = hosted_coordinates(f.lead->world(), f.mesh());
  d.local_arguments.assign(here.size(), {{f.place_of("shifts"), c10::IValue(shifts)}});
}

}  // namespace

void set_window_form(const Frame& f, const Question& q, const std::vector<Shape>& sizes,
                     Decision& d) {
  const std::string& name = f.info.base_name;
  if (name == "convolution") {
    if (q.in(0).dims() == q.in(1).dims()) convolution(f, q, sizes, d);
  } else if (name == "convolution_backward") {
    convolution_backward(f, q, sizes, d);
  } else if (name == "constant_pad_nd") {
    pad(f, q, sizes, d);
  } else if (name == "flip") {
    flip(f, q, d);
  } else if (name == "roll") {
    roll(f, q, d);
  } else if (name.ends_with("_backward")) {
    pool_backward(f, q, d);
  } else {
    pool(f, q, sizes, d);
  }
}

}  // namespace intarsia

#include "tensor/local/pool_form.h"

#include <limits>

#include "tensor/local/sharded_windows.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

using rules::int_list;

/// A place in a plane, as the number of its element: moves it to another plane.
class PlaneMove {
 public:
  /// `full`: sizes of the full tensor; `local`: of the window.
  PlaneMove(std::vector<Window> windows, const ShardedWindows& sharded, std::size_t m,
            const Shape& full, at::IntArrayRef local)
      : windows_(std::move(windows)) {
    for (const Window& w : windows_) {
      const Edge* e = sharded.edge(w.dim, m);
      full_.push_back(full[w.dim]);
      local_.push_back(local[w.dim]);
      held_.push_back(e != nullptr ? Range{e->before(), e->before() + e->need.size()}
                                   : Range{0, full[w.dim]});
      shift_.push_back(e != nullptr ? e->read.begin : 0);
    }
  }

  at::Tensor to_full(const at::Tensor& index) const {
    return move(index, local_, full_, [&](const at::Tensor& place, std::size_t k) {
      const at::Tensor moved = place + shift_[k];
      // Where all that a window reads is -inf, its first place counts, which is not in padding.
      return shift_[k] < 0 ? at::where(moved.lt(0), moved.remainder(windows_[k].dilation), moved)
                           : moved;
    });
  }

  at::Tensor to_local(const at::Tensor& index, std::string_view op) const {
    return move(index, full_, local_, [&](const at::Tensor& place, std::size_t k) {
      const at::Tensor moved = place - shift_[k];
      if (moved.is_cpu()) {
        const auto [least, most] = moved.aminmax();
        TORCH_CHECK_INDEX(least.item<std::int64_t>() >= held_[k].begin &&
                              most.item<std::int64_t>() < held_[k].end,
                          "[", op, "] indices are outside of the windows of their elements, and ",
                          "the dimensions of space are sharded; pass those that the forward ",
                          "gave, or redistribute so that batch or channels are sharded");
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
  Sizes full_;
  Sizes local_;
  Sizes shift_;              // from places in the window to those in the full tensor
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
/// windows end outside of the full tensor; undefined where none do.
at::Tensor mean_factors(const Question& q, const std::vector<Window>& windows, const Shape& sizes,
                        const Shape& result_sizes, const ShardedWindows& sharded, std::size_t m) {
  const bool with_padding = q.flag("count_include_pad");
  at::Tensor out;
  for (const Window& w : windows) {
    const Edge* e = sharded.edge(w.dim, m);
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
  PoolForm(const Frame& f, const Question& q, const ShardedWindows& sharded, const Shape& input,
           const Shape& result)
      : sharded(sharded),
        windows(rules::windows(q)),
        input(input),
        op(f.info.op),
        is_max(f.info.base_name.starts_with("max")),
        padding_at(f.place_of("padding")) {
    const std::size_t n = windows.size();
    Sizes given = int_list(q, "padding", n);
    given.resize(n, 0);
    padding = sharded.without_padding(given, windows[0].dim);
    if (is_max || !q.arg("divisor_override")->isNone()) return;
    divisor_at = f.place_of("divisor_override");
    for (const Window& w : windows) divisor *= w.taps;
    const std::size_t members = hosted_coordinates(f.lead->world(), f.mesh()).size();
    for (std::size_t m = 0; m < members; ++m) {
      factors.push_back(mean_factors(q, windows, input, result, sharded, m));
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
    return PlaneMove(windows, sharded, m, input, window);
  }

  ShardedWindows sharded;
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

}  // namespace

void set_pool(const Frame& f, const Question& q, const std::vector<Shape>& sizes, Decision& d) {
  const ShardedWindows sharded(f, rules::windows(q), d.in[0].with(d.layouts[0]), d.out_layouts[0],
                               sizes[0]);
  if (sharded.empty()) return;
  d.local.runs_empty = true;
  d.local.beforehand = [sharded](std::vector<Pieces>& in) { in[0] = sharded.fetch(in[0]); };
  const auto out_sizes = local_shapes(f, d.out_layouts[0], sizes[0]);
  d.local.call = [out_sizes, form = PoolForm(f, q, sharded, d.in[0]->sizes, sizes[0])](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor window = stack[0].toTensor();
    if (!has_elements(out_sizes[m])) {
      std::vector<at::Tensor> none{at::empty(to_ref(out_sizes[m]), window.options())};
      if (form.is_max) none.push_back(at::empty(to_ref(out_sizes[m]), at::kLong));
      return replace_stack(stack, none);
    }
    const at::Scalar fill = form.is_max ? lowest(window.scalar_type()) : at::Scalar(0);
    const at::Tensor x = form.sharded.padded(window, m, fill);
    stack[0] = x;
    form.set_arguments(stack);
    form.op.callBoxed(&stack);
    if (form.is_max) {
      stack[1] = form.plane(m, x.sizes()).to_full(stack[1].toTensor());
    } else {
      stack[0] = form.rescaled(stack[0].toTensor(), m);
    }
  };
}

void set_pool_backward(const Frame& f, const Question& q, Decision& d) {
  const ShardedWindows sharded(f, rules::windows(q), d.in[1].with(d.layouts[1]), d.layouts[0],
                               d.in[0]->sizes);
  if (sharded.empty()) return;
  d.local.runs_empty = true;
  const auto indices = argument_index(f.info.op.schema(), "indices");
  d.local.call = [indices, name = f.info.name,
                  form = PoolForm(f, q, sharded, d.in[1]->sizes, d.in[0]->sizes)](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor grad = stack[0].toTensor();
    const at::Tensor piece = stack[1].toTensor();
    if (grad.numel() == 0) {
      const Sizes sizes = form.sharded.sizes(piece.sizes(), m, false);
      return replace_stack(stack, {at::zeros(sizes, grad.options())});
    }
    const at::Tensor window = form.sharded.blank(piece, m);
    stack[0] = form.rescaled(grad, m);
    stack[1] = window;
    form.set_arguments(stack);
    if (indices) {
      c10::IValue& index = stack[*indices];
      index = form.plane(m, window.sizes()).to_local(index.toTensor(), name);
    }
    form.op.callBoxed(&stack);
    stack[0] = form.sharded.stripped(stack[0].toTensor(), m);
  };
  d.local.afterwards = [sharded](std::vector<std::vector<at::Tensor>>& results) {
    const Pieces home = sharded.give_back(Pieces(results[0].begin(), results[0].end()));
    results[0].assign(home.begin(), home.end());
  };
}

}  // namespace intarsia

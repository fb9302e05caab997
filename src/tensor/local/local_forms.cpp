#include "tensor/local/local_forms.h"

#include <ATen/ATen.h>

#include "intarsia/boxes.h"
#include "rules/families.h"
#include "tensor/local/window_forms.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

/// The axes on which an operand is sharded and a result is partial: those over which it sums.
std::vector<std::size_t> summed_axes(const Layout& in, const Layout& out) {
  std::vector<std::size_t> axes;
  for (std::size_t a = 0; a < in.mesh().axes(); ++a) {
    if (in.placement(a).is_shard() && out.placement(a).is_partial()) axes.push_back(a);
  }
  return axes;
}

std::vector<std::int64_t> as_vector(const std::vector<std::size_t>& values) {
  return {values.begin(), values.end()};
}

/// mean over sharded dimensions: the sum of this rank's elements, divided by the number of all.
void mean_from_sum(const Frame& f, const Question& q, Decision& d) {
  if (summed_axes(d.layouts[0], d.out_layouts[0]).empty()) return;
  const at::ScalarType type =
      f.argument("dtype")->isNone() ? q.in(0).dtype : f.argument("dtype")->toScalarType();
  if (is_integral(type)) {
    f.refuse("a mean of integers is not an integer", "pass a floating dtype");
  }
  const auto dims = q.dims();
  std::int64_t count = 1;
  for (std::size_t i = 0; i < q.in(0).dims(); ++i) {
    const bool reduced = !dims || std::find(dims->begin(), dims->end(), i) != dims->end();
    if (reduced) count *= q.in(0).sizes[i];
  }
  const std::vector<std::int64_t> over = dims ? as_vector(*dims) : std::vector<std::int64_t>{};
  const bool keep = q.flag("keepdim");
  const std::size_t dtype = f.place_of("dtype");
  d.local.call = [=](std::size_t, torch::jit::Stack& stack) {
    const auto type = stack[dtype].isNone() ? std::optional<at::ScalarType>()
                                            : std::optional(stack[dtype].toScalarType());
    at::Tensor out = at::sum(stack[0].toTensor(), over, keep, type).div(count);
    stack.clear();
    stack.emplace_back(std::move(out));
  };
}

/// A loss that is a mean over all elements of sharded tensors.
void loss_mean_from_sum(const Frame& f, const Question& q, Decision& d) {
  const bool backward = f.info.base_name.ends_with("_backward");
  const std::size_t self = backward ? 1 : 0;
  if (q.integer("reduction", 1) != at::Reduction::Mean) return;
  if (d.layouts[self].least_dims() == 0) return;
  const std::size_t reduction = f.place_of("reduction");
  const auto count = static_cast<double>(d.in[self]->numel);
  d.local.call = [reduction, count, op = f.info.op](std::size_t, torch::jit::Stack& stack) {
    stack[reduction] = static_cast<std::int64_t>(at::Reduction::Sum);
    op.callBoxed(&stack);
    stack[0] = stack[0].toTensor().div(count);
  };
}

/// The same where elements have weights, whose sum must be known to all before dividing.
void loss_from_sum(const Frame& f, const Question& q, Decision& d) {
  if (q.integer("reduction", 1) != at::Reduction::Mean) return;
  const auto axes = summed_axes(d.layouts[0], d.out_layouts[0]);
  if (axes.empty()) return;
  Layout partial = d.out_layouts[1];
  for (const std::size_t a : axes) partial = partial.with(a, Placement::partial());
  d.out_layouts[1] = partial;
  const auto here = hosted_coordinates(f.lead->world(), f.mesh());
  d.local.arguments.assign(
      here.size(), {{f.place_of("reduction"), static_cast<std::int64_t>(at::Reduction::Sum)}});
  const Spec summed = d.results[1].specs[0].with(partial);
  const PlanPointer plan = f.state().plan(summed, d.results[1].specs[0]->layout);
  d.local.afterwards = [plan, state = &f.state(), name = f.info.name,
                        spec = summed](std::vector<std::vector<at::Tensor>>& results) {
    if (results[1].empty()) return;
    // The sum of weights is all that is sent; it belongs to the op.
    const Pieces total = state->move(spec.with(results[1][0].scalar_type()),
                                     Pieces(results[1].begin(), results[1].end()), plan,
                                     {.op = name, .implicit = false});
    for (std::size_t m = 0; m < total.size(); ++m) {
      results[1][m] = total[m];
      results[0][m] = results[0][m].div(total[m]);
    }
  };
}

/// The rows of a tensor that a rank holds, and where they are among those.
class HeldRows {
 public:
  HeldRows(const Layout& layout, const Shape& sizes, std::size_t dim, const Coordinate& at)
      : size_(sizes[dim]) {
    const Boxes held = boxes(layout, sizes, at);
    runs_.assign(held.runs(dim).begin(), held.runs(dim).end());
    for (const Range& r : runs_) count_ += r.size();
  }

  std::int64_t count() const { return count_; }

  /// An index into all rows as one into those held, `foreign` for others; and which are held.
  std::pair<at::Tensor, at::Tensor> find(const at::Tensor& index, std::int64_t foreign) const {
    const at::Tensor from_front = at::where(index.lt(0), index + size_, index);
    // Kernels look at this themselves, but would look at places in the piece.
    if (index.numel() > 0 && index.is_cpu()) {
      const auto [least, most] = from_front.aminmax();
      TORCH_CHECK_INDEX(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() < size_,
                        "index out of range: from ", index.min().item<std::int64_t>(), " to ",
                        index.max().item<std::int64_t>(), " in a dimension of ", size_);
    }
    at::Tensor row = at::full_like(index, foreign);
    at::Tensor mine = at::zeros_like(index, at::kBool);
    std::int64_t first = 0;
    for (const Range& r : runs_) {
      const at::Tensor inside = from_front.ge(r.begin).logical_and(from_front.lt(r.end));
      row = at::where(inside, from_front - (r.begin - first), row);
      mine = mine.logical_or(inside);
      first += r.size();
    }
    return {row, mine};
  }

 private:
  std::int64_t size_;
  std::int64_t count_ = 0;
  std::vector<Range> runs_;
};

std::vector<HeldRows> held_rows(const Frame& f, const Layout& layout, const Shape& sizes,
                                std::size_t dim) {
  std::vector<HeldRows> out;
  for (const Coordinate& at : hosted_coordinates(f.lead->world(), f.mesh())) {
    out.emplace_back(layout, sizes, dim, at);
  }
  return out;
}

/// The one index tensor of an op, which may be in a list.
class IndexArgument {
 public:
  explicit IndexArgument(const Frame& f)
      : place_(f.place_of(argument_index(f.info.op.schema(), "index") ? "index" : "indices")) {
    const c10::IValue& value = f.argument(place_);
    if (!value.isList()) return;
    for (std::size_t i = 0; i < value.toListRef().size(); ++i) {
      const c10::IValue& e = value.toListRef()[i];
      if (e.isTensor() && e.toTensor().defined()) element_ = i;
    }
  }

  at::Tensor get(const torch::jit::Stack& stack) const {
    return (element_ ? stack[place_].toListRef()[*element_] : stack[place_]).toTensor();
  }

  void set(torch::jit::Stack& stack, const at::Tensor& index) const {
    if (!element_) {
      stack[place_] = index;
      return;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (std::size_t i = 0; i < stack[place_].toListRef().size(); ++i) {
      list.push_back(i == *element_ ? std::optional(index) : std::nullopt);
    }
    stack[place_] = list;
  }

 private:
  std::size_t place_;
  std::optional<std::size_t> element_;
};

/// A lookup in a table of which this rank has some rows: what it does not have is 0.
void rows_of_table(const Frame& f, const Question& q, Decision& d) {
  if (summed_axes(d.layouts[0], d.out_layouts[0]).empty()) return;
  const std::size_t dim = rules::table_dim(q).value();
  const auto held = held_rows(f, d.layouts[0], d.in[0]->sizes, dim);
  const bool all_dims = f.info.base_name == "gather";   // the index has all dimensions
  const bool lookup = f.info.base_name == "embedding";  // its dimensions come first
  const bool one_row = f.info.base_name == "index_select" && q.in(1).dims() == 0;
  const auto at = static_cast<std::int64_t>(all_dims || lookup ? 0 : dim);
  d.local.call = [=, index = IndexArgument(f), op = f.info.op](std::size_t m,
                                                               torch::jit::Stack& stack) {
    auto [row, mine] = held[m].find(index.get(stack), 0);
    index.set(stack, row);
    op.callBoxed(&stack);
    const at::Tensor out = stack[0].toTensor();
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(at), 1);
    for (const std::int64_t n : mine.sizes()) sizes.push_back(n);
    if (one_row) sizes.push_back(1);
    sizes.resize(std::max(sizes.size(), static_cast<std::size_t>(out.dim())), 1);
    stack[0] = out.masked_fill(mine.logical_not().view(sizes), 0);
  };
}

/// Writes by index to a tensor of which this rank has some rows: those for others go to a spare
/// row, which is dropped.
void rows_of_result(const Frame& f, const Question& q, Decision& d) {
  const auto where = rules::table_dim(q);
  if (!where || d.layouts[0].axes_of(static_cast<int>(*where)).size() == 0) return;
  const std::size_t table_dim = *where;
  const auto dim = static_cast<std::int64_t>(table_dim);
  const auto held = held_rows(f, d.layouts[0], d.in[0]->sizes, table_dim);
  const bool in_place = f.info.in_place;
  d.local.call = [=, index = IndexArgument(f), op = f.info.op](std::size_t m,
                                                               torch::jit::Stack& stack) {
    const at::Tensor self = stack[0].toTensor();
    std::vector<std::int64_t> spare = self.sizes().vec();
    spare[table_dim] = 1;
    stack[0] = at::cat({self, at::zeros(spare, self.options())}, dim);
    index.set(stack, held[m].find(index.get(stack), held[m].count()).first);
    op.callBoxed(&stack);
    at::Tensor out = stack[0].toTensor().narrow(dim, 0, held[m].count());
    stack[0] = in_place ? self.copy_(out) : out.contiguous();
  };
}

/// The matrix, or a copy of it whose rows, or columns, begin at multiples of 16 bytes.
at::Tensor aligned(const at::Tensor& t) {
  constexpr std::int64_t kBytes = 16;
  const auto unit = kBytes / static_cast<std::int64_t>(t.element_size());
  const bool in_columns = t.stride(-1) != 1 && t.stride(-2) == 1;
  const at::Tensor rows = in_columns ? t.transpose(-1, -2) : t;
  bool fits = rows.stride(-1) == 1;
  for (std::int64_t d = 0; d + 1 < rows.dim(); ++d) fits &= rows.stride(d) % unit == 0;
  if (fits) return t;
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  const std::int64_t width = sizes.back();
  sizes.back() = (width + unit - 1) / unit * unit;
  const at::Tensor copy = at::empty(sizes, t.options()).narrow(-1, 0, width).copy_(rows);
  return in_columns ? copy.transpose(-1, -2) : copy;
}

void align_operands(const Frame& f, Decision& d) {
  if (d.layouts[0].least_dims() == 0 && d.layouts[1].least_dims() == 0) return;
  d.local.call = [op = f.info.op](std::size_t, torch::jit::Stack& stack) {
    for (std::size_t i = 0; i < 2; ++i) stack[i] = aligned(stack[i].toTensor());
    op.callBoxed(&stack);
  };
}

/// A copy of matrices with a gap after each row, so that they are not contiguous.
at::Tensor with_gaps(const at::Tensor& t) {
  std::vector<std::int64_t> sizes = t.sizes().vec();
  const std::int64_t width = sizes.back()++;
  return at::empty(sizes, t.options()).narrow(-1, 0, width).copy_(t);
}

/// Pieces are contiguous as soon as the full tensor is; where it is not, they must not be either.
void keep_contiguity(const Frame& f, Decision& d) {
  if (d.in[0]->contiguous) return;
  d.local.call = [op = f.info.op](std::size_t, torch::jit::Stack& stack) {
    if (stack[0].toTensor().is_contiguous()) stack[0] = with_gaps(stack[0].toTensor());
    op.callBoxed(&stack);
  };
}

bool looks_channels_last(const at::Tensor& t) {
  const bool last = t.is_contiguous(at::MemoryFormat::ChannelsLast) ||
                    t.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  return last && !t.is_contiguous();
}

/// A piece with fewer elements may look channels last where the full tensor does not. ATen's
/// gradient of batch_norm then reads what is contiguous in the wrong order.
void keep_memory_format(const Frame& f, Decision& d) {
  std::vector<std::size_t> others;  // neither contiguous nor channels last
  for (std::size_t i = 0; i < d.in.size(); ++i) {
    if (!d.in[i] || f.tensors[i].written || f.tensors[i].is_out) continue;
    const Geometry& g = d.in[i]->geometry;
    const bool last = g.channels_last_contiguous || g.channels_last_3d_contiguous;
    if (!g.contiguous && !last && d.in[i]->sizes.size() >= 4) others.push_back(i);
  }
  if (others.empty()) return;
  d.local.call = [op = f.info.op, others](std::size_t, torch::jit::Stack& stack) {
    for (const std::size_t i : others) {
      const at::Tensor& piece = stack[i].toTensor();
      if (looks_channels_last(piece)) stack[i] = piece.contiguous();
    }
    op.callBoxed(&stack);
  };
}

void replace_sizes(const Frame& f, std::string_view name, const Shape& sizes, const Layout& layout,
                   Decision& d) {
  const std::size_t index = f.place_of(name);
  for (const Coordinate& at : hosted_coordinates(f.lead->world(), f.mesh())) {
    const Shape local = local_shape(layout, sizes, at);
    d.local.arguments.push_back({{index, c10::IValue(to_ref(local).vec())}});
  }
}

/// An integer that says a size of an operand says that of the piece.
void replace_size(const Frame& f, const RuleOptions::LocalSize& size, Decision& d) {
  const std::size_t index = f.place_of(size.argument);
  const auto here = hosted_coordinates(f.lead->world(), f.mesh());
  d.local.arguments.resize(here.size());
  for (std::size_t m = 0; m < here.size(); ++m) {
    const Shape local = local_shape(d.layouts[size.operand], d.in[size.operand]->sizes, here[m]);
    d.local.arguments[m].emplace_back(index, local[size.dim]);
  }
}

}  // namespace

void set_local_form(const Frame& f, const Rule& rule, const Question& q,
                    const std::vector<Shape>& sizes, Decision& d) {
  switch (rule.options.form) {
    case LocalForm::same:
      break;
    case LocalForm::mean_from_sum:
      if (f.info.base_name == "mean") {
        mean_from_sum(f, q, d);
      } else {
        loss_mean_from_sum(f, q, d);
      }
      break;
    case LocalForm::loss_from_sum:
      loss_from_sum(f, q, d);
      break;
    case LocalForm::rows_of_table:
      rows_of_table(f, q, d);
      break;
    case LocalForm::rows_of_result:
      rows_of_result(f, q, d);
      break;
    case LocalForm::aligned:
      align_operands(f, d);
      break;
    case LocalForm::scan:
      set_scan(f, q, d);
      break;
    case LocalForm::window:
      set_window_form(f, q, sizes, d);
      break;
    case LocalForm::contiguity:
    case LocalForm::memory_format:
      set_form_of_strides(f, rule, d);
      break;
  }
  if (!rule.options.sizes_argument.empty() && d.out_layouts[0].least_dims() > 0) {
    replace_sizes(f, rule.options.sizes_argument, sizes[0], d.out_layouts[0], d);
  }
  for (const auto& size : rule.options.local_sizes) {
    if (d.layouts[size.operand].least_dims() > 0) replace_size(f, size, d);
  }
}

void set_form_of_strides(const Frame& f, const Rule& rule, Decision& d) {
  if (rule.options.form == LocalForm::contiguity) keep_contiguity(f, d);
  if (rule.options.form == LocalForm::memory_format) keep_memory_format(f, d);
}

void set_local_factory(const Frame& f, Decision& d) {
  const Spec& spec = d.results[0].specs[0];
  const Layout& layout = spec->layout;
  if (layout.least_dims() == 0 || f.argument("size") == nullptr) return;
  replace_sizes(f, "size", spec->sizes, layout, d);
  if (f.argument("stride") == nullptr) return;
  const std::size_t index = f.place_of("stride");
  for (auto& replaced : d.local.arguments) {
    const Shape local = to_shape(at::IntArrayRef(replaced[0].second.toIntVector()));
    replaced.emplace_back(index, to_ref(strides_in_order_of(local, *spec)).vec());
  }
}

}  // namespace intarsia

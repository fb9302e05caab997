// Families of moments, norms, positions of extremes, and normalisation.
#include <algorithm>
#include <limits>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

const Placement kReplicated = Placement::replicate();

/// Bytes of some number of values for each byte of operand 0.
double share_of(const Question& q, double values) {
  return values / static_cast<double>(std::max<std::int64_t>(element_count(q.in(0).sizes), 1));
}

/// Refuses a parameter that has not these sizes.
void check_parameter(const Question& q, std::string_view name, const Shape& sizes) {
  const auto i = q.operand(name);
  if (!i || q.in(*i).sizes == sizes) return;
  fail<ValueError>(q.schema().name(), name, " has sizes (", join(q.in(*i).sizes), ") instead of (",
                   join(sizes), ")");
}

}  // namespace

// ---- moments ---------------------------------------------------------------------------------

Rows variance(const Question& q) {
  Rows rows = reduce_unsharded(q);
  const auto dims = q.dims();
  // The square root is taken of the reduced sum, and the sum of squares needs the reduced mean.
  const bool is_var = base_name(q).starts_with("var");
  std::vector<Placement> out{is_var ? Placement::partial() : kReplicated};
  if (q.results() == 2) out.push_back(kReplicated);
  add_reduced(q, dims, out, (is_var ? 1 : 2) * reduced_share(q, dims), rows);
  return rows;
}

// ---- positions of extremes -------------------------------------------------------------------

// The value, where it is a result, and its first position.
Rows arg_extremum(const Question& q) {
  Rows rows = reduce_unsharded(q);
  const auto dims = q.dims();
  std::vector<Placement> out(q.results() - 1, kReplicated);
  out.push_back(Placement::partial(Reduction::min));
  add_reduced(q, dims, out, reduced_share(q, dims), rows);
  return rows;
}

Rows both_extremes(const Question& q) {
  Rows rows;
  const auto dims = q.dims();
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const int place = after_reduction(q, dims, d);
    Row row = split({static_cast<int>(d)}, {place, place});
    if (place < 0) {
      row.out = {Placement::partial(Reduction::min), Placement::partial(Reduction::max)};
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// ---- norms -----------------------------------------------------------------------------------

Rows vector_norm(const Question& q) {
  const c10::IValue* order = q.arg("ord") != nullptr ? q.arg("ord") : q.arg("p");
  const double p = order == nullptr || order->isNone() ? 2.0 : order->toScalar().toDouble();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (p == 0) return reduction(q, Placement::partial(), false);
  if (p == kInfinity) return reduction(q, Placement::partial(Reduction::max), false);
  if (p == -kInfinity) return reduction(q, Placement::partial(Reduction::min), false);
  if (p > 0) return reduction(q, Placement::partial_norm(p), false);
  Rows rows = reduce_unsharded(q);
  const auto dims = q.dims();
  add_reduced(q, dims, {kReplicated}, reduced_share(q, dims), rows);
  return rows;
}

// Norms of what is left when `dim` is fixed.
Rows renorm(const Question& q) {
  const std::size_t dim = q.dim();
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const int at = static_cast<int>(d);
    Row row = split({at}, {at});
    rows.push_back(
        d == dim ? row : by_formula(row, share_of(q, static_cast<double>(q.in(0).sizes[dim]))));
  }
  return rows;
}

// ---- layer norm ------------------------------------------------------------------------------

// Backward of these is linear in the gradient, but a partial gradient would make all results
// partial: three reductions later, instead of one now. So no row has a partial gradient.

namespace {

Shape normalized_sizes(const Question& q) {
  return shape_of(q.arg("normalized_shape")->toIntVector());
}

/// How many dimensions come before those that are normalised.
std::size_t dims_before(const Question& q, const Shape& input) {
  const Shape normalized = normalized_sizes(q);
  const bool fits = normalized.size() <= input.size() &&
                    std::equal(normalized.begin(), normalized.end(),
                               input.end() - static_cast<std::ptrdiff_t>(normalized.size()));
  if (!fits || normalized.empty()) {
    fail<ValueError>(q.schema().name(), "an input of sizes (", join(input),
                     ") does not end in normalized_shape (", join(normalized), ")");
  }
  return input.size() - normalized.size();
}

}  // namespace

// input, weight, bias -> result, mean, rstd
Rows layer_norm(const Question& q) {
  const std::size_t before = dims_before(q, q.in(0).sizes);
  const auto per = static_cast<double>(element_count(q.in(0).sizes, before));
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const int at = static_cast<int>(d);
    if (d < before) {
      rows.push_back(split({at, -1, -1}, {at, at, at}));
      continue;
    }
    const int own = static_cast<int>(d - before);
    rows.push_back(by_formula(
        split({at, given(q, 1) ? own : -1, given(q, 2) ? own : -1}, {at, -1, -1}, kReplicated),
        2 / std::max(per, 1.0)));
  }
  return rows;
}

Sizes layer_norm_sizes(const Question& q) {
  const Shape& x = q.in(0).sizes;
  Shape stat = x;
  for (std::size_t d = dims_before(q, x); d < x.size(); ++d) stat[d] = 1;
  check_parameter(q, "weight", normalized_sizes(q));
  check_parameter(q, "bias", normalized_sizes(q));
  return {x, stat, stat};
}

// grad_out, input, mean, rstd, weight, bias -> grads of input, weight, bias
Rows layer_norm_backward(const Question& q) {
  const std::size_t before = dims_before(q, q.in(1).sizes);
  const auto per = static_cast<double>(element_count(q.in(1).sizes, before));
  Rows rows;
  for (std::size_t d = 0; d < q.in(1).dims(); ++d) {
    const int at = static_cast<int>(d);
    if (d < before) {
      rows.push_back(split({at, at, at, at, -1, -1}, {at, -1, -1}));
      continue;
    }
    const int own = static_cast<int>(d - before);
    rows.push_back(by_formula(
        split({at, at, -1, -1, given(q, 4) ? own : -1, given(q, 5) ? own : -1}, {at, own, own}),
        2 / std::max(per, 1.0)));
  }
  return rows;
}

Sizes layer_norm_backward_sizes(const Question& q) {
  const Shape w = normalized_sizes(q);
  return {q.in(1).sizes, w, w};
}

// ---- group norm ------------------------------------------------------------------------------

namespace {

/// Whether the integers of the call say what the input's sizes say: batch first, then channels, in
/// groups of equal size.
bool is_batch_of_channels(const Question& q, const Shape& x) {
  const std::int64_t groups = q.integer("group");
  return groups > 0 && q.integer("C") % groups == 0 && x.size() >= 2 && x[0] == q.integer("N") &&
         x[1] == q.integer("C") && element_count(x, 2) == q.integer("HxW");
}

/// Two values for each group, to be reduced.
double group_share(const Question& q) {
  return share_of(q, 2 * static_cast<double>(q.integer("N") * q.integer("group")));
}

}  // namespace

// input, weight, bias -> result, mean, rstd
Rows group_norm(const Question& q) {
  if (!is_batch_of_channels(q, q.in(0).sizes)) return {};
  Rows rows{split({0, -1, -1}, {0, 0, 0})};
  // Where each rank holds all channels of its groups, the groups are sharded too: the formula finds
  // out.
  const int of_channel[] = {given(q, 1) ? 0 : -1, given(q, 2) ? 0 : -1};
  rows.push_back(by_formula(split({1, of_channel[0], of_channel[1]}, {1, -1, -1}, kReplicated),
                            group_share(q)));
  for (int d = 2; d < static_cast<int>(q.in(0).dims()); ++d) {
    rows.push_back(by_formula(split({d, -1, -1}, {d, -1, -1}, kReplicated), group_share(q)));
  }
  return rows;
}

Sizes group_norm_sizes(const Question& q) {
  const Shape stat{q.integer("N"), q.integer("group")};
  check_parameter(q, "weight", Shape{q.integer("C")});
  check_parameter(q, "bias", Shape{q.integer("C")});
  return {q.in(0).sizes, stat, stat};
}

// grad_out, input, mean, rstd, weight -> grads of input, weight, bias
Rows group_norm_backward(const Question& q) {
  if (!is_batch_of_channels(q, q.in(1).sizes)) return {};
  Rows rows{split({0, 0, 0, 0, -1}, {0, -1, -1})};
  const int weight = given(q, 4) ? 0 : -1;
  for (const int groups : {-1, 0, 1}) {  // however forward left them
    rows.push_back(by_formula(split({1, 1, groups, groups, weight}, {1, 0, 0}), group_share(q)));
  }
  for (int d = 2; d < static_cast<int>(q.in(1).dims()); ++d) {
    rows.push_back(by_formula(split({d, d, -1, -1, -1}, {d, -1, -1}), group_share(q)));
  }
  return rows;
}

Sizes group_norm_backward_sizes(const Question& q) {
  const Shape w{q.integer("C")};
  return {q.in(1).sizes, w, w};
}

// ---- batch norm ------------------------------------------------------------------------------

namespace {

/// Whether the statistics are those of the batch.
bool is_training(const Question& q) {
  for (const std::string_view name : {"training", "train", "update"}) {
    if (q.arg(name) != nullptr) return q.flag(name);
  }
  return base_name(q).find("with_update") != std::string::npos;
}

/// Sizes of a result of batch norm, or of an operand, that has a value for each channel.
bool is_per_channel(const Shape& sizes, const Shape& input) {
  return sizes.size() == 1 && sizes[0] == input[1] && sizes[0] > 0;
}

}  // namespace

// input, weight, bias, running_mean, running_var -> result, mean, invstd, and for some ops
// what cuDNN would reserve, or the running mean and variance
Rows batch_norm(const Question& q) {
  const Shape& x = q.in(0).sizes;
  if (x.size() < 2) return {};
  Rows rows;
  const Sizes sizes = batch_norm_sizes(q);
  for (int d = 0; d < static_cast<int>(x.size()); ++d) {
    const int own = d == 1 ? 0 : -1;
    std::vector<int> in{d};
    for (std::size_t i = 1; i < q.inputs(); ++i) in.push_back(given(q, i) ? own : -1);
    std::vector<int> out{d};
    for (std::size_t r = 1; r < sizes.size(); ++r) {
      out.push_back(is_per_channel(sizes[r], x) ? own : -1);
    }
    Row row = split(in, out, kReplicated);
    // A rank without elements runs no op, but must have the running statistics.
    const bool gives_running = q.results() > 4;
    const double reduced = is_training(q) ? 2 * static_cast<double>(x[1]) : 0;
    const bool formula = d != 1 && (is_training(q) || gives_running);
    rows.push_back(formula ? by_formula(row, share_of(q, reduced)) : row);
  }
  return rows;
}

Sizes batch_norm_sizes(const Question& q) {
  const Shape& x = q.in(0).sizes;
  const Shape per_channel{x.size() < 2 ? 0 : x[1]};
  for (const std::string_view name : {"weight", "bias", "running_mean", "running_var"}) {
    check_parameter(q, name, per_channel);
  }
  const Shape stat = is_training(q) ? per_channel : Shape{0};
  Sizes sizes{x, stat, stat};
  if (q.results() == 4 || q.results() == 6) sizes.push_back(Shape{0});
  while (sizes.size() < q.results()) sizes.push_back(per_channel);
  return sizes;
}

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, and for some reserve
// -> grads of input, weight, bias
Rows batch_norm_backward(const Question& q) {
  const Shape& x = q.in(1).sizes;
  if (x.size() < 2) return {};
  const bool gradient_of_input = q.arg("output_mask")->toBoolList().get(0);
  Rows rows;
  for (int d = 0; d < static_cast<int>(x.size()); ++d) {
    std::vector<int> in{d, d};
    for (std::size_t i = 2; i < q.inputs(); ++i) {
      in.push_back(d == 1 && given(q, i) && is_per_channel(q.in(i).sizes, x) ? 0 : -1);
    }
    if (d == 1) {
      rows.push_back(split(in, {1, 0, 0}));
    } else if (is_training(q) && gradient_of_input) {
      rows.push_back(by_formula(split(in, {d, -1, -1}, kReplicated),
                                share_of(q, 2 * static_cast<double>(x[1]))));
    } else {
      rows.push_back(split(in, {d, -1, -1}));
    }
  }
  return rows;
}

Sizes batch_norm_backward_sizes(const Question& q) {
  const Shape w{q.in(1).sizes.size() < 2 ? 0 : q.in(1).sizes[1]};
  return {q.in(1).sizes, w, w};
}

}  // namespace intarsia::rules

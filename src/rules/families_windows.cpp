// Families of ops whose results read a window of an operand, or move elements along a dimension.
#include <algorithm>
#include <cstdlib>

#include "rules/families.h"
#include "rules/windows.h"
#include "rules/wrong_call.h"

namespace intarsia::rules {
namespace {

double count(const Shape& sizes) {
  return static_cast<double>(std::max<std::int64_t>(element_count(sizes), 1));
}

/// The row with its dimension sharded in runs; each also reads `elements` beside its edge, which
/// belong to another rank: LocalForm::window. `sizes`: of the operand that is read.
Row in_runs(const Question& q, Row row, std::int64_t elements, const Shape& sizes,
            std::size_t dim) {
  row.contiguous = true;
  const auto size = static_cast<double>(std::max<std::int64_t>(sizes[dim], 1));
  row.sends = static_cast<double>(elements) / size * count(sizes) / count(q.in(0).sizes);
  return row;
}

/// One row for each window, from the placement of the sharded dimension in operands and results.
template <class RowOf>
void add_windows(const Question& q, const RowOf& row_of, Rows& rows) {
  const Shape& sizes = q.in(window_operand(q)).sizes;
  for (const Window& w : windows(q)) {
    const Row row = row_of(static_cast<int>(w.dim));
    const std::int64_t beside = std::max<std::int64_t>(w.reach() + 1 - w.stride, 0);
    rows.push_back(w.is_alone() ? row : in_runs(q, row, beside, sizes, w.dim));
  }
}

/// How many dimensions of space an op has by its name: `avg_pool2d`.
std::size_t space_dims(const Question& q) {
  const std::string& name = q.schema().name();
  return name.find("3d") != std::string::npos ? 3 : name.find("2d") != std::string::npos ? 2 : 1;
}

/// The row that shards one dimension, which all operands and results have at the same place.
Row everywhere(const Question& q, int dim) {
  return split(std::vector<int>(q.inputs(), dim), std::vector<int>(q.results(), dim));
}

}  // namespace

// ---- convolution -----------------------------------------------------------------------------

namespace {

/// The row of channels in groups: each rank gets entire groups. Groups of one channel each need
/// no care.
Row by_group(const Question& q, Row row, std::int64_t channels_in, std::int64_t channels_out) {
  const std::int64_t groups = q.integer("groups", 1);
  if (channels_in == groups && channels_out == groups) return row;
  row.contiguous = true;
  row.parts = groups;
  return row;
}

}  // namespace

Rows convolution(const Question& q) {
  Rows rows;
  if (q.in(0).dims() < 3 || q.in(0).dims() != q.in(1).dims()) return rows;
  const bool bias = given(q, 2);
  rows.push_back(split({0, -1, -1}, {0}));
  add_windows(
      q,
      [](int d) {
        return split({d, -1, -1}, {d});
      },
      rows);
  const int out = q.flag("transposed") ? 1 : 0;  // where the weight has channels out
  if (q.integer("groups", 1) == 1) {
    rows.push_back(split({-1, out, 0}, {1}));
    Row in = split({1, 1 - out, -1}, {-1});
    if (bias) in.in[2] = Placement::partial();  // else each rank would add all of it
    rows.push_back(in);
  } else {
    const std::int64_t channels = convolution_sizes(q)[0][1];
    rows.push_back(by_group(q, split({1, 0, 0}, {1}), q.in(0).sizes[1], channels));
  }
  for (const std::size_t i : {0U, 1U}) {
    rows.push_back(bias ? linear(3, {i, 2}) : linear(3, {i}));
  }
  return rows;
}

Sizes convolution_sizes(const Question& q) {
  const Shape& x = q.in(0).sizes;
  const Shape& w = q.in(1).sizes;
  require_call(x.size() >= 3 && w.size() == x.size());
  const std::size_t n = x.size() - 2;
  const auto stride = exact_list(q, "stride", n);
  const auto padding = exact_list(q, "padding", n);
  const auto dilation = exact_list(q, "dilation", n);
  const auto extra = exact_list(q, "output_padding", n);
  for (const std::int64_t s : stride) require_call(s > 0);
  const bool transposed = q.flag("transposed");
  Shape out{x[0], transposed ? w[1] * q.integer("groups", 1) : w[0]};
  for (std::size_t d = 0; d < n; ++d) {
    const std::int64_t reach = dilation[d] * (w[d + 2] - 1);
    out.push_back(transposed ? (x[d + 2] - 1) * stride[d] - 2 * padding[d] + reach + extra[d] + 1
                             : (x[d + 2] + 2 * padding[d] - reach - 1) / stride[d] + 1);
  }
  return {out};
}

// grad_out, input, weight -> grads of input, weight, bias
Rows convolution_backward(const Question& q) {
  if (q.in(0).dims() < 3) return {};
  Rows rows{split({0, 0, -1}, {0, -1, -1})};
  add_windows(
      q,
      [](int d) {
        return split({d, d, -1}, {d, -1, -1});
      },
      rows);
  const int out = q.flag("transposed") ? 1 : 0;
  const int in = 1 - out;
  if (q.integer("groups", 1) == 1) {
    rows.push_back(split({1, -1, out}, {-1, out, 0}));
    // Every rank has the full gradient of the bias, also one without channels.
    rows.push_back(split({-1, 1, in}, {1, in, -1}, Placement::replicate()));
  } else {
    rows.push_back(by_group(q, split({1, 1, 0}, {1, 0, 0}), q.in(1).sizes[1], q.in(0).sizes[1]));
  }
  rows.push_back(linear(3, {0}, 3));
  return rows;
}

Sizes convolution_backward_sizes(const Question& q) {
  return {q.in(1).sizes, q.in(2).sizes, Shape{q.in(0).sizes[1]}};
}

// ---- pooling ---------------------------------------------------------------------------------

namespace {

/// Rows for what comes before space: batch and channels.
Rows outside_of_space(const Question& q, std::size_t dims) {
  Rows rows;
  const int first = static_cast<int>(dims - space_dims(q));
  for (int d = 0; d < first; ++d) rows.push_back(everywhere(q, d));
  return rows;
}

/// Means of integers are rounded, so those of windows cannot be scaled afterwards.
bool has_windows(const Question& q) {
  return q.schema().name().find("avg") == std::string::npos || !is_integral(q.in(0).dtype);
}

}  // namespace

Rows pool_each(const Question& q) {
  const bool backward = q.operand("grad_output").has_value();
  Rows rows = outside_of_space(q, q.in(backward ? 1 : 0).dims());
  const std::string& name = q.schema().name();
  const bool adds =
      name.find("avg") != std::string::npos || name.find("unpool") != std::string::npos;
  if (backward || adds) rows.push_back(linear(q.inputs(), {0}));
  return rows;
}

Rows pool(const Question& q) {
  Rows rows = pool_each(q);
  if (has_windows(q)) {
    add_windows(
        q, [&](int d) { return everywhere(q, d); }, rows);
  }
  return rows;
}

Sizes pool_sizes(const Question& q) {
  Shape out = q.in(0).sizes;
  for (const Window& w : windows(q)) {
    const std::int64_t input = out[w.dim];
    const std::int64_t span = input + 2 * w.before - w.reach() - 1;
    std::int64_t size = (span + (q.flag("ceil_mode") ? w.stride - 1 : 0)) / w.stride + 1;
    // The last window must begin inside the input or its left padding.
    if (q.flag("ceil_mode") && (size - 1) * w.stride >= input + w.before) --size;
    out[w.dim] = size;
  }
  return Sizes(q.results(), out);
}

Sizes sizes_of_space(const Question& q) {
  Shape out = q.in(0).sizes;
  const auto space = int_list(q, "output_size", space_dims(q));
  require_call(space.size() <= out.size());
  std::copy(space.begin(), space.end(), out.end() - space.size());
  return Sizes(q.results(), out);
}

// self, random_samples -> values, indices
Rows fractional_pool(const Question& q) {
  Rows rows;
  // The samples are [batch, channels, dims], also where there is no batch.
  const int first = static_cast<int>(q.in(0).dims() - space_dims(q));
  for (int d = 0; d < first; ++d) rows.push_back(split({d, d + 2 - first}, {d, d}));
  return rows;
}

// ---- padding and moving along a dimension ----------------------------------------------------

Rows pad(const Question& q) {
  const std::vector<Window> padded = windows(q);
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const auto at =
        std::find_if(padded.begin(), padded.end(), [&](const Window& w) { return w.dim == d; });
    const Row row = everywhere(q, static_cast<int>(d));
    rows.push_back(at == padded.end() ? row
                                      : in_runs(q, row, std::abs(at->before), q.in(0).sizes, d));
  }
  return rows;
}

Sizes pad_sizes(const Question& q) {
  const auto widths = q.arg(q.arg("pad") != nullptr ? "pad" : "padding")->toIntVector();
  Shape out = q.in(0).sizes;
  require_call(widths.size() / 2 <= out.size());
  for (std::size_t i = 0; i + 1 < widths.size(); i += 2) {
    out[out.size() - 1 - i / 2] += widths[i] + widths[i + 1];
  }
  return {out};
}

// Padding with what is inside, and its backward.
Rows pad_with_inside(const Question& q) {
  const auto widths = q.arg("padding")->toIntVector();
  const std::size_t dims = q.in(0).dims();
  Rows rows;
  for (std::size_t d = 0; d < dims; ++d) {
    const std::size_t at = 2 * (dims - 1 - d);
    const bool padded = at < widths.size() && (widths[at] != 0 || widths[at + 1] != 0);
    if (!padded) rows.push_back(everywhere(q, static_cast<int>(d)));
  }
  const bool backward = q.inputs() == 2;
  rows.push_back(backward ? linear(2, {0}) : moved(1, {0}));
  return rows;
}

Rows flip(const Question& q) {
  const auto dims = q.dims("dims");
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const bool flipped = dims && std::find(dims->begin(), dims->end(), d) != dims->end();
    const Row row = everywhere(q, static_cast<int>(d));
    rows.push_back(flipped ? in_runs(q, row, q.in(0).sizes[d], q.in(0).sizes, d) : row);
  }
  rows.push_back(moved(1, {0}));
  return rows;
}

Rows roll(const Question& q) {
  Rows rows{moved(1, {0})};
  if (!q.dims("dims")) return rows;  // over all elements in a row
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const std::int64_t shift = shift_of(q, d);
    const Row row = everywhere(q, static_cast<int>(d));
    const std::int64_t beside = std::min(shift, q.in(0).sizes[d] - shift);
    rows.push_back(shift == 0 ? row : in_runs(q, row, beside, q.in(0).sizes, d));
  }
  return rows;
}

}  // namespace intarsia::rules

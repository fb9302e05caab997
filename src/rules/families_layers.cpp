// Families of losses, and of ops on images. Sizes are none where a call has the wrong number of
// dimensions: ATen then says so.
#include <algorithm>

#include "rules/families.h"
#include "rules/windows.h"
#include "rules/wrong_call.h"

namespace intarsia::rules {
namespace {

/// The first `count` dimensions of operand 0, and its linearity.
Rows leading(std::size_t count) {
  Rows rows;
  for (int d = 0; d < static_cast<int>(count); ++d) rows.push_back(split({d}, {d}));
  rows.push_back(linear(1, {0}));
  return rows;
}

}  // namespace

// ---- losses ----------------------------------------------------------------------------------

Rows weighted_loss(const Question& q) {
  const bool backward = is_backward(q);
  const std::size_t self = backward ? 1 : 0;
  const Shape& sizes = q.in(self).sizes;
  const bool reduced = !backward && q.integer("reduction", 1) != 0;
  Rows rows;
  for (const Operand& x : q.in()) {
    if (x.dims() > sizes.size()) return {};
  }
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::vector<int> in;
    for (const Operand& x : q.in()) {
      const std::size_t missing = sizes.size() - x.dims();
      const bool there = x.given && d >= missing && x.sizes[d - missing] == sizes[d];
      if (x.given && !there && d >= missing && x.sizes[d - missing] != 1) return {};
      in.push_back(there ? static_cast<int>(d - missing) : -1);
    }
    if (sizes[d] != 1) rows.push_back(split(in, {reduced ? -1 : static_cast<int>(d)}));
  }
  if (backward) rows.push_back(linear(q.inputs(), {0}));
  return rows;
}

// self, target and, of some, weight -> loss and, of some, what backward needs of the target
Rows margin_loss(const Question& q) {
  const std::int64_t reduction = q.integer("reduction", 1);
  if (reduction == 1 || q.in(0).dims() < 2) return {};
  std::vector<int> in(q.inputs(), -1);
  in[0] = in[1] = 0;
  std::vector<int> out(q.results(), 0);
  if (reduction == 2) out[0] = -1;
  return {split(in, out)};
}

Sizes margin_loss_sizes(const Question& q) {
  const Shape& scores = q.in(0).sizes;
  const bool is_scalar = q.integer("reduction", 1) != 0 || scores.size() < 2;
  Sizes out{is_scalar ? Shape{} : Shape{scores[0]}};
  if (q.results() == 2) out.push_back(q.in(1).sizes);
  return out;
}

// grad_output, self, target and others, of which those with as many dimensions are rows too
Rows margin_loss_backward(const Question& q) {
  const std::int64_t reduction = q.integer("reduction", 1);
  if (reduction == 1 || q.in(1).dims() < 2) return {linear(q.inputs(), {0})};
  std::vector<int> in(q.inputs(), -1);
  in[0] = reduction == 0 ? 0 : -1;
  in[1] = in[2] = 0;
  if (const auto targets = q.operand("is_target")) in[*targets] = 0;
  return {split(in, {0}), linear(q.inputs(), {0})};
}

// ---- halves and norms of slices --------------------------------------------------------------

Sizes glu_sizes(const Question& q) {
  Shape out = q.in(0).sizes;
  if (!out.empty()) out[q.dim()] /= 2;
  return {out};
}

// ---- images ----------------------------------------------------------------------------------

Rows upsample(const Question&) { return leading(2); }

Sizes upsample_sizes(const Question& q) {
  if (q.in(0).dims() < 3) return {};
  Shape out{q.in(0).sizes[0], q.in(0).sizes[1]};
  for (const std::int64_t n : q.arg("output_size")->toIntVector()) out.push_back(n);
  return {out};
}

Sizes sizes_argument(const Question& q) {
  const char* name = q.arg("input_size") != nullptr ? "input_size" : "input_sizes";
  return {shape_of(q.arg(name)->toIntVector())};
}

// input, grid -> samples
Rows grid_sampler(const Question& q) {
  Rows rows{split({0, 0}, {0}), split({1, -1}, {1})};
  for (int d = 1; d + 1 < static_cast<int>(q.in(1).dims()); ++d) {
    rows.push_back(split({-1, d}, {d + 1}));
  }
  rows.push_back(linear(2, {0}));
  return rows;
}

Sizes grid_sampler_sizes(const Question& q) {
  const Shape& grid = q.in(1).sizes;
  if (grid.size() < 4 || q.in(0).dims() != grid.size()) return {};
  Shape out{q.in(0).sizes[0], q.in(0).sizes[1]};
  for (std::size_t d = 1; d + 1 < grid.size(); ++d) out.push_back(grid[d]);
  return {out};
}

// grad_output, input, grid -> grads of input and grid
Rows grid_sampler_backward(const Question& q) {
  Rows rows{split({0, 0, 0}, {0, 0}), split({1, 1, -1}, {1, -1})};
  for (int d = 1; d + 1 < static_cast<int>(q.in(2).dims()); ++d) {
    rows.push_back(split({d + 1, -1, d}, {-1, d}));
  }
  rows.push_back(linear(3, {0}, 2));
  return rows;
}

Sizes grid_sampler_backward_sizes(const Question& q) {
  if (q.in(2).dims() < 4 || q.in(1).dims() != q.in(2).dims()) return {};
  return {q.in(1).sizes, q.in(2).sizes};
}

Rows channel_shuffle(const Question& q) {
  Rows rows = leading(q.in(0).dims());
  std::erase_if(rows, [](const Row& row) { return row.in[0] == Placement::shard(1); });
  return rows;
}

Rows pixel_shuffle(const Question& q) {
  require_call(q.in(0).dims() >= 3);
  return leading(q.in(0).dims() - 3);
}

Sizes pixel_shuffle_sizes(const Question& q) {
  const std::int64_t r = q.integer("upscale_factor");
  Shape out = q.in(0).sizes;
  const std::size_t n = out.size();
  require_call(n >= 3 && r > 0);
  out[n - 3] /= r * r;
  out[n - 2] *= r;
  out[n - 1] *= r;
  return {out};
}

Sizes pixel_unshuffle_sizes(const Question& q) {
  const std::int64_t r = q.integer("downscale_factor");
  Shape out = q.in(0).sizes;
  const std::size_t n = out.size();
  require_call(n >= 3 && r > 0);
  // ATen gives a tensor without elements back as it is.
  if (std::find(out.begin(), out.end(), 0) != out.end()) return {out};
  out[n - 3] *= r * r;
  out[n - 2] /= r;
  out[n - 1] /= r;
  return {out};
}

Rows image_batch(const Question& q) {
  const std::size_t of_one = q.arg("output_size") != nullptr ? 2 : 3;  // col2im takes columns
  require_call(q.in(0).dims() >= of_one);
  return leading(q.in(0).dims() - of_one);
}

Sizes im2col_sizes(const Question& q) {
  const Shape& x = q.in(0).sizes;
  const std::size_t n = x.size();
  if (n != 3 && n != 4) return {};
  const auto kernel = exact_list(q, "kernel_size", 2);
  const auto dilation = exact_list(q, "dilation", 2);
  const auto padding = exact_list(q, "padding", 2);
  const auto stride = exact_list(q, "stride", 2);
  require_call(stride[0] > 0 && stride[1] > 0);
  std::int64_t columns = 1;
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t reach = dilation[d] * (kernel[d] - 1) + 1;
    columns *= (x[n - 2 + d] + 2 * padding[d] - reach) / stride[d] + 1;
  }
  Shape out{x[n - 3] * kernel[0] * kernel[1], columns};
  if (n == 4) out.insert(0, x[0]);
  return {out};
}

Sizes col2im_sizes(const Question& q) {
  const Shape& x = q.in(0).sizes;
  if (x.size() != 2 && x.size() != 3) return {};
  const auto kernel = exact_list(q, "kernel_size", 2);
  const auto size = exact_list(q, "output_size", 2);
  require_call(kernel[0] > 0 && kernel[1] > 0);
  Shape out{x[x.size() - 2] / (kernel[0] * kernel[1]), size[0], size[1]};
  if (x.size() == 3) out.insert(0, x[0]);
  return {out};
}

}  // namespace intarsia::rules

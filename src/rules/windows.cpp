#include "rules/windows.h"

#include "rules/wrong_call.h"

namespace intarsia::rules {
namespace {

std::int64_t entry(const std::vector<std::int64_t>& list, std::size_t k, std::int64_t otherwise) {
  return list.empty() ? otherwise : list[k];
}

std::vector<Window> of_convolution(const Question& q) {
  if (q.flag("transposed")) return {};
  const Shape& x = q.in(window_operand(q)).sizes;
  const Shape& weight = q.in(*q.operand("weight")).sizes;
  require_call(x.size() >= 3 && weight.size() == x.size());
  const std::size_t n = x.size() - 2;
  const auto stride = exact_list(q, "stride", n);
  const auto padding = exact_list(q, "padding", n);
  const auto dilation = exact_list(q, "dilation", n);
  std::vector<Window> out;
  for (std::size_t k = 0; k < n; ++k) {
    out.push_back({k + 2, stride[k], padding[k], padding[k], dilation[k], weight[k + 2]});
  }
  return out;
}

std::vector<Window> of_pool(const Question& q) {
  const std::size_t n = q.schema().name().find("3d") != std::string::npos ? 3 : 2;
  const auto kernel = exact_list(q, "kernel_size", n);
  const auto given = int_list(q, "stride", n);
  const auto stride = given.empty() ? kernel : given;
  const auto padding = int_list(q, "padding", n);
  const auto dilation = int_list(q, "dilation", n);
  require_call(q.in(window_operand(q)).dims() > n && stride.size() == n);
  for (const std::int64_t s : stride) require_call(s > 0);
  const std::size_t first = q.in(window_operand(q)).dims() - n;
  std::vector<Window> out;
  for (std::size_t k = 0; k < n; ++k) {
    const std::int64_t around = entry(padding, k, 0);
    out.push_back({first + k, stride[k], around, around, entry(dilation, k, 1), kernel[k]});
  }
  return out;
}

std::vector<Window> of_pad(const Question& q) {
  const auto widths = q.arg("pad")->toIntVector();
  std::vector<Window> out;
  for (std::size_t i = 0; i + 1 < widths.size(); i += 2) {
    require_call(i / 2 < q.in(0).dims());
    if (widths[i] == 0 && widths[i + 1] == 0) continue;
    out.push_back({.dim = q.in(0).dims() - 1 - i / 2, .before = widths[i], .after = widths[i + 1]});
  }
  return out;
}

}  // namespace

Range Window::read(const Range& result) const {
  if (result.size() == 0) return {};
  return {result.begin * stride - before, (result.end - 1) * stride - before + reach() + 1};
}

std::vector<Window> windows(const Question& q) {
  if (q.arg("pad") != nullptr) return of_pad(q);
  if (q.arg("transposed") != nullptr) return of_convolution(q);
  return of_pool(q);
}

std::size_t window_operand(const Question& q) {
  const auto input = q.operand("input");
  return input ? *input : *q.operand("self");
}

std::vector<std::int64_t> int_list(const Question& q, std::string_view name, std::size_t n) {
  const c10::IValue* value = q.arg(name);
  std::vector<std::int64_t> out =
      value == nullptr || value->isNone() ? std::vector<std::int64_t>{} : value->toIntVector();
  if (out.size() == 1) out.resize(n, out[0]);
  return out;
}

std::vector<std::int64_t> exact_list(const Question& q, std::string_view name, std::size_t n) {
  std::vector<std::int64_t> out = int_list(q, name, n);
  require_call(out.size() == n);
  return out;
}

std::int64_t shift_of(const Question& q, std::size_t dim) {
  const auto shifts = q.arg("shifts")->toIntVector();
  const auto dims = q.dims("dims").value_or(std::vector<std::size_t>{});
  const std::int64_t size = q.in(0).sizes[dim];
  std::int64_t shift = 0;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == dim) shift += shifts[i];
  }
  return size == 0 ? 0 : (shift % size + size) % size;
}

}  // namespace intarsia::rules

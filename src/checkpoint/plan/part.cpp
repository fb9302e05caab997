#include "checkpoint/plan/part.h"

#include <algorithm>
#include <span>

#include "base/text.h"

namespace intarsia::checkpoint {
namespace {

bool overlap(std::span<const Range> a, std::span<const Range> b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].begin < b[j].end && b[j].begin < a[i].end) return true;
    a[i].end <= b[j].end ? ++i : ++j;
  }
  return false;
}

}  // namespace

std::int64_t Part::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

bool Part::covers(const Shape& sizes) const { return shape == sizes; }

std::string Part::to_string() const {
  std::vector<std::string> dims;
  for (const auto& each : runs) dims.push_back(each.empty() ? "[)" : join(each, "+"));
  return dims.empty() ? "scalar" : join(dims, "x");
}

std::size_t row_dim(const Shape& shape) {
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) return d;
  }
  return 0;
}

Part part_of(const Boxes& held, Range local) {
  Part out;
  out.shape = held.local_shape();
  const std::size_t rows = row_dim(out.shape);
  for (std::size_t d = 0; d < held.dims(); ++d) {
    auto& runs = out.runs.emplace_back(held.runs(d).begin(), held.runs(d).end());
    if (d != rows) continue;
    out.shape[d] = local.size();
    std::vector<Range> kept;
    std::int64_t at = 0;  // the local index at which the run begins
    for (const Range& run : runs) {
      const std::int64_t first = std::max(local.begin - at, std::int64_t{0});
      const std::int64_t last = std::min(local.end - at, run.size());
      if (first < last) kept.push_back({run.begin + first, run.begin + last});
      at += run.size();
    }
    runs = std::move(kept);
  }
  return out;
}

Part part_of(const Boxes& held) {
  const Shape& shape = held.local_shape();
  return part_of(held, {0, shape.empty() ? 1 : shape[row_dim(shape)]});
}

bool overlap(const Part& a, const Part& b) {
  for (std::size_t d = 0; d < a.runs.size(); ++d) {
    if (!overlap(a.runs[d], b.runs[d])) return false;
  }
  return true;
}

}  // namespace intarsia::checkpoint

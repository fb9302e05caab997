#include "checkpoint/plan/copy_runs.h"

#include <algorithm>

namespace intarsia::checkpoint {

std::vector<CopyRuns::Span> CopyRuns::spans(const std::vector<Range>& source,
                                            const std::vector<Range>& destination) {
  std::vector<Span> out;
  std::int64_t from = 0;  // local indices at which the runs begin
  std::int64_t to = 0;
  for (std::size_t i = 0, j = 0; i < source.size() && j < destination.size();) {
    const Range& a = source[i];
    const Range& b = destination[j];
    const std::int64_t begin = std::max(a.begin, b.begin);
    const std::int64_t end = std::min(a.end, b.end);
    if (begin < end) out.push_back({from + begin - a.begin, to + begin - b.begin, end - begin});
    if (a.end <= b.end) {
      from += a.size();
      ++i;
    } else {
      to += b.size();
      ++j;
    }
  }
  return out;
}

CopyRuns::CopyRuns(const Part& source, const Part& destination, std::int64_t element_bytes) {
  // From the last dimension on: those that both have in full are one block with the one before.
  auto from_stride = static_cast<std::uint64_t>(element_bytes);
  auto to_stride = from_stride;
  bool joined = true;
  for (std::size_t d = source.shape.size(); d-- > 0;) {
    auto shared = spans(source.runs[d], destination.runs[d]);
    std::int64_t count = 0;
    for (const Span& span : shared) count += span.size;
    numel_ *= count;
    const bool full = shared.size() == 1 && shared[0].size == source.shape[d] &&
                      shared[0].size == destination.shape[d];
    if (!joined || !full || d == 0) {
      dims_.push_back({std::move(shared), from_stride, to_stride});
      joined = false;
    }
    from_stride *= static_cast<std::uint64_t>(source.shape[d]);
    to_stride *= static_cast<std::uint64_t>(destination.shape[d]);
  }
  if (source.shape.empty()) dims_.push_back({{{0, 0, 1}}, from_stride, to_stride});
  std::reverse(dims_.begin(), dims_.end());
  at_end_ = numel_ == 0;
  if (!at_end_) place();
}

void CopyRuns::place() {
  run_ = {};
  for (const Dim& dim : dims_) {
    const Span& span = dim.spans[dim.span];
    run_.from += static_cast<std::uint64_t>(span.from + dim.index) * dim.from_stride;
    run_.to += static_cast<std::uint64_t>(span.to + dim.index) * dim.to_stride;
  }
  const Dim& last = dims_.back();
  run_.bytes = static_cast<std::uint64_t>(last.spans[last.span].size) * last.from_stride;
}

std::optional<CopyRun> CopyRuns::run() const {
  if (at_end_) return std::nullopt;
  return CopyRun{run_.from + done_, run_.to + done_, run_.bytes - done_};
}

void CopyRuns::advance(std::uint64_t bytes) {
  done_ += bytes;
  if (done_ < run_.bytes) return;
  done_ = 0;
  for (std::size_t d = dims_.size(); d-- > 0;) {
    Dim& dim = dims_[d];
    const bool by_span = d + 1 == dims_.size();
    if (!by_span && ++dim.index < dim.spans[dim.span].size) return place();
    dim.index = 0;
    if (++dim.span < dim.spans.size()) return place();
    dim.span = 0;
  }
  at_end_ = true;
}

}  // namespace intarsia::checkpoint

#include "checkpoint/transfer/read_mapped.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "checkpoint/format/stored_dtype.h"

namespace intarsia::checkpoint {
namespace {

using Kind = MappedTensor::Kind;

constexpr std::uint64_t kMostBytes = std::uint64_t{32} << 20;

/// Some rows of a part, along a dimension, by local indices.
Part rows_of(const Part& part, std::size_t dim, Range local) {
  Part out = part;
  out.runs[dim].clear();
  out.shape[dim] = 0;
  std::int64_t at = 0;
  for (const Range& run : part.runs[dim]) {
    const Range kept{run.begin + std::max<std::int64_t>(local.begin - at, 0),
                     run.begin + std::min(local.end - at, run.size())};
    at += run.size();
    if (kept.begin >= kept.end) continue;
    out.runs[dim].push_back(kept);
    out.shape[dim] += kept.size();
  }
  return out;
}

/// The indices of runs that are in a range: which, and how many are before them.
struct Inside {
  std::vector<Range> runs;
  std::int64_t before = 0;
  std::int64_t count = 0;
};

Inside inside(const std::vector<Range>& runs, Range range) {
  Inside out;
  for (const Range& run : runs) {
    const Range both{std::max(run.begin, range.begin), std::min(run.end, range.end)};
    out.before += std::clamp(range.begin - run.begin, std::int64_t{0}, run.size());
    if (both.begin >= both.end) continue;
    out.runs.push_back(both);
    out.count += both.size();
  }
  return out;
}

/// A dimension of what was read, and how far its elements are apart where they belong.
struct Step {
  std::int64_t size = 1;
  std::uint64_t stride = 0;
};

void scatter(const std::byte*& from, std::byte* to, std::span<const Step> steps,
             std::uint64_t element) {
  if (steps.empty()) {
    std::memcpy(to, from, element);
    from += element;
    return;
  }
  if (steps.size() == 1 && steps[0].stride == element) {
    const std::uint64_t bytes = element * static_cast<std::uint64_t>(steps[0].size);
    std::memcpy(to, from, bytes);
    from += bytes;
    return;
  }
  for (std::int64_t i = 0; i < steps[0].size; ++i) {
    scatter(from, to + static_cast<std::uint64_t>(i) * steps[0].stride, steps.subspan(1), element);
  }
}

/// What of a block a part needs: the saved tensor's part, and where its elements go.
struct Piece {
  Part source;
  std::vector<Step> steps;
  std::uint64_t offset = 0;
};

/// nullopt where it needs nothing.
std::optional<Piece> piece_of(const MappedTensor& tensor, const MappedBlock& block,
                              const Part& part) {
  const std::uint64_t element = static_cast<std::uint64_t>(element_bytes(tensor.dtype));
  const std::size_t dims = part.shape.size();
  std::vector<std::uint64_t> strides(dims, element);
  for (std::size_t d = dims; d-- > 1;) {
    strides[d - 1] = strides[d] * static_cast<std::uint64_t>(part.shape[d]);
  }
  Piece out;
  const auto add = [&](std::vector<Range> runs, std::int64_t count, std::uint64_t stride) {
    out.source.runs.push_back(std::move(runs));
    out.source.shape.push_back(count);
    out.steps.push_back({count, stride});
  };
  if (tensor.kind == Kind::same) {
    for (std::size_t s = 0; s < dims; ++s) {
      const auto d = static_cast<std::size_t>(
          std::find(tensor.order.begin(), tensor.order.end(), static_cast<std::int64_t>(s)) -
          tensor.order.begin());
      add(part.runs[d], part.shape[d], strides[d]);
    }
    return out;
  }
  const auto dim = static_cast<std::size_t>(tensor.dim);
  for (std::size_t d = 0; d <= dims; ++d) {
    if (d == dim && tensor.kind == Kind::unstacked) add({block.from}, 1, 0);
    if (d == dims) break;
    if (d != dim || tensor.kind == Kind::unstacked) {
      add(part.runs[d], part.shape[d], strides[d]);
      continue;
    }
    Inside found = inside(part.runs[d], block.to);
    out.offset = static_cast<std::uint64_t>(found.before) * strides[d];
    if (found.count == 0) return std::nullopt;
    if (tensor.kind == Kind::stacked) continue;
    for (Range& run : found.runs) {
      run = {run.begin - block.to.begin + block.from.begin,
             run.end - block.to.begin + block.from.begin};
    }
    add(std::move(found.runs), found.count, strides[d]);
  }
  return out;
}

/// Reads all of a part at once.
void read_at_once(Files& files, const std::string& folder, const Manifest& manifest,
                  const MappedTensor& tensor, const Part& part, std::span<std::byte> into,
                  const ReadOptions& options) {
  std::vector<Piece> pieces;
  std::vector<Wanted> wanted;
  std::vector<std::byte> buffer(into.size());
  std::span<std::byte> left(buffer);
  for (const MappedBlock& block : tensor.blocks) {
    auto piece = piece_of(tensor, block, part);
    if (!piece) continue;
    const std::uint64_t bytes = bytes_of(tensor.dtype, piece->source.shape);
    wanted.push_back({block.tensor, piece->source, left.first(bytes)});
    left = left.subspan(bytes);
    pieces.push_back(*std::move(piece));
  }
  read_parts(files, folder, manifest, wanted, options);
  const auto element = static_cast<std::uint64_t>(element_bytes(tensor.dtype));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::byte* from = wanted[i].into.data();
    scatter(from, into.data() + pieces[i].offset, pieces[i].steps, element);
  }
}

}  // namespace

void read_mapped(Files& files, const std::string& folder, const Manifest& manifest,
                 const MappedTensor& tensor, const Part& part, std::span<std::byte> into,
                 const ReadOptions& options) {
  if (part.numel() == 0) return;
  if (tensor.is_saved()) {
    const Wanted wanted{tensor.blocks[0].tensor, part, into};
    return read_parts(files, folder, manifest, std::span(&wanted, 1), options);
  }
  const std::size_t dim = row_dim(part.shape);
  const std::int64_t rows = part.shape.empty() ? 1 : part.shape[dim];
  const std::uint64_t row = into.size() / static_cast<std::uint64_t>(rows);
  const auto step = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kMostBytes / row));
  if (step >= rows) return read_at_once(files, folder, manifest, tensor, part, into, options);
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    const Range some{begin, std::min(rows, begin + step)};
    read_at_once(files, folder, manifest, tensor, rows_of(part, dim, some),
                 into.subspan(static_cast<std::uint64_t>(begin) * row,
                              static_cast<std::uint64_t>(some.size()) * row),
                 options);
  }
}

}  // namespace intarsia::checkpoint

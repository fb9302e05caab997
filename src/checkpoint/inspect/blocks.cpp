#include "checkpoint/inspect/blocks.h"

#include <algorithm>

#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/transfer/read_parts.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;

}  // namespace

void for_each_batch(const Manifest& manifest, std::span<const std::size_t> tensors,
                    const std::function<void(std::span<const Rows>)>& visit) {
  std::vector<Rows> batch;
  std::uint64_t in_batch = 0;
  const auto flush = [&] {
    if (!batch.empty()) visit(batch);
    batch.clear();
    in_batch = 0;
  };
  const Layout all = Layout::replicated(Mesh());
  for (const std::size_t t : tensors) {
    const TensorType& type = manifest.tensors[t].type;
    const std::uint64_t bytes = bytes_of(type.dtype, type.shape);
    if (bytes == 0) continue;
    const Boxes held = boxes(all, type.shape, {});
    const std::int64_t count = type.shape.empty() ? 1 : type.shape[row_dim(type.shape)];
    const std::uint64_t row = bytes / static_cast<std::uint64_t>(count);
    const auto step = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kBatchBytes / row));
    for (std::int64_t begin = 0; begin < count; begin += step) {
      const Range range{begin, std::min(count, begin + step)};
      Rows rows{t, part_of(held, range), row * static_cast<std::uint64_t>(range.size())};
      if (in_batch + rows.bytes > kBatchBytes) flush();
      in_batch += rows.bytes;
      batch.push_back(std::move(rows));
    }
  }
  flush();
}

void read_rows(Files& files, const std::string& folder, const Manifest& manifest,
               std::span<const Rows> rows, bool verify, std::vector<std::byte>& buffer) {
  std::uint64_t bytes = 0;
  for (const Rows& each : rows) bytes += each.bytes;
  buffer.resize(bytes);
  std::span<std::byte> left(buffer);
  std::vector<Wanted> wanted;
  for (const Rows& each : rows) {
    wanted.push_back({each.tensor, each.part, left.first(each.bytes)});
    left = left.subspan(each.bytes);
  }
  read_parts(files, folder, manifest, wanted, {.verify = verify});
}

void for_each_block(
    Files& files, const std::string& folder, const Manifest& manifest,
    std::span<const std::size_t> tensors, bool verify,
    const std::function<void(std::size_t tensor, std::span<const std::byte> values)>& visit) {
  std::vector<std::byte> buffer;
  for_each_batch(manifest, tensors, [&](std::span<const Rows> rows) {
    read_rows(files, folder, manifest, rows, verify, buffer);
    std::span<const std::byte> left(buffer);
    for (const Rows& each : rows) {
      visit(each.tensor, left.first(each.bytes));
      left = left.subspan(each.bytes);
    }
  });
}

}  // namespace intarsia::checkpoint

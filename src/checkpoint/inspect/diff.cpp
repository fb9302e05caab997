#include "checkpoint/inspect/diff.h"

#include <cmath>
#include <cstring>
#include <map>

#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/inspect/blocks.h"
#include "checkpoint/inspect/convert.h"

namespace intarsia::checkpoint {
namespace {

using Kind = Difference::Kind;

/// Counts elements of a block that differ.
void compare(std::span<const std::byte> a, std::span<const std::byte> b, DType dtype,
             Difference& out) {
  const auto width = static_cast<std::size_t>(element_bytes(dtype));
  out.of += static_cast<std::int64_t>(a.size() / width);
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  for (std::size_t i = 0; i * width < a.size(); ++i) {
    if (std::memcmp(a.data() + i * width, b.data() + i * width, width) == 0) continue;
    ++out.elements;
    if (!can_convert(dtype)) continue;
    const double apart = std::abs(number_at(a, dtype, i) - number_at(b, dtype, i));
    if (!out.greatest || !(apart <= *out.greatest)) out.greatest = apart;
  }
}

/// Names and texts that only one has, or that differ.
void diff_values(const Json& first, const Json& second, std::vector<Difference>& out) {
  std::map<std::string, std::pair<std::string, std::string>> both;
  for (const auto& [name, value] : first.items()) both[name].first = value.dump();
  for (const auto& [name, value] : second.items()) both[name].second = value.dump();
  for (const auto& [name, texts] : both) {
    if (texts.first == texts.second) continue;
    Difference difference{.name = name, .kind = Kind::value};
    difference.first = texts.first;
    difference.second = texts.second;
    out.push_back(std::move(difference));
  }
}

}  // namespace

std::vector<Difference> diff_checkpoints(Files& files, const Opened& first, const Opened& second) {
  const auto here = first.manifest.places();
  const auto there = second.manifest.places();
  std::map<std::string_view, Difference> found;
  std::vector<std::size_t> compared;
  for (const auto& [name, t] : here) {
    const TensorType& type = first.manifest.tensors[t].type;
    const auto other = there.find(name);
    Difference difference{.name = std::string(name),
                          .kind = Kind::only_first,
                          .first = sizes_text(type.dtype, type.shape)};
    if (other != there.end()) {
      const TensorType& theirs = second.manifest.tensors[other->second].type;
      difference.second = sizes_text(theirs.dtype, theirs.shape);
      difference.kind = difference.first != difference.second ? Kind::type : Kind::values;
    }
    if (difference.kind == Kind::values) compared.push_back(t);
    found.emplace(name, std::move(difference));
  }
  for (const auto& [name, t] : there) {
    if (here.contains(name)) continue;
    const TensorType& type = second.manifest.tensors[t].type;
    found.emplace(name, Difference{.name = std::string(name),
                                   .kind = Kind::only_second,
                                   .second = sizes_text(type.dtype, type.shape)});
  }
  std::vector<std::byte> ours;
  std::vector<std::byte> theirs;
  for_each_batch(first.manifest, compared, [&](std::span<const Rows> rows) {
    std::vector<Rows> same(rows.begin(), rows.end());
    for (Rows& each : same) each.tensor = there.at(first.manifest.tensors[each.tensor].name);
    read_rows(files, first.folder, first.manifest, rows, /*verify=*/true, ours);
    read_rows(files, second.folder, second.manifest, same, /*verify=*/true, theirs);
    std::size_t at = 0;
    for (const Rows& each : rows) {
      const auto& [name, type] = first.manifest.tensors[each.tensor];
      compare(std::span(ours).subspan(at, each.bytes), std::span(theirs).subspan(at, each.bytes),
              type.dtype, found.at(name));
      at += each.bytes;
    }
  });
  std::vector<Difference> out;
  for (auto& [name, difference] : found) {
    if (difference.kind == Kind::values && difference.elements == 0) continue;
    out.push_back(std::move(difference));
  }
  diff_values(first.manifest.values, second.manifest.values, out);
  return out;
}

}  // namespace intarsia::checkpoint

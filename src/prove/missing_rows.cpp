#include "prove/missing_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "layout/chunk.h"

namespace intarsia {
namespace {

// Ops that are not run on pieces in layouts that no rule offers: their kernels read out of bounds
// where operands do not fit together. The last one gives, but for the last bit, its first operand.
constexpr std::array<std::string_view, 23> kUnchecked{
    "aten::_adaptive_avg_pool2d_backward",
    "aten::_adaptive_avg_pool3d_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
    "aten::avg_pool2d_backward",
    "aten::avg_pool3d_backward",
    "aten::embedding_dense_backward",
    "aten::fractional_max_pool2d_backward",
    "aten::linalg_ldl_solve",
    "aten::linalg_lu_solve",
    "aten::lu_unpack",
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
    "aten::nll_loss_backward",
    "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad3d_backward",
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
    "aten::replication_pad3d_backward",
    "aten::nextafter"};

bool checks_operands(const Sample& sample) {
  return std::find(kUnchecked.begin(), kUnchecked.end(), sample.op.schema().name()) ==
         kUnchecked.end();
}

bool all_hold_elements(const Sample& sample, const Combination& placements, std::int64_t n) {
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const Placement& p = placements[i];
    if (!p.is_shard()) continue;
    const std::int64_t length = sample.tensors()[i]->sizes[static_cast<std::size_t>(p.dim())];
    if (chunk(length, n, n - 1).size() == 0) return false;
  }
  return true;
}

}  // namespace

std::uint64_t MissingRows::draws(const Sample& sample) {
  constexpr std::uint64_t kFew = 3;
  constexpr std::uint64_t kMany = 10;
  const auto& results = bench_.reference(sample, false)->results;
  const bool real = std::all_of(results.begin(), results.end(), [](const at::Tensor& t) {
    return !t.defined() || t.is_floating_point() || t.is_complex();
  });
  return real ? kFew : kMany;
}

bool MissingRows::depends_on_values(const Sample& sample) {
  const Reference* first = bench_.reference(sample, false, 0);
  const Reference* second = bench_.reference(sample, false, 1);
  if (first == nullptr || second == nullptr) return false;
  for (std::size_t r = 0; r < first->results.size(); ++r) {
    const at::Tensor& a = first->results[r];
    if (a.defined() && !at::equal(a, second->results[r])) return true;
  }
  return false;
}

std::optional<MissingRow> MissingRows::look_for(const Sample& sample,
                                                const Combination& placements) {
  if (!checks_operands(sample)) return std::nullopt;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const Placement& p = placements[i];
    if (sample.tensors()[i]->count() == 0) return std::nullopt;
    // An average is a sum of other partial values; blocks go where shards go.
    if (p.is_strided() || (p.is_partial() && p.reduction() == Reduction::avg)) return std::nullopt;
    // Partial values of integers may be indices that point nowhere.
    if (p.is_partial() && sample.tensors()[i]->dtype < DType::f8e4m3) return std::nullopt;
  }
  Row row{placements, {}};
  const std::string inputs = row.to_string();
  if (found_.contains(inputs) || !depends_on_values(sample)) return std::nullopt;
  for (const std::int64_t n : {2, 3}) {
    // A rank without elements says nothing about the op.
    if (!all_hold_elements(sample, placements, n)) {
      if (n == 2) return std::nullopt;
      continue;
    }
    for (std::uint64_t draw = 0; draw < draws(sample); ++draw) {
      const auto out = bench_.legal(Case{sample, on_axis(one_axis(n), placements)}, draw);
      if (!out || (!row.out.empty() && row.out != *out)) return std::nullopt;
      row.out = *out;
    }
  }
  found_.insert(inputs);
  return MissingRow{row.to_string(), sample.to_string()};
}

}  // namespace intarsia

// Mask tensors and mask functions, read into descriptions.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "context/attend/mask_tensors.h"
#include "intarsia/attention.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"
#include "tensor/core/translating.h"

namespace intarsia {
namespace {

using Samples = std::vector<std::vector<std::vector<Range>>>;  // runs of keys, by sample and query

// So many bytes of a mask are made at a time.
constexpr std::int64_t kBlockBytes = 1 << 24;

[[noreturn]] void refuse_mask(const at::Tensor& mask, std::string_view why) {
  fail<ValueError>("mask_of", "a mask tensor ", why, " has no description: ", describe(mask), ", ",
                   mask.numel() * static_cast<std::int64_t>(mask.element_size()),
                   " bytes on every rank; pass an AttentionMask, and slopes for ALiBi, to "
                   "intarsia's attention");
}

/// The runs of keys that are seen in a row.
std::vector<Range> runs_in(const bool* row, std::int64_t keys) {
  std::vector<Range> out;
  for (std::int64_t k = 0; k < keys; ++k) {
    if (!row[k]) continue;
    const std::int64_t begin = k;
    while (k < keys && row[k]) ++k;
    out.push_back({begin, k});
  }
  return out;
}

/// Adds queries to each sample. `seen`: bool, [samples, queries, keys].
void add_rows(Samples& samples, const at::Tensor& seen) {
  const at::Tensor rows = seen.contiguous();
  const bool* row = rows.const_data_ptr<bool>();
  for (auto& queries : samples) {
    for (std::int64_t q = 0; q < rows.size(1); ++q, row += rows.size(2)) {
      queries.push_back(runs_in(row, rows.size(2)));
    }
  }
}

/// What a function says of some queries: bool, [samples, queries, keys].
at::Tensor block_of(const MaskFunction& sees, const MaskSizes& sizes, Range queries) {
  const auto index = [](Range range, std::initializer_list<std::int64_t> shape) {
    return at::arange(range.begin, range.end, at::kLong).view(at::IntArrayRef(shape));
  };
  at::Tensor out =
      sees(index({0, sizes.samples}, {-1, 1, 1, 1}), index({0, sizes.heads}, {1, -1, 1, 1}),
           index(queries, {1, 1, -1, 1}), index({0, sizes.keys}, {1, 1, 1, -1}));
  if (has_layout(out)) out = full(out);
  if (out.scalar_type() != at::kBool || out.dim() > 4) {
    fail<ValueError>(
        "mask_of", "the function gave ", describe(out),
        "; of indices that broadcast to [samples, heads, queries, keys] it gives bool");
  }
  out = out.to(at::kCPU);
  while (out.dim() < 4) out = out.unsqueeze(0);
  const at::Tensor of_first = out.narrow(1, 0, 1);
  if (out.size(1) > 1 && !at::equal(of_first.expand_as(out), out)) {
    fail<ValueError>("mask_of", "the function sees other keys for other heads of ", sizes.heads,
                     ", and a mask is the same for all; call attention for each kind of head");
  }
  return of_first.squeeze(1).expand({out.size(0), queries.size(), sizes.keys});
}

}  // namespace

AttentionMask mask_of(const at::Tensor& mask) {
  if (has_layout(mask) && !layout_of(mask).is_replicated()) {
    refuse_mask(mask, "that is sharded");
  }
  at::Tensor plain = (has_layout(mask) ? full(mask.detach()) : mask.detach()).to(at::kCPU);
  if (plain.dim() < 2 || plain.dim() > 4 || (plain.dim() == 4 && plain.size(1) != 1) ||
      (plain.dim() == 3 && plain.size(0) != 1)) {
    refuse_mask(mask, "that is not [queries, keys] or [batch, 1, queries, keys]");
  }
  plain = plain.reshape({plain.dim() == 4 ? plain.size(0) : 1, plain.size(-2), plain.size(-1)});
  if (plain.scalar_type() != at::kBool) {
    const at::Tensor seen = plain == 0;
    if (!at::isFloatingType(plain.scalar_type()) ||
        !seen.logical_or(plain == -INFINITY).all().item<bool>()) {
      refuse_mask(mask, "with numbers that are neither 0 nor -inf");
    }
    plain = seen;
  }
  Samples samples(static_cast<std::size_t>(plain.size(0)));
  add_rows(samples, plain);
  return AttentionMask::listed_of_samples(plain.size(2), samples).recognised();
}

AttentionMask mask_of(const MaskFunction& sees, const MaskSizes& sizes) {
  AttentionMask out;
  translating([&] {
    const std::int64_t row = std::max<std::int64_t>(1, sizes.samples * sizes.heads * sizes.keys);
    const std::int64_t step = std::max<std::int64_t>(1, kBlockBytes / row);
    Samples samples;
    for (std::int64_t begin = 0; begin < sizes.queries; begin += step) {
      const at::Tensor seen = block_of(sees, sizes, {begin, std::min(begin + step, sizes.queries)});
      if (samples.empty()) samples.resize(static_cast<std::size_t>(seen.size(0)));
      add_rows(samples, seen.expand({static_cast<std::int64_t>(samples.size()), -1, -1}));
    }
    out = AttentionMask::listed_of_samples(sizes.keys, samples).recognised();
  });
  return out;
}

at::Tensor mask_tensor(const AttentionMask& mask, const AttentionOptions& options) {
  const std::string text =
      concat(context::kDescribed, mask, "@", options.order, "@", options.schedule);
  const at::Tensor out =
      at::empty({1, 1, 1, static_cast<std::int64_t>(text.size())}, at::TensorOptions(at::kByte));
  std::copy(text.begin(), text.end(), out.data_ptr<std::uint8_t>());
  return out;
}

std::optional<DescribedAttention> context::description_in(const at::Tensor& mask) {
  if (mask.scalar_type() != at::kByte || mask.dim() != 4) return std::nullopt;
  const at::Tensor bytes =
      (has_layout(mask) ? full(mask.detach()) : mask).to(at::kCPU).contiguous();
  const std::string_view text(reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()),
                              static_cast<std::size_t>(bytes.numel()));
  if (!text.starts_with(kDescribed)) return std::nullopt;
  const std::size_t order = text.find('@', kDescribed.size());
  const std::size_t schedule = text.find('@', order + 1);
  if (order == std::string_view::npos || schedule == std::string_view::npos) {
    fail<ValueError>("mask_of", describe(mask), " is a part of what mask_tensor made: '", text,
                     "'; pass all of it");
  }
  DescribedAttention out;
  out.mask = AttentionMask::parse(text.substr(kDescribed.size(), order - kDescribed.size()));
  out.options.order = SequenceOrder::parse(text.substr(order + 1, schedule - order - 1));
  out.options.schedule = AttentionSchedule::parse(text.substr(schedule + 1));
  return out;
}

}  // namespace intarsia

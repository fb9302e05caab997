#include "tensor/local/without_values.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace intarsia {

at::Tensor stand_in(const at::Tensor& plain) {
  if (plain.is_meta() || plain.unsafeGetTensorImpl()->is_wrapped_number()) return plain;
  const Uncounted uncounted;
  return at::empty_strided(plain.sizes(), plain.strides(), plain.options().device(at::kMeta));
}

at::Tensor tiny(const at::Tensor& piece, bool keeps_rows) {
  std::vector<std::int64_t> sizes = piece.sizes().vec();
  const std::size_t shrunk = sizes.size() - (keeps_rows && !sizes.empty() ? 1 : 0);
  for (std::size_t d = 0; d < shrunk; ++d) sizes[d] = std::min<std::int64_t>(sizes[d], 1);
  return at::zeros(sizes, piece.options().device(at::kCPU));
}

void leave_out_values(const Frame& f, Decision& d) {
  const auto has_tag = [&](at::Tag tag) { return f.info.op.hasTag(tag); };
  // An index may be a mask or not: then the rule knows the sizes, or does not.
  if (has_tag(at::Tag::data_dependent_output) ||
      (d.open_results && has_tag(at::Tag::dynamic_output_shape))) {
    f.refuse("what it returns depends on values, and a simulated world has none",
             "leave it out of what is simulated, or compute it in a real world");
  }
  if (d.open_results || d.strategy == Strategy::decompose || d.results.size() != f.info.returns)
    return;
  // What is done afterwards begins with pieces that only the local op's own form knows.
  if (d.local.call && d.local.afterwards) return;
  d.local.by_spec = f.info.family == Family::rule || f.info.family == Family::each ||
                    f.info.family == Family::like;
}

}  // namespace intarsia

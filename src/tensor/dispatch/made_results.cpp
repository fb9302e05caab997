#include "tensor/dispatch/made_results.h"

#include <ATen/ATen.h>

#include "intarsia/boxes.h"
#include "tensor/core/neutral.h"
#include "tensor/local/kernel_log.h"
#include "world/session/step_log.h"

namespace intarsia {

using torch::jit::Stack;

at::Tensor piece_for_out(const LocalOperands& o, std::size_t i, std::size_t m) {
  const SpecData& home = *o.decision.in[i];
  const at::TensorOptions options =
      at::TensorOptions(o.frame.lead->world().piece_device()).dtype(home.dtype);
  const bool any_format = o.decision.open_results || o.frame.info.family != Family::rule ||
                          o.frame.info.rule->options.format == RuleOptions::Format::contiguous;
  if (any_format) return at::empty({0}, options);
  std::size_t out = 0;
  for (std::size_t k = 0; k < i; ++k) out += o.frame.tensors[k].is_out ? 1 : 0;
  const Shape sizes = local_shape(o.decision.out_layouts[out], home.sizes, o.here[m]);
  return at::empty_strided(to_ref(sizes), to_ref(strides_in_order_of(sizes, home)), options);
}

Stack made_by_spec(LocalOperands& o, std::size_t m) {
  const auto piece = [&](const SpecData& spec, const Layout& layout) {
    const Shape sizes = local_shape(layout, spec.sizes, o.here[m]);
    return at::empty_strided(to_ref(sizes), to_ref(strides_in_order_of(sizes, spec)),
                             at::TensorOptions(at::kMeta).dtype(spec.dtype));
  };
  Stack out;
  for (std::size_t r = 0; r < o.decision.results.size(); ++r) {
    const Result& result = o.decision.results[r];
    if (result.kind == Result::Kind::written) {
      at::Tensor& written = o.pieces[result.operand][m];
      if (o.frame.tensors[result.operand].is_out) {
        written = piece(*o.decision.in[result.operand], o.decision.out_layouts[r]);
      }
      out.emplace_back(written);
    } else if (result.kind == Result::Kind::list) {
      c10::List<at::Tensor> list;
      for (const Spec& spec : result.specs) list.push_back(piece(*spec, spec->layout));
      out.emplace_back(std::move(list));
    } else if (!result.specs[0]) {
      out.emplace_back(at::Tensor());
    } else {
      out.emplace_back(piece(*result.specs[0], o.decision.out_layouts[r]));
    }
  }
  if (StepLog::current() != nullptr) note_kernel(o.op(), o.local_arguments(m), out);
  return out;
}

Stack made_without_running(LocalOperands& o, std::size_t m) {
  Stack out;
  for (std::size_t r = 0; r < o.decision.results.size(); ++r) {
    const Result& result = o.decision.results[r];
    const bool written = result.kind == Result::Kind::written;
    if (written && !o.frame.tensors[result.operand].is_out) {
      out.emplace_back(o.pieces[result.operand][m]);
      continue;
    }
    if (!written && !result.specs[0]) {
      out.emplace_back(at::Tensor());
      continue;
    }
    const SpecData& spec = written ? *o.decision.in[result.operand] : *result.specs[0];
    const Shape sizes = local_shape(o.decision.out_layouts[r], spec.sizes, o.here[m]);
    out.emplace_back(
        neutral_piece(sizes, o.decision.out_layouts[r],
                      at::TensorOptions(o.frame.lead->world().piece_device()).dtype(spec.dtype)));
    if (written) o.pieces[result.operand][m] = out.back().toTensor();
  }
  return out;
}

}  // namespace intarsia

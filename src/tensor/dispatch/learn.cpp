#include "tensor/dispatch/learn.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tensor/local/without_values.h"
#include "world/session/step_log.h"

namespace intarsia {
namespace {

using torch::jit::Stack;

/// A run on few elements of each tensor. Unset where the made-up sizes do not fit.
std::optional<Stack> run_tiny(const LocalOperands& o, std::size_t m, bool keeps_rows) {
  std::vector<Pieces> small = o.pieces;
  for (Pieces& operand : small) {
    if (!operand.empty() && operand[m].is_meta()) operand[m] = tiny(operand[m], keeps_rows);
  }
  Stack stack = o.arguments(m, small);
  try {
    o.frame.info.op.callBoxed(&stack);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return stack;
}

/// Then the results have the operands' dtype; else nobody here knows.
void check_dtypes_agree(const LocalOperands& o) {
  const auto& in = o.decision.in;
  for (const Spec& spec : in) {
    if (!spec || spec->dtype == in[0]->dtype) continue;
    o.frame.refuse(
        "the dtypes of its results cannot be told without values: torch has no kernel of it for "
        "the meta device in this process",
        "predict from Python, where torch has more of them, or give it operands of one dtype");
  }
}

/// The arguments with tensors of the global sizes that hold zeros; or, for ops that divide by them,
/// identity matrices and ones.
Stack made_up_arguments(const LocalOperands& o, bool regular) {
  const OpInfo& info = o.frame.info;
  const bool abstract = info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  const at::Device device = abstract ? at::Device(at::kMeta) : o.frame.lead->world().device();
  std::vector<Pieces> made(o.frame.tensors.size());
  for (std::size_t i = 0; i < o.frame.tensors.size(); ++i) {
    const Frame::Tensor& t = o.frame.tensors[i];
    if (!t.given()) continue;
    const SpecData& spec = *o.decision.in[i];
    const auto options = at::TensorOptions(device).dtype(spec.dtype);
    const bool number = t.impl == nullptr && t.tensor->dim() == 0;
    const bool looks_at_strides =
        info.rule && info.rule->options.format != RuleOptions::Format::contiguous;
    const std::size_t dims = spec.sizes.size();
    const bool matrix = regular && dims >= 2 && !is_integral(spec.dtype);
    made[i].push_back(
        number ? *t.tensor
        : t.written || looks_at_strides
            ? at::empty_strided(to_ref(spec.sizes), to_ref(spec.strides), options).zero_()
        : matrix ? at::eye(spec.sizes[dims - 2], spec.sizes[dims - 1], options)
                       .expand(to_ref(spec.sizes))
                 : at::full({}, regular ? 1 : 0, options).expand(to_ref(spec.sizes)));
  }
  return o.arguments(0, made);
}

/// Takes what a run on full tensors gave as what every such call gives.
void close_results(const Frame& f, const Stack& stack, Decision& d) {
  const Layout replicated = Layout::replicated(f.mesh());
  const auto spec_of = [&](const at::Tensor& t) {
    return t.defined()
               ? Spec(replicated, to_shape(t.sizes()), to_shape(t.strides()), 0, t.scalar_type())
               : Spec();
  };
  const auto& returns = f.info.op.schema().returns();
  for (std::size_t r = 0; r < returns.size(); ++r) {
    Result result;
    const auto* alias = returns[r].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      std::size_t before = r;
      const auto written =
          std::find_if(f.tensors.begin(), f.tensors.end(),
                       [&](const Frame::Tensor& t) { return t.written && before-- == 0; });
      result = {Result::Kind::written, {}, static_cast<std::size_t>(written - f.tensors.begin())};
    } else if (stack[r].isTensor()) {
      result = {Result::Kind::tensor, {spec_of(stack[r].toTensor())}, 0};
    } else if (stack[r].isTensorList()) {
      result.kind = Result::Kind::list;
      for (const at::Tensor& t : stack[r].toTensorVector()) result.specs.push_back(spec_of(t));
    }
    d.results.push_back(std::move(result));
  }
  d.out_layouts.assign(std::max<std::size_t>(returns.size(), f.tensors.size()), replicated);
  d.open_results = false;
}

}  // namespace

void take_dtypes(const Stack& returned, Decision& d) {
  for (std::size_t r = 0; r < d.results.size(); ++r) {
    if (d.results[r].kind != Result::Kind::tensor || !returned[r].isTensor()) continue;
    const at::Tensor& t = returned[r].toTensor();
    Spec& spec = d.results[r].specs[0];
    spec = t.defined() ? spec.with(t.scalar_type()) : Spec();
  }
}

void learn_dtypes(const LocalOperands& o, std::size_t m, Decision& d) {
  std::vector<Pieces> some = o.pieces;
  for (std::size_t i = 0; i < some.size(); ++i) {
    if (o.frame.tensors[i].is_out || some[i].empty() || some[i][m].numel() > 0) continue;
    std::vector<std::int64_t> sizes = some[i][m].sizes().vec();
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      if (sizes[k] == 0 && d.in[i]->sizes[k] != 0) sizes[k] = 1;
    }
    some[i][m] = at::zeros(sizes, some[i][m].options());
  }
  Stack stack = o.local_arguments(m, some);
  for (const auto& size : o.frame.info.rule->options.local_sizes) {
    stack[o.frame.place_of(size.argument)] =
        some[size.operand][m].size(static_cast<std::int64_t>(size.dim));
  }
  try {
    o.frame.info.op.callBoxed(&stack);
  } catch (const c10::Error&) {
    return;  // made-up sizes do not always fit; then the first operand's dtype is the best guess
  }
  take_dtypes(stack, d);
}

void learn_without_values(const LocalOperands& o, std::size_t m, Decision& d) {
  const auto known = [](const Result& r) { return r.kind == Result::Kind::written; };
  if (std::all_of(d.results.begin(), d.results.end(), known)) return;
  const Uncounted uncounted;
  const StepLogPause pause;
  Stack stack = o.local_arguments(m);
  try {
    o.op().callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    auto found = run_tiny(o, m, /*keeps_rows=*/false);
    if (!found) found = run_tiny(o, m, /*keeps_rows=*/true);
    if (!found) return check_dtypes_agree(o);
    stack = std::move(*found);
  }
  take_dtypes(stack, d);
  for (std::size_t r = 0; r < d.results.size(); ++r) {
    if (d.results[r].kind != Result::Kind::list) continue;
    for (std::size_t k = 0; k < d.results[r].specs.size(); ++k) {
      Spec& spec = d.results[r].specs[k];
      spec = spec.with(stack[r].toListRef()[k].toTensor().scalar_type());
    }
  }
}

void learn_from_zeros(const LocalOperands& o, Decision& d) {
  const OpInfo& info = o.frame.info;
  if (d.open_results && (info.op.hasTag(at::Tag::dynamic_output_shape) ||
                         info.op.hasTag(at::Tag::data_dependent_output))) {
    o.frame.refuse(
        "what it returns depends on values, of which this process, outside the mesh, has none",
        "call it only on ranks of the mesh");
  }
  Stack stack = made_up_arguments(o, /*regular=*/false);
  try {
    info.op.callBoxed(&stack);
  } catch (const c10::Error&) {
    stack = made_up_arguments(o, /*regular=*/true);
    try {
      info.op.callBoxed(&stack);
    } catch (const c10::Error&) {
      if (d.open_results) throw;
      return;  // the first operand's dtype is the best guess
    }
  }
  if (d.open_results) {
    close_results(o.frame, stack, d);
  } else {
    take_dtypes(stack, d);
  }
}

}  // namespace intarsia

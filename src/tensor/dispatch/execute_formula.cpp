#include <ATen/ATen.h>

#include <algorithm>

#include "tensor/core/arguments.h"
#include "tensor/dispatch/execute.h"
#include "tensor/dispatch/written.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using torch::jit::Stack;

/// The tensor with these strides, those of the op's result on full tensors; pieces are copied where
/// their dimensions have another order in memory.
at::Tensor with_strides(at::Tensor t, const Shape& strides) {
  const DistributedImpl& impl = impl_of(t);
  const SpecData& spec = *impl.spec();
  if (spec.strides == strides) return t;
  const Spec wanted(spec.layout, spec.sizes, strides, 0, spec.dtype);
  Pieces pieces;
  for (const at::Tensor& p : impl.pieces()) pieces.push_back(in_order(p, *wanted));
  return make_tensor(impl, wanted, std::move(pieces));
}

/// A result with memory of its own: a formula may give back an operand, or a view of one, as it was
/// given: a plain tensor, or a move that is remembered.
at::Tensor with_own_memory(at::Tensor t, const std::vector<at::Tensor>& given) {
  const DistributedImpl& impl = impl_of(t);
  const Spec made = impl.spec().fresh(impl.spec()->layout);
  Pieces pieces = impl.pieces();
  for (const at::Tensor& operand : given) {
    pieces = apart_from(impl_of(operand).pieces(), std::move(pieces));
  }
  pieces = in_order(std::move(pieces), *made);
  const bool is_own =
      made == impl.spec() &&
      std::equal(pieces.begin(), pieces.end(), impl.pieces().begin(),
                 [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  return is_own ? t : make_tensor(impl, made, std::move(pieces));
}

/// The result, reduced on axes where the row does not leave it partial.
at::Tensor reduced_like(at::Tensor t, const Layout& row, const Frame& f) {
  DistributedImpl& impl = impl_of(t);
  Layout layout = impl.spec()->layout;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_partial() && !row.placement(a).is_partial()) {
      layout = layout.with(a, Placement::replicate());
    }
  }
  if (layout == impl.spec()->layout) return t;
  const PlanPointer plan = f.state().plan(impl.spec(), layout);
  TORCH_INTERNAL_ASSERT(plan, impl.spec()->layout.to_string(), " -> ", layout.to_string());
  return make_tensor(impl, impl.spec().with(layout),
                     f.state().move(impl, plan, {.op = f.info.name}));
}

/// Plain operands that a formula writes: replicated copies, brought back when it has run. So ranks
/// that are played by one process write once.
class WrittenPlain {
 public:
  at::Tensor copy_of(const Frame& f, const Decision& d, std::size_t i) {
    const at::Tensor& plain = *f.tensors[i].tensor;
    const SpecData& in = *d.in[i];
    const Spec spec(in.layout, in.sizes, contiguous_strides(in.sizes), 0, in.dtype);
    Pieces pieces;
    for (std::size_t m = 0; m < f.lead->pieces().size(); ++m) {
      pieces.push_back(plain.clone(at::MemoryFormat::Contiguous));
    }
    copies_.emplace_back(plain, make_tensor(*f.lead, spec, std::move(pieces)));
    return copies_.back().second;
  }

  void bring_back() const {
    for (const auto& [plain, copy] : copies_) {
      const Pieces& pieces = impl_of(copy).pieces();
      if (!pieces.empty()) plain.copy_(pieces[0]);
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace

void execute_formula(Frame& f, const Decision& d) {
  const BelowAutograd below;
  WrittenPlain written_plain;
  const auto operand = [&](std::size_t i) -> c10::IValue {
    const Frame::Tensor& t = f.tensors[i];
    if (t.written && f.info.hidden_writes) {
      return t.impl != nullptr ? *t.tensor : written_plain.copy_of(f, d, i);
    }
    if (t.impl == nullptr && !t.tensor->unsafeGetTensorImpl()->is_wrapped_number()) {
      // All ranks pass the same: replicated, so that what is made of it is distributed too.
      const SpecData& in = *d.in[i];
      const Spec spec(Layout::replicated(f.mesh()), in.sizes, contiguous_strides(in.sizes), 0,
                      in.dtype);
      const at::Tensor piece = t.tensor->to(f.lead->world().piece_device()).contiguous();
      return make_tensor(*f.lead, spec, Pieces(f.lead->pieces().size(), piece));
    }
    if (t.impl == nullptr || d.moves.empty() || !d.moves[i]) return *t.tensor;
    return make_tensor(*t.impl, d.in[i].with(d.layouts[i]),
                       f.state().move(*t.impl, d.moves[i], {.op = f.info.name}));
  };
  std::vector<at::Tensor> given;  // those of ours
  std::size_t next = 0;
  const auto next_operand = [&](const c10::IValue& otherwise) {
    const std::size_t i = next++;
    if (!f.tensors[i].given()) return otherwise;
    c10::IValue value = operand(i);
    if (value.isTensor() && is_ours(value.toTensor())) given.push_back(value.toTensor());
    return value;
  };
  Stack stack;
  for (std::size_t i = 0; i < f.info.arguments.size(); ++i) {
    const c10::IValue& value = f.argument(i);
    if (f.info.arguments[i].is_out) break;
    if (f.info.arguments[i].kind == ArgumentKind::tensor) {
      stack.push_back(next_operand(c10::IValue()));
    } else if (f.info.arguments[i].kind == ArgumentKind::tensor_list && !value.isNone()) {
      stack.push_back(replaced_list(value, next_operand));
    } else {
      stack.push_back(value);
    }
  }
  {
    const FormulaScope scope(f.info.name);
    f.info.rule->options.formula(f.info.op, stack);
    for (std::size_t r = 0; r < d.results.size(); ++r) {
      if (!stack[r].isTensor() || !stack[r].toTensor().defined()) continue;
      if (!is_ours(stack[r].toTensor())) {
        f.refuse("its formula gave a plain tensor",
                 "make results from operands, as x.new_zeros(sizes) does and at::zeros(sizes) not");
      }
      stack[r] = reduced_like(stack[r].toTensor(), d.out_layouts[r], f);
    }
  }
  written_plain.bring_back();
  for (std::size_t r = 0; r < d.results.size(); ++r) {
    const Result& result = d.results[r];
    if (!stack[r].isTensor() || !stack[r].toTensor().defined()) continue;
    if (result.kind == Result::Kind::written) {
      const Frame::Tensor& written = f.tensors[result.operand];
      if (written.impl == nullptr) {
        write_plain(written, stack[r].toTensor());
      } else {
        written.tensor->copy_(stack[r].toTensor());
      }
      stack[r] = *written.tensor;
    } else {
      stack[r] =
          with_strides(with_own_memory(stack[r].toTensor(), given), result.specs[0]->strides);
      impl_of(stack[r].toTensor()).made_by = &f.info.name;
    }
  }
  f.finish(std::move(stack));
}

}  // namespace intarsia

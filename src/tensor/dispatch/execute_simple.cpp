#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tensor/core/arguments.h"
#include "tensor/dispatch/execute.h"
#include "tensor/dispatch/written.h"

namespace intarsia {
namespace {

// Pieces may be lazily conjugated, negated or zero: the dispatcher knows where to resolve that.
constexpr c10::DispatchKeySet kLazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                     c10::DispatchKey::ZeroTensor});

}  // namespace

void execute_simple(Frame& f, const Decision& d) {
  const BelowAutograd below;
  torch::jit::Stack& stack = f.stack;
  // The keys of the pieces, without what acts above: where the dispatcher would find the local op.
  c10::DispatchKeySet keys;
  // Arguments that leave the stack are kept until the end: they own the world.
  c10::SmallVector<c10::IValue, 4> kept;
  std::size_t operand = 0;
  bool has_lists = false;
  for (std::size_t i = 0; i < f.info.arguments.size(); ++i) {
    c10::IValue& value = stack[f.base + i];
    const ArgumentKind kind = f.info.arguments[i].kind;
    if (kind == ArgumentKind::tensor) {
      const Frame::Tensor& t = f.tensors[operand++];
      if (t.impl == nullptr) {
        if (t.given()) keys = keys | t.tensor->key_set();
        continue;
      }
      kept.push_back(std::move(value));
      const at::Tensor& piece = t.impl->pieces()[0];
      keys = keys | piece.key_set();
      value = piece;
    } else if (kind == ArgumentKind::tensor_list && !value.isNone()) {
      has_lists = true;
      c10::IValue list = replaced_list(value, [&](const c10::IValue& element) -> c10::IValue {
        const DistributedImpl* impl = f.tensors[operand++].impl;
        return impl == nullptr ? element : c10::IValue(impl->pieces()[0]);
      });
      kept.push_back(std::exchange(value, std::move(list)));
    }
  }
  const c10::OperatorHandle& op = d.local.op ? *d.local.op : f.info.op;
  if (d.local.op) stack.resize(f.base + op.schema().arguments().size());
  if (!d.local.arguments.empty()) {
    for (const auto& [index, value] : d.local.arguments[0]) stack[f.base + index] = value;
  }
  if (has_lists || keys.has_any(kLazy)) {
    op.callBoxed(&stack);
  } else {
    op.redispatchBoxed(keys - kAbove, &stack);
  }
  if (f.info.in_place || f.info.hidden_writes) note_writes(f);
  const bool is_view = f.info.family == Family::view;
  for (std::size_t r = 0; r < d.results.size(); ++r) {
    c10::IValue& value = stack[f.base + r];
    const Result& result = d.results[r];
    switch (result.kind) {
      case Result::Kind::tensor: {
        at::Tensor local = std::move(value).toTensor();
        if (!local.defined()) {
          value = at::Tensor();
          break;
        }
        if (!is_view) local = in_order(std::move(local), *result.specs[0]);
        value = make_tensor(*f.lead, result.specs[0], std::move(local));
        impl_of(value.toTensor()).made_by = &f.info.name;
        if (is_view) share_extra(f, value.toTensor(), nullptr, false);
        break;
      }
      case Result::Kind::written: {
        // The operand was the first tensor that left the stack, or is in a list.
        const Frame::Tensor& t = f.tensors[result.operand];
        value = at::Tensor(
            c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(t.impl));
        break;
      }
      case Result::Kind::list: {
        c10::List<at::Tensor> list;
        const auto elements = value.toListRef();
        list.reserve(elements.size());
        for (std::size_t k = 0; k < elements.size(); ++k) {
          at::Tensor local = elements[k].toTensor();
          if (!is_view) local = in_order(std::move(local), *result.specs[k]);
          list.push_back(make_tensor(*f.lead, result.specs[k], std::move(local)));
          if (is_view) share_extra(f, list.get(k), nullptr, true);
        }
        value = std::move(list);
        break;
      }
      case Result::Kind::value:
        break;
    }
  }
}

}  // namespace intarsia

#include "tensor/core/on_use.h"

namespace intarsia {

at::Tensor OnUse::tensor() const {
  at::Tensor used = source->in_use(index);
  for (const View& view : views) {
    torch::jit::Stack stack{std::move(used)};
    stack.insert(stack.end(), view.arguments.begin(), view.arguments.end());
    view.op.callBoxed(&stack);
    used = std::move(stack[0]).toTensor();
  }
  return used;
}

OnUse OnUse::then(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) const {
  OnUse out{.source = source, .index = index, .views = views, .cast_after = cast_after};
  out.views.push_back({op, torch::jit::Stack(arguments.begin(), arguments.end())});
  return out;
}

}  // namespace intarsia

#include "tensor/dispatch/local_operands.h"

#include "tensor/core/arguments.h"

namespace intarsia {

using torch::jit::Stack;

Stack LocalOperands::arguments(std::size_t member, const std::vector<Pieces>& of) const {
  Stack stack;
  stack.reserve(frame.info.arguments.size());
  std::size_t operand = 0;
  const auto piece = [&](const c10::IValue& value) -> c10::IValue {
    const std::size_t i = operand++;
    return frame.tensors[i].given() ? c10::IValue(of[i][member]) : value;
  };
  for (std::size_t i = 0; i < frame.info.arguments.size(); ++i) {
    const c10::IValue& value = frame.argument(i);
    switch (frame.info.arguments[i].kind) {
      case ArgumentKind::tensor:
        stack.push_back(piece(value));
        break;
      case ArgumentKind::tensor_list:
        stack.push_back(value.isNone() ? value : replaced_list(value, piece));
        break;
      default:
        stack.push_back(value);
    }
  }
  return stack;
}

Stack LocalOperands::local_arguments(std::size_t member, const std::vector<Pieces>& of) const {
  Stack stack = arguments(member, of);
  if (decision.local.op) stack.resize(decision.local.op->schema().arguments().size());
  if (!decision.local.arguments.empty()) {
    for (const auto& [index, value] : decision.local.arguments[member]) stack[index] = value;
  }
  return stack;
}

}  // namespace intarsia

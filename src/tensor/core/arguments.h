// The tensors among the arguments of a call: the one walk over them.
//
// A call passes tensors as `Tensor`, `Tensor?`, `Tensor[]` and `Tensor?[]`; whoever looks at them,
// or puts others in their place, goes through these functions.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>

namespace intarsia {

/// Whether the value is a list of tensors, of which some may be missing.
inline bool is_tensor_list(const c10::IValue& value) {
  return value.isTensorList() || value.isOptionalTensorList();
}

/// Calls `look` with each tensor of the value, which may be undefined; with nothing for a value
/// that holds none.
template <class Look>
void for_each_tensor(const c10::IValue& value, const Look& look) {
  if (value.isTensor()) {
    look(value.toTensor());
  } else if (is_tensor_list(value)) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) look(element.toTensor());
    }
  }
}

/// A list of as many tensors, of the same type. `with` is called with each element, in order, and
/// gives what stands in its place: a tensor, or None where the list may have that.
template <class With>
c10::IValue replaced_list(const c10::IValue& list, const With& with) {
  const auto elements = list.toListRef();
  if (list.isTensorList()) {
    c10::List<at::Tensor> out;
    out.reserve(elements.size());
    for (const c10::IValue& element : elements) out.push_back(with(element).toTensor());
    return out;
  }
  c10::List<std::optional<at::Tensor>> out;
  out.reserve(elements.size());
  for (const c10::IValue& element : elements) {
    const c10::IValue value = with(element);
    out.push_back(value.isNone() ? std::nullopt : std::optional(value.toTensor()));
  }
  return out;
}

}  // namespace intarsia

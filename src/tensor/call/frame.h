// Frame: one call of an op on distributed tensors.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "tensor/call/op_info.h"
#include "tensor/core/impl.h"

namespace intarsia {

class TensorState;

/// The arguments of a call, with its tensors listed one by one, and the words that say what kind of
/// call it is.
class Frame {
 public:
  Frame(const OpInfo& info, torch::jit::Stack& stack);

  struct Tensor {
    const at::Tensor* tensor = nullptr;  ///< null or undefined where none was passed
    DistributedImpl* impl = nullptr;     ///< null for plain ones
    std::uint32_t argument = 0;
    bool written = false;
    bool is_out = false;
    std::optional<Layout> reduced = {};  ///< how a partial tensor is at hand too
    bool given() const { return tensor != nullptr && tensor->defined(); }
  };

  const OpInfo& info;
  torch::jit::Stack& stack;
  std::size_t base;  ///< where the arguments begin in the stack
  c10::SmallVector<Tensor, 8> tensors;
  c10::SmallVector<std::uint64_t, 40> key;
  bool in_backward = false;         ///< known only where some tensor is partial
  DistributedImpl* lead = nullptr;  ///< the first distributed one: it says the world

  const c10::IValue& argument(std::size_t i) const { return stack[base + i]; }
  std::span<const c10::IValue> arguments() const {
    return {stack.data() + base, stack.size() - base};
  }
  const c10::IValue* argument(std::string_view name) const;
  /// Where the named argument stands. REQUIRES: the op has it.
  std::size_t place_of(std::string_view name) const;
  TensorState& state() const { return lead->state(); }
  const Mesh& mesh() const { return lead->spec()->layout.mesh(); }

  /// Replaces the arguments by results.
  void finish(torch::jit::Stack results);
  void finish(at::Tensor result);

  /// The tensors in text form, for messages: `f32[8@dp, 4], f32[4] plain`.
  std::string operands_text() const;
  /// An error about this call: op, why, tensors, and the way out.
  [[noreturn]] void refuse(std::string_view why, std::string_view way_out) const;
  /// ATen refuses most writes to elements that share memory, and calls the others deprecated. A
  /// piece may be too small to show that, and all ranks must refuse alike: we refuse all of them.
  void check_writes() const;

 private:
  void add_tensor(const at::Tensor* tensor, std::size_t argument);
  void add_value(const c10::IValue& value, ArgumentKind kind);
  void add_element(const c10::IValue& value);
};

}  // namespace intarsia

// The key of a random op: all that its values depend on besides their global indices.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>

#include "tensor/move/state.h"

namespace intarsia {

/// While one lives, random ops of this thread use its key instead of drawing: to repeat them.
class KeyScope {
 public:
  explicit KeyScope(std::uint64_t key);
  ~KeyScope();
  KeyScope(const KeyScope&) = delete;
  KeyScope& operator=(const KeyScope&) = delete;

 private:
  std::optional<std::uint64_t> before_;
};

/// The key of the next random op.
std::uint64_t next_key(TensorState& state, const c10::IValue* generator = nullptr);

}  // namespace intarsia

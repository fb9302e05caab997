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
/// That of a random op on plain tensors: from torch's default CPU generator.
std::uint64_t next_plain_key();

/// Compares the key with that of the other ranks: see docs/guard.md. Of an op on a tensor, along
/// the axes on which ranks hold the same; where they hold different elements, some may skip the op.
void check_key(World& world, const Layout& layout, std::uint64_t key);
/// The same for what all ranks make together, along all axes.
void check_key(World& world, const Mesh& mesh, std::uint64_t key);

}  // namespace intarsia

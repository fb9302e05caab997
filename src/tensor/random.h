// Random ops on distributed tensors: every element's value depends on its global index only.
#pragma once

#include <string_view>

#include "tensor/frame.h"

namespace intarsia {

/// Whether the op, by its name without `_`, is one that this file does.
bool is_random(std::string_view base_name, bool in_place);

/// Runs it. REQUIRES: is_random(frame.info.base_name, frame.info.in_place).
void run_random(Frame& frame);

/// A distribution: fills a piece that holds a region of a tensor.
using Fill =
    std::function<void(const at::Tensor& piece, const struct Region& region, std::uint64_t key)>;

/// Fills the pieces of a tensor that lies like this, as one draw.
void fill_pieces(World& world, const Layout& layout, std::span<const std::int64_t> sizes,
                 const Pieces& pieces, std::uint64_t key, const Fill& fill);

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

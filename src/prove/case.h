// Cases: calls of ops in given layouts, with a text form; the tensors of a call, and the ops that
// write its result.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/layout.h"
#include "prove/sample.h"

namespace intarsia {

/// How a call writes its result.
enum class Variant : std::uint8_t { functional, in_place, out };

/// A call to be compared. Text form: `aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]`.
struct Case {
  Sample sample;
  std::vector<Layout> layouts;  ///< one per tensor of the sample
  Variant variant = Variant::functional;

  /// Throws ValueError where it is no case, or has not one layout per tensor.
  static Case parse(std::string_view text);
  std::string to_string() const;
  const Mesh& mesh() const { return layouts[0].mesh(); }
};

/// The tensors among arguments or results, those in lists one by one.
std::vector<at::Tensor> tensors_in(const torch::jit::Stack& stack);
/// The same arguments with other tensors.
torch::jit::Stack with_tensors(const torch::jit::Stack& stack,
                               const std::vector<at::Tensor>& tensors);

/// The op that writes the result of another into its first argument, or into `out`.
std::optional<c10::OperatorHandle> variant_of(const c10::OperatorHandle& op, Variant variant);

}  // namespace intarsia

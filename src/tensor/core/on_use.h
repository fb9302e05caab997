// Tensors that are stored in one layout and used in another: parameters that are gathered on use.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "intarsia/layout.h"

namespace intarsia {

/// Brings stored tensors into the layouts in which they are used.
class UseSource {
 public:
  virtual ~UseSource() = default;
  /// The tensor as it is used, outside autograd. It may be there already; else this communicates.
  virtual at::Tensor in_use(std::size_t index) = 0;
  /// The layout in which it is used.
  virtual Layout layout_in_use(std::size_t index) const = 0;
  /// The stored values changed: what was brought before is out of date.
  virtual void written(std::size_t index) = 0;
  /// How often they changed.
  virtual std::uint64_t writes() const = 0;
};

/// Where a stored tensor, or a view or cast of one, comes from. Autograd saves only what is stored:
/// what is used is made anew each time, by the same views.
struct OnUse {
  std::shared_ptr<UseSource> source;
  std::size_t index = 0;
  struct View {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;  ///< but the first, which is the tensor
  };
  std::vector<View> views = {};
  /// The source takes gradients of the tensor itself, and puts them into their layout.
  bool takes_gradients = false;
  /// For a cast, which has values of its own: the source's writes when it was made. It no longer
  /// comes from the source when either was written to since.
  std::optional<std::uint64_t> cast_after = std::nullopt;

  bool holds() const { return !cast_after || *cast_after == source->writes(); }

  /// The tensor as it is used.
  at::Tensor tensor() const;
  /// The same after one more view or cast.
  OnUse then(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) const;
};

}  // namespace intarsia

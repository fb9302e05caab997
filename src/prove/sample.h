// Samples: calls of ops on made-up values, with a text form.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "prove/tensor_sample.h"

namespace intarsia {

/// A word without quotes where an op takes a dtype, memory format, layout or device: `f32`,
/// `channels_last`, `strided`, `cpu`.
struct SampleWord {
  std::string text;
  friend bool operator==(const SampleWord&, const SampleWord&) = default;
};

/// One argument of a sample. A float where the op takes a float, also if it was written `1`.
struct SampleArgument {
  using List = std::vector<SampleArgument>;
  /// The first means None.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, SampleWord, TensorSample,
               List>
      value;

  bool is_none() const { return value.index() == 0; }
  std::string to_string() const;
  friend bool operator==(const SampleArgument& a, const SampleArgument& b);
};

/// An op with its overload: `aten::sum.dim_IntList`.
inline std::string text_of(const c10::OperatorHandle& op) {
  return c10::toString(op.operator_name());
}

/// A call of an op on made-up values. Text form: `aten::sum.dim_IntList(f64[4, 6], [-1], True)`.
///
/// Arguments come in the order of the schema, or by name: `dtype=f32`. Those left out have their
/// defaults. Numbers may be `inf`, `-inf` and `nan`; strings stand in quotes and have letters,
/// digits and `_`; a list of equal numbers may be one number where ATen allows that. Without a
/// namespace `aten::` is meant; without an overload the one that has no name, or else the first by
/// name that takes these arguments.
struct Sample {
  c10::OperatorHandle op;
  std::vector<SampleArgument> arguments;  ///< one per argument of the schema

  /// Throws ValueError that says what was expected, and where.
  static Sample parse(std::string_view text);
  /// With namespace and overload, without what equals the defaults at the end. `parse` gives the
  /// same sample again.
  std::string to_string() const;

  /// The arguments for `op.callBoxed`: the same ones for the same text and seed.
  torch::jit::Stack values(std::uint64_t seed) const;

  /// Its tensors in the order of the arguments, those in lists one by one; not those that are None.
  /// Valid as long as no argument is replaced.
  std::vector<TensorSample*> tensors();
  std::vector<const TensorSample*> tensors() const;

  friend bool operator==(const Sample& a, const Sample& b) {
    return a.op == b.op && a.arguments == b.arguments;
  }
};

}  // namespace intarsia

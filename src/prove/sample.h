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

#include "intarsia/tensor_type.h"

namespace intarsia {

/// How a made-up tensor is drawn: plain data, to be changed at will.
///
/// Text form: dtype and sizes, then which values, then the order in memory:
///
///     f64[3, 4]              standard normal; i64: -4 to 4; u8: 0 to 4; bool (or b1): coin flips;
///                            c128: both parts standard normal
///     i64[3]<6               whole numbers from 0 to 5
///     f64[3]>0               in [0.5, 2]; whole numbers: 1 to 4
///     f64[3]in(-1, 1)        in the open interval; whole numbers: -1 to 1, both included
///     f64[3]distinct         a shuffled set of values, well apart in size too, none of them 0;
///                            whole numbers: consecutive ones
///     i64[3]of(2, 2, 0)      these, over and over in the order of the elements
///     f64[2, 3, 4]~(0, 2, 1) dimensions in memory, from the outermost to the innermost
struct TensorSample {
  enum class Values : std::uint8_t { usual, below, positive, between, distinct, listed };

  DType dtype = DType::f64;
  std::vector<std::int64_t> sizes;
  Values values = Values::usual;
  /// The limit of `below`, the two of `between`, or the values of `listed`.
  std::vector<double> numbers;
  /// Dimensions from the outermost to the innermost in memory; empty: as numbered.
  std::vector<std::int64_t> order;

  static TensorSample parse(std::string_view text);
  std::string to_string() const;
  std::int64_t count() const;
  /// A plain CPU tensor; the same values for the same text and seed, in every process and thread.
  /// REQUIRES that sizes and order, if changed since it was parsed, still fit; else ValueError.
  at::Tensor make(std::uint64_t seed) const;
  friend bool operator==(const TensorSample&, const TensorSample&) = default;
};

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

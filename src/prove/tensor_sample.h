// Tensors of made-up values, with a text form.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/tensor_type.h"

namespace intarsia {

class Cursor;

/// How a made-up tensor is drawn: plain data, to be changed at will.
///
/// Text form: dtype and sizes, then which values, then the order in memory:
///
///     f64[3, 4]              standard normal; i64: -4 to 4; u8: 0 to 4; bool (or b1): coin flips;
///                            c128: both parts standard normal
///     i64[3]<6               integers from 0 to 5
///     f64[3]>0               in [0.5, 2]; integers: 1 to 4
///     f64[3]in(-1, 1)        in the open interval; integers: -1 to 1, both included
///     f64[3]distinct         a shuffled set of values, well apart in size too, none of them 0;
///                            integers: consecutive ones
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

/// Reads the text form of a tensor, and leaves the cursor behind it.
TensorSample read_tensor(Cursor& cursor);

}  // namespace intarsia

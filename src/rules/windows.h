// Windows: which elements of an operand an element of the result reads, along one dimension.
#pragma once

#include <cstdint>
#include <vector>

#include "intarsia/boxes.h"
#include "intarsia/rule.h"

namespace intarsia::rules {

/// Element o of the result reads elements o * stride - before + k * dilation of the operand, for
/// k < taps. Those outside of it are padding.
struct Window {
  std::size_t dim = 0;  ///< of the operand, and of the result
  std::int64_t stride = 1;
  std::int64_t before = 0;  ///< padding at the beginning, and at the end
  std::int64_t after = 0;
  std::int64_t dilation = 1;
  std::int64_t taps = 1;

  std::int64_t reach() const { return dilation * (taps - 1); }
  /// Element o reads element o and no other, and there are as many.
  bool is_alone() const { return stride == 1 && before == 0 && after == 0 && taps == 1; }
  /// What a run of results reads; it may begin before the operand and end after it.
  Range read(const Range& result) const;
};

/// The windows of convolutions and pools, also of their backwards, and of constant_pad_nd: one for
/// each dimension of space, or that has a padding. None for transposed convolutions.
std::vector<Window> windows(const Question& q);

/// The operand that is read in windows: of a backward, the one whose gradient it gives.
std::size_t window_operand(const Question& q);

/// A list of numbers, one for each of `n` dimensions; empty where it was not passed.
std::vector<std::int64_t> int_list(const Question& q, std::string_view name, std::size_t n);
/// The same of a list that a right call passes.
std::vector<std::int64_t> exact_list(const Question& q, std::string_view name, std::size_t n);

/// How far roll shifts a dimension to higher indices, from 0 up to its size.
std::int64_t shift_of(const Question& q, std::size_t dim);

}  // namespace intarsia::rules

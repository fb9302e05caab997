#include "checkpoint/inspect/convert.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "checkpoint/format/stored_dtype.h"

namespace intarsia::checkpoint {
namespace {

template <class T>
T load(std::span<const std::byte> numbers, std::size_t index) {
  T out;
  std::memcpy(&out, numbers.data() + index * sizeof(T), sizeof(T));
  return out;
}

/// The layout of a short type: f16 has 5 bits of exponent and 10 of fraction, bf16 8 and 7.
struct Short {
  int exponent_bits;
  int fraction_bits;
};
constexpr Short kHalf{5, 10};
constexpr Short kBrain{8, 7};

double widen(std::uint16_t bits, Short type) {
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const int fraction = bits & ((1 << type.fraction_bits) - 1);
  const int exponent = (bits >> type.fraction_bits) & ((1 << type.exponent_bits) - 1);
  const std::uint64_t sign = std::uint64_t{bits} >> 15 << 63;
  if (exponent == (1 << type.exponent_bits) - 1) {
    const std::uint64_t rest = static_cast<std::uint64_t>(fraction) << (52 - type.fraction_bits);
    return std::bit_cast<double>(sign | std::uint64_t{0x7ff} << 52 | rest);
  }
  double out = exponent == 0 ? fraction : fraction + (1 << type.fraction_bits);
  const int shift = (exponent == 0 ? 1 : exponent) - bias - type.fraction_bits;
  out *= std::bit_cast<double>(static_cast<std::uint64_t>(1023 + shift) << 52);
  return sign != 0 ? -out : out;
}

std::uint16_t narrow(double value, Short type) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const int most = (1 << type.exponent_bits) - 1;
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const auto sign = static_cast<std::uint16_t>(bits >> 63 << 15);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const auto infinite = static_cast<std::uint16_t>(sign | most << type.fraction_bits);
  if (exponent == 0x7ff) {
    return fraction == 0 ? infinite
                         : static_cast<std::uint16_t>(infinite | 1 << (type.fraction_bits - 1));
  }
  // The fraction with its leading 1, and how far it goes to the right; more for subnormal results.
  int target = exponent - 1023 + bias;
  int shift = 52 - type.fraction_bits;
  if (target <= 0) {
    shift += 1 - target;
    target = 0;
  }
  if (exponent == 0 || shift > 54) return sign;
  const std::uint64_t full = fraction | std::uint64_t{1} << 52;
  const std::uint64_t rest = full & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  std::uint64_t rounded = full >> shift;
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  // The leading 1 adds one to the exponent, as does a carry.
  const std::uint64_t base =
      target == 0 ? 0 : static_cast<std::uint64_t>(target - 1) << type.fraction_bits;
  const std::uint64_t out = base + rounded;
  if (out >= static_cast<std::uint64_t>(most) << type.fraction_bits) return infinite;
  return static_cast<std::uint16_t>(sign | out);
}

}  // namespace

bool can_convert(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

double number_at(std::span<const std::byte> numbers, DType dtype, std::size_t index) {
  switch (dtype) {
    case DType::f64:
      return load<double>(numbers, index);
    case DType::f32:
      return load<float>(numbers, index);
    case DType::bf16:
      return widen(load<std::uint16_t>(numbers, index), kBrain);
    default:
      return widen(load<std::uint16_t>(numbers, index), kHalf);
  }
}

std::vector<std::byte> convert(std::span<const std::byte> numbers, DType from, DType to) {
  if (from == to) return {numbers.begin(), numbers.end()};
  const auto count = numbers.size() / static_cast<std::size_t>(element_bytes(from));
  const auto width = static_cast<std::size_t>(element_bytes(to));
  std::vector<std::byte> out(count * width);
  for (std::size_t i = 0; i < count; ++i) {
    const double value = number_at(numbers, from, i);
    const auto put = [&](const auto& number) {
      std::memcpy(out.data() + i * width, &number, width);
    };
    if (to == DType::f64) put(value);
    if (to == DType::f32) put(static_cast<float>(value));
    if (to == DType::bf16) put(narrow(value, kBrain));
    if (to == DType::f16) put(narrow(value, kHalf));
  }
  return out;
}

}  // namespace intarsia::checkpoint

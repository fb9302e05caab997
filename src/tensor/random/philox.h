// Random numbers by global element index.
//
// Element i of a tensor, counted row-major over the full tensor, takes its value from block i of a
// generator that has no state. A value depends on key, index, distribution, parameters and dtype;
// never on the layout, the rank, or which other elements a rank fills. So ranks draw what one
// process would draw, without a message, and replicas agree.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

#include "intarsia/boxes.h"

namespace intarsia {

using PhiloxBlock = std::array<std::uint32_t, 4>;

/// The block of 128 random bits with this counter, the least significant word first. Philox4x32
/// with 10 rounds, after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint64_t key) {
  auto [c0, c1, c2, c3] = counter;
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

/// Elements of a tensor: those that a rank holds, or one box. Refers to what it was made of.
class Elements {
 public:
  Elements(const Boxes& boxes) : boxes_(&boxes) {}     // NOLINT(google-explicit-constructor)
  Elements(std::span<const Range> box) : box_(box) {}  // NOLINT(google-explicit-constructor)
  Elements(const Boxes&&) = delete;                    // it would be gone

  std::span<const Range> runs(std::size_t dim) const {
    return boxes_ != nullptr ? boxes_->runs(dim) : box_.subspan(dim, 1);
  }
  /// The sizes of a piece that holds them.
  Shape sizes() const;
  std::string to_string() const;

 private:
  const Boxes* boxes_ = nullptr;
  std::span<const Range> box_;
};

/// Which elements a local piece holds: `held` of a tensor with the global sizes `shape`.
struct Region {
  Elements held;
  std::span<const std::int64_t> shape;
};

// The fills write every element of `piece`, which may have any strides. Floats are Double, Float,
// Half and BFloat16; the last two are computed as Float or Double and rounded. Integers are those
// of 8 to 64 bits, signed or not.
//
// Bernoulli, integers and random_order give the same everywhere. The last bits of the others may
// differ between machines of another processor or C library, which round otherwise.
//
// Where the piece is not in the memory of the CPU, a buffer is filled there and copied over; no
// accelerator has run this yet. A meta tensor is left alone. Autograd and version counters do not
// learn of the writes.
//
// REQUIRES: the piece has the sizes of `held`, and no two of its elements share memory.
// Each of these, a wrong dtype and a wrong parameter is a ValueError.
// THREADS: no state; safe where the pieces are distinct.

/// `from <= x < to`, for floats and complex dtypes (both parts). No rounding reaches `to`. Where no
/// value of the dtype is between the two, the nearest to `from`.
/// REQUIRES: from <= to, both inside the dtype's range, their difference inside Float's or
/// Double's.
void fill_uniform(const at::Tensor& piece, const Region& region, std::uint64_t key, double from,
                  double to);

/// For floats and complex dtypes; of these each part has the deviation std/sqrt(2), as in PyTorch.
/// REQUIRES: std >= 0.
void fill_normal(const at::Tensor& piece, const Region& region, std::uint64_t key, double mean,
                 double std);

/// 1 with probability `p`, else 0, for floats, integers and Bool.
/// REQUIRES: 0 <= p <= 1.
void fill_bernoulli(const at::Tensor& piece, const Region& region, std::uint64_t key, double p);

/// With a probability for each element: `p` holds floats and expands to the sizes of the piece.
/// Equal to the fill above where all are equal.
void fill_bernoulli(const at::Tensor& piece, const Region& region, std::uint64_t key,
                    const at::Tensor& p);

/// For floats. Never 0 and never infinite: the ends of the dtype's range stand for what is
/// beyond. REQUIRES: lambda > 0.
void fill_exponential(const at::Tensor& piece, const Region& region, std::uint64_t key,
                      double lambda);

/// Integers `low <= x < low + range`, for floats, integers and Bool; a `range` of 0 stands for
/// 2^64. No value is more than range/2^64 likelier than another. Floats that cannot hold all of
/// the numbers take the nearest inside.
/// REQUIRES: low and low + range - 1 inside the dtype's range.
void fill_integers(const at::Tensor& piece, const Region& region, std::uint64_t key,
                   std::int64_t low, std::uint64_t range);

/// For floats. REQUIRES: sigma > 0.
void fill_cauchy(const at::Tensor& piece, const Region& region, std::uint64_t key, double median,
                 double sigma);

/// The number of trials up to the first success, at least 1; for floats and integers. Integers stop
/// at their largest value. REQUIRES: 0 < p < 1.
void fill_geometric(const at::Tensor& piece, const Region& region, std::uint64_t key, double p);

/// The exponential function of fill_normal's distribution, for floats. REQUIRES: std > 0.
void fill_log_normal(const at::Tensor& piece, const Region& region, std::uint64_t key, double mean,
                     double std);

/// The numbers 0 to n-1 in random order: int64, on the CPU. Every rank gets the same. They are
/// sorted by 64 random bits of each. REQUIRES: n >= 0.
at::Tensor random_order(std::int64_t n, std::uint64_t key);

}  // namespace intarsia

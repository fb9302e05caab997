#include "tensor/random/philox.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

/// The upper half of the counter: no two distributions use the same bits. Part of what a key means,
/// so the numbers stay.
enum class Stream : std::uint32_t {
  uniform = 0,
  normal = 1,
  bernoulli = 2,
  exponential = 3,
  integers = 4,
  cauchy = 5,
  geometric = 6,
  log_normal = 7,
  order = 8,
};

/// The random bits of one element.
using Bits = std::array<std::uint64_t, 2>;

Bits bits_of(std::uint64_t index, Stream stream, std::uint64_t key) {
  const auto [a, b, c, d] =
      philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                  static_cast<std::uint32_t>(stream), 0},
                 key);
  return {a | std::uint64_t{b} << 32, c | std::uint64_t{d} << 32};
}

/// What a dtype's parts are made of, and the type in which they are computed.
template <class S>
using Component = typename c10::scalar_value_type<S>::type;
template <class S>
using Real = at::opmath_type<Component<S>>;

/// 0 <= u < 1, in steps of the type's precision.
template <class R>
R unit(std::uint64_t bits) {
  constexpr int digits = std::numeric_limits<R>::digits;
  constexpr R step = R{1} / static_cast<R>(std::uint64_t{1} << digits);
  return static_cast<R>(static_cast<std::int64_t>(bits >> (64 - digits))) * step;
}

/// 0 < u < 1 for double; float, whose steps are finer towards 0, may round up to 1.
template <class R>
R open_unit(std::uint64_t bits) {
  constexpr int digits = std::is_same_v<R, float> ? 32 : 52;
  constexpr R step = R{1} / static_cast<R>(std::uint64_t{1} << digits);
  return (static_cast<R>(static_cast<std::int64_t>(bits >> (64 - digits))) + R{0.5}) * step;
}

/// The next value downwards.
template <class F>
F below(F x) {
  if constexpr (std::is_floating_point_v<F>) {
    return std::nextafter(x, -std::numeric_limits<F>::infinity());
  } else {
    const int bits = x == F(0) ? 0x8001 : x.x + (x > F(0) ? -1 : 1);
    return F(static_cast<std::uint16_t>(bits), F::from_bits());
  }
}

template <class F>
F largest_up_to(double x) {
  const F nearest = static_cast<F>(x);
  return static_cast<double>(nearest) > x ? below(nearest) : nearest;
}

/// The values of a float type in [from, to), to which rounded numbers are clamped.
template <class F>
struct Within {
  Real<F> first;
  Real<F> last;

  Within(double from, double to)
      : first(-largest_up_to<F>(-from)), last(largest_up_to<F>(below(to))) {
    if (first > last) first = last = static_cast<F>(from);
  }
  F operator()(Real<F> x) const { return static_cast<F>(std::min(std::max(x, first), last)); }
};

/// The dtypes that a fill can do, as C++ types.
template <class... S>
struct Types {};
template <class... A, class... B>
Types<A..., B...> operator+(Types<A...>, Types<B...>);
using Floats = Types<double, float, c10::Half, c10::BFloat16>;
using Complexes = Types<c10::complex<double>, c10::complex<float>, c10::complex<c10::Half>>;
using Integers = Types<std::int64_t, std::int32_t, std::int16_t, std::int8_t, std::uint64_t,
                       std::uint32_t, std::uint16_t, std::uint8_t>;
using FloatsAndComplexes = decltype(Floats{} + Complexes{});
using Numbers = decltype(Floats{} + Integers{});
using NumbersAndBool = decltype(Numbers{} + Types<bool>{});

template <class S>
constexpr at::ScalarType kType = c10::CppTypeToScalarType<S>::value;
template <class S>
std::string_view name_of() {
  return c10::toString(kType<S>);
}

/// Calls `f(std::type_identity<S>)` with the C++ type of `type`.
template <class... S, class Function>
void with_type(std::string_view where, Types<S...>, at::ScalarType type, const Function& f) {
  const bool known = ((type == kType<S> && (f(std::type_identity<S>{}), true)) || ...);
  if (!known) {
    fail<ValueError>(where, "cannot fill a tensor of ", c10::toString(type), "; right would be ",
                     join(std::array{name_of<S>()...}, ", "));
  }
}

template <class... Parts>
void require(std::string_view where, bool right, const Parts&... parts) {
  if (!right) fail<ValueError>(where, parts...);
}

/// Walks over the elements of a piece in their order, with the global index of each.
/// REQUIRES: there are any.
class Walk {
 public:
  Walk(const at::Tensor& piece, const Region& region)
      : held_(region.held), strides_(piece.strides()), steps_(region.shape.size(), 1) {
    const auto shape = region.shape;
    for (std::size_t d = shape.size(); d-- > 1;) steps_[d - 1] = steps_[d] * shape[d];
    row_ = shape.empty() ? 0 : shape.size() - 1;
    // A dimension that the piece holds in full, without gaps in memory, forms one row with the one
    // before it.
    while (row_ > 0 && piece.size(static_cast<std::int64_t>(row_)) == shape[row_] &&
           strides_[row_ - 1] == strides_[row_] * shape[row_])
      --row_;
  }

  /// Calls `row(first index, offset in memory, distance in memory, number of elements)`.
  template <class Row>
  void each_row(const Row& row) const {
    if (strides_.empty()) return row(0, 0, 1, 1);
    from(0, 0, 0, row);
  }

 private:
  template <class Row>
  void from(std::size_t dim, std::int64_t index, std::int64_t offset, const Row& row) const {
    for (const Range& run : held_.runs(dim)) {
      if (dim == row_) {
        row(index + run.begin * steps_[dim], offset, strides_.back(), run.size() * steps_[dim]);
        offset += run.size() * strides_[dim];
        continue;
      }
      for (std::int64_t i = run.begin; i < run.end; ++i, offset += strides_[dim])
        from(dim + 1, index + i * steps_[dim], offset, row);
    }
  }

  const Elements held_;
  at::IntArrayRef strides_;
  Shape steps_;  // how far apart neighbours along a dimension are in the full tensor
  std::size_t row_;
};

void check_piece(std::string_view where, const at::Tensor& piece, const Region& region) {
  const Shape sizes = region.held.sizes();
  if (piece.sizes() != at::IntArrayRef(sizes.begin(), sizes.size()) ||
      region.shape.size() != sizes.size()) {
    fail<ValueError>(where, "the piece has sizes (", join(piece.sizes()), "), but ", region.held,
                     " of (", join(region.shape), ") has (", join(sizes), ")");
  }
  if (at::has_internal_overlap(piece) == at::MemOverlap::Yes) {
    fail<ValueError>(where, "elements of the piece share memory: sizes (", join(piece.sizes()),
                     "), strides (", join(piece.strides()), "); clone it first");
  }
}

/// Whether elements can be written through the pointer as they are.
bool is_plain(const at::Tensor& t) { return t.is_cpu() && !t.is_conj() && !t.is_neg(); }

/// Fills with `make(std::type_identity<S>)(bits)`.
template <class List, class Make>
void fill(std::string_view where, const at::Tensor& piece, const Region& region, std::uint64_t key,
          Stream stream, List types, const Make& make) {
  check_piece(where, piece, region);
  const at::Tensor out = is_plain(piece) || piece.is_meta()
                             ? piece
                             : at::empty(piece.sizes(), piece.options().device(at::kCPU));
  with_type(where, types, piece.scalar_type(), [&]<class S>(std::type_identity<S> type) {
    auto value = make(type);
    if (piece.is_meta() || piece.numel() == 0) return;
    S* const data = out.mutable_data_ptr<S>();
    Walk(out, region)
        .each_row([&](std::int64_t index, std::int64_t offset, std::int64_t distance,
                      std::int64_t count) {
          S* at = data + offset;
          const auto first = static_cast<std::uint64_t>(index);
          const auto n = static_cast<std::uint64_t>(count);
          for (std::uint64_t i = 0; i < n; ++i, at += distance)
            *at = value(bits_of(first + i, stream, key));
        });
  });
  if (!out.is_same(piece) && !piece.is_meta()) {
    const at::NoGradGuard no_grad;
    piece.copy_(out);
  }
}

/// A number of the parts 0 and, for complex ones, 1.
template <class S, class Function>
S from_parts(const Function& part) {
  if constexpr (c10::is_complex<S>::value) {
    return S(static_cast<Component<S>>(part(0)), static_cast<Component<S>>(part(1)));
  } else {
    return static_cast<S>(part(0));
  }
}

template <class S>
void check_uniform(double from, double to) {
  const auto largest = static_cast<double>(std::numeric_limits<Component<S>>::max());
  const auto widest = static_cast<double>(std::numeric_limits<Real<S>>::max());
  if (from <= to && from >= -largest && to <= largest && to - from <= widest) return;
  fail<ValueError>("uniform_", "there is no range from ", from, " to ", to, " in ", name_of<S>(),
                   "; it should ascend, within ", -largest, " to ", largest, ", and be at most ",
                   widest, " wide");
}

/// Two normal deviates from the bits of one element: its first and second part.
template <class R>
struct BoxMuller {
  R radius;
  R angle;

  explicit BoxMuller(const Bits& bits)
      : radius(std::sqrt(R{-2} * std::log(open_unit<R>(bits[0])))),
        angle(2 * std::numbers::pi_v<R> * unit<R>(bits[1])) {}
  R operator[](int part) const { return radius * (part == 0 ? std::cos(angle) : std::sin(angle)); }
};

template <class S>
auto printable(S x) {
  if constexpr (std::is_integral_v<S>) {
    return x;
  } else {
    return static_cast<double>(x);
  }
}

/// In 128 bits, since `low + range` may need 66.
template <class S>
void check_integers(std::int64_t low, std::uint64_t range) {
  using Limits = std::numeric_limits<S>;
  const auto count = range == 0 ? static_cast<__int128>(1) << 64 : static_cast<__int128>(range);
  const __int128 last = low + count - 1;
  if constexpr (Limits::is_integer) {
    if (low >= static_cast<__int128>(Limits::min()) && last <= static_cast<__int128>(Limits::max()))
      return;
  } else {
    const auto largest = static_cast<double>(Limits::max());
    if (static_cast<double>(low) >= -largest && static_cast<double>(last) <= largest) return;
  }
  fail<ValueError>("random_", range == 0 ? "2^64" : concat(range), " values from ", low,
                   " do not fit ", name_of<S>(), ", which holds ", printable(Limits::lowest()),
                   " to ", printable(Limits::max()));
}

/// An integer below `range` from 64 bits: the integer part of range * bits / 2^64.
std::uint64_t scaled(std::uint64_t bits, std::uint64_t range) {
  return range == 0
             ? bits
             : static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * range) >> 64);
}

/// Integers stop at their largest value. REQUIRES: x >= 0.
template <class S>
S saturated(double x) {
  if constexpr (std::is_integral_v<S>) {
    constexpr S largest = std::numeric_limits<S>::max();
    return x >= static_cast<double>(largest) ? largest : static_cast<S>(x);
  } else {
    return static_cast<S>(x);
  }
}

/// The probabilities as one double for each element of the piece, in its order.
at::Tensor probabilities(const at::Tensor& p, const at::Tensor& piece) {
  constexpr std::string_view where = "bernoulli_";
  require(where, at::isFloatingType(p.scalar_type()), "p is of ", c10::toString(p.scalar_type()),
          "; it should hold floats");
  require(where, at::is_expandable_to(p.sizes(), piece.sizes()), "p has sizes (", join(p.sizes()),
          "), which do not expand to the piece's (", join(piece.sizes()), ")");
  if (piece.is_meta()) return p;
  const at::Tensor out = p.to(at::kCPU, at::kDouble);
  if (out.numel() > 0) {
    const auto least = out.min().item<double>();
    const auto most = out.max().item<double>();
    require(where, least >= 0 && most <= 1, "p holds values from ", least, " to ", most,
            "; they should be from 0 to 1");
  }
  return out.expand(piece.sizes()).contiguous();
}

}  // namespace

Shape Elements::sizes() const {
  if (boxes_ != nullptr) return boxes_->local_shape();
  Shape out;
  for (const Range& range : box_) out.push_back(range.size());
  return out;
}

std::string Elements::to_string() const {
  return boxes_ != nullptr ? boxes_->to_string() : join(box_, "x");
}

void fill_uniform(const at::Tensor& piece, const Region& region, std::uint64_t key, double from,
                  double to) {
  fill("uniform_", piece, region, key, Stream::uniform, FloatsAndComplexes{},
       [=]<class S>(std::type_identity<S>) {
         check_uniform<S>(from, to);
         const Within<Component<S>> within(from, to);
         const auto start = static_cast<Real<S>>(from);
         const auto width = static_cast<Real<S>>(to - from);
         return [=](const Bits& bits) {
           return from_parts<S>(
               [&](int i) { return within(start + width * unit<Real<S>>(bits[i])); });
         };
       });
}

void fill_normal(const at::Tensor& piece, const Region& region, std::uint64_t key, double mean,
                 double std) {
  require("normal_", std >= 0, "std is ", std, "; it should be at least 0");
  fill("normal_", piece, region, key, Stream::normal, FloatsAndComplexes{},
       [=]<class S>(std::type_identity<S>) {
         const auto middle = static_cast<Real<S>>(mean);
         const auto scale =
             static_cast<Real<S>>(c10::is_complex<S>::value ? std / std::numbers::sqrt2 : std);
         return [=](const Bits& bits) {
           const BoxMuller<Real<S>> normal(bits);
           return from_parts<S>([&](int i) { return middle + scale * normal[i]; });
         };
       });
}

void fill_bernoulli(const at::Tensor& piece, const Region& region, std::uint64_t key, double p) {
  require("bernoulli_", p >= 0 && p <= 1, "p is ", p, "; it should be from 0 to 1");
  fill("bernoulli_", piece, region, key, Stream::bernoulli, NumbersAndBool{},
       [=]<class S>(std::type_identity<S>) {
         return [=](const Bits& bits) { return static_cast<S>(unit<double>(bits[0]) < p); };
       });
}

void fill_bernoulli(const at::Tensor& piece, const Region& region, std::uint64_t key,
                    const at::Tensor& p) {
  const at::Tensor all = probabilities(p, piece);
  fill("bernoulli_", piece, region, key, Stream::bernoulli, NumbersAndBool{},
       [&]<class S>(std::type_identity<S>) {
         // The walk visits elements in the order in which these are stored.
         const double* const begin = piece.is_meta() ? nullptr : all.const_data_ptr<double>();
         return [next = begin](const Bits& bits) mutable {
           return static_cast<S>(unit<double>(bits[0]) < *next++);
         };
       });
}

void fill_exponential(const at::Tensor& piece, const Region& region, std::uint64_t key,
                      double lambda) {
  require("exponential_", lambda > 0, "lambda is ", lambda, "; it should be more than 0");
  fill("exponential_", piece, region, key, Stream::exponential, Floats{},
       [=]<class S>(std::type_identity<S>) {
         const auto smallest = static_cast<double>(std::numeric_limits<S>::denorm_min());
         const auto largest = static_cast<double>(std::numeric_limits<S>::max());
         return [=](const Bits& bits) {
           const double x = -std::log(open_unit<double>(bits[0])) / lambda;
           return static_cast<S>(std::min(std::max(x, smallest), largest));
         };
       });
}

void fill_integers(const at::Tensor& piece, const Region& region, std::uint64_t key,
                   std::int64_t low, std::uint64_t range) {
  fill("random_", piece, region, key, Stream::integers, NumbersAndBool{},
       [=]<class S>(std::type_identity<S>) {
         check_integers<S>(low, range);
         if constexpr (std::is_integral_v<S>) {
           return [=](const Bits& bits) {
             return static_cast<S>(static_cast<std::uint64_t>(low) + scaled(bits[0], range));
           };
         } else {
           const auto start = static_cast<double>(low);
           const Within<S> within(start,
                                  start + (range == 0 ? 0x1p64 : static_cast<double>(range)));
           return [=](const Bits& bits) {
             const double x = start + static_cast<double>(scaled(bits[0], range));
             return within(static_cast<Real<S>>(x));
           };
         }
       });
}

void fill_cauchy(const at::Tensor& piece, const Region& region, std::uint64_t key, double median,
                 double sigma) {
  require("cauchy_", sigma > 0, "sigma is ", sigma, "; it should be more than 0");
  fill("cauchy_", piece, region, key, Stream::cauchy, Floats{},
       [=]<class S>(std::type_identity<S>) {
         return [=](const Bits& bits) {
           const double angle = std::numbers::pi * (open_unit<double>(bits[0]) - 0.5);
           return static_cast<S>(median + sigma * std::tan(angle));
         };
       });
}

void fill_geometric(const at::Tensor& piece, const Region& region, std::uint64_t key, double p) {
  require("geometric_", p > 0 && p < 1, "p is ", p, "; it should be between 0 and 1");
  const double log_failure = std::log1p(-p);
  fill("geometric_", piece, region, key, Stream::geometric, Numbers{},
       [=]<class S>(std::type_identity<S>) {
         return [=](const Bits& bits) {
           return saturated<S>(std::ceil(std::log(open_unit<double>(bits[0])) / log_failure));
         };
       });
}

void fill_log_normal(const at::Tensor& piece, const Region& region, std::uint64_t key, double mean,
                     double std) {
  require("log_normal_", std > 0, "std is ", std, "; it should be more than 0");
  fill("log_normal_", piece, region, key, Stream::log_normal, Floats{},
       [=]<class S>(std::type_identity<S>) {
         return [=](const Bits& bits) {
           return static_cast<S>(std::exp(mean + std * BoxMuller<double>(bits)[0]));
         };
       });
}

at::Tensor random_order(std::int64_t n, std::uint64_t key) {
  require("randperm", n >= 0, "n is ", n, "; it should be at least 0");
  const at::Tensor keys = at::empty({n}, at::kLong);
  auto* const data = keys.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) {
    const Bits bits = bits_of(static_cast<std::uint64_t>(i), Stream::order, key);
    data[i] = static_cast<std::int64_t>(bits[0]);
  }
  return keys.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
}

}  // namespace intarsia

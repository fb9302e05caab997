// Placement: what one mesh axis does to a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace intarsia {

/// How partial values are reduced to the value.
enum class Reduction : std::uint8_t {
  sum,
  avg,
  min,
  max,
  product,
  bit_and,
  bit_or,
  bit_xor,
  norm,  ///< (sum of |x|^p)^(1/p), for an order p
};

/// What one mesh axis does to a tensor: a plain value.
///
///   R          every rank along the axis holds the same
///   S(d)       dimension d is split in chunks like torch.chunk: rank i holds the i-th; the last
///              ones may be short or empty
///   SS(d,k)    dimension d is split in k blocks, and each block in chunks: rank i holds the i-th
///              chunk of every block, joined. A shard of an inner dimension becomes this when
///              dimensions are flattened
///   P(op)      every rank holds a partial value; reduced by op, they give the value: P(sum),
///              P(avg), P(min), P(max), P(prod), P(and), P(or), P(xor), P(norm:2)
class Placement {
 public:
  enum class Kind : std::uint8_t { replicate, shard, strided_shard, partial };

  /// Replicate.
  constexpr Placement() = default;
  static constexpr Placement replicate() { return {}; }
  /// A negative `dim` counts from the end. It is replaced by a non-negative one when a layout is
  /// made that knows the tensor's number of dimensions.
  static Placement shard(int dim);
  /// `split` is the number of blocks; SS(d,1) is S(d). REQUIRES: split >= 1.
  static Placement strided_shard(int dim, std::int64_t split);
  /// REQUIRES: not Reduction::norm, which needs its order.
  static Placement partial(Reduction reduction = Reduction::sum);
  /// REQUIRES: 0 < p < infinity (the norms 0 and infinity are P(sum) and P(max) of other values).
  static Placement partial_norm(double p);
  /// Reads the text form.
  static Placement parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::replicate; }
  /// S or SS.
  bool is_shard() const { return kind_ == Kind::shard || kind_ == Kind::strided_shard; }
  bool is_shard(int dim) const { return is_shard() && dim_ == dim; }
  bool is_strided() const { return kind_ == Kind::strided_shard; }
  bool is_partial() const { return kind_ == Kind::partial; }

  /// REQUIRES: is_shard().
  int dim() const { return dim_; }
  /// The number of blocks: 1 for S. REQUIRES: is_shard().
  std::int64_t split() const { return split_; }
  /// REQUIRES: is_partial().
  Reduction reduction() const { return reduction_; }
  /// The order of a norm; 0 for any other reduction.
  double norm_order() const { return order_; }

  std::string to_string() const;
  std::size_t hash() const;
  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Kind kind_ = Kind::replicate;
  Reduction reduction_ = Reduction::sum;
  std::int16_t dim_ = 0;
  std::int64_t split_ = 1;
  double order_ = 0;
};

/// `sum`, `avg`, `min`, `max`, `prod`, `and`, `or`, `xor`, `norm`.
std::string_view to_text(Reduction reduction);

/// The dimension counted from the front: the one place where negative dimensions are replaced.
/// `where` names the user's call. ValueError when `dim` is outside -dims..dims-1.
int normalize_dim(std::string_view where, std::int64_t dim, std::size_t dims);

/// Whether two partial placements may be on two axes of one layout: the value must not depend on
/// which is reduced first.
bool commute(const Placement& a, const Placement& b);

}  // namespace intarsia

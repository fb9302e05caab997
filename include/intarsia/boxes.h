// boxes: which elements of a tensor does a rank hold?
//
// The one function on which local shapes, redistribution, checkpoints, random numbers and
// verification are built. It is pure: every rank can compute every other rank's part, without a
// message, at a cost that does not depend on the number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "intarsia/layout.h"

namespace intarsia {

/// The indices `begin <= i < end`.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  std::string to_string() const;
  friend bool operator==(const Range&, const Range&) = default;
};

/// A block of a tensor: one range per dimension.
using Box = FixedVector<Range, kMaxDims>;

/// The global index ranges that one rank holds: for each dimension the runs of indices, in the
/// order in which the local piece has them (which is ascending). The boxes are all combinations of
/// one run per dimension. A dimension that is not sharded in blocks has one run; a dimension of
/// which the rank holds nothing has none.
class Boxes {
 public:
  std::size_t dims() const { return sizes_.size(); }
  std::span<const Range> runs(std::size_t dim) const {
    return {runs_.data() + starts_[dim], runs_.data() + starts_[dim + 1]};
  }
  /// The sizes of the local piece.
  const Shape& local_shape() const { return sizes_; }
  /// Number of elements held.
  std::int64_t numel() const;
  /// Where the local piece begins in each dimension. For a dimension of which nothing is held: its
  /// global size, as in PyTorch.
  const Shape& offset() const { return offset_; }

  /// The number of boxes, and the i-th in the order of the local piece. REQUIRES: 0 <= i < count().
  std::int64_t count() const;
  Box box(std::int64_t i) const;

  /// `[0,4)x[2,3)+[6,7)`.
  std::string to_string() const;
  friend bool operator==(const Boxes&, const Boxes&) = default;

 private:
  friend Boxes boxes(const Layout&, std::span<const std::int64_t>, const Coordinate&);
  FixedVector<std::uint32_t, kMaxDims + 1> starts_;
  Shape sizes_;
  Shape offset_;
  std::vector<Range> runs_;
};

/// What the rank at `at` holds of a tensor with this shape.
/// REQUIRES: the layout shards no dimension beyond the shape; `at` is a coordinate of its mesh.
Boxes boxes(const Layout& layout, std::span<const std::int64_t> shape, const Coordinate& at);

/// The sizes of the piece at `at`, without listing its boxes. Allocates nothing.
Shape local_shape(const Layout& layout, std::span<const std::int64_t> shape, const Coordinate& at);

/// How long pieces are along `dim`: those of the ranks that differ from the one at `at` only along
/// `axes`, of which the first varies slowest. Collectives over World::along(mesh, axes) take such
/// lengths.
std::vector<std::int64_t> lengths_along(const Layout& layout, std::span<const std::int64_t> shape,
                                        int dim, std::span<const std::string> axes,
                                        const Coordinate& at);
std::vector<std::int64_t> lengths_along(const Layout& layout, std::span<const std::int64_t> shape,
                                        int dim, std::initializer_list<std::string> axes,
                                        const Coordinate& at);

/// Refuses negative sizes and more than 2^56 elements, with a message that begins with `[where]`.
void check_shape(std::string_view where, std::span<const std::int64_t> shape);

/// Refuses a layout that shards a dimension which a tensor of `dims` dimensions does not have, with
/// a message that begins with `[where]`.
void check_dims(std::string_view where, const Layout& layout, std::size_t dims);

}  // namespace intarsia

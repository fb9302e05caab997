// Mesh: the devices of a job, arranged along named axes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/fixed_vector.h"

namespace intarsia {

/// The most axes that a mesh may have.
inline constexpr std::size_t kMaxAxes = 8;

/// A position in a mesh: one index per axis.
using Coordinate = FixedVector<std::int64_t, kMaxAxes>;

/// A named axis, to make meshes from.
struct Axis {
  std::string name;
  std::int64_t size = 1;
};

/// Part of how an axis walks over ranks: `size` steps of `step` ranks each. `step` may be negative.
struct Stride {
  std::int64_t size = 1;
  std::int64_t step = 1;
  friend bool operator==(const Stride&, const Stride&) = default;
};

/// A named axis with its strides, the outermost first. Most axes have one stride; a flattened
/// axis may have several, like the digits of a number.
struct StridedAxis {
  std::string name;
  std::vector<Stride> strides;
};

/// Ranks arranged along named axes: a value, cheap to copy, safe to share between threads.
///
/// A mesh says which rank stands at a coordinate. It holds a base rank and a few strides for each
/// axis, so that a mesh of 131,072 ranks is as small and as fast as one of 8; slices, ranges,
/// flattened, split and reordered meshes are meshes of the same kind. An explicit table of ranks is
/// kept only for an order that strides cannot express.
///
/// Equal meshes put the same ranks at the same coordinates of axes with the same names.
///
/// Text form: `[dp=2,tp=4]`, with steps where ranks do not simply count up
/// (`[tp=4:1,dp=2:4]`, a flattened axis `[all=2:1*2:4]`), a base rank `[tp=4]+8`, or a table
/// `[x=4]{0,3,5,6}`.
class Mesh {
 public:
  /// No axes: the single rank 0, `[]`.
  Mesh();

  /// The ranks from `base` on, counted up with the last axis fastest.
  /// REQUIRES: at most kMaxAxes axes, distinct names, sizes of at least 1.
  explicit Mesh(const std::vector<Axis>& axes, std::int64_t base = 0);

  /// REQUIRES: no rank is reached twice, and strides nest: each step is longer than what all
  /// shorter steps together can reach. Other arrangements need `of_ranks`.
  static Mesh strided(const std::vector<StridedAxis>& axes, std::int64_t base = 0);

  /// `ranks[i]` stands at the i-th coordinate, counted with the last axis fastest. Where strides
  /// can express the order, the result is the same mesh as one made from strides.
  static Mesh of_ranks(const std::vector<Axis>& axes, std::span<const std::int64_t> ranks);

  /// Reads the text form.
  static Mesh parse(std::string_view text);

  std::size_t axes() const;
  /// Number of ranks.
  std::int64_t size() const;
  std::int64_t size(std::size_t axis) const;
  std::int64_t size(std::string_view axis) const { return size(axis_index(axis)); }
  const std::string& name(std::size_t axis) const;
  /// The index of the axis with that name; an unknown name is a ValueError that lists the names.
  std::size_t axis_index(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  std::vector<std::string> names() const;
  std::int64_t base() const;
  /// The largest rank.
  std::int64_t highest() const;
  /// Whether ranks are kept as an explicit table.
  bool has_table() const;

  /// REQUIRES: `at` has one index per axis, inside the axis.
  std::int64_t rank_at(const Coordinate& at) const;
  /// The coordinate at which `rank` stands; nullopt when it is not in the mesh.
  std::optional<Coordinate> coordinate_of(std::int64_t rank) const;
  bool contains(std::int64_t rank) const { return coordinate_of(rank).has_value(); }

  /// The mesh of the axes `names`, in that order, through the rank `member`: along all other axes
  /// it stays at the index of that rank. REQUIRES: `member` is in this mesh.
  Mesh slice(std::span<const std::string> names, std::int64_t member) const;
  Mesh slice(std::initializer_list<std::string> names, std::int64_t member) const;
  /// The part of the mesh with `begin <= index < end` along one axis.
  Mesh range(std::string_view axis, std::int64_t begin, std::int64_t end) const;
  /// The axes `names` joined to one axis `as`, which takes the place of the first of them. The
  /// first varies slowest.
  Mesh flatten(std::span<const std::string> names, std::string_view as) const;
  Mesh flatten(std::initializer_list<std::string> names, std::string_view as) const;
  /// The axis split in several, of which the first varies slowest. REQUIRES: their sizes multiply
  /// to the size of the axis.
  Mesh split(std::string_view axis, const std::vector<Axis>& into) const;
  /// The same ranks with the axes listed in another order.
  Mesh reorder(std::span<const std::string> names) const;
  Mesh reorder(std::initializer_list<std::string> names) const;
  /// The devices along one axis in another order: index i is what was at `order[i]`.
  Mesh permute(std::string_view axis, std::span<const std::int64_t> order) const;

  /// The mesh that this one was made from, for example by `slice`; nullopt where there is none. The
  /// parent takes no part in equality, hash or text, and the mesh of a layout has none.
  std::optional<Mesh> parent() const;
  /// The same mesh without its parent.
  Mesh orphan() const;

  std::string to_string() const;
  std::size_t hash() const;
  friend bool operator==(const Mesh& a, const Mesh& b);

 private:
  struct Data;
  explicit Mesh(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  static Mesh build(std::string_view where, std::vector<StridedAxis> axes, std::int64_t base);
  static Mesh build(std::string_view where, const std::vector<Axis>& axes,
                    std::vector<std::int64_t> table);
  /// A mesh with these axes whose ranks are those of this one at `source(coordinate)`.
  template <class Source>
  Mesh tabulate(std::string_view where, const std::vector<Axis>& axes, const Source& source) const;
  Mesh with_parent(const Mesh& parent) const;
  Axis axis(std::size_t index) const { return {name(index), size(index)}; }
  std::vector<std::size_t> indices_of(std::string_view where,
                                      std::span<const std::string> names) const;

  std::shared_ptr<const Data> data_;
  std::shared_ptr<const Data> parent_;
};

}  // namespace intarsia

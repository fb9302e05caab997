// Layout: how a tensor is laid out over a mesh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "intarsia/fixed_vector.h"
#include "intarsia/mesh.h"
#include "intarsia/placement.h"

namespace intarsia {

/// The most dimensions that a distributed tensor may have.
inline constexpr std::size_t kMaxDims = 16;

/// The sizes of a tensor.
using Shape = FixedVector<std::int64_t, kMaxDims>;

/// Indices of mesh axes, in the order in which they apply.
using AxisList = FixedVector<std::int8_t, kMaxAxes>;

/// What SS(d,k) means among the placements that a layout is made of.
enum class StridedMeans : std::uint8_t {
  /// The data is stored in blocks, as a view left it. This is what SS means in every Layout.
  data,
  /// Another spelling of the order in which axes shard a dimension. FSDP + TP use PyTorch's
  /// `_StridedShard` so: SS(0,2),S(0) on [dp=2,tp=2] says that tp shards dimension 0 first, then
  /// dp.
  order,
};

struct LayoutOptions {
  /// The tensor's number of dimensions. When given, negative dims count from the end and dims
  /// beyond it are refused; without it, negative dims are refused.
  std::optional<std::size_t> dims = std::nullopt;
  /// For dimensions that several axes shard: the names of those axes, in the order in which they
  /// shard the dimension. Dimensions that are not listed are sharded in the order of the mesh's
  /// axes.
  std::vector<std::pair<int, std::vector<std::string>>> order = {};
  StridedMeans strided = StridedMeans::data;
};

/// One placement for each mesh axis and, for each tensor dimension, the order in which axes shard
/// it.
///
/// A handle to an interned value: equal layouts are the same pointer, so that comparing and hashing
/// cost nothing. A value that no handle refers to any more is freed. A layout does not depend on
/// the rank of this process.
///
/// A layout knows how a dimension is sharded, not how long it is: `boxes` adds the sizes. Some
/// layouts can be written with strided shards or with an order of axes. A Layout always keeps the
/// order, so that SS in it always means data in blocks, and the two never compare equal by
/// accident.
///
/// Text form: mesh, placements, and orders that differ from the mesh's:
/// `[dp=2,tp=4] S(0),R`, `[dp=2,tp=4] S(0),S(0) | 0:tp>dp`.
///
/// THREADS: handles may be made, copied and dropped in any thread.
class Layout {
 public:
  /// Replicated over the empty mesh.
  Layout();
  /// REQUIRES: one placement per axis; partial placements of one kind (or of sum and avg, which
  /// commute); each order names exactly the axes that shard the dimension.
  Layout(const Mesh& mesh, std::span<const Placement> placements,
         const LayoutOptions& options = {});
  Layout(const Mesh& mesh, std::initializer_list<Placement> placements,
         const LayoutOptions& options = {});
  /// R on every axis.
  static Layout replicated(const Mesh& mesh);
  /// Reads the text form: with its mesh, or only `S(0),R` on a given mesh.
  static Layout parse(std::string_view text);
  static Layout parse(std::string_view text, const Mesh& mesh, const LayoutOptions& options = {});

  Layout(const Layout& other);
  Layout(Layout&& other) noexcept;
  Layout& operator=(const Layout& other);
  Layout& operator=(Layout&& other) noexcept;
  ~Layout();

  const Mesh& mesh() const;
  std::span<const Placement> placements() const;
  const Placement& placement(std::size_t axis) const { return placements()[axis]; }
  const Placement& placement(std::string_view axis) const {
    return placement(mesh().axis_index(axis));
  }

  /// The axes that shard `dim`, in the order in which they shard it.
  AxisList axes_of(int dim) const;
  /// All axes that shard: by dimension, and then in the order in which they shard it.
  std::span<const std::int8_t> sharding_axes() const;
  /// Whether axes shard every dimension in the order of the mesh.
  bool has_default_order() const;
  bool is_replicated() const;
  bool has_partial() const;
  bool has_strided() const;
  /// One more than the last sharded dimension: the tensor has at least so many dimensions.
  std::size_t least_dims() const;

  /// The same layout with another placement on one axis. If that shards a dimension, the axis comes
  /// last in the order of that dimension.
  Layout with(std::size_t axis, const Placement& placement) const;
  Layout with(std::string_view axis, const Placement& placement) const {
    return with(mesh().axis_index(axis), placement);
  }

  /// The placements that describe this layout to a library that knows strided shards but no order
  /// of axes: the reverse of StridedMeans::order. nullopt when the layout has data in blocks, or an
  /// order that no split factors can express.
  std::optional<std::vector<Placement>> strided_spelling() const;

  std::string to_string() const;
  /// The text without the mesh.
  std::string placements_text() const;
  std::size_t hash() const;
  /// Identity: the same for equal layouts, and for no others while both live.
  const void* id() const { return node_; }
  friend bool operator==(const Layout& a, const Layout& b) { return a.node_ == b.node_; }

  /// How many distinct layouts are alive in this process.
  static std::size_t alive();

 private:
  struct Data;
  struct Table;
  explicit Layout(Data data);
  static Table& table();
  const Data& data() const;
  const void* node_;
};

/// The order of axes that placements in the strided spelling stand for: one list for each sharded
/// dimension. nullopt when no order gives these split factors.
std::optional<std::vector<std::pair<int, AxisList>>> order_of_strided(
    const Mesh& mesh, std::span<const Placement> placements);

}  // namespace intarsia

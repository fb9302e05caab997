// View algebra: what reshaping, transposing or expanding a tensor makes of its layout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "intarsia/layout.h"

namespace intarsia {

/// A view of a tensor with known sizes: which dimensions of the input become which dimensions of
/// the output. A value; make it with one of the functions below. Negative dims count from the end,
/// as in ATen.
class View {
 public:
  /// Any sizes with the same number of elements; one of them may be -1.
  static View reshape(const Shape& shape, const Shape& sizes);
  /// Joins the dims first..last, both included.
  static View flatten(const Shape& shape, std::int64_t first, std::int64_t last);
  /// Splits one dim into several; one of `sizes` may be -1.
  static View unflatten(const Shape& shape, std::int64_t dim, const Shape& sizes);
  static View transpose(const Shape& shape, std::int64_t a, std::int64_t b);
  /// Output dim i is input dim `dims[i]`.
  static View permute(const Shape& shape, std::span<const std::int64_t> dims);
  /// Drops every dim of size 1, or one dim if it has size 1.
  static View squeeze(const Shape& shape);
  static View squeeze(const Shape& shape, std::int64_t dim);
  static View unsqueeze(const Shape& shape, std::int64_t dim);
  /// Repeats dims of size 1 and adds leading dims, without copying; -1 keeps a size.
  static View expand(const Shape& shape, const Shape& sizes);

  const std::string& name() const { return name_; }
  const Shape& input() const { return input_; }
  const Shape& output() const { return output_; }

  /// Consecutive elements of the input dims `in` are those of the output dims `out`, in row-major
  /// order. `repeats`: the input (at most one dim, of size 1) is repeated along `out`.
  struct Group {
    FixedVector<std::int8_t, kMaxDims> in;
    FixedVector<std::int8_t, kMaxDims> out;
    bool repeats = false;
  };
  std::span<const Group> groups() const { return groups_; }

 private:
  View(std::string name, const Shape& input) : name_(std::move(name)), input_(input) {}
  void keep(int in) { regroup({in}, {input_[static_cast<std::size_t>(in)]}); }
  void regroup(std::initializer_list<int> in, std::initializer_list<std::int64_t> sizes);
  void add(const Group& group, std::span<const std::int64_t> sizes);
  void match(std::size_t in_begin, std::size_t in_end, std::span<const std::int64_t> sizes);

  std::string name_;
  Shape input_;
  Shape output_;
  std::vector<Group> groups_;
};

/// Why a view of a distributed tensor cannot be taken on local pieces, and what to do about it.
struct Crossing {
  /// The mesh axis that is in the way, and the input dim that it shards.
  std::size_t axis = 0;
  int dim = 0;
  /// The cheapest layout to move the input to first, and the layout that the view then has.
  Layout move_to;
  Layout then;
  /// The same in words.
  std::string why;
};

/// The layout after a view: exact, or none.
struct ViewedLayout {
  /// With this layout, every rank's local piece, viewed with the output's local sizes, is its piece
  /// of the output, and nothing is communicated. A rank that holds nothing of the output makes an
  /// empty piece instead, since an empty piece cannot be expanded.
  std::optional<Layout> layout;
  /// Set exactly when `layout` is not.
  std::optional<Crossing> crossing;
};

/// The layout that a view has. Partial placements pass through every view unchanged.
/// REQUIRES: the layout shards no dimension beyond the view's input.
ViewedLayout view_layout(const Layout& layout, const View& view);

}  // namespace intarsia

// Windows of an operand that reach beyond the edges of pieces: what each rank reads, fetched and
// padded.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "rules/windows.h"
#include "tensor/call/decision.h"
#include "tensor/call/frame.h"
#include "tensor/local/halo.h"

namespace intarsia {

using rules::Window;
using Sizes = std::vector<std::int64_t>;

/// Whether ranks hold different parts of the dimension.
bool is_sharded(const Layout& layout, std::size_t dim);

/// What a rank holds of a dimension that is not sharded in blocks.
Range run_of(const Layout& layout, const Shape& sizes, std::size_t dim, const Coordinate& at);

/// What one rank reads along one sharded dimension.
struct Edge {
  Edge(const Window& window, const Range& result, std::int64_t size)
      : result(result), read(window.read(result)), need(read) {
    // All of it may be padding: then an empty run is needed.
    const std::int64_t before = std::clamp<std::int64_t>(-read.begin, 0, read.size());
    need.begin += before;
    need.end -= std::clamp<std::int64_t>(read.end - size, 0, need.size());
  }

  Range result;
  Range read;  ///< with padding
  Range need;  ///< without
  std::int64_t before() const { return need.begin - read.begin; }
  std::int64_t after() const { return read.end - need.end; }
};

/// The sharded dimensions along which an op reads windows of one operand.
class ShardedWindows {
 public:
  /// `read`: the operand, laid out as the op runs; `result`: what is computed from its windows.
  ShardedWindows(const Frame& f, const std::vector<Window>& windows, const Spec& read,
                 const Layout& result, const Shape& result_sizes);

  bool empty() const { return dims_.empty(); }

  Pieces fetch(Pieces pieces) const {
    for (const Dim& d : dims_) pieces = d.halo.fetch(pieces);
    return pieces;
  }

  Pieces give_back(Pieces windows) const {
    for (auto d = dims_.rbegin(); d != dims_.rend(); ++d) windows = d->halo.give_back(windows);
    return windows;
  }

  /// A window with the padding that the op would have added at the ends of the full tensor.
  at::Tensor padded(const at::Tensor& window, std::size_t m, const at::Scalar& fill) const;

  /// The window without its padding.
  at::Tensor stripped(at::Tensor padded, std::size_t m) const;

  /// The sizes of the window of a piece.
  Sizes sizes(at::IntArrayRef piece, std::size_t m, bool with_padding) const;

  /// A window, with its padding, of which only sizes matter.
  at::Tensor blank(const at::Tensor& piece, std::size_t m) const;

  /// The same list of numbers, one per dimension from `first` on, with 0 for those that are
  /// sharded.
  Sizes without_padding(Sizes padding, std::size_t first) const;

  const Edge* edge(std::size_t dim, std::size_t m) const;

 private:
  struct Dim {
    Window window;
    Halo halo;
    std::vector<Edge> edges;  // of the hosted ranks
  };
  std::vector<Dim> dims_;
};

/// The sizes of the pieces of the hosted ranks.
std::vector<Shape> local_shapes(const Frame& f, const Layout& layout, const Shape& sizes);

bool has_elements(const Shape& sizes);

void replace_stack(torch::jit::Stack& stack, std::vector<at::Tensor> results);

}  // namespace intarsia

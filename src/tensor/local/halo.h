// Halo: elements of a sharded dimension that a rank needs and others hold, such as those beside the
// edges of its piece.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "intarsia/boxes.h"
#include "intarsia/collectives.h"
#include "intarsia/world.h"
#include "tensor/core/impl.h"

namespace intarsia {

/// One sharded dimension of a tensor, and the runs of it that each rank needs. Everything follows
/// from layouts, so all ranks agree on what is sent, and whether anything is.
///
/// COLLECTIVE: `fetch` and `give_back`, all ranks of the mesh, in the same order.
class Halo {
 public:
  /// Runs of the dimension, in the order in which they stand in the window.
  using Runs = std::vector<Range>;
  /// What the rank at a coordinate needs. It may depend only on the axes that shard the dimension.
  using Needs = std::function<Runs(const Coordinate& at)>;

  /// `op` and `spec` are for the bill. REQUIRES: the layout of `spec` shards `dim`, not in blocks;
  /// the world outlives it.
  Halo(World& world, std::string op, const Spec& spec, std::size_t dim, const Needs& needs);

  /// The windows of the hosted ranks, from their pieces: by one all_to_all of what others need. A
  /// rank that needs just what it has gets its piece itself.
  Pieces fetch(const Pieces& pieces) const;
  /// The same, without waiting: one window for each hosted rank. The caller can compute meanwhile,
  /// and may not write to the pieces.
  Pending start_fetch(const Pieces& pieces) const;
  /// The transpose of `fetch`: what each rank has for the elements of its window is added up where
  /// they are held.
  Pieces give_back(const Pieces& windows) const;

 private:
  /// A run of the window of the rank at place `to` that the one at `from` holds.
  struct Part {
    std::int64_t in_window = 0;
    std::int64_t in_piece = 0;
    std::int64_t size = 0;
  };
  std::vector<Part> parts(std::size_t from, std::size_t to) const;
  std::int64_t window_size(std::size_t place) const;
  /// Sends parts of the tensors to the others: those of pieces that are in their windows, or of
  /// windows that they hold. What arrives comes rank by rank; nothing where nobody needs anything.
  Pending exchange(const Pieces& tensors, bool to_windows) const;
  Pieces windows_of(const Pieces& pieces, const std::vector<at::Tensor>& arrived) const;
  at::Tensor sized(const at::Tensor& like, std::int64_t size) const;

  World* world_;
  std::string op_;
  Spec spec_;
  std::size_t dim_;
  std::vector<std::string> axes_;    // that shard the dimension, the outermost first
  std::vector<Range> held_;          // by place in the group along them
  std::vector<Runs> needs_;          // likewise
  std::vector<std::size_t> places_;  // of the hosted ranks
  bool exchanges_ = false;           // whether some rank needs what it does not hold
};

}  // namespace intarsia

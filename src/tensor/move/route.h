// Route: a plan made ready for the ranks hosted here: which elements go where.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "intarsia/boxes.h"
#include "intarsia/plan.h"
#include "intarsia/world.h"
#include "world/collectives/wire.h"

namespace intarsia {

/// A block of elements that two pieces share. Places are those of its first element in the flat,
/// row-major old piece, new piece, and in the part that is sent.
struct Block {
  Shape sizes;
  std::int64_t in_old = 0;
  std::int64_t in_new = 0;
  std::int64_t in_part = 0;
};

/// What one rank's old piece and another's new piece share, row-major: `count` elements.
struct Part {
  std::int64_t count = 0;
  Shape sizes;
  std::vector<Block> blocks;
};

/// The elements that both hold.
Part shared_part(const Boxes& old, const Boxes& next);

/// The blocks of the elements [begin, end) of a part; `in_part` counts from `begin`.
std::vector<Block> blocks_within(const Part& part, std::int64_t begin, std::int64_t end,
                                 const Shape& old_sizes, const Shape& new_sizes);

/// What one hosted rank does in an exchange.
struct MemberRoute {
  Shape before;  ///< sizes of its old piece
  Shape after;   ///< and of its new one
  std::size_t me = 0;
  std::vector<Part> to;    ///< by place in the group; to itself: what it keeps
  std::vector<Part> from;  ///< likewise
  /// The old piece is, as it lies in memory, the parts to send one after the other.
  bool sends_in_place = false;
  /// The new piece is the parts that come, one after the other.
  bool lands_in_place = false;
  /// Which term of the reduction comes from each rank.
  std::vector<std::int64_t> term;
};

struct StepRoute {
  const Step* step = nullptr;
  std::optional<Comm> comm;
  std::vector<MemberRoute> members;
  Placement how;           ///< of what is reduced
  std::int64_t terms = 1;  ///< how many terms are
  bool even = false;  ///< all ranks of each group hold equally many elements, and all are needed
  std::uint64_t bytes = 0;  ///< of the hosted ranks' old pieces
};

struct Route {
  std::shared_ptr<const Plan> plan;
  std::vector<StepRoute> steps;
};

/// Communicates nothing.
std::shared_ptr<const Route> make_route(World& world, std::shared_ptr<const Plan> plan);

/// How the ranks of two meshes exchange a tensor, in one step over `everyone`: each new piece comes
/// from the ranks that hold it, and only what its rank does not hold already is sent. Ranks have
/// pieces of no elements in a mesh that they are not in. Communicates nothing.
struct RouteBetween {
  Step step;
  StepRoute route;
  std::vector<std::int64_t> ranks;  ///< of `everyone`, hosted here
};
/// REQUIRES: `everyone` has the ranks of both meshes, and is sorted.
std::shared_ptr<const RouteBetween> make_route_between(World& world, const Layout& from,
                                                       const Layout& to, const Shape& shape,
                                                       const std::vector<std::int64_t>& everyone);

/// The ranks of all these meshes, sorted, each once.
std::vector<std::int64_t> ranks_of(std::span<const Mesh> meshes);

/// Row-major strides.
Shape strides_of(const Shape& sizes);

/// Whether parts follow each other, from first to last, in a piece of these sizes. `place` is
/// Block::in_old or Block::in_new.
bool in_order(std::span<const Part> parts, const Shape& sizes, std::int64_t Block::*place);

}  // namespace intarsia

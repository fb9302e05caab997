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

/// The elements that both hold. Example in two dimensions: old [4,8)x[0,6) and new [0,8)x[2,4)
/// share [4,8)x[2,4), one block of 4x2 elements. Its first one, (4,2), is number 0*6 + 2 = 2 of the
/// old piece, whose rows have 6 elements, and number 4*2 + 0 = 8 of the new one, whose rows have 2.
Part shared_part(const Boxes& old, const Boxes& next);

/// The blocks of the elements [begin, end) of a part; `in_part` counts from `begin`.
std::vector<Block> blocks_within(const Part& part, std::int64_t begin, std::int64_t end,
                                 const Shape& old_sizes, const Shape& new_sizes);

/// What one hosted rank does in an exchange. Example: 7 elements go from S(0) over ranks 0 and 1,
/// which hold [0,4) and [4,7), to S(0) over ranks 0 to 2, which get [0,3), [3,6) and [6,7). Rank 0
/// keeps 0, 1 and 2 and sends 3 to rank 1; rank 1 keeps 4 and 5 and sends 6 to rank 2; rank 2 had
/// no elements. Rank 1 has before = {3}, after = {3}, me = 1 and these parts:
///
///     to[0]    none
///     to[1]    4 and 5   in_old 0, in_new 1   (from[1] is the same)
///     to[2]    6         in_old 2, in_new 0   in_new counts in the new piece of rank 2
///     from[0]  3         in_old 3, in_new 0   in_old counts in the old piece of rank 0
///     from[2]  none
struct MemberRoute {
  Shape before;  ///< sizes of its old piece
  Shape after;   ///< and of its new one
  std::size_t me = 0;
  std::vector<Part> to;    ///< by place in the group; to itself: what it keeps
  std::vector<Part> from;  ///< likewise
  /// The old piece, as it is stored, is the parts to send, one after the other.
  bool sends_in_place = false;
  /// The new piece is the parts that come, one after the other.
  bool lands_in_place = false;
  /// Which partial value of the reduction comes from each rank.
  std::vector<std::int64_t> partial_index;
};

struct StepRoute {
  const Step* step = nullptr;
  std::optional<Comm> comm;
  std::vector<MemberRoute> members;
  Placement how;                   ///< of what is reduced
  std::int64_t partial_count = 1;  ///< how many partial values make a value
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

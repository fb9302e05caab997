#include "tensor/move/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/text.h"
#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"
#include "layout/all_layouts.h"
#include "layout/oracle.h"

namespace intarsia {
namespace {

using testing::all_layouts;
using testing::Indices;
using testing::naive_indices;
using testing::placements;

// ---- the slow way ----------------------------------------------------------------------------

/// The numbers of the elements that a rank holds, in the order of its piece.
Indices held(const Layout& layout, const Shape& shape, const Coordinate& at) {
  Indices out{0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    Indices next;
    for (const std::int64_t n : out) {
      for (const std::int64_t i : naive_indices(layout, static_cast<int>(d), shape[d], at)) {
        next.push_back(n * shape[d] + i);
      }
    }
    out = next;
  }
  return out;
}

Indices in_both(const Indices& a, const Indices& b) {
  Indices out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

/// Where one element of a block is.
struct Place {
  std::int64_t in_part = 0;
  std::int64_t in_old = 0;
  std::int64_t in_new = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
  friend void PrintTo(const Place& p, std::ostream* out) {
    *out << concat(p.in_part, ':', p.in_old, '>', p.in_new);
  }
};

/// Every element of the blocks, by its place in the part.
std::vector<Place> places(const std::vector<Block>& blocks, const Shape& part, const Shape& old,
                          const Shape& next) {
  std::vector<Place> out;
  for (const Block& b : blocks) {
    Indices at(b.sizes.size(), 0);
    std::int64_t count = 1;
    for (const std::int64_t s : b.sizes) count *= s;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto flat = [&at](const Shape& sizes) {
        std::int64_t n = 0;
        for (std::size_t d = 0; d < at.size(); ++d) n = n * sizes[d] + at[d];
        return n;
      };
      out.push_back({b.in_part + flat(part), b.in_old + flat(old), b.in_new + flat(next)});
      for (std::size_t d = at.size(); d-- > 0;) {
        if (++at[d] < b.sizes[d]) break;
        at[d] = 0;
      }
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

// ---- text, and routes of one step ------------------------------------------------------------

std::string text(const std::vector<Block>& blocks) {
  std::vector<std::string> out;
  for (const Block& b : blocks) {
    out.push_back(
        concat(join(b.sizes, "x"), " old ", b.in_old, " new ", b.in_new, " part ", b.in_part));
  }
  return join(out, ", ");
}
std::string text(const Part& part) { return text(part.blocks); }

Indices counts(const std::vector<Part>& parts) {
  Indices out;
  for (const Part& p : parts) out.push_back(p.count);
  return out;
}

Part shared(const char* old, const Coordinate& old_at, const char* next, const Coordinate& new_at,
            const Shape& shape) {
  return shared_part(boxes(Layout::parse(old), shape, old_at),
                     boxes(Layout::parse(next), shape, new_at));
}

/// The route of one step, of elements of 4 bytes.
std::shared_ptr<const Route> route_of(World& world, StepKind kind, const AxisList& axes,
                                      const Layout& before, const Layout& after,
                                      const Shape& shape) {
  const Plan plan{before, after, shape, 4, {{kind, axes, before, after}}};
  return make_route(world, std::make_shared<const Plan>(plan));
}
std::shared_ptr<const Route> route_of(const Lockstep& ranks, StepKind kind, const AxisList& axes,
                                      const char* before, const char* after, const Shape& shape) {
  return route_of(ranks.world(), kind, axes, Layout::parse(before, ranks.mesh()),
                  Layout::parse(after, ranks.mesh()), shape);
}

/// What comes to a member of a group, of which `old` has what each holds: its new piece, with -1
/// where nothing came and -2 where something came twice; and all that comes, in the order of ranks.
struct Arrival {
  Arrival(const std::vector<MemberRoute>& group, std::size_t m, const std::vector<Indices>& old) {
    std::int64_t count = 1;
    for (const std::int64_t s : group[m].after) count *= s;
    piece.assign(static_cast<std::size_t>(count), -1);
    for (std::size_t j = 0; j < group.size(); ++j) {
      const Part& part = group[m].from[j];
      EXPECT_EQ(text(part), text(group[j].to[m])) << "both sides of one part";
      for (const Place& p : places(part.blocks, part.sizes, group[j].before, group[m].after)) {
        sent.push_back(old[j].at(static_cast<std::size_t>(p.in_old)));
        std::int64_t& element = piece.at(static_cast<std::size_t>(p.in_new));
        element = element == -1 ? sent.back() : -2;
      }
    }
  }
  Indices piece;
  Indices sent;
};

// ---- parts -----------------------------------------------------------------------------------

TEST(Route, StridesAreRowMajor) {
  EXPECT_EQ(strides_of({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(strides_of({5}), (Shape{1}));
  EXPECT_EQ(strides_of({}), Shape());
}

TEST(Route, RanksOfMeshesAreSortedAndEachOnce) {
  const std::array meshes{Mesh::parse("[x=3]{5,0,3}"), Mesh::parse("[a=2]+3")};
  EXPECT_EQ(ranks_of(meshes), (Indices{0, 3, 4, 5}));
}

TEST(Route, SharesTheExampleOfTheHeader) {
  // [4,8)x[0,6) and [0,8)x[2,4)
  const Part part = shared("[a=2] S(0)", {1}, "[a=3] S(1)", {1}, {8, 6});
  EXPECT_EQ(part.count, 8);
  EXPECT_EQ(part.sizes, (Shape{4, 2}));
  EXPECT_EQ(text(part), "4x2 old 2 new 8 part 0");
}

TEST(Route, SharesABlockForEachPairOfRuns) {
  // [0,2)+[4,6) of 8, and all of them.
  EXPECT_EQ(text(shared("[a=2] SS(0,2)", {0}, "[a=1] R", {0}, {8})),
            "2 old 0 new 0 part 0, 2 old 2 new 4 part 2");
  // [0,1)+[2,3) x [1,2)+[3,4), and the columns 2 and 3: they share column 3 of rows 0 and 2.
  const Part part = shared("[a=2,b=2] SS(0,2),SS(1,2)", {0, 1}, "[a=2] S(1)", {1}, {4, 4});
  EXPECT_EQ(part.sizes, (Shape{2, 1}));
  EXPECT_EQ(text(part), "1x1 old 1 new 1 part 0, 1x1 old 3 new 5 part 1");
  // Runs that touch and share nothing.
  const Part none = shared("[a=2] SS(0,2)", {0}, "[a=2] SS(0,2)", {1}, {8});
  EXPECT_EQ(none.count, 0);
  EXPECT_EQ(text(none), "");
}

TEST(Route, SharesScalarsAndNothingOfEmptyPieces) {
  const Part scalar = shared("[a=2] R", {0}, "[a=2] R", {1}, {});
  EXPECT_EQ(scalar.count, 1);
  EXPECT_EQ(text(scalar), " old 0 new 0 part 0");
  // 2 rows over 3 ranks: the last has none.
  const Part empty = shared("[a=3] S(0)", {2}, "[a=3] R", {0}, {2, 4});
  EXPECT_EQ(empty.count, 0);
  EXPECT_EQ(empty.sizes, (Shape{0, 4}));
  EXPECT_TRUE(empty.blocks.empty());
}

TEST(Route, SharesWhatTheNaiveMapSays) {
  const auto choices = placements({"R", "S(0)", "S(1)", "SS(0,2)", "SS(1,3)"});
  const auto olds = all_layouts(Mesh::parse("[a=2,b=2]"), choices);
  const auto nexts = all_layouts(Mesh::parse("[a=3]"), choices);
  for (const Shape& shape : {Shape{5, 7}, Shape{1, 3}, Shape{4, 0}}) {
    for (const Layout& before : olds) {
      for (const Layout& after : nexts) {
        const Coordinate old_at{1, 0};
        const Coordinate new_at{1};
        const Indices old = held(before, shape, old_at);
        const Indices next = held(after, shape, new_at);
        const Indices both = in_both(old, next);
        const Part part = shared_part(boxes(before, shape, old_at), boxes(after, shape, new_at));
        const std::string what = concat(before, " and ", after, " of ", join(shape));
        ASSERT_EQ(part.count, static_cast<std::int64_t>(both.size())) << what;
        const auto found = places(part.blocks, part.sizes, local_shape(before, shape, old_at),
                                  local_shape(after, shape, new_at));
        ASSERT_EQ(found.size(), both.size()) << what;
        for (std::size_t i = 0; i < found.size(); ++i) {
          ASSERT_EQ(found[i].in_part, static_cast<std::int64_t>(i)) << what;
          ASSERT_EQ(old.at(static_cast<std::size_t>(found[i].in_old)), both[i]) << what;
          ASSERT_EQ(next.at(static_cast<std::size_t>(found[i].in_new)), both[i]) << what;
        }
      }
    }
  }
}

TEST(Route, BlocksWithinARangeAreRowsAndTheirEnds) {
  const Part all = shared("[a=1] R", {0}, "[a=1] R", {0}, {3, 4});
  EXPECT_EQ(text(blocks_within(all, 2, 9, {3, 4}, {3, 4})),
            "1x2 old 2 new 2 part 0, 1x4 old 4 new 4 part 2, 1x1 old 8 new 8 part 6");
  EXPECT_EQ(text(blocks_within(all, 5, 7, {3, 4}, {3, 4})), "1x2 old 5 new 5 part 0");
  EXPECT_EQ(text(blocks_within(all, 4, 12, {3, 4}, {3, 4})), "2x4 old 4 new 4 part 0");
  EXPECT_EQ(text(blocks_within(all, 7, 7, {3, 4}, {3, 4})), "");
  // 4x2 elements, of which the old piece has rows of 6 and the new one rows of 2.
  const Part part = shared("[a=2] S(0)", {1}, "[a=3] S(1)", {1}, {8, 6});
  EXPECT_EQ(text(blocks_within(part, 1, 6, {4, 6}, {8, 2})),
            "1x1 old 3 new 9 part 0, 2x2 old 8 new 10 part 1");
}

TEST(Route, BlocksWithinRangesAreThoseOfThePart) {
  const Layout before = Layout::parse("[a=2] SS(2,2)");
  const Shape shape{2, 3, 5};
  const Shape old = local_shape(before, shape, {0});  // 2x3x3: the columns 0, 1 and 3
  const Part part =
      shared_part(boxes(before, shape, {0}), boxes(Layout::parse("[a=1] R"), shape, {0}));
  const auto all = places(part.blocks, part.sizes, old, shape);
  ASSERT_EQ(all.size(), 18U);
  for (std::int64_t begin = 0; begin <= 18; ++begin) {
    for (std::int64_t end = begin; end <= 18; ++end) {
      std::vector<Place> want(all.begin() + begin, all.begin() + end);
      for (Place& p : want) p.in_part -= begin;
      ASSERT_EQ(places(blocks_within(part, begin, end, old, shape), part.sizes, old, shape), want)
          << begin << " to " << end;
    }
  }
}

TEST(Route, PartsAreInOrderWhereTheyFollowEachOther) {
  const auto parts_of = [](const char* next, const Shape& shape) {
    return std::vector{shared("[a=1] R", {0}, next, {0}, shape),
                       shared("[a=1] R", {0}, next, {1}, shape)};
  };
  auto rows = parts_of("[a=2] S(0)", {4, 2});
  EXPECT_TRUE(in_order(rows, {4, 2}, &Block::in_old));
  rows.insert(rows.begin() + 1, Part());  // a rank that gets nothing
  EXPECT_TRUE(in_order(rows, {4, 2}, &Block::in_old));
  EXPECT_FALSE(in_order(std::span(rows).first(1), {4, 2}, &Block::in_old)) << "half of it";
  std::swap(rows[0], rows[2]);
  EXPECT_FALSE(in_order(rows, {4, 2}, &Block::in_old)) << "the second half first";
  EXPECT_FALSE(in_order(parts_of("[a=2] S(1)", {4, 2}), {4, 2}, &Block::in_old)) << "columns";
  EXPECT_TRUE(in_order(parts_of("[a=2] S(1)", {1, 6}), {1, 6}, &Block::in_old)) << "of one row";
  EXPECT_FALSE(in_order(parts_of("[a=2] SS(0,2)", {8}), {8}, &Block::in_old)) << "blocks by turns";
  // In the new pieces every part begins at 0.
  EXPECT_FALSE(in_order(parts_of("[a=2] S(0)", {4, 2}), {4, 2}, &Block::in_new));
}

// ---- between meshes --------------------------------------------------------------------------

TEST(Route, FromTwoRanksToThree) {
  const auto world = lockstep_world(3);
  const auto way = make_route_between(*world, Layout::parse("[a=2] S(0)"),
                                      Layout::parse("[a=3] S(0)"), {7}, {0, 1, 2});
  EXPECT_EQ(way->ranks, (Indices{0, 1, 2}));
  EXPECT_EQ(way->route.comm->size(), 3);
  const MemberRoute& first = way->route.members[0];
  EXPECT_EQ(counts(first.to), (Indices{3, 1, 0}));
  EXPECT_EQ(counts(first.from), (Indices{3, 0, 0}));
  const MemberRoute& second = way->route.members[1];
  EXPECT_EQ(second.before, (Shape{3}));
  EXPECT_EQ(second.after, (Shape{3}));
  EXPECT_EQ(second.me, 1U);
  EXPECT_EQ(text(second.to[0]), "");
  EXPECT_EQ(text(second.to[1]), "2 old 0 new 1 part 0");
  EXPECT_EQ(text(second.to[2]), "1 old 2 new 0 part 0");
  EXPECT_EQ(text(second.from[0]), "1 old 3 new 0 part 0");
  EXPECT_EQ(text(second.from[1]), "2 old 0 new 1 part 0");
  EXPECT_EQ(text(second.from[2]), "");
  const MemberRoute& third = way->route.members[2];
  EXPECT_EQ(third.before, (Shape{0})) << "it is not in the old mesh";
  EXPECT_EQ(counts(third.to), (Indices{0, 0, 0}));
  EXPECT_EQ(counts(third.from), (Indices{0, 1, 0}));
  world->close();
}

TEST(Route, OneReplicaServesARankOfTheNewMesh) {
  const auto world = lockstep_world(6);
  // Ranks 0 and 1 hold elements 0 and 1, ranks 2 and 3 hold 2 and 3. New ranks are served by turns:
  // 4 by the replica of ranks 0 and 2, 5 by that of ranks 1 and 3.
  const auto apart = make_route_between(*world, Layout::parse("[a=2,b=2] S(0),R"),
                                        Layout::parse("[a=2]+4 S(0)"), {4}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(counts(apart->route.members[4].from), (Indices{2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(counts(apart->route.members[5].from), (Indices{0, 0, 0, 2, 0, 0}));
  EXPECT_EQ(counts(apart->route.members[2].to), (Indices(6, 0)));
  EXPECT_EQ(counts(apart->route.members[3].to), (Indices{0, 0, 0, 0, 0, 2}));
  // Who holds it takes it from itself.
  const auto wider = make_route_between(*world, Layout::parse("[a=2] R"), Layout::parse("[a=3] R"),
                                        {4}, {0, 1, 2});
  EXPECT_EQ(wider->ranks, (Indices{0, 1, 2})) << "the others take no part";
  EXPECT_EQ(counts(wider->route.members[0].from), (Indices{4, 0, 0}));
  EXPECT_EQ(counts(wider->route.members[1].from), (Indices{0, 4, 0}));
  EXPECT_EQ(counts(wider->route.members[2].from), (Indices{4, 0, 0}));
  world->close();
}

TEST(Route, BetweenMeshesEveryElementComesOnce) {
  const auto world = lockstep_world(7);
  const Mesh mesh = Mesh::parse("[a=2,b=2]");
  const Shape shape{5, 7};
  const auto held_by = [&](std::int64_t rank, const Layout& layout) {
    const auto at = layout.mesh().coordinate_of(rank);
    return at ? held(layout, shape, *at) : Indices();
  };
  for (const char* target : {"[c=3] S(0)", "[c=3]{3,0,5} S(1)", "[c=3]{4,1,6} SS(1,2)", "[c=2]+3 R",
                             "[c=2,d=2]+2 S(0),S(0) | 0:d>c"}) {
    const Layout after = Layout::parse(target);
    const std::array meshes{mesh, after.mesh()};
    const auto everyone = ranks_of(meshes);
    for (const Layout& before : all_layouts(mesh, placements({"R", "S(0)", "S(1)", "SS(0,2)"}))) {
      const auto way = make_route_between(*world, before, after, shape, everyone);
      ASSERT_EQ(way->ranks, everyone);
      std::vector<Indices> old;
      for (const std::int64_t rank : everyone) old.push_back(held_by(rank, before));
      for (std::size_t m = 0; m < everyone.size(); ++m) {
        const MemberRoute& route = way->route.members[m];
        const Indices want = held_by(everyone[m], after);
        ASSERT_EQ(Arrival(way->route.members, m, old).piece, want)
            << before.to_string() << " to " << target;
        ASSERT_EQ(route.me, m);
        ASSERT_EQ(route.from[m].count, static_cast<std::int64_t>(in_both(old[m], want).size()))
            << "what it holds is not sent";
      }
    }
  }
  world->close();
}

// ---- steps of a plan -------------------------------------------------------------------------

TEST(Route, GathersEvenlyOnlyWhereEveryoneNeedsAllOfEqualPieces) {
  const Lockstep ranks("[a=3]");
  const auto even = route_of(ranks, StepKind::all_gather, {0}, "S(0)", "R", {6, 2});
  EXPECT_TRUE(even->steps[0].even);
  EXPECT_TRUE(even->steps[0].members[2].lands_in_place) << "rows after rows";
  const auto uneven = route_of(ranks, StepKind::all_gather, {0}, "S(0)", "R", {7, 2});
  const StepRoute& step = uneven->steps[0];
  EXPECT_FALSE(step.even);
  EXPECT_EQ(step.members[2].before, (Shape{1, 2}));
  EXPECT_EQ(counts(step.members[2].from), (Indices{6, 6, 2}));
  EXPECT_EQ(counts(step.members[2].to), (Indices{2, 2, 2}));
  EXPECT_TRUE(step.members[2].lands_in_place);
  EXPECT_FALSE(step.members[2].sends_in_place) << "all of it is sent three times";
  const auto columns = route_of(ranks, StepKind::all_gather, {0}, "S(1)", "R", {2, 6});
  EXPECT_TRUE(columns->steps[0].even);
  EXPECT_FALSE(columns->steps[0].members[0].lands_in_place);
  // Of the rows of the other rank, each needs only half of the columns.
  const Lockstep four("[a=2,b=2]");
  EXPECT_FALSE(
      route_of(four, StepKind::all_gather, {0}, "S(0),R", "R,S(1)", {4, 4})->steps[0].even);
}

TEST(Route, RowsToColumns) {
  const Lockstep ranks("[a=2]");
  const auto route = route_of(ranks, StepKind::all_to_all, {0}, "S(0)", "S(1)", {5, 4});
  const MemberRoute& first = route->steps[0].members[0];  // 3x4 elements, then 5x2
  EXPECT_EQ(first.before, (Shape{3, 4}));
  EXPECT_EQ(first.after, (Shape{5, 2}));
  EXPECT_EQ(text(first.to[0]), "3x2 old 0 new 0 part 0");
  EXPECT_EQ(text(first.to[1]), "3x2 old 2 new 0 part 0");
  EXPECT_EQ(text(first.from[1]), "2x2 old 0 new 6 part 0");
  EXPECT_FALSE(first.sends_in_place);
  EXPECT_TRUE(first.lands_in_place) << "rows of rank 0, then rows of rank 1";
  const auto back = route_of(ranks, StepKind::all_to_all, {0}, "S(1)", "S(0)", {5, 4});
  EXPECT_TRUE(back->steps[0].members[1].sends_in_place);
  EXPECT_FALSE(back->steps[0].members[1].lands_in_place);
  EXPECT_EQ(back->steps[0].bytes, 5U * 4U * 4U) << "both pieces are here";
}

TEST(Route, GroupsAreAlongTheAxesOfTheStep) {
  const Lockstep ranks("[a=2:1,b=2:2]");  // rank 1 is at (1,0), rank 2 at (0,1)
  const auto place = [&](const AxisList& axes, const char* before, const char* after) {
    const auto route = route_of(ranks, StepKind::all_to_all, axes, before, after, {4, 4});
    Indices out;
    for (std::size_t m = 0; m < 4; ++m) {
      const MemberRoute& r = route->steps[0].members[m];
      EXPECT_EQ(r.to.size(), axes.size() == 1 ? 2U : 4U);
      EXPECT_EQ(route->steps[0].comm->members()[m].index, static_cast<std::int64_t>(r.me));
      out.push_back(static_cast<std::int64_t>(r.me));
    }
    return out;
  };
  EXPECT_EQ(place({0}, "S(0),R", "S(1),R"), (Indices{0, 1, 0, 1}));
  EXPECT_EQ(place({1}, "R,S(0)", "R,S(1)"), (Indices{0, 0, 1, 1}));
  EXPECT_EQ(place({0, 1}, "S(0),S(1)", "S(1),S(0)"), (Indices{0, 2, 1, 3}));
}

TEST(Route, ScattersPartialValuesUnevenly) {
  const Lockstep ranks("[a=3]");
  const auto route = route_of(ranks, StepKind::reduce_scatter, {0}, "P(avg)", "S(0)", {7});
  const StepRoute& step = route->steps[0];
  EXPECT_EQ(step.how, Placement::parse("P(avg)"));
  EXPECT_EQ(step.partial_count, 3);
  EXPECT_EQ(step.bytes, 3U * 7U * 4U);
  const MemberRoute& last = step.members[2];
  EXPECT_EQ(counts(last.to), (Indices{3, 3, 1}));
  EXPECT_EQ(counts(last.from), (Indices{1, 1, 1}));
  EXPECT_EQ(text(last.from[0]), "1 old 6 new 0 part 0");
  EXPECT_EQ(last.partial_index, (Indices{0, 1, 2}));
  EXPECT_TRUE(last.sends_in_place);
  EXPECT_TRUE(last.lands_in_place) << "a row for each partial value";
}

TEST(Route, PartialValuesOfSeveralAxes) {
  const Lockstep ranks("[a=2,b=2]");
  const auto both =
      route_of(ranks, StepKind::exchange_partials, {0, 1}, "P(sum),P(sum)", "S(0),R", {5});
  EXPECT_EQ(both->steps[0].partial_count, 4);
  const MemberRoute& second = both->steps[0].members[1];  // at (0,1), of elements 0 to 2
  EXPECT_EQ(second.partial_index, (Indices{0, 1, 2, 3}));
  EXPECT_EQ(counts(second.from), (Indices{3, 3, 3, 3}));
  EXPECT_EQ(counts(second.to), (Indices{3, 3, 2, 2}));
  EXPECT_TRUE(second.lands_in_place);
  EXPECT_FALSE(second.sends_in_place) << "two ranks need the same";
  // Two partial values, each sharded over b: of every element there are two.
  const auto one =
      route_of(ranks, StepKind::exchange_partials, {0, 1}, "P(sum),S(0)", "S(0),R", {5});
  EXPECT_EQ(one->steps[0].partial_count, 2);
  const MemberRoute& last = one->steps[0].members[3];  // had 3 and 4, and gets them reduced
  EXPECT_EQ(last.partial_index, (Indices{0, 0, 1, 1}));
  EXPECT_EQ(counts(last.from), (Indices{0, 2, 0, 2}));
  EXPECT_EQ(counts(last.to), (Indices{0, 0, 2, 2}));
  EXPECT_FALSE(last.lands_in_place);
  // Ranks along b have the same partial value: four parts come, for two rows.
  const auto twice = route_of(ranks, StepKind::exchange_partials, {0, 1}, "P(sum),R", "R,R", {5});
  EXPECT_EQ(counts(twice->steps[0].members[0].from), (Indices{5, 5, 5, 5}));
  EXPECT_FALSE(twice->steps[0].members[0].lands_in_place);
}

TEST(Route, AnAxisThatStaysPartialOrHasOneRankIsNotReduced) {
  const Lockstep single("[a=1,b=2]");
  const auto alone =
      route_of(single, StepKind::reduce_scatter, {1}, "P(sum),P(sum)", "R,S(0)", {4});
  EXPECT_EQ(alone->steps[0].partial_count, 2);
  const Lockstep last("[a=2,b=1]");
  const auto sum = route_of(last, StepKind::reduce_scatter, {0}, "P(sum),P(avg)", "S(0),R", {4});
  EXPECT_EQ(sum->steps[0].how, Placement::partial()) << "the average of one is no average of two";
  const Lockstep ranks("[a=2,b=2]");
  const auto kept =
      route_of(ranks, StepKind::reduce_scatter, {1}, "P(sum),P(sum)", "P(sum),S(0)", {4});
  EXPECT_EQ(kept->steps[0].partial_count, 2);
  EXPECT_EQ(kept->steps[0].members[3].partial_index, (Indices{0, 1}));
}

TEST(Route, StepsThatSendNothingAreForARankByItself) {
  const Lockstep ranks("[a=2]");
  // 5 in two blocks, 3 and 2: rank 1 gets element 2 of the one and 4 of the other.
  const auto slice = route_of(ranks, StepKind::slice, {0}, "R", "SS(0,2)", {5});
  EXPECT_FALSE(slice->steps[0].comm.has_value());
  const MemberRoute& sliced = slice->steps[0].members[1];
  EXPECT_EQ(sliced.after, (Shape{2}));
  ASSERT_EQ(sliced.to.size(), 1U);
  EXPECT_EQ(text(sliced.to[0]), "1 old 2 new 0 part 0, 1 old 4 new 1 part 1");
  const auto partial = route_of(ranks, StepKind::make_partial, {0}, "S(0)", "P(sum)", {5});
  EXPECT_EQ(partial->steps[0].partial_count, 1) << "nothing is reduced";
  const MemberRoute& made = partial->steps[0].members[1];
  EXPECT_EQ(made.before, (Shape{2}));
  EXPECT_EQ(made.after, (Shape{5}));
  ASSERT_EQ(made.to.size(), 1U);
  EXPECT_EQ(text(made.to[0]), "2 old 0 new 3 part 0");
}

TEST(Route, AllReduceNeedsNoPartsAndCountsItsBytes) {
  const Lockstep ranks("[a=2]+1");  // in a world of three ranks
  const auto reduce = route_of(ranks, StepKind::all_reduce, {0}, "P(sum)", "R", {5});
  EXPECT_TRUE(reduce->steps[0].members.empty());
  EXPECT_EQ(reduce->steps[0].how, Placement::partial());
  EXPECT_EQ(reduce->steps[0].partial_count, 2);
  EXPECT_EQ(reduce->steps[0].bytes, 2U * 5U * 4U);
  const auto gather = route_of(ranks, StepKind::all_gather, {0}, "S(0)", "R", {5});
  ASSERT_EQ(gather->steps[0].members.size(), 2U) << "rank 0 is outside";
  EXPECT_EQ(gather->steps[0].members[1].before, (Shape{2}));
  // One rank of four, which plays the last.
  const auto played = simulate({.size = 4, .rank = 3});
  const Mesh mesh = Mesh::parse("[a=4]");
  const auto alone = route_of(*played, StepKind::all_gather, {0}, Layout::parse("S(0)", mesh),
                              Layout::parse("R", mesh), {5});
  ASSERT_EQ(alone->steps[0].members.size(), 1U);
  EXPECT_EQ(alone->steps[0].members[0].me, 3U);
  EXPECT_EQ(alone->steps[0].bytes, 0U) << "5 elements are 2, 2, 1 and none";
}

TEST(Route, AnExchangeBringsThePiecesOfTheNaiveMap) {
  const Lockstep ranks("[a=2,b=2]");
  const Shape shape{5, 3};
  const auto held_by_all = [&](const Layout& layout) {
    std::vector<Indices> out;
    for (std::int64_t r = 0; r < 4; ++r) {
      out.push_back(held(layout, shape, *ranks.mesh().coordinate_of(r)));
    }
    return out;
  };
  const auto layouts = all_layouts(ranks.mesh(), placements({"S(0)", "S(1)", "SS(0,2)"}));
  for (const Layout& before : layouts) {
    for (const Layout& after : layouts) {
      const auto route =
          route_of(ranks.world(), StepKind::all_to_all, {0, 1}, before, after, shape);
      const bool blocks = before.has_strided() || after.has_strided();
      const auto old = held_by_all(before);
      const auto want = held_by_all(after);
      for (std::size_t m = 0; m < 4; ++m) {
        const Arrival arrival(route->steps[0].members, m, old);
        ASSERT_EQ(arrival.piece, want[m]) << before.to_string() << " to " << after.to_string();
        const bool lands = route->steps[0].members[m].lands_in_place;
        ASSERT_TRUE(arrival.sent == want[m] || !lands);
        ASSERT_TRUE(arrival.sent != want[m] || lands || blocks) << "it need not be copied";
      }
    }
  }
}

}  // namespace
}  // namespace intarsia

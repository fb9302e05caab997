#include "plan/role_table.h"

#include <gtest/gtest.h>

#include "plan/two_layouts.h"

namespace intarsia {
namespace {

using testing::TwoLayouts;

Role digit(int dim, std::int64_t begin) {
  return {Role::Kind::sharded, static_cast<std::int8_t>(dim), begin};
}

TEST(RoleTable, GivesEachRoleOfAnAxisOneNumber) {
  TwoLayouts l("[a=2,b=2]", {8, 8}, "S(0),R", "R,S(0)");
  const auto of_a = l.roles.number(0, digit(0, 1));
  const auto of_b = l.roles.number(1, digit(0, 1));
  const auto other = l.roles.number(0, digit(1, 1));
  EXPECT_NE(of_a, of_b);
  EXPECT_NE(of_a, other);
  EXPECT_EQ(l.roles.number(0, digit(0, 1)), of_a);
  EXPECT_EQ(l.roles.size(), 3U);
  EXPECT_EQ(l.roles.role(other), digit(1, 1));
  EXPECT_EQ(l.roles.beside(of_a), bit(of_a) | bit(of_b));
  EXPECT_EQ(l.roles.beside(other), bit(other));
}

/// Digits on axes of 2, 4 and 3 ranks, of a dimension of 24.
struct Numbers {
  TwoLayouts l{"[a=2,b=4,c=3]", {24}, "S(0),R,R", "R,R,S(0)"};
  std::size_t half = l.roles.number(0, digit(0, 1));       // [1,2)
  std::size_t quarter = l.roles.number(1, digit(0, 1));    // [1,4)
  std::size_t third = l.roles.number(2, digit(0, 1));      // [1,3)
  std::size_t in_halves = l.roles.number(2, digit(0, 2));  // [2,6)
  std::size_t in_thirds = l.roles.number(0, digit(0, 3));  // [3,6)
};

TEST(RoleTable, KnowsWhichDigitsAreInConflict) {
  Numbers n;
  EXPECT_EQ(n.l.roles.conflicts(n.half), bit(n.quarter) | bit(n.third) | bit(n.in_thirds));
  // [1,3) leaves [3,6) as it is; [1,4) fixes a part of [2,6), and of [3,6).
  EXPECT_EQ(n.l.roles.conflicts(n.third), bit(n.half) | bit(n.quarter) | bit(n.in_halves));
  EXPECT_EQ(n.l.roles.conflicts(n.quarter),
            bit(n.half) | bit(n.third) | bit(n.in_halves) | bit(n.in_thirds));
}

TEST(RoleTable, KnowsWhichDigitsDoNotNest) {
  Numbers n;
  EXPECT_EQ(n.l.roles.apart(n.half), bit(n.third) | bit(n.in_thirds));
  EXPECT_EQ(n.l.roles.apart(n.in_thirds), bit(n.half) | bit(n.quarter) | bit(n.in_halves));
  EXPECT_EQ(n.l.roles.apart(n.quarter), bit(n.third) | bit(n.in_halves) | bit(n.in_thirds));
}

TEST(RoleTable, CountsWhatOneDigitTellsOfAnother) {
  Numbers n;
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(n.l.roles.cover(n.quarter, n.half), 2);  // halves tell two pairs of quarters apart
    EXPECT_EQ(n.l.roles.cover(n.half, n.quarter), 2);
    EXPECT_EQ(n.l.roles.cover(n.half, n.in_halves), 1);
    EXPECT_EQ(n.l.roles.cover(n.half, n.third), 1);
    EXPECT_EQ(n.l.roles.cover(n.third, n.third), 3);
  }
  const std::size_t eighth = n.l.roles.number(1, digit(0, 2));  // [2,8)
  EXPECT_EQ(n.l.roles.cover(eighth, n.quarter), 2);
}

TEST(RoleTable, KnowsWhatIsEvenAndWhatIsIrregular) {
  TwoLayouts l("[a=2,b=3]", {24, 20}, "SS(0,4),S(0)", "SS(0,4),SS(0,2)");
  EXPECT_TRUE(l.roles.is_even(l.roles.number(1, digit(0, 8))));
  EXPECT_FALSE(l.roles.is_even(l.roles.number(1, digit(0, 16))));
  EXPECT_TRUE(l.roles.is_even(l.roles.number(0, digit(1, 10))));
  EXPECT_FALSE(l.roles.is_even(l.roles.number(1, digit(1, 1))));
  const std::size_t innermost = l.roles.number(1, l.roles.begin()[1]);
  const std::size_t in_blocks = l.roles.number(1, l.roles.goal()[1]);
  EXPECT_EQ(l.roles.irregular(), bit(innermost) | bit(in_blocks));
  EXPECT_FALSE(l.roles.is_even(innermost));
  EXPECT_TRUE(l.roles.is_innermost(innermost));
  EXPECT_TRUE(l.roles.is_plain(innermost));
  EXPECT_FALSE(l.roles.is_innermost(in_blocks));
  EXPECT_FALSE(l.roles.is_plain(in_blocks));
}

TEST(RoleTable, GivesStatesTheirLayouts) {
  TwoLayouts l("[a=2,b=3,c=1]", {24, 24}, "S(0),P(sum),S(1)", "P(sum),S(0),R");
  const State s = l.state("S(0),S(0),S(1) | 0:b>a");
  EXPECT_EQ(s.sharding_axes, bit(0) | bit(1));
  EXPECT_EQ(s.partial_axes, 0U);
  EXPECT_EQ(l.roles.role(s, 0), digit(0, 3));
  EXPECT_EQ(l.text({s}), "S(0),S(0),S(1) | 0:b>a");
  const State partial = l.state("P(sum),P(sum),S(1)");
  EXPECT_EQ(partial.partial_axes, bit(0) | bit(1));
  EXPECT_EQ(partial.sharding_roles, 0U);
  EXPECT_EQ(l.text({partial}), "P(sum),P(sum),S(1)");
  EXPECT_FALSE(s.same(partial));
}

/// Whether roles of axes can stand together on the way.
bool legal(TwoLayouts& l, const std::vector<Role>& roles) {
  std::vector<std::uint8_t> ids;
  for (std::size_t a = 0; a < roles.size(); ++a) ids.push_back(l.roles.number(a, roles[a]));
  State s;
  for (std::size_t a = 0; a < roles.size(); ++a) l.roles.play(s, a, ids[a]);
  return l.roles.is_legal(s);
}

bool legal(const char* from, const char* to, std::int64_t length, const Role& a, const Role& b) {
  TwoLayouts l("[a=2,b=2]", {length, 4}, from, to);
  return legal(l, {a, b});
}

TEST(RoleTable, RefusesStatesWithoutRoomOrInConflict) {
  EXPECT_FALSE(legal("S(0),S(1)", "R,S(0)", 8, digit(0, 1), digit(0, 1)));
  EXPECT_TRUE(legal("S(0),S(1)", "R,S(0)", 8, digit(0, 1), digit(0, 2)));
  // Four chunks of three elements are not made on the way; a layout that has them keeps them.
  EXPECT_TRUE(legal("S(0),R", "R,S(0)", 4, digit(0, 1), digit(0, 2)));
  EXPECT_FALSE(legal("S(0),R", "R,S(0)", 3, digit(0, 1), digit(0, 2)));
  EXPECT_TRUE(legal("S(0),S(0)", "R,R", 3, digit(0, 1), digit(0, 2)));
}

TEST(RoleTable, RefusesIrregularRolesWithoutWhatTheyDependOn) {
  const Role irregular = digit(0, Role::kIrregular);
  EXPECT_TRUE(legal("SS(0,4),SS(0,2)", "R,R", 32, digit(0, 4), irregular));
  EXPECT_FALSE(legal("SS(0,4),SS(0,2)", "R,R", 32, Role{}, irregular));
  EXPECT_FALSE(legal("SS(0,4),SS(0,2)", "R,R", 32, digit(0, 2), irregular));
  // The innermost needs blocks that are open, and room.
  EXPECT_TRUE(legal("SS(0,4),R", "R,R", 8, digit(0, 4), Role::innermost(0)));
  EXPECT_TRUE(legal("SS(0,4),R", "R,R", 8, digit(0, 2), Role::innermost(0)));
  EXPECT_FALSE(legal("SS(0,4),R", "R,R", 8, digit(0, 1), Role::innermost(0)));
  EXPECT_FALSE(legal("SS(0,4),R", "R,R", 3, digit(0, 4), Role::innermost(0)));
  // Inside of a, it is b's own role under another name.
  TwoLayouts own("[a=2,b=2,c=2]", {32}, "SS(0,4),S(0),S(0)", "R,R,R");
  EXPECT_TRUE(legal(own, {digit(0, 4), irregular, Role{}}));
  EXPECT_FALSE(legal(own, {digit(0, 4), Role::innermost(0), Role{}}));
  EXPECT_TRUE(legal(own, {digit(0, 2), Role::innermost(0), Role{}}));
  EXPECT_TRUE(legal(own, {Role::innermost(0), digit(0, 1), digit(0, 4)}));
}

TEST(RoleTable, RefusesPartialValuesThatDoNotCommute) {
  const Role partial{Role::Kind::partial, -1, 1};
  EXPECT_FALSE(legal("P(sum),R", "R,P(max)", 8, partial, partial));
  EXPECT_TRUE(legal("P(sum),R", "R,P(avg)", 8, partial, partial));
  EXPECT_TRUE(legal("P(sum),R", "R,P(max)", 8, Role{}, partial));
}

}  // namespace
}  // namespace intarsia

#include "plan/digits.h"

#include <gtest/gtest.h>

#include <set>

#include "intarsia/boxes.h"

namespace intarsia {
namespace {

constexpr Role kReplicated{};

Role digit(int dim, std::int64_t begin) {
  return {Role::Kind::sharded, static_cast<std::int8_t>(dim), begin};
}

/// `0[2,6)` for a digit of dimension 0; `R`, `P`, and words for what is irregular.
std::string text(const Roles& roles, const Mesh& mesh) {
  std::string out;
  for (std::size_t a = 0; a < roles.size(); ++a) {
    const Role& r = roles[a];
    out += a == 0 ? "" : " ";
    if (r.kind != Role::Kind::sharded) {
      out += r.kind == Role::Kind::partial ? "P" : "R";
    } else if (r.begin > 0) {
      out += std::to_string(r.dim) + "[" + std::to_string(r.begin) + "," +
             std::to_string(r.begin * mesh.size(a)) + ")";
    } else {
      out += std::to_string(r.dim) + (r.begin == Role::kIrregular         ? "irregular"
                                      : r.begin == Role::kIrregularInGoal ? "irregular-in-goal"
                                      : r.begin == Role::kInnermost       ? "innermost"
                                                                          : "?");
    }
  }
  return out;
}

std::string roles(const char* layout) {
  const Layout l = Layout::parse(layout);
  return text(roles_of(l), l.mesh());
}

/// The roles in two layouts, of a tensor of one dimension.
std::string endpoints(const char* mesh, const char* from, const char* to) {
  const Mesh m = Mesh::parse(mesh);
  const Layout x = Layout::parse(from, m);
  const Layout y = Layout::parse(to, m);
  const Shape shape{48};
  const Endpoints ends(x, y, shape);
  return text(ends.begin(), m) + " -> " + text(ends.goal(), m);
}

TEST(Digits, AreThoseOfTheExamples) {
  EXPECT_EQ(roles("[a=2,b=3] S(0),S(0)"), "0[1,2) 0[2,6)");
  EXPECT_EQ(roles("[a=2,b=3] R,SS(0,4)"), "R 0[4,12)");
  EXPECT_EQ(roles("[a=2,b=3] SS(0,4),S(0)"), "0[4,8) 0irregular");
  const auto held = [](const char* layout, const Coordinate& at) {
    return boxes(Layout::parse(layout), Shape{24}, at).to_string();
  };
  EXPECT_EQ(held("[a=2,b=3] S(0),S(0)", {1, 2}), "[20,24)");
  EXPECT_EQ(held("[a=2,b=3] R,SS(0,4)", {1, 1}), "[2,4)+[8,10)+[14,16)+[20,22)");
  EXPECT_EQ(held("[a=2,b=3] SS(0,4),S(0)", {0, 0}), "[0,3)+[6,7)");
  EXPECT_EQ(held("[a=2,b=3] SS(0,4),S(0)", {0, 1}), "[7,9)+[12,14)");
  EXPECT_EQ(held("[a=2,b=3] SS(0,4),S(0)", {0, 2}), "[14,15)+[18,21)");
}

TEST(Digits, NestInTheOrderOfAxesAndWithBlocks) {
  EXPECT_EQ(roles("[a=2,b=3] S(0),S(0) | 0:b>a"), "0[3,6) 0[1,3)");
  EXPECT_EQ(roles("[a=2,b=3] S(1),S(0)"), "1[1,2) 0[1,3)");
  EXPECT_EQ(roles("[a=2,b=3] S(0),SS(0,4)"), "0[1,2) 0[8,24)");
  // The second splits the same 2 blocks, or each of them in 2 more.
  EXPECT_EQ(roles("[a=2,b=3] SS(0,2),SS(0,2)"), "0[2,4) 0[4,12)");
  EXPECT_EQ(roles("[a=2,b=3] SS(0,2),SS(0,4)"), "0[2,4) 0[8,24)");
  // What follows an irregular role is irregular; another dimension begins anew.
  EXPECT_EQ(roles("[a=2,b=2,c=2] SS(0,4),SS(0,6),SS(0,24)"), "0[4,8) 0irregular 0irregular");
  EXPECT_EQ(roles("[a=2,b=2,c=2] SS(0,4),S(0),S(1)"), "0[4,8) 0irregular 1[1,2)");
  // Axes of one rank have none.
  EXPECT_EQ(roles("[a=2,b=1,c=2] S(0),SS(0,3),S(0)"), "0[1,2) R 0[2,4)");
  EXPECT_EQ(roles("[a=1,b=2] P(sum),P(sum)"), "R P");
}

/// The value of an axis's digit at a position of a dimension that divides evenly.
std::int64_t digit_at(std::int64_t position, std::int64_t length, const Role& r, std::int64_t n) {
  return position / (length / (r.begin * n)) % n;
}

TEST(Digits, FixWhatBoxesSay) {
  const Shape shape{48};
  for (const char* placements : {"S(0),S(0)", "S(0),S(0) | 0:b>a", "R,SS(0,4)", "S(0),SS(0,4)",
                                 "SS(0,2),SS(0,2)", "SS(0,2),SS(0,4)", "SS(0,4),R"}) {
    const Layout layout = Layout::parse(placements, Mesh::parse("[a=2,b=3]"));
    const Roles r = roles_of(layout);
    for (std::int64_t i = 0; i < 6; ++i) {
      const Coordinate at{i / 3, i % 3};
      std::vector<std::int64_t> by_digits;
      for (std::int64_t p = 0; p < 48; ++p) {
        bool held = true;
        for (std::size_t a = 0; a < 2; ++a) {
          if (r[a].kind != Role::Kind::sharded) continue;
          held = held && digit_at(p, 48, r[a], layout.mesh().size(a)) == at[a];
        }
        if (held) by_digits.push_back(p);
      }
      std::vector<std::int64_t> by_boxes;
      const Boxes b = boxes(layout, shape, at);
      for (const Range& run : b.runs(0)) {
        for (std::int64_t p = run.begin; p < run.end; ++p) by_boxes.push_back(p);
      }
      EXPECT_EQ(by_digits, by_boxes) << placements << " at " << at[0] << "," << at[1];
    }
  }
}

TEST(Endpoints, TellIrregularRolesApart) {
  // b depends on a, which both layouts shard alike, or not.
  EXPECT_EQ(endpoints("[a=2,b=2]", "SS(0,4),SS(0,2)", "SS(0,4),SS(0,2)"),
            "0[4,8) 0irregular -> 0[4,8) 0irregular");
  EXPECT_EQ(endpoints("[a=2,b=2]", "SS(0,4),SS(0,2)", "SS(0,8),SS(0,2)"),
            "0[4,8) 0irregular -> 0[8,16) 0irregular-in-goal");
  EXPECT_EQ(endpoints("[a=2,b=2,c=2]", "SS(0,4),SS(0,2),R", "SS(0,4),SS(0,2),S(0)"),
            "0[4,8) 0irregular R -> 0[4,8) 0irregular 0irregular-in-goal");
}

TEST(Endpoints, FindTheInnermost) {
  EXPECT_EQ(endpoints("[a=2,b=3]", "SS(0,4),S(0)", "SS(0,2),S(0)"),
            "0[4,8) 0innermost -> 0[2,4) 0innermost");
  // An axis of one rank is not counted, one with blocks is not innermost, nor one of two.
  EXPECT_EQ(endpoints("[a=2,b=1,c=2]", "SS(0,4),S(0),S(0)", "R,R,R"),
            "0[4,8) R 0innermost -> R R R");
  EXPECT_EQ(endpoints("[a=2,b=2]", "R,R", "SS(0,4),SS(0,2)"), "R R -> 0[4,8) 0irregular-in-goal");
  EXPECT_EQ(endpoints("[a=2,b=2,c=2]", "SS(0,4),S(0),S(0)", "R,R,R"),
            "0[4,8) 0irregular 0irregular -> R R R");
}

/// How far digits go in each of two dimensions.
std::vector<std::int64_t> ends(const char* from, const char* to) {
  const Mesh mesh = Mesh::parse("[a=2,b=3]");
  const Layout x = Layout::parse(from, mesh);
  const Layout y = Layout::parse(to, mesh);
  const Shape shape{24, 24};
  const Endpoints e(x, y, shape);
  return {e.end_of(0), e.end_of(1)};
}

TEST(Endpoints, KnowHowFarDigitsGo) {
  using Ends = std::vector<std::int64_t>;
  EXPECT_EQ(ends("R,R", "R,P(sum)"), (Ends{1, 1}));
  EXPECT_EQ(ends("S(0),S(0)", "R,S(1)"), (Ends{6, 3}));
  EXPECT_EQ(ends("S(0),R", "R,S(0)"), (Ends{6, 1}));  // halves and thirds
  EXPECT_EQ(ends("SS(0,4),R", "R,S(0)"), (Ends{24, 1}));
  EXPECT_EQ(ends("SS(0,4),S(0)", "R,S(1)"), (Ends{-1, 3}));
}

/// Where an axis's digit may begin in dimension 0.
std::set<std::int64_t> begins(const char* from, std::size_t axis, const char* to = "R,R") {
  const Mesh mesh = Mesh::parse("[a=2,b=3]");
  const Layout x = Layout::parse(from, mesh);
  const Layout y = Layout::parse(to, mesh);
  const Shape shape{48};
  const auto found = Endpoints(x, y, shape).begins_of_some(axis, 0);
  return {found.begin(), found.end()};
}

TEST(Endpoints, KnowWhereADigitBeginsWithoutSomeAxes) {
  using Begins = std::set<std::int64_t>;
  EXPECT_EQ(begins("S(0),S(0)", 1), (Begins{1, 2}));
  EXPECT_EQ(begins("S(0),S(0)", 0), (Begins{1}));
  EXPECT_EQ(begins("S(0),S(0)", 0, "S(0),S(0) | 0:b>a"), (Begins{1, 3}));
  EXPECT_EQ(begins("SS(0,4),SS(0,8)", 1), (Begins{8, 16}));
  EXPECT_EQ(begins("SS(0,4),S(0)", 1), (Begins{1}));  // inside of a it is irregular
  EXPECT_EQ(begins("S(0),R", 1), Begins{});
}

TEST(Endpoints, HaveTheirOwnRolesAndWithoutRoomMore) {
  const Mesh mesh = Mesh::parse("[a=2,b=3]");
  const Layout from = Layout::parse("S(0),S(0)", mesh);
  const Layout to = Layout::parse("R,R", mesh);
  const Shape roomy{6};
  const Shape narrow{5};
  const Endpoints fits(from, to, roomy);
  EXPECT_TRUE(fits.has(1, digit(0, 2)));
  EXPECT_FALSE(fits.has(1, digit(0, 1)));
  const Endpoints crowded(from, to, narrow);
  EXPECT_TRUE(crowded.has(1, digit(0, 2)));
  EXPECT_TRUE(crowded.has(1, digit(0, 1)));
  EXPECT_FALSE(crowded.has(1, digit(0, 4)));
  EXPECT_FALSE(crowded.has(0, digit(0, 3)));
}

TEST(Endpoints, MakeLayoutsOfRoles) {
  const Mesh mesh = Mesh::parse("[a=2,b=3,c=1]");
  const Layout from = Layout::parse("SS(0,4),P(max),S(1)", mesh);
  const Layout to = Layout::parse("P(min),R,R", mesh);
  const Shape shape{48, 48};
  const Endpoints e(from, to, shape);
  const auto made = [&](const Role& a, const Role& b) {
    return e.layout({a, b, kReplicated}).placements_text();
  };
  const Role partial{Role::Kind::partial, -1, 1};
  EXPECT_EQ(made(kReplicated, kReplicated), "R,R,S(1)");  // c stays, as an axis of one rank
  EXPECT_EQ(made(digit(0, 1), digit(0, 2)), "S(0),S(0),S(1)");
  EXPECT_EQ(made(digit(0, 3), digit(0, 1)), "S(0),S(0),S(1) | 0:b>a");
  EXPECT_EQ(made(digit(0, 1), digit(0, 8)), "S(0),SS(0,4),S(1)");
  EXPECT_EQ(made(digit(1, 2), kReplicated), "SS(1,2),R,S(1)");
  EXPECT_EQ(made(partial, kReplicated), "P(min),R,S(1)");
  EXPECT_EQ(made(kReplicated, partial), "R,P(max),S(1)");
  EXPECT_EQ(made(digit(0, 4), Role::innermost(0)), "SS(0,4),S(0),S(1)");
}

TEST(Endpoints, MakeTheirOwnLayoutsAgain) {
  const Mesh mesh = Mesh::parse("[a=2,b=3,c=2]");
  const Shape shape{48, 48};
  for (const char* text :
       {"R,P(sum),S(1)", "S(0),S(0),S(0) | 0:c>a>b", "SS(0,4),S(0),R", "S(0),SS(0,4),R | 0:b>a",
        "SS(0,4),SS(0,2),S(0)", "SS(1,6),SS(1,4),SS(1,3) | 1:b>a>c"}) {
    const Layout layout = Layout::parse(text, mesh);
    const Layout other = Layout::parse("SS(0,8),SS(0,2),SS(0,3)", mesh);
    const Endpoints there(layout, other, shape);
    EXPECT_EQ(there.layout(there.begin()), layout);
    EXPECT_EQ(there.layout(there.goal()), other);
    const Endpoints back(other, layout, shape);
    EXPECT_EQ(back.layout(back.goal()), layout);
  }
}

}  // namespace
}  // namespace intarsia

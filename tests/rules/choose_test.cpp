#include "rules/choose.h"

#include <gtest/gtest.h>

namespace intarsia {
namespace {

/// Bytes are all that counts: to start a collective costs nothing.
const Topology kFreeStarts;

const std::vector<Row> kProduct =
    parse_rows({"S(0),R -> S(0)", "S(1),S(0) -> P(sum)", "R,S(1) -> S(1)", "P,R -> P", "R,P -> P"});
const std::vector<Row> kSum = parse_rows({"S(0),S(0) -> S(0)", "P,P -> P"});

Candidate operand(const char* placements, const char* mesh, double bytes = 1000) {
  return {Layout::parse(placements, Mesh::parse(mesh)), bytes};
}

/// The layouts of operands and results as text, `S(0); R -> S(0)`; without row: `none`.
std::string choice(const std::vector<Candidate>& operands, const std::vector<Row>& rows,
                   ChooseOptions options = {.topology = &kFreeStarts}, std::size_t results = 1) {
  const auto chosen = choose(operands[0].layout.mesh(), operands, rows, results, options);
  if (!chosen) return "none";
  std::string text;
  for (const Layout& in : chosen->in) text += (text.empty() ? "" : "; ") + in.placements_text();
  text += " ->";
  for (const Layout& out : chosen->out) text += " " + out.placements_text();
  return text + (chosen->by_formula ? " by formula" : "");
}

/// The choice for two operands on [a=2].
std::string on_two(const char* x, const char* y, const std::vector<Row>& rows,
                   ChooseOptions options = {.topology = &kFreeStarts}) {
  return choice({operand(x, "[a=2]"), operand(y, "[a=2]")}, rows, options);
}

TEST(Choose, OperandsStayWhereARowHasThem) {
  EXPECT_EQ(on_two("S(0)", "R", kProduct), "S(0); R -> S(0)");
  EXPECT_EQ(on_two("R", "S(1)", kProduct), "R; S(1) -> S(1)");
  EXPECT_EQ(on_two("S(1)", "S(0)", kProduct), "S(1); S(0) -> P(sum)");
  EXPECT_EQ(on_two("R", "R", kProduct), "R; R -> R");
}

TEST(Choose, WithoutRowsTheOpRunsReplicated) {
  EXPECT_EQ(choice({operand("S(0)", "[a=2]")}, {}), "R -> R");
  EXPECT_EQ(choice({operand("P(sum)", "[a=2]")}, {}, {}, 2), "R -> R R");
  EXPECT_EQ(choice({operand("R", "[a=2]")}, parse_rows({"S(0) -> S(0)"})), "R -> R");
}

TEST(Choose, TheFewestBytesWin) {
  const auto sharded = [](double x, double y) {
    return choice({operand("S(0)", "[a=2]", x), operand("S(0)", "[a=2]", y)}, kProduct);
  };
  // Gathering y sends half of it; resharding x sends half of each half.
  EXPECT_EQ(sharded(100, 40), "S(0); R -> S(0)");       // 20 or 25
  EXPECT_EQ(sharded(100, 60), "S(1); S(0) -> P(sum)");  // 30 or 25
}

TEST(Choose, StartsOfCollectivesCount) {
  const std::vector<Candidate> operands{operand("S(0)", "[a=4]"), operand("S(1)", "[a=4]")};
  // To reshard both sends 3/16 of each, 375 in all; to gather one sends 750 at once.
  EXPECT_EQ(choice(operands, kProduct), "S(1); S(0) -> P(sum)");
  EXPECT_EQ(choice(operands, kProduct, {}), "S(0); R -> S(0)");
}

TEST(Choose, TiesGoToLessPartialThenToLessMovedThenToTheFirst) {
  const std::vector<Candidate> one{operand("S(0)", "[a=2]")};
  EXPECT_EQ(choice(one, parse_rows({"S(0) -> P(sum)", "S(0) -> S(0)"})), "S(0) -> S(0)");
  EXPECT_EQ(on_two("S(0)", "R", parse_rows({"S(0),S(0) -> S(0)", "S(0),R -> S(0)"})),
            "S(0); R -> S(0)");
  EXPECT_EQ(choice(one, parse_rows({"S(0) -> S(2)", "S(0) -> S(1)"})), "S(0) -> S(2)");
  // Along one rank nothing is sent, and partial costs nothing.
  EXPECT_EQ(choice({operand("S(0)", "[a=1]")}, parse_rows({"S(0) -> P(sum)"})), "S(0) -> P(sum)");
}

TEST(Choose, LinearOpsKeepPartialOperandsOfTheirKind) {
  const auto through = [](const char* x, const char* row) {
    return choice({operand(x, "[a=2]")}, parse_rows({row}));
  };
  EXPECT_EQ(through("P(sum)", "P -> P"), "P(sum) -> P(sum)");
  EXPECT_EQ(through("P(avg)", "P -> P"), "P(avg) -> P(avg)");
  EXPECT_EQ(through("P(max)", "P -> P"), "R -> R");
  EXPECT_EQ(through("P(max)", "P(*) -> P(*)"), "P(max) -> P(max)");
  EXPECT_EQ(through("P(max)", "P(max) -> P(min)"), "P(max) -> P(min)");
  // A sharded operand is not gathered to keep the other partial, though it has fewer bytes.
  EXPECT_EQ(choice({operand("P(sum)", "[a=2]"), operand("S(0)", "[a=2]", 100)}, kProduct),
            "S(1); S(0) -> P(sum)");
}

TEST(Choose, BlocksGoWhereShardsGo) {
  EXPECT_EQ(on_two("SS(0,2)", "R", parse_rows({"S(0),R -> S(1)"})), "SS(0,2); R -> SS(1,2)");
  // In runs there are no blocks, though it is the other operand that has fewer bytes.
  EXPECT_EQ(choice({operand("SS(0,2)", "[a=2]"), operand("S(0)", "[a=2]", 100)},
                   parse_rows({"S(0),S(0) -> S(0) in runs"})),
            "S(0); S(0) -> S(0)");
}

TEST(Choose, InPlaceTheOperandStays) {
  const ChooseOptions keep{.keep = 0, .topology = &kFreeStarts};
  EXPECT_EQ(on_two("R", "S(0)", kSum, keep), "R; R -> R");
  EXPECT_EQ(on_two("S(0)", "P(sum)", kSum, keep), "S(0); S(0) -> S(0)");
  EXPECT_EQ(on_two("P(sum)", "R", kSum, keep), "P(sum); P(sum) -> P(sum)");
  EXPECT_EQ(on_two("S(1)", "R", kSum, keep), "none");
  EXPECT_EQ(on_two("S(1)", "S(0)", kProduct, keep), "none");  // its result is partial
}

TEST(Choose, SumsBuildUpWhereTheyAreReducedLater) {
  EXPECT_EQ(on_two("P(sum)", "R", kSum), "R; R -> R");
  EXPECT_EQ(on_two("P(sum)", "R", kSum, {.later = true, .topology = &kFreeStarts}),
            "P(sum); P(sum) -> P(sum)");
}

TEST(Choose, ReducedResultsAreNotPartial) {
  EXPECT_EQ(on_two("S(1)", "S(0)", kProduct, {.reduced = true, .topology = &kFreeStarts}),
            "S(0); R -> S(0)");
}

TEST(Choose, ShardsOperandsOnlyBesideAShardedOne) {
  EXPECT_EQ(on_two("R", "R", kSum), "R; R -> R");
  EXPECT_EQ(on_two("S(0)", "R", kSum), "S(0); S(0) -> S(0)");
  // Reduced and then gathered, or reduced at once: the same bytes.
  EXPECT_EQ(choice({operand("P(max)", "[a=2]")}, parse_rows({"S(0) -> S(0)"})), "R -> R");
  EXPECT_EQ(on_two("P(max)", "S(0)", kSum), "S(0); S(0) -> S(0)");
}

TEST(Choose, EachAxisIsChosenForByItself) {
  const char* mesh = "[dp=2,tp=2]";
  EXPECT_EQ(choice({operand("S(0),R", mesh), operand("R,S(1)", mesh)}, kProduct),
            "S(0),R; R,S(1) -> S(0),S(1)");
  // The order of axes is that of the operand that has one.
  EXPECT_EQ(choice({operand("S(0),S(0) | 0:tp>dp", mesh), operand("R,R", mesh)}, kProduct),
            "S(0),S(0) | 0:tp>dp; R,R -> S(0),S(0) | 0:tp>dp");
}

TEST(Choose, KindsOfPartialThatDoNotCommuteAreNotMixed) {
  const std::vector<Candidate> x{operand("S(0),S(1)", "[a=2,b=2]")};
  EXPECT_EQ(choice(x, parse_rows({"S(0) -> P(avg)", "S(1) -> P(sum)"})),
            "S(0),S(1) -> P(avg),P(sum)");
  EXPECT_EQ(choice(x, parse_rows({"S(0) -> P(max)", "S(1) -> P(sum)"})),
            "S(0),S(0) -> P(max),P(max)");
}

TEST(Choose, GroupsAreNotSplit) {
  const auto rows = parse_rows({"S(1) -> S(1) in 6 parts"});
  EXPECT_EQ(choice({operand("S(1)", "[a=4]")}, rows), "R -> R");
  EXPECT_EQ(choice({operand("S(1)", "[a=3]")}, rows), "S(1) -> S(1)");
  EXPECT_EQ(choice({operand("S(1),S(1)", "[a=2,b=3]")}, rows), "S(1),S(1) -> S(1),S(1)");
  EXPECT_EQ(choice({operand("S(1),S(1)", "[a=2,b=2]")}, rows), "S(1),R -> S(1),R");
}

TEST(Choose, WhatTheOpItselfSendsCounts) {
  std::vector<Row> rows = parse_rows({"S(0) -> S(0) by formula"});
  const std::vector<Candidate> x{operand("S(0)", "[a=2]")};
  rows[0].formula = 0.4;  // reduced in two passes, of half each: 0.4 of x; gathering it sends 0.5
  EXPECT_EQ(choice(x, rows), "S(0) -> S(0) by formula");
  rows[0].formula = 0.6;
  EXPECT_EQ(choice(x, rows), "R -> R");
  std::vector<Row> windows = parse_rows({"S(0) -> S(0) in runs", "S(1) -> S(1)"});
  windows[0].sends = 0.2;  // resharding sends 0.25
  EXPECT_EQ(choice(x, windows), "S(0) -> S(0)");
  windows[0].sends = 0.3;
  EXPECT_EQ(choice(x, windows), "S(1) -> S(1)");
}

TEST(Choose, LayoutsAtHandCostNothing) {
  Candidate x = operand("S(0)", "[a=2]");
  const auto rows = parse_rows({"S(0) -> P(sum)", "S(1) -> S(1)"});
  EXPECT_EQ(choice({x}, rows), "S(0) -> P(sum)");
  x.also = Layout::parse("[a=2] S(1)");
  EXPECT_EQ(choice({x}, rows), "S(1) -> S(1)");
}

TEST(Choose, OperandsThatWereNotPassedDoNotCount) {
  Candidate missing = operand("R", "[a=2]");
  missing.given = false;
  EXPECT_EQ(choice({operand("S(0)", "[a=2]"), missing},
                   parse_rows({"S(0),P(sum) -> S(0)", "S(0),S(0) -> P(sum)"})),
            "S(0); P(sum) -> S(0)");
}

}  // namespace
}  // namespace intarsia

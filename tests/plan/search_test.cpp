#include "plan/search.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "plan/two_layouts.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Sizes = std::vector<std::int64_t>;

/// The plan of a tensor of bytes. A collective starts in 100 s, a message takes 10 s, a byte 1 s, a
/// copied byte a quarter.
Plan found(const char* mesh, const Sizes& shape, const char* from, const char* to,
           std::optional<std::int64_t> peak_bytes = std::nullopt) {
  const Topology topology = testing::slow_topology();
  const Mesh m = Mesh::parse(mesh);
  return search(Layout::parse(from, m), Layout::parse(to, m), shape, {1, &topology, peak_bytes});
}

TEST(Search, GivesTheStepsOfAPath) {
  const Plan plan = found("[a=2,b=2]", {40, 40}, "S(0),S(1)", "R,S(0)");
  EXPECT_EQ(plan.to_string(),
            "[a=2,b=2] S(0),S(1) -> R,S(0)\n"
            "  all_gather a: S(0),S(1) -> R,S(1)\n"
            "  all_to_all b: R,S(1) -> R,S(0)");
  EXPECT_EQ(plan.steps[0].seconds, 110 + 400);
  EXPECT_EQ(plan.steps[1].seconds, 110 + 400 + 200);
  EXPECT_EQ(plan.seconds, 1220);
  // In the second step: two pieces of 800 B, and as much to send and to receive.
  EXPECT_EQ(plan.peak_bytes, 3200);
  EXPECT_EQ(plan.shape, (Shape{40, 40}));
  EXPECT_EQ(plan.element_size, 1);
}

TEST(Search, NamesTheAxesOfAStep) {
  // Those along which ranks talk; of a local step those that change.
  const Plan exchange = found("[a=2,b=2]", {4, 4}, "S(0),S(1)", "R,S(0)");
  EXPECT_EQ(exchange.to_string(),
            "[a=2,b=2] S(0),S(1) -> R,S(0)\n  all_to_all a+b: S(0),S(1) -> R,S(0)");
  EXPECT_EQ(exchange.seconds, 122);
  const Plan slice = found("[a=2,b=2,c=2]", {8, 8}, "R,S(0),R", "S(1),S(0),S(0)");
  EXPECT_EQ(slice.to_string(),
            "[a=2,b=2,c=2] R,S(0),R -> S(1),S(0),S(0)\n"
            "  slice a+c: R,S(0),R -> S(1),S(0),S(0)");
  EXPECT_EQ(slice.seconds, 2);
  EXPECT_EQ(found("[a=2,b=2]", {8}, "S(0),R", "S(0),S(0)").steps[0].axes_text(), "b");
}

TEST(Search, GivesNoStepsWhereNothingChanges) {
  const Plan plan = found("[a=2]", {5}, "S(0)", "S(0)");
  EXPECT_TRUE(plan.steps.empty());
  EXPECT_EQ(plan.seconds, 0);
  EXPECT_EQ(plan.peak_bytes, 3);
}

TEST(Search, RelabelsAxesOfOneRankAtTheEnd) {
  const Plan plan = found("[a=1,b=2,c=1]", {8}, "S(0),S(0),R", "R,R,P(sum)");
  EXPECT_EQ(plan.to_string(),
            "[a=1,b=2,c=1] S(0),S(0),R -> R,R,P(sum)\n"
            "  all_gather b: S(0),S(0),R -> S(0),R,R\n"
            "  relabel a+c: S(0),R,R -> R,R,P(sum)");
  EXPECT_EQ(plan.seconds, 114);
}

TEST(Search, SendsInPartsWithinABound) {
  const Plan plan = found("[a=2]", {4, 4}, "S(0)", "S(1)", 23);
  ASSERT_EQ(plan.steps.size(), 1U);
  EXPECT_EQ(plan.steps[0].chunks, 6);
  EXPECT_EQ(plan.seconds, 116 + 5 * 100);
  EXPECT_EQ(plan.peak_bytes, 16 + 3 + 4);  // in a part 3 of 16 B, and one more twice for each rank
}

TEST(Search, SaysTheLeastBoundWhereNoPlanKeepsToIt) {
  expect_error<ValueError>(
      [] {
        found("[a=2]", {4, 4}, "S(0)", "S(1)", 20);
      },
      {"[make_plan] no plan from [a=2] S(0) to [a=2] S(1) for sizes (4,4)",
       "keeps under 20 bytes; the least possible is 21"});
  // A mesh of more than three axes is searched otherwise.
  expect_error<ValueError>(
      [] {
        found("[a=2,b=1,c=1,d=1]", {4, 4}, "S(0),R,R,R", "S(1),R,R,R", 20);
      },
      {"keeps under 20 bytes; the least possible is 21"});
}

TEST(Search, IsThoroughOnUpToThreeAxes) {
  // See WideSearch.LetsAxesShardWhatNeitherLayoutHas.
  EXPECT_EQ(found("[a=2,b=2,c=1]", {40, 40}, "S(1),R,R", "R,S(1),R").seconds, 1220);
  EXPECT_EQ(found("[a=2,b=2,c=1,d=1]", {40, 40}, "S(1),R,R,R", "R,S(1),R,R").seconds, 1310);
}

}  // namespace
}  // namespace intarsia

#include "tensor/core/ours.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;

TEST(Ours, TakesDistributedTensorsOnly) {
  const Lockstep lockstep("[a=2]");
  const Layout layout = Layout::parse("S(0)", lockstep.mesh());
  const Tensor x = distribute(at::ones({4, 3}), layout, lockstep.world());
  EXPECT_EQ(&ours("f", x), x.unsafeGetTensorImpl());
  EXPECT_EQ(&world_of(x), &lockstep.world());
  EXPECT_EQ(layout_of(x), layout);
  EXPECT_TRUE(has_layout(x));
  EXPECT_FALSE(has_layout(at::ones({4, 3})));
  EXPECT_FALSE(has_layout(Tensor()));
}

TEST(Ours, RefusalsNameTheCallAndTheTensor) {
  expect_error<ValueError>(
      [] {
        ours("my_call", at::ones({2, 3}, at::kHalf));
      },
      {"[my_call]", "takes a distributed tensor, not f16[2, 3] plain", "distribute() makes one"});
  expect_error<ValueError>([] { ours("my_call", Tensor()); },
                           {"[my_call]", "not an undefined one"});
  expect_error<ValueError>([] { layout_of(at::ones({})); }, {"[layout_of]", "f32[] plain"});
  expect_error<ValueError>([] { world_of(Tensor()); }, {"[world_of]", "undefined"});
}

TEST(Ours, TakesNoteThatPartialValuesWereReduced) {
  const Lockstep lockstep("[a=2]");
  const Layout norms = Layout::parse("P(norm:2)", lockstep.mesh());
  const Tensor x = from_locals({at::ones({2}), at::ones({2})}, norms, lockstep.world());
  impl_of(x).memory()->settled = true;  // by a write to one of its views
  EXPECT_EQ(layout_of(x), Layout::replicated(lockstep.mesh()));
}

TEST(Ours, DescribesTensorsOfEveryKind) {
  const Lockstep lockstep("[dp=2,tp=2]");
  const auto described = [&](const char* layout) {
    return describe(
        zeros({8, 4}, Layout::parse(layout, lockstep.mesh()), lockstep.world(), at::kHalf));
  };
  EXPECT_EQ(described("S(0),P(sum)"), "f16[8@dp, 4] P(sum)@tp on [dp=2,tp=2]");
  EXPECT_EQ(described("SS(1,2),S(1)"), "f16[8, 4@dp:2@tp] on [dp=2,tp=2]");
  EXPECT_EQ(describe(at::zeros({2, 0}, at::kBool)), "bool[2, 0] plain");
  EXPECT_EQ(describe(at::zeros({})), "f32[] plain");
  EXPECT_EQ(describe(Tensor()), "undefined");
}

TEST(Ours, ShowsWhatEachHostedRankHolds) {
  const Lockstep lockstep("[a=2]");
  const Tensor x = distribute(at::tensor({10, 11, 12}, at::kLong),
                              Layout::parse("S(0)", lockstep.mesh()), lockstep.world());
  EXPECT_EQ(show(x),
            "i64[3@a] on [a=2]\n"
            "rank 0 holds [0,2)\n 10\n 11\n[ CPULongType{2} ]\n"
            "rank 1 holds [2,3)\n 12\n[ CPULongType{1} ]");
  EXPECT_EQ(show(at::tensor({7}, at::kLong)), "i64[1] plain\n 7\n[ CPULongType{1} ]");
}

TEST(Ours, ShowsNothingOfRanksOutsideTheMesh) {
  const auto world = lockstep_world(4);
  const Layout layout = Layout::parse("[a=2]+1 SS(0,2)");  // ranks 1 and 2
  const Tensor x = distribute(at::tensor({10, 11, 12, 13}, at::kLong), layout, *world);
  EXPECT_EQ(show(x),
            "i64[4@a:2] on [a=2]+1\n"
            "rank 1 holds [0,1)+[2,3)\n 10\n 12\n[ CPULongType{2} ]\n"
            "rank 2 holds [1,2)+[3,4)\n 11\n 13\n[ CPULongType{2} ]");
}

}  // namespace
}  // namespace intarsia

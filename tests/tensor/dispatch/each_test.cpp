#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "tensor/dispatch/decide.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::expect_error;
using testing::FramedCall;
using testing::laid_out;
using testing::unmoved;
using List = std::vector<at::Tensor>;
using Texts = std::vector<std::string>;

Decision decided(const FramedCall& call) {
  Decision d;
  d.in = unmoved(call.frame).in;
  decide_each(call.frame, d);
  return d;
}

/// The layouts in which the operands are used.
Texts layouts_of(const Decision& d) {
  Texts out;
  for (const Layout& layout : d.layouts) out.push_back(layout.placements_text());
  return out;
}

class Each : public ::testing::Test {
 protected:
  at::Tensor x(std::string_view layout) const {
    return laid_out(counting({4, 4}), layout, lockstep_);
  }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(Each, TensorsAreLaidOutAsThoseAtTheirPlaceInTheFirstList) {
  const FramedCall call("aten::_foreach_add", "List",
                        {List{x("S(0)"), x("S(1)")}, List{x("R"), x("P(sum)")}});
  const Decision d = decided(call);
  EXPECT_EQ(layouts_of(d), (Texts{"S(0)", "S(1)", "S(0)", "S(1)"}));
  ASSERT_EQ(d.results.size(), 1U);
  EXPECT_EQ(d.results[0].kind, Result::Kind::list);
  ASSERT_EQ(d.results[0].specs.size(), 2U);
  EXPECT_EQ(d.results[0].specs[0].to_string(), "f64[4@a, 4]");
  EXPECT_EQ(d.results[0].specs[1].to_string(), "f64[4, 4@a]");
}

TEST_F(Each, AListThatIsWrittenLeads) {
  const FramedCall out("aten::_foreach_add", "List_out",
                       {List{x("R")}, List{x("S(0)")}, 1, List{x("S(1)")}});
  EXPECT_EQ(layouts_of(decided(out)), (Texts{"S(1)", "S(1)", "S(1)"}));
  const FramedCall in_place("aten::_foreach_add_", "List", {List{x("S(0)")}, List{x("R")}});
  const Decision d = decided(in_place);
  EXPECT_EQ(layouts_of(d), (Texts{"S(0)", "S(0)"}));
  EXPECT_TRUE(d.results.empty());
}

TEST_F(Each, SingleNumbersStayReplicated) {
  const at::Tensor step = laid_out(at::ones({}), "R", lockstep_);
  const FramedCall adam("aten::_fused_adam_", "",
                        {List{x("S(0)")}, List{x("R")}, List{x("S(0)")}, List{x("S(0)")}, List{},
                         List{step}, 0.1, 0.9, 0.99, 0.0, 1e-8, false, false});
  EXPECT_EQ(layouts_of(decided(adam)),
            (Texts{"S(0)", "S(0)", "S(0)", "S(0)", "R", "R", "R"}));  // two were not passed
  const FramedCall scaled("aten::_foreach_mul", "Tensor", {List{x("S(0)"), x("S(1)")}, step});
  EXPECT_EQ(layouts_of(decided(scaled)), (Texts{"S(0)", "S(1)", "R"}));
}

TEST_F(Each, APlainListIsLaidOutAsTheOneThatLeads) {
  const FramedCall call("aten::_foreach_add", "List", {List{x("S(0)")}, List{counting({4, 4})}});
  EXPECT_EQ(layouts_of(decided(call)), (Texts{"S(0)", "S(0)"}));
}

TEST_F(Each, WhatDoesNotGoTensorByTensorIsDecomposed) {
  const auto decomposed = [](const FramedCall& call) {
    const Decision d = decided(call);
    EXPECT_EQ(d.strategy, Strategy::decompose) << call.info.name;
    EXPECT_TRUE(d.results.empty());
    return layouts_of(d);
  };
  const FramedCall partial("aten::_foreach_add", "Scalar", {List{x("P(sum)")}, 1});
  EXPECT_EQ(decomposed(partial), (Texts{"P(sum)"}));
  const FramedCall norm("aten::_foreach_norm", "Scalar", {List{x("S(0)")}, 2});
  EXPECT_EQ(decomposed(norm), (Texts{"S(0)"}));
  const FramedCall sizes("aten::_foreach_add", "List",
                         {List{x("S(0)")}, List{laid_out(counting({4}), "R", lockstep_)}});
  EXPECT_EQ(decomposed(sizes), (Texts{"S(0)", "R"}));
  const FramedCall plain_first("aten::_foreach_add", "List",
                               {List{counting({4, 4})}, List{x("S(0)")}});
  EXPECT_EQ(decomposed(plain_first), (Texts{"R", "S(0)"}));
}

TEST_F(Each, FusedStepsThatDoNotGoTogetherAreRefused) {
  const FramedCall call(
      "aten::_fused_sgd_", "",
      {List{x("P(sum)")}, List{x("R")}, List{}, 0.0, 0.0, 0.1, 0.0, false, false, false});
  expect_error<ValueError>(
      [&] { decided(call); },
      {"[aten::_fused_sgd_] the lists do not go together tensor by tensor, or hold partial tensors",
       "f64[4, 4]", "foreach=False, fused=False"});
}

}  // namespace
}  // namespace intarsia

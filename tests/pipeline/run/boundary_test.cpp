#include "pipeline/run/boundary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia::pipeline {
namespace {

const Mesh kFrom = Mesh::parse("[dp=2,tp=2]");
const Mesh kTo = Mesh::parse("[dp=2,tp=2]+4");

class BoundaryTest : public ::testing::Test {
 protected:
  at::Tensor laid_out(const char* layout, bool trains = false) {
    return distribute(at::ones({4, 8}), Layout::parse(layout, kFrom), *world_)
        .requires_grad_(trains);
  }
  std::shared_ptr<World> world_ = lockstep_world(8);
};

TEST_F(BoundaryTest, SaysWhatPassesAndReadsBack) {
  const Boundary b = boundary_of(
      "test",
      {laid_out("S(0),R"), at::Tensor(), at::ones({3}, at::kLong), laid_out("R,S(1)", true)}, kFrom,
      kTo);
  EXPECT_EQ(
      b.to_string(),
      "f32[4@dp, 8] -> f32[4@dp, 8]\nnone\nplain i64[3]\ntrains f32[4, 8@tp] -> f32[4, 8@tp]");
  EXPECT_EQ(Boundary::parse(b.to_string(), kFrom, kTo), b);
  EXPECT_EQ(b.values[0]->to.layout.mesh(), kTo);
  EXPECT_EQ(Boundary::parse("", kFrom, kTo).values.size(), 0U);
}

TEST_F(BoundaryTest, PartialValuesPassBetweenMeshesWithTheSameAxes) {
  const at::Tensor partial = laid_out("R,S(1)").sum(1);
  EXPECT_EQ(boundary_of("test", {partial}, kFrom, kTo).to_string(),
            "f32[4] P(sum)@tp -> f32[4] P(sum)@tp");
  const Mesh other = Mesh::parse("[dp=2]+4");
  EXPECT_EQ(boundary_of("test", {partial}, kFrom, other).to_string(), "f32[4] -> f32[4]");
}

TEST_F(BoundaryTest, AxesAreCarriedByTheirNames) {
  const Mesh other = Mesh::parse("[tp=2,x=2]+4");
  EXPECT_EQ(carried(Layout::parse("S(0),S(1)", kFrom), other), Layout::parse("S(1),R", other));
  const Mesh reordered = Mesh::parse("[tp=2,dp=2]+4");
  const Layout both = Layout::parse("S(0),S(0) | 0:tp>dp", kFrom);
  EXPECT_EQ(carried(both, kTo), Layout::parse("S(0),S(0) | 0:tp>dp", kTo));
  EXPECT_EQ(carried(both, reordered), Layout::parse("S(0),S(0)", reordered));
  EXPECT_FALSE(are_alike(kFrom, reordered));
  EXPECT_TRUE(are_alike(kFrom, kTo));
}

TEST_F(BoundaryTest, GradientsComeBackForWhatTrains) {
  const at::Tensor partial = (laid_out("R,S(1)", true) * 2).sum(1);
  const Boundary b = boundary_of("test", {partial, laid_out("R,R")}, kFrom, kTo);
  EXPECT_EQ(b.to_string(), "trains f32[4] P(sum)@tp -> f32[4] P(sum)@tp\nf32[4, 8] -> f32[4, 8]");
  const Boundary back = gradients_of(b);
  EXPECT_EQ(back.to_string(), "f32[4] -> f32[4]\nnone");
  EXPECT_EQ(back.values[0]->from.layout.mesh(), kTo);
  EXPECT_EQ(back.values[0]->to.layout.mesh(), kFrom);
}

TEST_F(BoundaryTest, WhatCannotPassIsRefused) {
  testing::expect_error<ValueError>(
      [&] { boundary_of("test", {laid_out("S(0),R")}, kTo, kFrom); },
      {"[test] a stage on [dp=2,tp=2]+4 gives f32[4@dp, 8] on [dp=2,tp=2]",
       "must be on its own mesh"});
  const at::Tensor sparse = at::eye(2).to_sparse();
  testing::expect_error<UnsupportedError>([&] { boundary_of("test", {sparse}, kFrom, kTo); },
                                          {"cannot be sent to another rank"});
}

}  // namespace
}  // namespace intarsia::pipeline

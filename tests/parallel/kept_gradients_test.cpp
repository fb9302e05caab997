#include "parallel/gradients/kept_gradients.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>

#include "intarsia/communication.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

const Mesh kMesh = Mesh::parse("[dp=2]");

class KeptGradientsTest : public ::testing::Test {
 protected:
  at::Tensor parameter(double value) {
    return distribute(at::full({3, 3}, value, at::kDouble), Layout::replicated(kMesh), *world_)
        .requires_grad_();
  }
  /// The gradient of its sum over rows 0 to 3 is 6 in row 0, 22 in all.
  void backward(const at::Tensor& w) {
    const at::Tensor rows = at::arange(12, at::kDouble).view({4, 3});
    const at::Tensor x = distribute(rows, Layout::parse("S(0)", kMesh), *world_);
    at::mm(x, w).sum().backward();
  }
  const at::Tensor once_ =
      at::arange(12, at::kDouble).view({4, 3}).sum(0).view({3, 1}).expand({3, 3});
  std::shared_ptr<World> world_ = lockstep_world(2);
};

TEST_F(KeptGradientsTest, SeveralBackwardsAreReducedOnce) {
  const at::Tensor w = parameter(1);
  const at::Tensor v = parameter(2);
  KeptGradients kept({w, v});
  clear_bill(*world_);
  backward(w);
  EXPECT_TRUE(layout_of(w.grad()).has_partial());
  backward(w);
  backward(v);
  EXPECT_EQ(bill(*world_).count(), 0U) << bill(*world_).to_string();
  kept.reduce();
  EXPECT_EQ(bill(*world_).calls(), 1U) << bill(*world_).to_string();
  EXPECT_EQ(layout_of(w.grad()), layout_of(w));
  EXPECT_TRUE(at::allclose(full(w.grad()), 2 * once_));
  EXPECT_TRUE(at::allclose(full(v.grad()), once_));
  backward(w);  // from here on as ever
  EXPECT_EQ(layout_of(w.grad()), layout_of(w));
  EXPECT_TRUE(at::allclose(full(w.grad()), 3 * once_));
}

TEST_F(KeptGradientsTest, WhatWasThereIsAdded) {
  const at::Tensor w = parameter(1);
  const at::Tensor unused = parameter(1);
  backward(w);
  backward(unused);
  const at::Tensor before = unused.grad();
  KeptGradients kept({w, unused});
  EXPECT_FALSE(w.grad().defined());
  backward(w);
  kept.reduce();
  EXPECT_TRUE(at::allclose(full(w.grad()), 2 * once_));
  EXPECT_TRUE(unused.grad().is_same(before));
}

TEST_F(KeptGradientsTest, DroppedItPutsBackWhatWasThere) {
  const at::Tensor w = parameter(1);
  backward(w);
  const at::Tensor before = w.grad();
  {
    const KeptGradients kept({w});
    backward(w);
  }
  EXPECT_TRUE(w.grad().is_same(before));
  EXPECT_TRUE(at::allclose(full(w.grad()), once_));
  backward(w);
  EXPECT_EQ(layout_of(w.grad()), layout_of(w));
}

TEST_F(KeptGradientsTest, PlainAndFrozenLeavesAreLeftAlone) {
  const at::Tensor plain = at::ones({2}).requires_grad_();
  plain.sum().backward();
  const at::Tensor frozen = parameter(1).requires_grad_(false);
  KeptGradients kept({plain, frozen});
  EXPECT_TRUE(plain.grad().defined());
  kept.reduce();
  EXPECT_TRUE(plain.grad().defined());
}

}  // namespace
}  // namespace intarsia

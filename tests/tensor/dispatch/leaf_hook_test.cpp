#include "tensor/dispatch/leaf_hook.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "intarsia/communication.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::laid_out;
using testing::Numbers;
using testing::numbers_of;
using torch::autograd::impl::hooks;

/// A hook of someone else.
class OtherHook final : public torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    return grads;
  }
};

std::size_t count_of_hooks(const at::Tensor& t) {
  return torch::autograd::impl::get_autograd_meta(t) == nullptr ? 0 : hooks(t).size();
}

class LeafHook : public ::testing::Test {
 protected:
  at::Tensor tensor(std::string_view layout) const {
    return laid_out(counting({4}), layout, lockstep_);
  }

  at::Tensor leaf(std::string_view layout) const {
    at::Tensor out = tensor(layout).set_requires_grad(true);
    attach_leaf_hook(out);
    return out;
  }

  /// A gradient, as the hook hands it on.
  static at::Tensor hooked(const at::Tensor& leaf, const at::Tensor& grad) {
    return (*hooks(leaf).back())({grad})[0];
  }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(LeafHook, AGradientGetsTheLayoutOfItsLeaf) {
  const at::Tensor x = leaf("S(0)");
  const at::Tensor grad = hooked(x, tensor("P(sum)"));
  EXPECT_EQ(layout_of(grad), layout_of(x));
  EXPECT_EQ(numbers_of(locals(grad)), (std::vector<Numbers>{{0, 1}, {2, 3}}));
  const Bill sent = bill(lockstep_.world());
  ASSERT_EQ(sent.entries.size(), 1U);
  EXPECT_EQ(sent.entries[0].op, "gradient");
  EXPECT_FALSE(sent.entries[0].implicit);
  const at::Tensor same = tensor("S(0)");
  EXPECT_TRUE(hooked(x, same).is_same(same));
}

TEST_F(LeafHook, TheGradientOfAPartialLeafIsReplicated) {
  const at::Tensor x = leaf("P(sum)");
  EXPECT_EQ(layout_of(hooked(x, tensor("S(0)"))).placements_text(), "R");
}

TEST_F(LeafHook, PlainAndMissingGradients) {
  const at::Tensor x = leaf("S(0)");
  const at::Tensor grad = hooked(x, counting({4}));
  EXPECT_EQ(layout_of(grad), layout_of(x));
  EXPECT_EQ(numbers_of(locals(grad)), (std::vector<Numbers>{{0, 1}, {2, 3}}));
  EXPECT_FALSE(hooked(x, at::Tensor()).defined());
}

TEST_F(LeafHook, AGradientThatAStoreTakesIsLeftToIt) {
  const at::Tensor x = leaf("S(0)");
  auto use = std::make_unique<OnUse>();
  use->takes_gradients = true;
  impl_of(x).need_extra().on_use = std::move(use);
  const at::Tensor grad = tensor("P(sum)");
  EXPECT_TRUE(hooked(x, grad).is_same(grad));
}

TEST_F(LeafHook, AGradientThatIsDifferentiatedAgainStaysSo) {
  const at::Tensor x = leaf("S(0)");
  const at::Tensor grad = hooked(x, tensor("R").set_requires_grad(true));
  EXPECT_EQ(layout_of(grad), layout_of(x));
  EXPECT_TRUE(grad.requires_grad());
}

TEST_F(LeafHook, ALeafThatWasLaidOutAnewIsAskedAgain) {
  const at::Tensor x = leaf("S(0)");
  const at::Tensor other = tensor("R");
  impl_of(x).replace(impl_of(other).spec(), impl_of(other).pieces());
  EXPECT_EQ(layout_of(hooked(x, tensor("S(0)"))).placements_text(), "R");
}

TEST_F(LeafHook, OnlyLeavesThatRequireAGradientHaveOne) {
  const at::Tensor x = tensor("S(0)");
  attach_leaf_hook(x);
  EXPECT_EQ(count_of_hooks(x), 0U);
  const at::Tensor used = leaf("S(0)") * 2;
  attach_leaf_hook(used);
  EXPECT_EQ(count_of_hooks(used), 0U);
  keep_gradient_layout(counting({4}).set_requires_grad(true));  // a plain tensor has no layout
}

TEST_F(LeafHook, ViewsWithoutGradModeAreNoLeaves) {
  const at::NoGradGuard guard;
  const at::Tensor base = tensor("S(0)");
  const at::Tensor view = base.unsqueeze(1).set_requires_grad(true);
  attach_leaf_hook(view);
  EXPECT_EQ(count_of_hooks(view), 0U);
  EXPECT_EQ(count_of_hooks(leaf("S(0)")), 1U) << "in the forward of a user's function";
}

TEST_F(LeafHook, ItIsThereOnceAndLast) {
  const at::Tensor x = leaf("S(0)");
  attach_leaf_hook(x);
  EXPECT_EQ(count_of_hooks(x), 1U);
  hooks(x).push_back(std::make_unique<OtherHook>());
  keep_gradient_layout(x);
  EXPECT_EQ(count_of_hooks(x), 3U);
  EXPECT_EQ(layout_of(hooked(x, tensor("R"))), layout_of(x));
}

}  // namespace
}  // namespace intarsia

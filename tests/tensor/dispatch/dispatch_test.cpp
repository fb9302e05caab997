#include "tensor/dispatch/dispatch.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/rule.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::expect_error;
using testing::laid_out;
using testing::Numbers;
using testing::numbers;

// An op of somebody else.
TORCH_LIBRARY(intarsia_dispatch_test, m) { m.def("twice(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(intarsia_dispatch_test, CPU, m) {
  m.impl("twice", [](const at::Tensor& x) { return x * 2; });
}

at::Tensor twice(const at::Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("intarsia_dispatch_test::twice", "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(x);
}

class Dispatch : public ::testing::Test {
 protected:
  at::Tensor tensor(const std::vector<std::int64_t>& sizes, std::string_view layout) const {
    return laid_out(counting(sizes), layout, lockstep_);
  }
  static std::string placements(const at::Tensor& t) { return layout_of(t).placements_text(); }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(Dispatch, OpsThatATenComposesAreLeftToATen) {
  register_kernels();
  register_kernels();  // once per process
  const auto has_kernel = [](const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasKernelForDispatchKey(kKey);
  };
  EXPECT_TRUE(has_kernel("aten::mm"));
  EXPECT_TRUE(has_kernel("aten::silu_backward")) << "it has kernels too, and a rule";
  EXPECT_FALSE(has_kernel("aten::reshape"));
}

TEST_F(Dispatch, ADecisionIsMadeOnce) {
  World& world = lockstep_.world();
  const at::Tensor x = tensor({4, 2}, "S(0)");
  const at::Tensor turned = tensor({4, 2}, "S(1)");
  const CacheCounters before = cache_counters(world);
  for (int i = 0; i < 3; ++i) x.add(i);
  turned.add(1);
  const CacheCounters after = cache_counters(world);
  EXPECT_EQ(after.misses - before.misses, 2U);
  EXPECT_EQ(after.hits - before.hits, 2U);
}

TEST_F(Dispatch, ARuleThatIsAddedHoldsFromTheNextCallOn) {
  const at::Tensor x = tensor({4}, "S(0)");
  EXPECT_EQ(placements(twice(x)), "R") << "without a rule, on full tensors";
  {
    const RuleHandle rule = add_rule(index_rule("intarsia_dispatch_test::twice", "N -> N"));
    const at::Tensor y = twice(x);
    EXPECT_EQ(placements(y), "S(0)");
    EXPECT_EQ(numbers(locals(y)[1]), (Numbers{4, 6}));
  }
  EXPECT_EQ(placements(twice(x)), "R");
}

TEST_F(Dispatch, ATensorBecomesAViewOfItselfInPlace) {
  at::Tensor x = tensor({4, 1, 2}, "S(0)");
  x.squeeze_(1);
  EXPECT_EQ(describe(x), "f64[4@a, 2] on [a=2]");
  x.t_();
  EXPECT_EQ(describe(x), "f64[2, 4@a] on [a=2]");
  EXPECT_EQ(numbers(locals(x)[1]), (Numbers{4, 6, 5, 7}));
  x.transpose_(0, 1);
  x.unsqueeze_(0);
  EXPECT_EQ(describe(x), "f64[1, 4@a, 2] on [a=2]");
  expect_error<c10::ValueError>([&] { tensor({4}, "S(0)").as_strided_({2}, {1}, 1); },
                                {"[aten::as_strided_] the view would have to move elements",
                                 "use the op that is not in place"});
}

TEST_F(Dispatch, OtherSizesOrMemoryInPlaceAreRefused) {
  const at::Tensor x = tensor({4}, "S(0)");
  expect_error<c10::ValueError>(
      [&] { x.resize_({8}); },
      {"[aten::resize_] a distributed tensor cannot take other sizes or memory in place",
       "f64[4@a]", "make a new tensor"});
}

TEST_F(Dispatch, AViewThatIsOlderThanItsBaseIsRefused) {
  const at::Tensor x = tensor({4}, "S(0)");
  const at::Tensor view = x.slice(0, 1, 3);
  x.add_(1);
  expect_error<c10::ValueError>([&] { view + 1; },
                                {"a view whose elements had been moved is older than the last "
                                 "write to its base",
                                 "take the view again after writing"});
}

TEST_F(Dispatch, TensorsWithoutStridesAreRefused) {
  const at::Tensor x = tensor({4}, "S(0)");
  expect_error<c10::NotImplementedError>(
      [&] { x + at::ones({4}, at::kDouble).to_sparse(); },
      {"[aten::add.Tensor] a sparse tensor is beside distributed ones", "f64[4@a]",
       "take its to_dense()"});
  expect_error<c10::NotImplementedError>(
      [&] {
        at::cat({x, at::quantize_per_tensor(at::ones({4}), 0.1, 0, at::kQInt8)});
      },
      {"a quantized tensor is beside distributed ones", "take its dequantize()"});
}

TEST_F(Dispatch, AutogradRedoesViewsByCallingThemAgain) {
  const auto replays = [] { return c10::AutogradState::get_tls_state().get_view_replay_enabled(); };
  const at::Tensor x = tensor({4, 2}, "S(0)").set_requires_grad(true);
  const at::Tensor y = x * 1;
  const at::Tensor turned = y.t();
  EXPECT_TRUE(replays());
  turned + 1;
  EXPECT_FALSE(replays()) << "an op that is no view switches it off";
  turned.select(0, 1).mul_(3);
  y.sum().backward();
  EXPECT_EQ(numbers(full(x.grad())), (Numbers{1, 3, 1, 3, 1, 3, 1, 3}));
}

TEST_F(Dispatch, GradientsOfLeavesAreLaidOutAsTheyAre) {
  const at::Tensor x = tensor({4}, "S(0)").set_requires_grad(true);
  x.sum().backward();
  EXPECT_EQ(placements(x.grad()), "S(0)");
}

}  // namespace
}  // namespace intarsia

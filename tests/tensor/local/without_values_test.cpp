#include "tensor/local/without_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/memory.h"
#include "intarsia/simulate.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::FramedCall;
using testing::unmoved;

class WithoutValues : public ::testing::Test {
 protected:
  ~WithoutValues() override { world_->close(); }

  at::Tensor zeros_of(at::IntArrayRef sizes) {
    return zeros(sizes, Layout::parse("[a=4] S(0)"), *world_);
  }

  std::shared_ptr<World> world_ = simulate({.size = 4, .rank = 1});
};

/// A decision with as many results as the op has.
Decision with_results(const Frame& f) {
  Decision d = unmoved(f);
  d.results.assign(f.info.returns, {Result::Kind::tensor, {d.in[0]}, 0});
  return d;
}

TEST_F(WithoutValues, AStandInHasTheGeometryOfThePlainTensorAndNoMemory) {
  const at::Tensor plain = at::ones({3, 2}, at::kShort).t();
  const MemoryMeter meter({at::kMeta});
  const BelowAutograd below;  // where the pieces of distributed tensors are counted
  const at::Tensor other = stand_in(plain);
  EXPECT_TRUE(other.is_meta());
  EXPECT_EQ(other.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(other.strides(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(other.scalar_type(), at::kShort);
  EXPECT_EQ(meter.peak(), 0);
}

TEST_F(WithoutValues, NumbersAndMetaTensorsStandForThemselves) {
  const at::Tensor meta = at::empty({2}, at::kMeta);
  EXPECT_TRUE(stand_in(meta).is_same(meta));
  at::Tensor number = at::scalar_tensor(3);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_TRUE(stand_in(number).is_same(number));
  EXPECT_TRUE(stand_in(at::scalar_tensor(3)).is_meta());
}

TEST_F(WithoutValues, TinyTensorsKeepDimensionsAndTheirLackOfElements) {
  const at::Tensor piece = at::empty({3, 0, 5}, at::TensorOptions(at::kMeta).dtype(at::kHalf));
  const at::Tensor one = tiny(piece, /*keeps_rows=*/false);
  EXPECT_EQ(one.sizes(), at::IntArrayRef({1, 0, 1}));
  EXPECT_TRUE(one.is_cpu());
  EXPECT_EQ(one.scalar_type(), at::kHalf);
  EXPECT_EQ(tiny(piece, /*keeps_rows=*/true).sizes(), at::IntArrayRef({1, 0, 5}));
  const at::Tensor number = tiny(at::empty({}, at::kMeta), /*keeps_rows=*/true);
  EXPECT_EQ(number.dim(), 0);
  EXPECT_EQ(number.item<double>(), 0);
}

TEST_F(WithoutValues, ResultsThatSpecsDescribeAreNotComputed) {
  const FramedCall relu("aten::relu", "", {zeros_of({8})});
  Decision ruled = with_results(relu.frame);
  leave_out_values(relu.frame, ruled);
  EXPECT_TRUE(ruled.local.by_spec);
  const FramedCall like("aten::zeros_like", "", {zeros_of({8})});
  Decision made = with_results(like.frame);
  leave_out_values(like.frame, made);
  EXPECT_TRUE(made.local.by_spec);
  const FramedCall view("aten::alias", "", {zeros_of({8})});
  Decision shared = with_results(view.frame);
  leave_out_values(view.frame, shared);
  EXPECT_FALSE(shared.local.by_spec) << "a view shares memory with its base";
}

TEST_F(WithoutValues, OpsThatSpecsDoNotDescribeRun) {
  const FramedCall call("aten::relu", "", {zeros_of({8})});
  const auto by_spec = [&](const std::function<void(Decision&)>& change) {
    Decision d = with_results(call.frame);
    change(d);
    leave_out_values(call.frame, d);
    return d.local.by_spec;
  };
  const LocalCall form = [](std::size_t, torch::jit::Stack&) {};
  EXPECT_FALSE(by_spec([](Decision& d) { d.open_results = true; }));
  EXPECT_FALSE(by_spec([](Decision& d) { d.strategy = Strategy::decompose; }));
  EXPECT_FALSE(by_spec([](Decision& d) { d.results.clear(); }));
  EXPECT_TRUE(by_spec([&](Decision& d) { d.local.call = form; }));
  EXPECT_FALSE(by_spec([&](Decision& d) {
    d.local.call = form;
    d.local.afterwards = [](std::vector<std::vector<at::Tensor>>&) {};
  }));
}

TEST_F(WithoutValues, WhatDependsOnValuesIsRefused) {
  const FramedCall item("aten::_local_scalar_dense", "", {zeros_of({1})});
  Decision d = unmoved(item.frame);
  expect_error<ValueError>([&] { leave_out_values(item.frame, d); },
                           {"[aten::_local_scalar_dense] what it returns depends on values, and a "
                            "simulated world has none",
                            "compute it in a real world", "(rank 1)"});
  const FramedCall places("aten::nonzero", "", {zeros_of({8})});
  Decision unknown = unmoved(places.frame);
  unknown.open_results = true;
  expect_error<ValueError>([&] { leave_out_values(places.frame, unknown); },
                           {"[aten::nonzero]", "depends on values"});
  Decision known = with_results(places.frame);
  leave_out_values(places.frame, known);  // the sizes were told
}

}  // namespace
}  // namespace intarsia

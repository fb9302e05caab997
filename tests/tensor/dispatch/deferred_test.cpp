#include "tensor/dispatch/deferred.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>

#include "tensor/dispatch/dispatch.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::laid_out;
using testing::Numbers;
using testing::numbers_of;
using Rows = std::vector<Numbers>;

const Pieces& pieces_of(const at::Tensor& t) { return impl_of(t).pieces(); }

const std::vector<Recipe::Step>& steps_of(const at::Tensor& t) {
  return impl_of(t).extra()->recipe->steps;
}

class Deferred : public ::testing::Test {
 protected:
  Deferred() { register_kernels(); }

  /// What is made inside of a build scope.
  template <class Make>
  at::Tensor deferring(const Make& make) const {
    begin_deferring(lockstep_.world(), lockstep_.mesh());
    at::Tensor out;
    try {
      out = make();
    } catch (...) {
      end_deferring();
      throw;
    }
    end_deferring();
    return out;
  }

  Layout layout(std::string_view text) const { return Layout::parse(text, lockstep_.mesh()); }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(Deferred, FactoriesMakeTensorsWithoutMemory) {
  const at::Tensor x = deferring([] { return at::empty({3, 2}, at::kHalf); });
  EXPECT_TRUE(is_deferred(x));
  EXPECT_TRUE(is_unset(x));
  EXPECT_TRUE(pieces_of(x).empty());
  EXPECT_EQ(describe(x), "f16[3, 2] on [a=2]");
  EXPECT_FALSE(defers());
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::DeferredInit));
  EXPECT_FALSE(has_layout(at::empty({3}))) << "the scope has ended";
}

TEST_F(Deferred, DtypesAreThoseOfATen) {
  const auto dtype = [&](const std::function<at::Tensor()>& make) {
    return deferring(make).scalar_type();
  };
  EXPECT_EQ(dtype([] { return at::zeros({2}); }), at::kFloat);
  EXPECT_EQ(dtype([] { return at::full({2}, 3, {}, {}, {}, {}); }), at::kLong);
  EXPECT_EQ(dtype([] { return at::full({2}, 3.5, {}, {}, {}, {}); }), at::kFloat);
  EXPECT_EQ(dtype([] { return at::ones({2}, at::kInt); }), at::kInt);
}

TEST_F(Deferred, WhatInitialisesIsWrittenDown) {
  const at::Tensor zero = deferring([] { return at::zeros({3}); });
  ASSERT_EQ(steps_of(zero).size(), 1U);
  EXPECT_EQ(steps_of(zero)[0].op.schema().name(), "aten::fill_");
  EXPECT_FALSE(is_unset(zero));
  const at::Tensor x = deferring([] { return at::empty({3}).mul_(2); });
  EXPECT_EQ(steps_of(x).size(), 1U);
  EXPECT_TRUE(is_unset(x)) << "it only makes something of the values before";
  const at::Tensor none = deferring([] { return at::empty({0}); });
  EXPECT_FALSE(is_unset(none));
}

TEST_F(Deferred, MaterialiseRunsTheStepsOnThePieces) {
  const at::Tensor x = deferring([] { return at::full({5}, 3.0, at::kDouble).mul_(2).add_(1); });
  materialise(impl_of(x), layout("S(0)"));
  EXPECT_FALSE(is_deferred(x));
  EXPECT_EQ(layout_of(x).placements_text(), "S(0)");
  EXPECT_EQ(numbers_of(pieces_of(x)), (Rows{{7, 7, 7}, {7, 7}}));
}

TEST_F(Deferred, RandomStepsDrawWhereTheyStandInTheProgram) {
  at::manual_seed(3);
  const at::Tensor x = deferring([] { return at::empty({5}, at::kDouble).uniform_(); });
  laid_out(counting({5}), "R", lockstep_).uniform_();  // another draw before it is made
  materialise(impl_of(x), layout("S(0)"));
  at::manual_seed(3);
  const at::Tensor expected = laid_out(counting({5}), "R", lockstep_).uniform_();
  EXPECT_TRUE(at::equal(full(x), pieces_of(expected)[0]));
}

TEST_F(Deferred, OtherFactoriesAreMadeAtOnce) {
  const at::Tensor x = deferring([] { return at::arange(4); });
  EXPECT_FALSE(is_deferred(x));
  EXPECT_EQ(layout_of(x).placements_text(), "R");
  EXPECT_EQ(numbers_of(pieces_of(x)), (Rows{{0, 1, 2, 3}, {0, 1, 2, 3}}));
}

TEST_F(Deferred, AnOpThatReadsATensorMakesIt) {
  at::Tensor read;
  const at::Tensor sum = deferring([&] {
    read = at::ones({2}, at::kDouble);
    return read + read;
  });
  EXPECT_FALSE(is_deferred(read));
  EXPECT_EQ(numbers_of(pieces_of(sum)), (Rows{{2, 2}, {2, 2}}));
  const at::Tensor added = deferring([&] { return at::zeros({2}, at::kDouble).add_(read); });
  EXPECT_FALSE(is_deferred(added)) << "it is not made of numbers alone";
  EXPECT_EQ(numbers_of(pieces_of(added)), (Rows{{1, 1}, {1, 1}}));
}

TEST_F(Deferred, PlainTensorsAndThoseWithMemoryAreNotDeferred) {
  EXPECT_FALSE(is_deferred(at::ones({2})));
  EXPECT_FALSE(is_unset(at::ones({2})));
  EXPECT_FALSE(is_unset(at::Tensor()));
  EXPECT_FALSE(is_deferred(laid_out(counting({2}), "R", lockstep_)));
}

}  // namespace
}  // namespace intarsia

#include "tensor/core/spec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

const Layout kRows = Layout::parse("[a=2] S(0)");
const Layout kPartial = Layout::parse("[a=2] P(sum)");

std::vector<int> order(const Spec& spec) { return {spec->order.begin(), spec->order.end()}; }

TEST(Spec, EqualOnesAreOneObject) {
  const std::size_t before = Spec::alive();
  {
    const Spec a(kRows, {4, 3}, at::kFloat);
    const Spec b(kRows, {4, 3}, {3, 1}, 0, at::kFloat);
    EXPECT_EQ(a.id(), b.id());
    EXPECT_EQ(a, b);
    EXPECT_NE(a, Spec(kPartial, {4, 3}, at::kFloat));
    EXPECT_NE(a, Spec(kRows, {3, 4}, at::kFloat));
    EXPECT_NE(a, Spec(kRows, {4, 3}, {1, 4}, 0, at::kFloat));
    EXPECT_NE(a, Spec(kRows, {4, 3}, {3, 1}, 1, at::kFloat));
    EXPECT_NE(a, Spec(kRows, {4, 3}, at::kDouble));
    SpecData moved = *a;
    EXPECT_TRUE(moved == *a);
    moved.offset = 1;
    EXPECT_FALSE(moved == *a);
    EXPECT_EQ(Spec::alive(), before + 1);
  }
  EXPECT_EQ(Spec::alive(), before);
  EXPECT_FALSE(Spec());
}

TEST(Spec, KnowsWhatAtenWouldWorkOut) {
  const Spec rows(kRows, {4, 3}, at::kFloat);
  EXPECT_EQ(rows->numel, 12);
  EXPECT_EQ(rows->strides, (Shape{3, 1}));
  EXPECT_TRUE(rows->contiguous);
  EXPECT_TRUE(rows->geometry.dense);
  EXPECT_EQ(rows->order.size(), 0U);
  const Spec columns(kRows, {4, 3}, {1, 4}, 0, at::kFloat);
  EXPECT_FALSE(columns->contiguous);
  EXPECT_TRUE(columns->geometry.dense);
  const Spec gaps(kRows, {4, 3}, {6, 2}, 0, at::kFloat);
  EXPECT_FALSE(gaps->geometry.dense);
  const Spec images(kRows, {2, 3, 4, 5}, {60, 1, 15, 3}, 0, at::kFloat);
  EXPECT_TRUE(images->geometry.channels_last);
  EXPECT_TRUE(images->geometry.channels_last_contiguous);
  EXPECT_EQ(Spec(kPartial, {}, at::kFloat)->numel, 1);
  EXPECT_EQ(Spec(kRows, {0, 3}, at::kFloat)->numel, 0);
}

TEST(Spec, OrdersDimensionsAsTheyAreInMemory) {
  EXPECT_EQ(order(Spec(kRows, {4, 3}, {1, 4}, 0, at::kFloat)), (std::vector<int>{1, 0}));
  EXPECT_EQ(order(Spec(kRows, {2, 3, 4, 5}, {60, 1, 15, 3}, 0, at::kFloat)),
            (std::vector<int>{0, 2, 3, 1}));
  // Gaps do not matter, and an expanded dimension stays where it is.
  EXPECT_EQ(order(Spec(kRows, {4, 3}, {2, 100}, 0, at::kFloat)), (std::vector<int>{1, 0}));
  EXPECT_EQ(order(Spec(kPartial, {2, 3, 4}, {1, 0, 2}, 0, at::kFloat)),
            (std::vector<int>{2, 1, 0}));
}

TEST(Spec, SaysWhetherItIsPartialAndByANorm) {
  const auto partial = [](const char* layout) {
    const Spec spec(Layout::parse(layout), {4}, at::kFloat);
    return std::pair(spec->partial, spec->norms);
  };
  EXPECT_EQ(partial("[a=2] S(0)"), std::pair(false, false));
  EXPECT_EQ(partial("[a=2] P(sum)"), std::pair(true, false));
  EXPECT_EQ(partial("[a=2,b=2] S(0),P(norm:2)"), std::pair(true, true));
  // One rank's norm is the value up to its sign: any value can be it.
  EXPECT_EQ(partial("[a=1] P(norm:2)"), std::pair(true, false));
}

TEST(Spec, WithAnotherLayoutOrDtypeKeepsTheRest) {
  const Spec spec(kRows, {4, 3}, {1, 5}, 7, at::kFloat);
  EXPECT_EQ(spec.with(kPartial), Spec(kPartial, {4, 3}, {1, 5}, 7, at::kFloat));
  EXPECT_EQ(spec.with(at::kHalf), Spec(kRows, {4, 3}, {1, 5}, 7, at::kHalf));
  EXPECT_EQ(spec.with(kRows), spec);
  EXPECT_EQ(spec.with(at::kFloat), spec);
}

TEST(Spec, AFreshOneHasNoGaps) {
  const Spec gaps(kRows, {4, 3}, {1, 5}, 7, at::kFloat);
  EXPECT_EQ(gaps.fresh(kPartial), Spec(kPartial, {4, 3}, {1, 4}, 0, at::kFloat));
  const Spec offset(kRows, {4, 3}, {1, 4}, 7, at::kFloat);
  EXPECT_EQ(offset.fresh(kRows), Spec(kRows, {4, 3}, {1, 4}, 0, at::kFloat));
  const Spec expanded(kPartial, {2, 3}, {0, 1}, 0, at::kFloat);
  EXPECT_EQ(expanded.fresh(kRows), Spec(kRows, {2, 3}, at::kFloat));
}

TEST(Spec, OfATensorHasDenseStridesInTheSameOrder) {
  const auto strides = [](const at::Tensor& t) { return spec_of(t, kRows)->strides; };
  EXPECT_EQ(strides(at::empty({4, 3})), (Shape{3, 1}));
  EXPECT_EQ(strides(at::empty({3, 4}).t()), (Shape{1, 4}));
  EXPECT_EQ(strides(at::empty({3, 8}).slice(1, 0, 4).t()), (Shape{1, 4}));
  EXPECT_EQ(strides(at::empty({3}).expand({4, 3})), (Shape{3, 1}));
  EXPECT_EQ(strides(at::empty({3, 0}).t()), (Shape{3, 1})) << "without elements, as a new one";
  const Spec sliced = spec_of(at::empty({6, 3}, at::kHalf).slice(0, 2), kRows);
  EXPECT_EQ(sliced, Spec(kRows, {4, 3}, at::kHalf)) << "it is in no larger memory";
}

TEST(Spec, StridesOfPiecesFollowTheOrder) {
  const Spec columns(kRows, {4, 3}, {1, 4}, 0, at::kFloat);
  EXPECT_EQ(strides_in_order_of({2, 3}, *columns), (Shape{1, 2}));
  EXPECT_EQ(strides_in_order_of({0, 3}, *columns), (Shape{1, 1}));
  const Spec images(kRows, {2, 3, 4, 5}, {60, 1, 15, 3}, 0, at::kFloat);
  EXPECT_EQ(strides_in_order_of({1, 3, 2, 5}, *images), (Shape{30, 1, 15, 3}));
  EXPECT_EQ(strides_in_order_of({2, 3}, *Spec(kRows, {4, 3}, at::kFloat)), (Shape{3, 1}));
  EXPECT_EQ(contiguous_strides(Shape{2, 0, 3}), (Shape{3, 3, 1}));
  EXPECT_EQ(contiguous_strides(Shape{}), Shape{});
}

TEST(Spec, ElementsThatShareMemory) {
  EXPECT_FALSE(overlaps(*Spec(kRows, {4, 3}, at::kFloat)));
  EXPECT_TRUE(overlaps(*Spec(kRows, {4, 3}, {0, 1}, 0, at::kFloat)));
  EXPECT_FALSE(overlaps(*Spec(kRows, {1, 3}, {0, 1}, 0, at::kFloat))) << "one element";
}

TEST(Spec, TextsNameAnyDtype) {
  EXPECT_EQ(Spec(kRows, {8, 4}, at::kBFloat16).to_string(), "bf16[8@a, 4]");
  EXPECT_EQ(Spec(kPartial, {}, at::kBool).to_string(), "bool[] P(sum)@a");
  EXPECT_EQ(Spec(Layout::parse("[a=2,b=2] SS(0,3),S(0)"), {12}, at::kLong).to_string(),
            "i64[12@a:3@b]");
  EXPECT_EQ(dtype_text(at::kComplexFloat), "c64");
  EXPECT_EQ(dtype_text(at::kQInt8), "QInt8");
}

TEST(Spec, PartialValuesThatWouldNotBeExactAreRefused) {
  EXPECT_EQ(without_partial(Layout::parse("[a=2,b=2,c=2] P(max),S(0),P(max)")),
            Layout::parse("[a=2,b=2,c=2] R,S(0),R"));
  const Layout average = Layout::parse("[a=2,b=2] S(0),P(avg)");
  check_partial("zeros", at::kHalf, average);
  expect_error<ValueError>([&] { check_partial("zeros", at::kLong, average); },
                           {"[zeros]", "a tensor of i64 cannot be P(avg)", "exactly"});
  expect_error<ValueError>([&] { check_partial("f", at::kQInt8, kPartial); }, {"QInt8", "P(sum)"});
  check_partial("f", at::kQInt8, kRows);
}

}  // namespace
}  // namespace intarsia

// The factories of tensor.h.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "error_text.h"
#include "intarsia/boxes.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"
#include "intarsia/tensor.h"
#include "tensor/random/key.h"
#include "tensor/random/philox.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) {
  const Tensor flat = t.to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// What each hosted rank holds.
std::vector<Numbers> pieces(const Tensor& t) {
  std::vector<Numbers> out;
  for (const Tensor& piece : locals(t)) out.push_back(numbers(piece));
  return out;
}

struct Two {
  Lockstep lockstep{"[a=2]"};
  World& world = lockstep.world();
  Layout in(const char* text) const { return Layout::parse(text, lockstep.mesh()); }
};

TEST(Factories, EachRankMakesItsPiece) {
  const Two two;
  EXPECT_EQ(pieces(arange(0, 5, 1, two.in("S(0)"), two.world)),
            (std::vector<Numbers>{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(pieces(arange(0, 8, 1, two.in("SS(0,2)"), two.world)),
            (std::vector<Numbers>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(pieces(arange(0, 1, 1, two.in("S(0)"), two.world)), (std::vector<Numbers>{{0}, {}}));
  const Tensor x = full_of({3, 2}, 2.5, two.in("S(0)"), two.world);
  EXPECT_EQ(x.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(pieces(x), (std::vector<Numbers>{{2.5, 2.5, 2.5, 2.5}, {2.5, 2.5}}));
  EXPECT_EQ(locals(empty({3, 2}, two.in("S(1)"), two.world))[1].sizes(), at::IntArrayRef({3, 1}));
}

TEST(Factories, RanksOutsideTheMeshMakeNothing) {
  const auto world = lockstep_world(4);
  const Tensor x = arange(0, 4, 1, Layout::parse("[a=2]+1 S(0)"), *world);
  EXPECT_EQ(pieces(x), (std::vector<Numbers>{{0, 1}, {2, 3}}));
}

TEST(Factories, PartialValuesOfOtherRanksAddNothing) {
  const Two two;
  const Budget budget(two.world);
  const auto made = [&](const char* layout) {
    return pieces(full_of({2}, 3.0, two.in(layout), two.world));
  };
  EXPECT_EQ(made("P(sum)"), (std::vector<Numbers>{{3, 3}, {0, 0}}));
  EXPECT_EQ(made("P(prod)"), (std::vector<Numbers>{{3, 3}, {1, 1}}));
  EXPECT_EQ(made("P(avg)"), (std::vector<Numbers>{{3, 3}, {3, 3}}));
  EXPECT_EQ(made("P(max)"), (std::vector<Numbers>{{3, 3}, {3, 3}}));
  budget.expect("");
}

TEST(Factories, DtypesAreThoseOfTorch) {
  const Two two;
  const Layout all = two.in("R");
  EXPECT_EQ(zeros({2}, all, two.world).scalar_type(), at::kFloat);
  EXPECT_EQ(ones({2}, all, two.world, at::kHalf).scalar_type(), at::kHalf);
  EXPECT_EQ(full_of({2}, 3, all, two.world).scalar_type(), at::kLong);
  EXPECT_EQ(full_of({2}, true, all, two.world).scalar_type(), at::kBool);
  EXPECT_EQ(full_of({2}, 3.0, all, two.world).scalar_type(), at::kFloat);
  EXPECT_EQ(full_of({2}, c10::complex<double>(1, 2), all, two.world).scalar_type(),
            at::kComplexFloat);
  EXPECT_EQ(full_of({2}, 3, all, two.world, at::kDouble).scalar_type(), at::kDouble);
  EXPECT_EQ(arange(0, 2, 1, all, two.world).scalar_type(), at::kLong);
  EXPECT_EQ(arange(0, 2, 0.5, all, two.world).scalar_type(), at::kFloat);
  EXPECT_EQ(randint(0, 2, {2}, all, two.world).scalar_type(), at::kLong);
  EXPECT_EQ(randperm(2, all, two.world, at::kInt).scalar_type(), at::kInt);
  const Tensor w = zeros({2}, all, two.world, at::TensorOptions().requires_grad(true));
  EXPECT_TRUE(w.requires_grad());
  EXPECT_TRUE(w.is_leaf());
  EXPECT_FALSE(zeros({2}, all, two.world).requires_grad());
}

TEST(Factories, RangesEndBeforeTheirEnd) {
  const Two two;
  const auto range = [&](const at::Scalar& start, const at::Scalar& end, const at::Scalar& step) {
    return numbers(full(arange(start, end, step, two.in("S(0)"), two.world)));
  };
  EXPECT_EQ(range(10, 0, -3), (Numbers{10, 7, 4, 1}));
  EXPECT_EQ(range(3, 9, 3), (Numbers{3, 6}));
  EXPECT_EQ(range(0.5, 1.5, 0.25), (Numbers{0.5, 0.75, 1, 1.25}));
  EXPECT_EQ(range(2, 2, 1), Numbers{});
}

TEST(Factories, RandomOnesAreTheFillsByGlobalIndex) {
  const Two two;
  const Shape shape{5, 3};
  const Boxes held = boxes(Layout(), shape, {});
  const Region everything{held, shape};
  const KeyScope key(17);  // which is what they would draw
  Tensor want = at::empty({5, 3});
  fill_uniform(want, everything, 17, 0, 1);
  for (const char* layout : {"R", "S(0)", "S(1)", "SS(0,2)", "P(sum)"}) {
    EXPECT_EQ(numbers(full(rand({5, 3}, two.in(layout), two.world))), numbers(want)) << layout;
  }
  fill_normal(want, everything, 17, 0, 1);
  EXPECT_EQ(numbers(full(randn({5, 3}, two.in("S(0)"), two.world))), numbers(want));
  want = at::empty({5, 3}, at::kLong);
  fill_integers(want, everything, 17, -4, 9);
  EXPECT_EQ(numbers(full(randint(-4, 5, {5, 3}, two.in("S(1)"), two.world))), numbers(want));
  EXPECT_EQ(numbers(full(randperm(7, two.in("SS(0,2)"), two.world))), numbers(random_order(7, 17)));
}

TEST(Factories, RandomOnesDrawOneKeyForEachCall) {
  const Two two;
  TensorState::of(two.world).draws().seed(5);
  const std::uint64_t first = TensorState::of(two.world).draws().next();
  const std::uint64_t second = TensorState::of(two.world).draws().next();
  TensorState::of(two.world).draws().seed(5);
  const Tensor a = randperm(9, two.in("S(0)"), two.world);
  const Tensor b = randperm(9, two.in("R"), two.world);
  EXPECT_EQ(numbers(full(a)), numbers(random_order(9, first)));
  EXPECT_EQ(numbers(full(b)), numbers(random_order(9, second)));
}

TEST(Factories, PiecesOfASimulatedWorldHaveNoValues) {
  const auto world = simulate({.size = 2, .rank = 1});
  const Layout rows = Layout::parse("[a=2] S(0)");
  for (const Tensor& x :
       {zeros({5}, rows, *world), arange(0, 5, 1, rows, *world), randperm(5, rows, *world)}) {
    EXPECT_TRUE(x.device().is_cpu());
    EXPECT_TRUE(local(x).is_meta());
    EXPECT_EQ(local(x).sizes(), at::IntArrayRef({2}));
  }
  world->close();
}

TEST(Factories, RefusalsNameTheValues) {
  const Two two;
  const Layout rows = two.in("S(0)");
  expect_error<ValueError>([&] { arange(3, 0, 1, rows, two.world); },
                           {"[arange] no steps of 1 lead from 3 to 0"});
  expect_error<ValueError>([&] { arange(0, 3, 0, rows, two.world); }, {"no steps of 0"});
  expect_error<ValueError>([&] { randint(3, 3, {2}, rows, two.world); },
                           {"[randint] no number is in [3, 3)"});
  expect_error<ValueError>([&] { randperm(-1, rows, two.world); },
                           {"[randperm] a permutation of -1 numbers does not exist"});
  expect_error<ValueError>([&] { zeros({2, -1}, rows, two.world); }, {"[zeros]", "(2,-1)"});
  expect_error<ValueError>([&] { ones({2}, two.in("S(1)"), two.world); },
                           {"[ones]", "dimension 1"});
  expect_error<ValueError>([&] { empty({2}, two.in("P(avg)"), two.world, at::kLong); },
                           {"[empty]", "i64", "P(avg)"});
}

TEST(Factories, RefuseNormsWhichHaveNoSign) {
  const Lockstep lockstep("[a=2]");
  const Layout norm = Layout::parse("P(norm:2)", lockstep.mesh());
  testing::expect_error<ValueError>([&] { full_of({2}, -3.0, norm, lockstep.world()); },
                                    {"[full", "P(norm", "from_local"});
}

}  // namespace
}  // namespace intarsia

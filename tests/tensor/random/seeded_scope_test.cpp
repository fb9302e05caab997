#include "tensor/random/seeded_scope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

at::Tensor drawn(World& world) {
  const Mesh mesh({{"x", world.size()}});
  return full(rand({6, 2}, Layout::parse("S(0)", mesh), world));
}

void expect_own_numbers(World& world) {
  at::Tensor a;
  at::Tensor b;
  {
    const SeededScope scope(world, 5);
    a = drawn(world);
    b = drawn(world);
  }
  EXPECT_FALSE(at::equal(a, b));
  {
    const SeededScope scope(world, 5);
    EXPECT_TRUE(at::equal(drawn(world), a));
    {
      const SeededScope inside(world, 6);
      EXPECT_FALSE(at::equal(drawn(world), b));
    }
    EXPECT_TRUE(at::equal(drawn(world), b));
  }
}

TEST(SeededScope, NumbersDependOnTheSeedAlone) {
  const auto world = lockstep_world(2);
  expect_own_numbers(*world);
  run_in_process(2, [](World& ranks) { expect_own_numbers(ranks); });
}

TEST(SeededScope, WhatComesBehindGoesOnAsBefore) {
  const auto world = lockstep_world(2);
  at::manual_seed(1);
  const at::Tensor first = drawn(*world);
  const at::Tensor second = drawn(*world);
  const at::Tensor plain = at::rand({3});
  at::manual_seed(1);
  EXPECT_TRUE(at::equal(drawn(*world), first));
  {
    const SeededScope scope(*world, 9);
    drawn(*world);
    at::rand({4});
  }
  EXPECT_TRUE(at::equal(drawn(*world), second));
  EXPECT_TRUE(at::equal(at::rand({3}), plain));
}

TEST(SeededScope, PlainTensorsDrawFromItToo) {
  const auto world = lockstep_world(2);
  const auto plain = [&] {
    const SeededScope scope(*world, 5);
    return at::rand({3});
  };
  EXPECT_TRUE(at::equal(plain(), plain()));
}

}  // namespace
}  // namespace intarsia

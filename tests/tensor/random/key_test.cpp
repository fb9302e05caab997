#include "tensor/random/key.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <thread>

#include "intarsia/lockstep.h"

namespace intarsia {
namespace {

/// What a generator with this seed gives first.
std::uint64_t first_of(std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

TEST(Key, IsDrawnFromTheWorld) {
  const Lockstep lockstep("[a=2]");
  TensorState& state = TensorState::of(lockstep.world());
  state.draws().seed(3);
  const std::uint64_t first = next_key(state);
  EXPECT_EQ(first, first_of(3));
  EXPECT_NE(next_key(state), first);
  const c10::IValue none;  // the generator was not passed
  state.draws().seed(3);
  EXPECT_EQ(next_key(state, &none), first);
}

TEST(Key, IsDrawnFromTheGeneratorThatIsPassed) {
  const Lockstep lockstep("[a=2]");
  TensorState& state = TensorState::of(lockstep.world());
  state.draws().seed(3);
  const c10::IValue generator(at::detail::createCPUGenerator(4));
  const std::uint64_t first = next_key(state, &generator);
  EXPECT_EQ(first, first_of(4));
  EXPECT_NE(next_key(state, &generator), first);
  EXPECT_EQ(next_key(state), first_of(3)) << "nothing was drawn from the world";
}

TEST(Key, OfAScopeIsUsedAndNothingDrawn) {
  const Lockstep lockstep("[a=2]");
  TensorState& state = TensorState::of(lockstep.world());
  state.draws().seed(3);
  const c10::IValue generator(at::detail::createCPUGenerator(4));
  {
    const KeyScope scope(0);  // as good a key as any
    EXPECT_EQ(next_key(state), 0U);
    EXPECT_EQ(next_key(state), 0U);
    EXPECT_EQ(next_key(state, &generator), 0U);
  }
  EXPECT_EQ(next_key(state), first_of(3));
  EXPECT_EQ(next_key(state, &generator), first_of(4));
}

TEST(Key, ScopesNest) {
  const Lockstep lockstep("[a=2]");
  TensorState& state = TensorState::of(lockstep.world());
  const KeyScope outer(1);
  {
    const KeyScope inner(2);
    EXPECT_EQ(next_key(state), 2U);
  }
  EXPECT_EQ(next_key(state), 1U);
}

TEST(Key, OfAScopeIsThatOfItsThread) {
  const Lockstep lockstep("[a=2]");
  TensorState& state = TensorState::of(lockstep.world());
  state.draws().seed(3);
  const KeyScope scope(1);
  std::uint64_t other = 0;
  std::thread([&] { other = next_key(state); }).join();
  EXPECT_EQ(other, first_of(3));
  EXPECT_EQ(next_key(state), 1U);
}

}  // namespace
}  // namespace intarsia

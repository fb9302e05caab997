#include "tensor/core/draws.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// What a generator with this seed gives first.
std::vector<std::uint64_t> first_two(std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::uint64_t first = impl->random64();
  return {first, impl->random64()};
}

std::vector<std::uint64_t> two_of(Draws& draws) {
  const std::uint64_t first = draws.next();
  return {first, draws.next()};
}

/// One of two processes, of which the other is not there.
std::shared_ptr<World> half_a_world(std::int64_t rank,
                                    const c10::intrusive_ptr<c10d::Store>& store) {
  return World::assemble({.hosted = {rank}, .size = 2, .store = store});
}

void set_text(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

TEST(Draws, OfAProcessComeFromTorchsGenerator) {
  const auto world = World::connect(Rendezvous{});
  Draws draws(*world);
  at::manual_seed(5);
  EXPECT_EQ(two_of(draws), first_two(5));
  draws.seed(6);
  EXPECT_EQ(at::detail::getDefaultCPUGenerator().current_seed(), 6U);
  EXPECT_EQ(two_of(draws), first_two(6));
}

TEST(Draws, OfAllRanksInLockstepAreOne) {
  const Lockstep lockstep("[a=3]");
  Draws draws(lockstep.world());
  at::manual_seed(5);
  EXPECT_EQ(two_of(draws), first_two(5));
}

TEST(Draws, RanksThatShareAProcessHaveTheirOwnAndTheSame) {
  at::manual_seed(5);
  std::mutex mutex;
  std::vector<std::vector<std::uint64_t>> seen;
  run_in_process(3, [&](World& world) {
    Draws draws(world);
    std::vector<std::uint64_t> mine = two_of(draws);
    draws.seed(7);
    EXPECT_EQ(two_of(draws), first_two(7));
    const std::scoped_lock lock(mutex);
    seen.push_back(std::move(mine));
  });
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_NE(seen[0][0], seen[0][1]);
  EXPECT_EQ(at::detail::getDefaultCPUGenerator().current_seed(), 5U) << "torch's is left alone";
}

TEST(Draws, RankZeroSaysItsSeedAndWaitsForNobody) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto world = half_a_world(0, store);
  at::manual_seed(11);
  Draws draws(*world);
  EXPECT_EQ(two_of(draws), first_two(11));
  const auto said = store->get("intarsia/seed/0");
  EXPECT_EQ(std::string(said.begin(), said.end()), "11");
}

TEST(Draws, RanksThatWereSeededDifferentlyAreRefused) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  set_text(*store, "intarsia/seed/0", "11");
  const auto world = half_a_world(1, store);
  Draws draws(*world);
  at::manual_seed(12);
  for (int again = 0; again < 2; ++again) {
    expect_error<WorldError>([&] { draws.next(); }, {"[random]", "has seed 12 on rank 1",
                                                     "and 11 on rank 0", "torch.manual_seed"});
  }
  at::manual_seed(11);
  EXPECT_EQ(two_of(draws), first_two(11));
}

TEST(Draws, SeedsAreLookedAtOnce) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  set_text(*store, "intarsia/seed/0", "11");
  const auto world = half_a_world(1, store);
  Draws draws(*world);
  at::manual_seed(11);
  draws.next();
  draws.seed(12);  // as it may be on all ranks
  EXPECT_EQ(two_of(draws), first_two(12));
}

}  // namespace
}  // namespace intarsia

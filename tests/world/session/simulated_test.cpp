#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/simulate.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Sizes = std::vector<std::int64_t>;
const Placement kSum = Placement::partial();

at::Tensor sized(Sizes sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, at::device(at::kMeta).dtype(type));
}

/// What the backend was asked for.
std::vector<std::string> calls_of(World& world) {
  std::vector<std::string> out;
  for (const LedgerEntry& e : world.ledger().entries()) {
    out.push_back(std::string(to_text(e.kind)) + ' ' + std::to_string(e.bytes));
  }
  return out;
}

TEST(Simulated, CollectivesEndAtOnceWithTheirSizes) {
  const auto world = simulate({.size = 4, .rank = 1});
  const Comm all = world->everyone();
  const auto expect = [](Pending pending, const Sizes& sizes) {
    EXPECT_TRUE(pending.done());
    EXPECT_EQ(pending.tensor().sizes(), sizes);
    EXPECT_TRUE(pending.tensor().is_meta());
  };
  expect(all_gather(all, sized({2, 3}), 1), {2, 12});
  expect(all_gather(all, sized({3}), 0, Sizes{0, 3, 1, 7}), {11});
  expect(all_reduce(all, sized({5}), kSum), {5});
  expect(reduce_scatter(all, sized({8, 3}), 0, kSum), {2, 3});
  expect(all_to_all(all, sized({2, 8}), 1, 0), {8, 2});
  expect(broadcast(all, sized({5}), 3), {5});
  expect(permute(all, sized({1}), Sizes{1, 2, 3, 0}, std::vector<Sizes>{{9}, {1}, {2}, {3}}), {9});
  barrier(all);
}

TEST(Simulated, TheLedgerHasTheBytesThatTheRankWouldHandOver) {
  const auto world = simulate({.size = 4, .rank = 1, .ledger_entries = 3});
  const Comm all = world->everyone();
  all_gather(all, sized({6}), 0);
  broadcast(all, sized({6}, at::kDouble), 0);
  permute(all, sized({6}), Sizes{1, 2, 3, 0});
  EXPECT_EQ(calls_of(*world), (std::vector<std::string>{"broadcast 48", "recv 24", "send 24"}));
  EXPECT_EQ(world->ledger().totals().bytes, 24U + 48 + 24 + 24);
}

TEST(Simulated, ReductionsAreMadeAsTheNamedBackendMakesThem) {
  const auto calls = [](const char* backend) {
    const auto world = simulate({.size = 4, .backend = backend});
    all_reduce(world->everyone(), sized({8}, at::kBFloat16), kSum);
    return calls_of(*world);
  };
  // A quarter of 16 bytes is combined here, and gathered.
  EXPECT_EQ(calls("gloo"), (std::vector<std::string>{"all_to_all 16", "all_gather 4"}));
  EXPECT_EQ(calls("nccl"), std::vector<std::string>{"all_reduce 16"});
  EXPECT_EQ(calls("shm"), std::vector<std::string>{"all_reduce 16"});
}

TEST(Simulated, AWorldOfAnySizeHasTheGroupsOfItsRank) {
  const auto world = simulate({.size = 16384, .rank = 16382});
  EXPECT_EQ(world->rank(), 16382);
  EXPECT_TRUE(world->simulated());
  EXPECT_TRUE(world->shares_process());
  EXPECT_TRUE(world->device().is_cpu());
  EXPECT_TRUE(world->piece_device().is_meta());
  const Comm tp = world->along(Mesh::parse("[dp=2048,tp=8]"), {"tp"});
  EXPECT_EQ(tp.size(), 8);
  EXPECT_EQ(tp.index(), 6);
  EXPECT_EQ(tp.name(), "[g=8]+16376");
}

TEST(Simulated, RefusesToFillTensorsWithValues) {
  const auto world = simulate({.size = 2});
  const Comm all = world->everyone();
  const at::Tensor x = at::ones({2});
  const std::vector<std::function<void()>> calls{[&] { all_gather(all, x, 0); },
                                                 [&] { all_reduce(all, x, kSum); },
                                                 [&] { reduce_scatter(all, x, 0, kSum); },
                                                 [&] { all_to_all(all, x, 0, 0); },
                                                 [&] { broadcast(all, x, 0); },
                                                 [&] {
                                                   permute(all, x, Sizes{1, 0});
                                                 }};
  for (const auto& call : calls) {
    expect_error<WorldError>(call, {"a simulated world sends nothing", "of the meta device"});
  }
}

TEST(Simulated, RefusesWhatItDoesNotKnow) {
  expect_error<ValueError>([] { simulate({.backend = "ucc"}); },
                           {"[simulate] the ways of 'ucc' are not known; known are gloo, nccl"});
  expect_error<ValueError>([] { simulate({.size = 3, .rank = -1}); },
                           {"rank -1 is not in a world of size 3"});
  expect_error<ValueError>([] { simulate({.size = 0}); }, {"at least one rank"});
  expect_error<ValueError>([] { simulate({.ledger_entries = 0}); }, {"a ledger of one entry"});
}

}  // namespace
}  // namespace intarsia

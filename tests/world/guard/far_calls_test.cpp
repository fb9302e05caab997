#include "world/guard/far_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/hash.h"

namespace intarsia {
namespace {

/// A rank of one host.
struct Rank {
  std::unique_ptr<Board> board = std::make_unique<Board>();
  Board::Group* group = board->add(7, "[g=2]");
  FarCalls far{"calls", *group};
  std::uint64_t history = 0;

  void make(std::uint64_t call) {
    history = hash_mix(history, call);
    board->note(*group, group->calls(), history, "a call");
  }
};

TEST(FarCalls, TellsWhereRanksDiffer) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank one;
  Rank other;
  EXPECT_EQ(one.far.compare(*store), std::nullopt) << "no call yet";
  for (Rank* rank : {&one, &other}) {
    rank->make(1);
    EXPECT_EQ(rank->far.compare(*store), std::nullopt);
  }
  one.make(2);
  other.make(3);
  EXPECT_EQ(one.far.compare(*store), std::nullopt) << "the first to come";
  EXPECT_EQ(other.far.compare(*store), 1U);
}

TEST(FarCalls, SendsNothingWithoutCalls) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank one;
  one.make(1);
  one.far.compare(*store);
  store->deleteKey("calls");
  one.far.compare(*store);
  EXPECT_FALSE(store->check({"calls"}));
}

TEST(FarCalls, ACallThatThisRankHasNotMadeYetIsComparedLater) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank one;
  Rank other;
  for (int i = 0; i < 5; ++i) one.make(1);
  one.far.compare(*store);
  other.make(2);
  EXPECT_EQ(other.far.compare(*store), std::nullopt);
  for (int i = 0; i < 3; ++i) one.make(1);
  EXPECT_EQ(one.far.compare(*store), std::nullopt) << "it tells a later one";
  for (int i = 0; i < 4; ++i) other.make(1);
  EXPECT_EQ(other.far.compare(*store), 4U) << "the one that it had read of";
}

/// Three hosts that make many calls between comparing, at speeds of their own. One makes one call
/// otherwise.
TEST(FarCalls, FindsOneWrongCallInRandomPrograms) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<Rank> ranks(3);
    const bool is_healthy = seed % 4 == 0;
    const std::uint64_t wrong = random() % 2000;
    const unsigned most = 1 + random() % 300;
    bool found = false;
    while (!found && ranks[0].group->calls() < 6000) {
      // They wait for each other: none is far ahead.
      for (auto n = random() % most; n > 0; --n) {
        for (Rank& rank : ranks) {
          const std::uint64_t number = rank.group->calls();
          const bool is_wrong = !is_healthy && &rank == &ranks[1] && number == wrong;
          rank.make(is_wrong ? 1 : number % 5);
        }
      }
      Rank& rank = ranks[random() % 3];
      const auto differs = rank.far.compare(*store);
      found = differs.has_value();
      ASSERT_TRUE(!found || (!is_healthy && *differs >= wrong)) << seed;
    }
    EXPECT_NE(found, is_healthy || wrong % 5 == 1) << seed << ' ' << wrong << ' ' << most;
  }
}

}  // namespace
}  // namespace intarsia

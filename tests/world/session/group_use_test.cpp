#include "world/session/group_use.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace intarsia {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// A store in which something may happen between the look of a rank and its write.
class BusyStore final : public c10d::HashStore {
 public:
  std::function<void()> meanwhile;

  Bytes compareSet(const std::string& key, const Bytes& seen, const Bytes& wanted) override {
    if (!seen.empty() && meanwhile) std::exchange(meanwhile, nullptr)();
    return HashStore::compareSet(key, seen, wanted);
  }
};

/// Two members of one group, and the store in which they tell each other.
struct Pair {
  c10::intrusive_ptr<BusyStore> store = c10::make_intrusive<BusyStore>();
  GroupUse a{store, "g", 2, 4};
  GroupUse b{store, "g", 2, 7};
};

TEST(GroupUse, TheFirstGroupHasNumberZero) {
  Pair p;
  EXPECT_EQ(p.a.begin(), 0);
  EXPECT_EQ(p.b.begin(), 0);
  EXPECT_EQ(p.a.begin(), 0) << "asking again makes no other";
}

TEST(GroupUse, IsOverWhenTheLastMemberGivesItUp) {
  Pair p;
  p.a.begin();
  p.b.begin();
  EXPECT_FALSE(p.a.give_up());
  EXPECT_FALSE(p.a.is_over());
  EXPECT_TRUE(p.b.give_up());
  EXPECT_TRUE(p.a.is_over());
  EXPECT_FALSE(p.a.take_back());
}

TEST(GroupUse, TheNextGroupHasTheNextNumber) {
  Pair p;
  for (std::int64_t number = 0; number < 3; ++number) {
    EXPECT_EQ(p.a.begin(), number);
    EXPECT_EQ(p.b.begin(), number);
    EXPECT_FALSE(p.b.give_up());
    EXPECT_TRUE(p.a.give_up());
  }
}

TEST(GroupUse, WhatIsTakenBackIsNeededAgain) {
  Pair p;
  p.a.begin();
  p.b.begin();
  p.a.give_up();
  EXPECT_TRUE(p.a.take_back());
  EXPECT_FALSE(p.b.give_up()) << "the other needs it";
  EXPECT_FALSE(p.b.is_over());
  EXPECT_TRUE(p.a.give_up());
}

TEST(GroupUse, IsOverForOneThatMissedTheNextBeginning) {
  Pair p;
  p.a.begin();
  p.b.begin();
  p.a.give_up();
  p.b.give_up();
  EXPECT_EQ(p.b.begin(), 1);  // in which nobody is idle
  EXPECT_TRUE(p.a.is_over());
  EXPECT_FALSE(p.a.take_back());
  EXPECT_EQ(p.a.begin(), 1);
}

TEST(GroupUse, NamesAreCountedApart) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  GroupUse one(store, "one", 1, 0);
  GroupUse other(store, "other", 1, 0);
  one.begin();
  other.begin();
  EXPECT_TRUE(one.give_up());
  EXPECT_EQ(one.begin(), 1);
  EXPECT_FALSE(other.is_over());
  EXPECT_EQ(other.begin(), 0);
}

// Both write the same numbers; who was second must see it, and count again.
TEST(GroupUse, MembersThatGiveUpAtOnceAreBothCounted) {
  Pair p;
  p.a.begin();
  p.b.begin();
  p.store->meanwhile = [&] { EXPECT_FALSE(p.b.give_up()); };
  EXPECT_TRUE(p.a.give_up());
  EXPECT_TRUE(p.b.is_over());
}

TEST(GroupUse, OneThatTakesBackMayComeTooLate) {
  Pair p;
  p.a.begin();
  p.b.begin();
  p.a.give_up();
  p.store->meanwhile = [&] { EXPECT_TRUE(p.b.give_up()); };
  EXPECT_FALSE(p.a.take_back());
  EXPECT_EQ(p.a.begin(), 1);
  EXPECT_EQ(p.b.begin(), 1);
}

}  // namespace
}  // namespace intarsia

#include "intarsia/communication.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// Enters one move of 8 bytes into the bill.
void charge(const Lockstep& lockstep, const char* transition, const char* op = "aten::mm") {
  TensorState::of(lockstep.world()).bill().charge_own(op, "f32[2]", "a", transition, {1, 8});
}

TEST(Bill, AddsUpAndSortsTransitions) {
  const BillEntry gather{.op = "f", .tensor = "", .axis = "a", .transition = "S->R"};
  BillEntry twice = gather;
  twice.count = 2;
  twice.bytes = 10;
  BillEntry reduce = twice;
  reduce.transition = "P->R";
  reduce.count = 4;
  BillEntry other = twice;
  other.axis = "b";
  other.bytes = 5;
  const Bill bill{{twice, reduce, other}};
  EXPECT_EQ(bill.count(), 8U);
  EXPECT_EQ(bill.bytes(), 25U);
  EXPECT_EQ(bill.transitions(), "4 P->R, 4 S->R");
  EXPECT_EQ(Bill{}.count(), 0U);
  EXPECT_EQ(Bill{}.bytes(), 0U);
  EXPECT_EQ(Bill{}.transitions(), "");
}

TEST(Bill, TextHasALineForEachEntry) {
  BillEntry entry{.op = "aten::mm", .tensor = "f32[2@a]", .axis = "a", .transition = "S->R"};
  entry.count = 3;
  entry.bytes = 24;
  BillEntry marked{.op = "redistribute",
                   .tensor = "f32[4]",
                   .module = "encoder.head",
                   .axis = "a,b",
                   .transition = "P->S",
                   .implicit = false,
                   .backward = true,
                   .fallback = true,
                   .count = 1,
                   .bytes = 16};
  EXPECT_EQ((Bill{{entry, marked}}).to_string(),
            "3 x S->R a  24 bytes  f32[2@a]  aten::mm\n"
            "1 x P->S a,b  16 bytes  f32[4]  redistribute (backward) (asked for) (no rule)"
            "  in encoder.head\n"
            "4 moves, 40 bytes: 1 P->S, 3 S->R\n");
  EXPECT_EQ(Bill{}.to_string(), "0 moves, 0 bytes: \n");
}

TEST(Bill, OfAWorldIsClearedForItAlone) {
  const Lockstep one("[a=2]");
  const Lockstep two("[a=2]");
  charge(one, "S->R");
  charge(two, "P->R");
  clear_bill(one.world());
  EXPECT_EQ(bill(one.world()).entries.size(), 0U);
  EXPECT_EQ(bill(two.world()).transitions(), "1 P->R");
}

TEST(CommunicationScope, RestoresTheModeAlsoAfterAnError) {
  const Lockstep lockstep("[a=2]");
  World& world = lockstep.world();
  EXPECT_EQ(communication(world), Communication::automatic);
  set_communication(world, Communication::warn);
  EXPECT_THROW(
      {
        const CommunicationScope outer(world, Communication::explicit_only);
        {
          const CommunicationScope inner(world, Communication::automatic);
          EXPECT_EQ(communication(world), Communication::automatic);
        }
        EXPECT_EQ(communication(world), Communication::explicit_only);
        throw ValueError("as if refused");
      },
      ValueError);
  EXPECT_EQ(communication(world), Communication::warn);
}

TEST(Budget, CountsWhatIsSentAfterItWasMade) {
  const Lockstep lockstep("[a=2]");
  charge(lockstep, "S->R");
  charge(lockstep, "S->R");
  const Budget budget(lockstep.world());
  EXPECT_EQ(budget.spent(), "");
  budget.expect("");
  charge(lockstep, "S->R");                 // the same entry as before
  charge(lockstep, "S->R", "aten::addmm");  // another
  charge(lockstep, "P->R");
  EXPECT_EQ(budget.spent(), "1 P->R, 2 S->R");
  budget.expect("1 P->R, 2 S->R");
  const Budget later(lockstep.world());
  later.expect("");
}

TEST(Budget, RefusalsSayWhatWasSentAndWhatIsAllowed) {
  const Lockstep lockstep("[a=2]");
  const Budget budget(lockstep.world());
  charge(lockstep, "P->S");
  expect_error<ValueError>([&] { budget.expect("1 P->R"); },
                           {"[Budget] '1 P->S' was sent where '1 P->R' is allowed",
                            "1 x P->S a  8 bytes  f32[2]  aten::mm (asked for)"});
}

TEST(Budget, CountsFromZeroAfterTheBillWasCleared) {
  const Lockstep lockstep("[a=2]");
  charge(lockstep, "S->R");
  charge(lockstep, "S->R");
  const Budget budget(lockstep.world());
  clear_bill(lockstep.world());
  charge(lockstep, "S->R");
  budget.expect("1 S->R");
  charge(lockstep, "S->R");
  budget.expect("2 S->R");  // as many as before it was cleared
}

TEST(CacheOfAWorld, HasALimitOfAtLeastOne) {
  const Lockstep lockstep("[a=2]");
  World& world = lockstep.world();
  EXPECT_EQ(cache_counters(world).limit, 4096U);
  set_cache_limit(world, 10);
  EXPECT_EQ(cache_counters(world).limit, 10U);
  expect_error<ValueError>([&] { set_cache_limit(world, 0); },
                           {"[set_cache_limit] a cache holds at least one entry"});
  EXPECT_EQ(cache_counters(world).limit, 10U);
}

}  // namespace
}  // namespace intarsia

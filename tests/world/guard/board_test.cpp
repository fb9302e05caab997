#include "world/guard/board.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

namespace intarsia {
namespace {

/// A board in memory of zeros, as pages are that were just mapped.
std::unique_ptr<Board> board() { return std::make_unique<Board>(); }

const Board::Group* find(const Board& board, std::uint64_t key) {
  std::size_t place = 0;
  return board.find(key, place);
}

TEST(Board, KeepsTheLastCallsOfAGroup) {
  const auto b = board();
  Board::Group* group = b->add(7, "[g=4]");
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(find(*b, 7), group);
  EXPECT_EQ(find(*b, 8), nullptr);
  EXPECT_EQ(b->last(), nullptr);
  EXPECT_FALSE(group->history(0));
  for (std::uint64_t n = 0; n < 100; ++n) b->note(*group, n, 1000 + n, "call " + std::to_string(n));
  EXPECT_EQ(group->calls(), 100U);
  EXPECT_EQ(group->name(), "[g=4]");
  EXPECT_EQ(b->last(), group);
  EXPECT_EQ(group->history(99), 1099U);
  EXPECT_EQ(group->history(100 - Board::kCalls), 1100 - Board::kCalls);
  EXPECT_FALSE(group->history(99 - Board::kCalls)) << "too long ago";
  EXPECT_FALSE(group->history(100)) << "not yet";
  EXPECT_EQ(b->words(*group, 99), "call 99");
  EXPECT_EQ(b->words(*group, 99 - Board::kCalls), "") << "too long ago";
  EXPECT_EQ(b->words(*group, 100), "");
}

TEST(Board, KeepsTheHashOfEvery64thCallForLonger) {
  const auto b = board();
  Board::Group* group = b->add(7, "[g=4]");
  for (std::uint64_t n = 0; n < 2000; ++n) b->note(*group, n, 1000 + n, "call");
  constexpr std::uint64_t kOldest = Board::kCalls * (1999 / Board::kCalls - Board::kMarks + 1);
  EXPECT_EQ(group->history(kOldest), 1000 + kOldest);
  EXPECT_FALSE(group->history(kOldest + 1));
  EXPECT_FALSE(group->history(kOldest - Board::kCalls)) << "too long ago";
}

TEST(Board, WordsAreNotedOnceForAllGroups) {
  const auto b = board();
  Board::Group* one = b->add(7, "one");
  Board::Group* other = b->add(8, "other");
  b->texts().note(5, "all_gather");
  b->note(*one, 0, 1, std::uint64_t{5});
  b->note(*other, 0, 2, std::uint64_t{5});
  EXPECT_EQ(b->words(*one, 0), "all_gather");
  EXPECT_EQ(b->words(*other, 0), "all_gather");
}

TEST(Board, ShortensWordsThatAreTooLong) {
  const auto b = board();
  Board::Group* group = b->add(7, std::string(500, 'n'));
  b->note(*group, 0, 1, std::string(500, 'w'));
  EXPECT_EQ(b->words(*group, 0), std::string(239, 'w'));
  EXPECT_EQ(group->name(), std::string(111, 'n'));
}

TEST(Board, KeepsTheLineOfTheCallThatWaits) {
  const auto b = board();
  Board::Group* group = b->add(7, "[g=4]");
  EXPECT_EQ(group->line(0), "");
  b->note_line(*group, 3, "train.py:88");
  EXPECT_EQ(group->line(3), "train.py:88");
  EXPECT_EQ(group->line(2), "");
  b->remove(*group);
  EXPECT_EQ(b->add(8, "other")->line(3), "");
}

TEST(Board, KeepsValuesUntilOthersTakeTheirPlace) {
  const auto b = board();
  EXPECT_FALSE(b->value(5));
  b->note_value(5, 50);
  b->note_value(6, 60);
  EXPECT_EQ(b->value(5), 50U);
  EXPECT_EQ(b->value(6), 60U);
  b->note_value(5 + Board::kValues, 70);
  EXPECT_FALSE(b->value(5)) << "its place was taken";
  EXPECT_EQ(b->value(5 + Board::kValues), 70U);
}

TEST(Board, KnowsTheLastValuesThatItsRankHad) {
  const auto b = board();
  EXPECT_FALSE(b->had(5, 50));
  b->note_had(5, 50);
  b->note_had(5, 51);
  b->note_had(6, 50);
  EXPECT_TRUE(b->had(5, 50) && b->had(5, 51) && b->had(6, 50));
  EXPECT_FALSE(b->had(6, 51));
  EXPECT_TRUE(b->had(6));
  for (std::uint64_t i = 0; i < Board::kHad - 2; ++i) b->note_had(7, i);
  EXPECT_FALSE(b->had(5, 50)) << "too long ago";
  EXPECT_TRUE(b->had(5, 51));
}

TEST(Board, ForgetsAGroupThatIsRemoved) {
  const auto b = board();
  Board::Group* group = b->add(7, "one");
  b->note(*group, 3, 1, "call");
  b->remove(*group);
  EXPECT_EQ(find(*b, 7), nullptr);
  Board::Group* other = b->add(8, "other");
  EXPECT_EQ(other, group) << "the place is used again";
  EXPECT_FALSE(other->history(3));
  EXPECT_EQ(b->words(*other, 3), "");
  EXPECT_EQ(other->calls(), 0U);
}

TEST(Board, HasRoomForSoManyGroups) {
  const auto b = board();
  for (std::uint64_t key = 1; key <= Board::kGroups; ++key) EXPECT_NE(b->add(key, "g"), nullptr);
  EXPECT_EQ(b->add(1000, "g"), nullptr);
  std::size_t place = 0;
  EXPECT_NE(b->find(Board::kGroups, place), nullptr);
  EXPECT_EQ(place, Board::kGroups - 1);
}

TEST(Board, TellsTheFirstTroubleOnly) {
  const auto b = board();
  EXPECT_EQ(b->trouble(), "");
  b->tell("first");
  b->tell("second");
  EXPECT_EQ(b->trouble(), "first");
}

TEST(Board, IsNeverReadInBetween) {
  const auto b = board();
  Board::Group* group = b->add(7, "g");
  constexpr std::uint64_t kCalls = 200000;
  std::thread writer([&] {
    for (std::uint64_t n = 0; n < kCalls; ++n) b->note(*group, n, 3 * n + 1, std::to_string(n));
  });
  std::uint64_t seen = 0;
  while (seen + 1 < kCalls) {
    const std::uint64_t calls = group->calls();
    if (calls == 0) continue;
    seen = calls - 1;
    for (std::uint64_t back = 0; back < std::min<std::uint64_t>(calls, Board::kCalls); ++back) {
      const std::uint64_t n = seen - back;
      ASSERT_EQ(group->history(n).value_or(3 * n + 1), 3 * n + 1);
      const std::string words = b->words(*group, n);
      ASSERT_TRUE(words.empty() || words == std::to_string(n)) << words;
    }
  }
  writer.join();
}

}  // namespace
}  // namespace intarsia

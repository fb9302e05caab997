#include "world/guard/board_message.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "world/guard/report.h"

namespace intarsia {
namespace {

TEST(BoardMessage, ACopySaysWhatTheBoardSays) {
  const auto board = std::make_unique<Board>();
  const auto copy = std::make_unique<Board>();
  Board::Group* dp = board->add(7, "[dp=4]");
  Board::Group* tp = board->add(8, "[tp=2]");
  board->note(*tp, 0, 21, "all_reduce");
  board->note(*dp, 0, 11, "all_gather");
  board->note(*dp, 1, 12, "reduce_scatter");
  board->note_line(*dp, 1, "train.py:88");
  board->times().note_phase(board->times().place_of("data"), nanoseconds_now());
  board->note_error("IndexError");
  take_message(to_message(*board), *copy);
  EXPECT_EQ(last_call_of(*copy), last_call_of(*board));
  EXPECT_NE(last_call_of(*copy).find("#1 of group [dp=4], reduce_scatter at train.py:88, 0 s ago; "
                                     "it is in data since 0 s"),
            std::string::npos);
  EXPECT_EQ(copy->error(), "IndexError");
  EXPECT_EQ(copy->trouble(), "");
  board->tell("it hurts");
  board->remove(*dp);
  board->note(*tp, 1, 22, "broadcast");
  take_message(to_message(*board), *copy);
  std::size_t place = 0;
  EXPECT_EQ(copy->trouble(), "it hurts");
  EXPECT_EQ(copy->find(7, place), nullptr);
  ASSERT_NE(copy->find(8, place), nullptr);
  EXPECT_EQ(copy->find(8, place)->history(1), 22u);
  EXPECT_EQ(copy->find(8, place), copy->last());
}

/// Calls of groups that come and go, with a message from time to time.
TEST(BoardMessage, CopiesOfRandomBoards) {
  std::mt19937 random(3);
  const auto board = std::make_unique<Board>();
  const auto copy = std::make_unique<Board>();
  std::map<std::uint64_t, std::pair<Board::Group*, std::uint64_t>> groups;  // with their calls
  std::uint64_t keys = 0;
  int calls = 0;
  int known = 0;
  for (int round = 0; round < 300; ++round) {
    if (groups.size() < 3 || random() % 8 == 0) {
      ++keys;
      groups[keys] = {board->add(keys, "group " + std::to_string(keys)), 0};
    }
    if (groups.size() > 6) {
      board->remove(*groups.begin()->second.first);
      groups.erase(groups.begin());
    }
    for (auto& [key, group] : groups) {
      for (auto n = random() % 100; n > 0; --n, ++group.second) {
        board->note(*group.first, group.second, random(), std::to_string(random() % 100));
      }
    }
    if (random() % 3 != 0) continue;
    take_message(to_message(*board), *copy);
    for (const auto& [key, group] : groups) {
      std::size_t place = 0;
      const Board::Group* copied = copy->find(key, place);
      ASSERT_NE(copied, nullptr);
      ASSERT_EQ(copied->calls(), group.second);
      const std::uint64_t kept = std::min<std::uint64_t>(group.second, Board::kCalls);
      for (std::uint64_t n = group.second - kept; n < group.second; ++n) {
        ASSERT_EQ(copied->history(n), group.first->history(n));
        const std::string words = board->words(*group.first, n);
        const std::string theirs = copy->words(*copied, n);
        ASSERT_TRUE(words.empty() || theirs.empty() || theirs == words) << theirs << ' ' << words;
        calls += 1;
        known += theirs.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(known, 9 * calls / 10);
}

}  // namespace
}  // namespace intarsia

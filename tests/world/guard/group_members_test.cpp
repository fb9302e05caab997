#include "world/guard/group_members.h"

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/hash.h"

namespace intarsia {
namespace {

/// What each of three ranks sees of the others, of whom the last is on another host.
void on_three(const std::function<void(int rank, Boards&, const std::function<void()>& meet)>& of) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier<> barrier(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto boards = Boards::make(
          store, rank, 3, {.timeout = std::chrono::seconds(20), .host = rank == 2 ? "b" : "a"});
      ASSERT_NE(boards, nullptr);
      of(rank, *boards, [&] { barrier.arrive_and_wait(); });
      barrier.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GroupMembers, KnowWhoHasMadeWhichCall) {
  on_three([](int rank, Boards& boards, const auto& meet) {
    Board& mine = *boards.at(rank);
    const std::uint64_t key = hash_text("[g=3]");
    Board::Group* notes = mine.add(key, "[g=3]");
    const GroupMembers members(boards, "[g=3]", {0, 1, 2}, *notes);
    members.announce();
    EXPECT_EQ(members.key(), key);
    EXPECT_EQ(members.near().size(), rank == 2 ? 0U : 1U);
    EXPECT_EQ(members.far().size(), rank == 2 ? 2U : 1U);
    mine.note(*notes, 0, 10, "first");
    if (rank != 1) mine.note(*notes, 1, rank == 0 ? 20 : 21, rank == 0 ? "right" : "wrong");
    meet();
    // Other hosts are asked, and answered by who else would be a thread.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < end) {
      members.ask();
      boards.answer();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto others = members.others();
      if (std::all_of(others.begin(), others.end(),
                      [&](const auto& other) { return members.has_made(other, 0); })) {
        break;
      }
    }
    meet();
    for (int i = 0; i < 3; ++i) boards.answer();
    for (const auto& other : members.others()) EXPECT_TRUE(members.has_joined(other));
    EXPECT_FALSE(members.differs(0, members.others()));
    if (rank == 0) {
      EXPECT_FALSE(members.differs(1, members.near())) << "rank 1 has not made it";
      EXPECT_TRUE(members.differs(1, members.far()));
      EXPECT_EQ(members.first_difference(1), 1U);
      EXPECT_NE(members.disagreement(1).find("call #1 of group [g=3]: rank 0 makes right; rank 2 "
                                             "makes wrong."),
                std::string::npos)
          << members.disagreement(1);
      EXPECT_EQ(members.waiting_in(1), (std::vector<std::int64_t>{0, 2}));
      EXPECT_EQ(members.missing(1).find("rank 1 never came to call #1 of group [g=3], right: its "
                                        "last call was #0 of group [g=3], first, "),
                0U)
          << members.missing(1);
      EXPECT_EQ(members.missing(0), "");
    }
    meet();
  });
}

}  // namespace
}  // namespace intarsia

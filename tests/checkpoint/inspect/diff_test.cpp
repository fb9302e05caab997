#include "checkpoint/inspect/diff.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::HeldState;
using intarsia::testing::MemoryFiles;
using intarsia::testing::saved;
using Kind = Difference::Kind;

/// Saves, and lets a test change what a rank holds before.
Opened saved_as(MemoryFiles& files, std::int64_t step, const std::vector<SavedTensor>& tensors,
                const Json& values, const std::function<void(std::int64_t, HeldState&)>& change) {
  run_ranks(2, [&](Ranks& ranks) {
    HeldState held(tensors, ranks.rank(), 1);
    change(ranks.rank(), held);
    const StepState state{.tensors = tensors, .pieces = held.pieces, .values = values};
    save_step(files, ranks, "/root", step, [&] { return state; });
  });
  const std::string folder = join_path("/root", step_name(step));
  return {folder, read_manifest(files, folder)};
}

TEST(Diff, TheSameValuesInOtherLayoutsAreEqual) {
  MemoryFiles files;
  const auto nothing = [](std::int64_t, HeldState&) {};
  const Opened rows = saved_as(files, 0, {saved("w", "f32[7@a, 6]", "[a=2]")}, {{"n", 1}}, nothing);
  const Opened columns =
      saved_as(files, 1, {saved("w", "f32[7, 6@a]", "[a=2]")}, {{"n", 1}}, nothing);
  EXPECT_TRUE(diff_checkpoints(files, rows, columns).empty());
}

TEST(Diff, NamesWhatIsNotShared) {
  MemoryFiles files;
  const Opened first = saved_as(files, 0,
                                {saved("a", "f32[4]", "[a=2]"), saved("t", "f32[4]", "[a=2]"),
                                 saved("w", "f32[6@a]", "[a=2]")},
                                {{"n", 1}, {"same", 2}}, [](std::int64_t rank, HeldState& held) {
                                  const float value = rank == 0 ? 1.0F : 2.0F;
                                  for (std::size_t i = 0; i < 3; ++i)
                                    std::memcpy(held.memory[2].data() + 4 * i, &value, 4);
                                });
  const Opened second = saved_as(
      files, 1,
      {saved("b", "f32[4]", "[a=2]"), saved("t", "f64[4]", "[a=2]"), saved("w", "f32[6]", "[a=2]")},
      {{"n", 3}, {"same", 2}}, [](std::int64_t, HeldState& held) {
        for (std::size_t i = 0; i < 6; ++i) {
          const float value = i < 3 ? 1.0F : i == 4 ? 2.5F : 2.0F;
          std::memcpy(held.memory[2].data() + 4 * i, &value, 4);
        }
      });
  const auto found = diff_checkpoints(files, first, second);
  ASSERT_EQ(found.size(), 5U);
  EXPECT_EQ(found[0].kind, Kind::only_first);
  EXPECT_EQ(found[0].name, "a");
  EXPECT_EQ(found[1].kind, Kind::only_second);
  EXPECT_EQ(found[1].name, "b");
  EXPECT_EQ(found[2].kind, Kind::type);
  EXPECT_EQ(found[2].first + " " + found[2].second, "f32[4] f64[4]");
  EXPECT_EQ(found[3].kind, Kind::values);
  EXPECT_EQ(found[3].elements, 1);
  EXPECT_EQ(found[3].of, 6);
  EXPECT_EQ(found[3].greatest, 0.5);
  EXPECT_EQ(found[4].kind, Kind::value);
  EXPECT_EQ(found[4].first + " " + found[4].second, "1 3");
}

}  // namespace
}  // namespace intarsia::checkpoint

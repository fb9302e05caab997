#include "world/guard/texts.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace intarsia {
namespace {

constexpr std::uint64_t kCycle = Texts::kPlaces * Texts::kPlaces;  // after which places repeat

TEST(Note, BelongsToANumber) {
  const auto note = std::make_unique<Note>();
  EXPECT_TRUE(note->is_empty());
  EXPECT_EQ(note->read(0), "");
  note->write(3, "a call");
  EXPECT_TRUE(note->is_of(3));
  EXPECT_EQ(note->read(3), "a call");
  EXPECT_EQ(note->read(2), "");
  note->write(4, std::string(500, 'w'));
  EXPECT_EQ(note->read(3), "");
  EXPECT_EQ(note->read(4), std::string(239, 'w'));
  note->clear();
  EXPECT_EQ(note->read(4), "");
}

TEST(Texts, AreKnownByTheirHash) {
  const auto texts = std::make_unique<Texts>();
  EXPECT_FALSE(texts->knows(5));
  texts->note(5, "all_gather");
  EXPECT_TRUE(texts->knows(5));
  EXPECT_EQ(texts->read(5), "all_gather");
  EXPECT_EQ(texts->read(6), "");
}

TEST(Texts, OfThoseThatShareTheirPlacesOneIsAbsent) {
  const auto texts = std::make_unique<Texts>();
  texts->note(5, "first");
  texts->note(5 + kCycle, "second");
  EXPECT_EQ(texts->read(5), "first");
  EXPECT_EQ(texts->read(5 + kCycle), "second");
  texts->note(5 + 2 * kCycle, "third");
  EXPECT_EQ(texts->read(5 + 2 * kCycle), "third");
  EXPECT_EQ(texts->read(5 + kCycle), "") << "its place was taken";
}

/// Threads that write to the same places, while another reads.
TEST(Texts, AreNeverTakenForOthers) {
  const auto texts = std::make_unique<Texts>();
  std::atomic<bool> ends = false;
  std::vector<std::thread> writers;
  for (std::uint64_t writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint64_t i = 0; !ends; ++i) {
        const std::uint64_t hash = 7 + (2 * i + writer) % 6 * kCycle;
        texts->note(hash, std::string(200, static_cast<char>('a' + hash / kCycle)));
      }
    });
  }
  for (int i = 0; i < 100000; ++i) {
    const std::uint64_t hash = 7 + static_cast<std::uint64_t>(i) % 6 * kCycle;
    const std::string text = texts->read(hash);
    ASSERT_TRUE(text.empty() || text == std::string(200, static_cast<char>('a' + hash / kCycle)))
        << text;
  }
  ends = true;
  for (std::thread& thread : writers) thread.join();
}

}  // namespace
}  // namespace intarsia

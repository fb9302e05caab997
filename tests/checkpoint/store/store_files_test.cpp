#include "checkpoint/store/store_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "checkpoint/inspect/verify.h"
#include "checkpoint/session/retention.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::HeldState;
using intarsia::testing::load_difference;
using intarsia::testing::saved;
using intarsia::testing::text_of;

/// With a real store, which tests/store/store_test.py starts: INTARSIA_TEST_BUCKET names a bucket.
class StoreFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* bucket = std::getenv("INTARSIA_TEST_BUCKET");
    if (bucket == nullptr) GTEST_SKIP() << "no INTARSIA_TEST_BUCKET";
    root_ = concat("s3://", bucket, "/unit-", std::random_device{}(), '/',
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override {
    if (!root_.empty()) files_.remove(root_);
  }

  std::vector<std::exception_ptr> save(std::int64_t step, std::uint64_t version,
                                       const SaveOptions& options = {}) {
    return run_ranks(2, [&](Ranks& ranks) {
      const HeldState held(tensors_, ranks.rank(), version);
      const StepState state{
          .tensors = tensors_, .pieces = held.pieces, .values = {{"version", version}}};
      save_step(
          files_, ranks, root_, step, [&] { return state; }, options);
    });
  }
  std::string difference(std::int64_t step, std::uint64_t version) {
    return load_difference(files_, join_path(root_, step_name(step)), tensors_, 2, version);
  }

  Files& files_ = store_files("s3://");
  std::string root_;
  /// Longer than two parts on each rank, and short ones.
  std::vector<SavedTensor> tensors_{saved("w", "f64[3000000@a, 3]", "[a=2]"),
                                    saved("few", "i64[1@a]", "[a=2]"),
                                    saved("r", "f32[9]", "[a=2]")};
};

TEST_F(StoreFilesTest, HoldsFiles) {
  const std::string path = join_path(root_, "f/a b&c");
  EXPECT_FALSE(files_.exists(path));
  write_text(files_, path, "one");
  write_text(files_, join_path(root_, "g"), "two");
  EXPECT_TRUE(files_.exists(path));
  EXPECT_TRUE(files_.exists(root_));
  EXPECT_EQ(files_.list(root_), (std::vector<std::string>{"f", "g"}));
  EXPECT_EQ(files_.list(join_path(root_, "f")), std::vector<std::string>{"a b&c"});
  EXPECT_EQ(read_text(files_, path, 9), "one");
  files_.remove(join_path(root_, "f"));
  EXPECT_EQ(files_.list(root_), std::vector<std::string>{"g"});
  expect_error<FileError>([&] { files_.open(path); }, {path + ": no such object"});
  expect_error<UnsupportedError>([&] { files_.rename(path, path); }, {"cannot rename"});
}

TEST_F(StoreFilesTest, WhatIsPublishedIsNotReplacedUnlessAsked) {
  const std::string path = join_path(root_, "m");
  files_.publish(path, "one", false);
  files_.publish(path, "one", false);  // as one does who was not heard
  expect_error<FileError>([&] { files_.publish(path, "two", false); }, {path, "there already"});
  EXPECT_EQ(read_text(files_, path, 9), "one");
  files_.publish(path, "two", true);
  EXPECT_EQ(read_text(files_, path, 9), "two");
}

TEST_F(StoreFilesTest, HoldsCheckpoints) {
  for (const auto& each : save(3, 1)) ASSERT_EQ(text_of(each), "");
  EXPECT_EQ(difference(3, 1), "");
  const std::string folder = join_path(root_, step_name(3));
  EXPECT_TRUE(verify_step(files_, folder, {}).empty());
  EXPECT_NE(text_of(save(3, 2)[0]).find("is there already"), std::string::npos);
  EXPECT_EQ(difference(3, 1), "");
  for (const auto& each : save(3, 2, {.replace = true})) ASSERT_EQ(text_of(each), "");
  EXPECT_EQ(difference(3, 2), "");
  EXPECT_EQ(files_.list(folder).size(), 2U);  // the manifest, and one folder with files
  save(4, 3);
  EXPECT_EQ(steps_in(files_, root_), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(remove_old_steps(files_, root_, 1), std::vector<std::int64_t>{3});
  EXPECT_EQ(steps_in(files_, root_), std::vector<std::int64_t>{4});
}

TEST_F(StoreFilesTest, WhatWasLeftIsNoStepAndIsSwept) {
  save(3, 1);
  const std::string left =
      join_path(root_, "step-00000004/0123456789abcdef/00000-of-00001.safetensors");
  write_text(files_, left, "unfinished");
  write_text(files_, join_path(root_, "step-00000003/0123456789abcdef/x"), "unfinished");
  const auto begun = files_.create(join_path(root_, "step-00000005/0123456789abcdef/parts"));
  const std::vector<std::byte> bytes(std::size_t{40} << 20);
  begun->append(bytes);
  EXPECT_EQ(steps_in(files_, root_), std::vector<std::int64_t>{3});
  EXPECT_EQ(remove_unfinished(files_, root_).size(), 2U);
  EXPECT_FALSE(files_.exists(left));
  EXPECT_EQ(difference(3, 1), "");
}

}  // namespace
}  // namespace intarsia::checkpoint

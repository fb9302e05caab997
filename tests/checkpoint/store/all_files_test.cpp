#include "checkpoint/store/all_files.h"

#include <gtest/gtest.h>

namespace intarsia::checkpoint {
namespace {

TEST(AllFiles, PathsSayWhoseTheyAre) {
  EXPECT_TRUE(is_in_store("s3://bucket/a"));
  EXPECT_FALSE(is_in_store("runs/a"));
  EXPECT_FALSE(is_in_store("/s3://a"));
  EXPECT_TRUE(all_files().renames("/tmp"));
  EXPECT_TRUE(all_files().exists("/"));
  EXPECT_FALSE(all_files().exists("/no/such/file"));
}

}  // namespace
}  // namespace intarsia::checkpoint

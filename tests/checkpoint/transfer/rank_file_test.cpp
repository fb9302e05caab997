#include "checkpoint/transfer/rank_file.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/test_state.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::HeldState;
using intarsia::testing::MemoryFiles;
using intarsia::testing::saved;

struct Written {
  std::vector<SavedTensor> tensors{saved("b", "u8[3]", "[a=1]"), saved("w", "f32[2, 3]", "[a=1]"),
                                   saved("z", "c128[2]", "[a=1]")};
  MemoryFiles files;
  std::vector<Share> shares = WritePlan(tensors).of_rank(0);
  HeldState held{tensors, 0, 1};
  RankFilePlan plan = plan_rank_file(tensors, shares);
  SavedFile file = *write_rank_file(files, "/root", plan, bytes_of(plan), 0, 1);

  std::vector<std::span<const std::byte>> bytes_of(const RankFilePlan& planned) const {
    std::vector<std::span<const std::byte>> out;
    for (const Share& share : planned.shares) {
      out.push_back(bytes_of_share(tensors[share.tensor], share, held.pieces[share.tensor]));
    }
    return out;
  }
};

TEST(RankFile, LongerElementsComeFirst) {
  Written written;
  const RankFile file(written.files, "/root/00000-of-00001.safetensors", written.file,
                      "/root/00000-of-00001.hashes");
  std::vector<std::string> names;
  for (const FileTensor& tensor : file.header().tensors) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"z", "w", "b"}));
  EXPECT_EQ(file.header().tensors[0].shape, (Shape{2, 2}));
  EXPECT_EQ(file.header().tensors[0].dtype, DType::f64);
  EXPECT_EQ(written.file.bytes, written.plan.bytes);
}

TEST(RankFile, ATensorThatIsNotAsSavedIsNamed) {
  Written written;
  const RankFile file(written.files, "/root/00000-of-00001.safetensors", written.file,
                      "/root/00000-of-00001.hashes");
  const Part all = written.shares[1].part;
  EXPECT_NO_THROW(file.tensor(written.tensors[1], all));
  expect_error<FileError>([&] { file.tensor(saved("q", "f32[2, 3]", "[a=1]"), all); },
                          {"00000-of-00001.safetensors: has no 'q'"});
  expect_error<FileError>([&] { file.tensor(saved("w", "f64[2, 3]", "[a=1]"), all); },
                          {"'w' is f32[2,3], not f64[2,3]"});
}

TEST(RankFile, ARankWithoutSharesWritesNoFile) {
  MemoryFiles files;
  EXPECT_FALSE(write_rank_file(files, "/root", {}, Pieces(), 0, 1));
  EXPECT_TRUE(files.list("/root").empty());
  EXPECT_EQ(plan_rank_file({}, {}).bytes, 0U);
}

TEST(RankFile, ATensorThatIsCalledLikeAPartOfAnotherIsRefused) {
  const std::vector<SavedTensor> tensors{saved("w", "f32[4@a]", "[a=2]"),
                                         saved("w [0,2)", "f32[1]", "[a=2]")};
  const auto plan_it = [&](std::int64_t rank) {
    plan_rank_file(tensors, WritePlan(tensors).of_rank(rank));
  };
  expect_error<ValueError>([&] { plan_it(0); }, {"'w [0,2)' would stand twice in one file"});
  EXPECT_NO_THROW(plan_it(1));
}

}  // namespace
}  // namespace intarsia::checkpoint

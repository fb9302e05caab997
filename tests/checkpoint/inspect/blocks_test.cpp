#include "checkpoint/inspect/blocks.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Bytes;
using intarsia::testing::MemoryFiles;
using intarsia::testing::RandomStates;
using intarsia::testing::save;
using intarsia::testing::saved;

TEST(Blocks, GiveEveryElementInOrder) {
  MemoryFiles files;
  RandomStates random(2);
  std::vector<SavedTensor> tensors;
  for (int t = 0; t < 8; ++t) tensors.push_back(random.tensor("t" + std::to_string(t), 3));
  tensors.push_back(saved("long", "f64[3000, 2000@a]", "[a=3]"));  // more than a batch
  tensors.push_back(saved("row", "f64[1, 5000000]", "[a=3]"));
  run_ranks(3, [&](Ranks& ranks) { save(files, ranks, tensors, 0, 1); });
  const Manifest manifest = read_manifest(files, "/root/step-00000000");
  std::vector<std::size_t> all;
  for (std::size_t t = tensors.size(); t-- > 0;) all.push_back(t);
  std::map<std::size_t, Bytes> found;
  std::vector<std::size_t> order;
  for_each_block(files, "/root/step-00000000", manifest, all, true,
                 [&](std::size_t tensor, std::span<const std::byte> values) {
                   found[tensor].insert(found[tensor].end(), values.begin(), values.end());
                   if (order.empty() || order.back() != tensor) order.push_back(tensor);
                 });
  EXPECT_TRUE(std::is_sorted(order.rbegin(), order.rend()));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    SavedTensor full = tensors[t];
    full.type.layout = Layout::replicated(Mesh());
    EXPECT_EQ(found[t], intarsia::testing::piece_of(full, 0, 1)) << tensors[t].name;
  }
}

}  // namespace
}  // namespace intarsia::checkpoint

// What watch() says to one process. How several are watched is shown by tests/guard/faults.py and
// tests/python/test_watch.py.
#include "intarsia/watch.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"
#include "intarsia/error.h"
#include "world/gloo_threads.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Group = c10d::ProcessGroup;

/// A group of one rank over Gloo.
c10::intrusive_ptr<Group> group_of_one() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto group = c10::make_intrusive<Group>(store, 0, 1);
  group->setBackend(at::kCPU, Group::BackendType::GLOO,
                    testing::gloo_parts(0, 1, store).make_backend("all", 0, {0}));
  return group;
}

TEST(Watch, AWorldOfOneHasNothingToCompare) {
  const auto group = group_of_one();
  const auto before = group->getBackend(at::kCPU);
  EXPECT_FALSE(watch(group));
  EXPECT_EQ(group->getBackend(at::kCPU), before);
  EXPECT_FALSE(watch(group, {.name = "part", .ranks = {0}}));
}

TEST(Watch, AGroupWithoutABackendForTheCpuIsLeftAlone) {
  EXPECT_FALSE(watch(c10::make_intrusive<Group>(c10::make_intrusive<c10d::HashStore>(), 0, 1), {}));
}

TEST(Watch, AnUnknownNameIsRefused) {
  expect_error<ValueError>([] { watch("no such group"); },
                           {"no process group is registered as 'no such group'", "group_name"});
}

}  // namespace
}  // namespace intarsia

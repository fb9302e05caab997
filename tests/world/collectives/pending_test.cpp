#include "world/collectives/pending.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "world/fork.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Tensors = std::vector<at::Tensor>;

/// What happened, in its order.
std::string g_log;

/// A call of a backend that ends when it is told to, or with an error.
class TestWork final : public c10d::Work {
 public:
  explicit TestWork(std::string error = "") : error_(std::move(error)) {}

  bool completed = false;
  bool isCompleted() override { return completed; }
  bool wait(std::chrono::milliseconds) override {
    g_log += "wait ";
    if (!error_.empty()) throw std::runtime_error(error_);
    return completed = true;
  }

 private:
  std::string error_;
};

/// Two calls of a group that are under way.
struct UnderWay {
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<WireContext> context =
      std::make_shared<WireContext>("[g=2]", std::make_shared<Ledger>(), failed);
  c10::intrusive_ptr<TestWork> first = c10::make_intrusive<TestWork>();
  c10::intrusive_ptr<TestWork> second;

  explicit UnderWay(const std::string& error = "") : second(c10::make_intrusive<TestWork>(error)) {
    g_log.clear();
  }

  Pending pending_of(Tensors buffers = {}) const {
    return pending("op", {{first, second}, context}, std::move(buffers), [] {
      g_log += "finish ";
      return Tensors{at::full({1}, 7)};
    });
  }
};

TEST(Pending, AReadyResultWaitsForNothing) {
  Pending p = ready({at::full({1}, 3)});
  EXPECT_TRUE(p.done());
  EXPECT_EQ(p.tensor().item<int>(), 3);
  EXPECT_EQ(p.wait().size(), 1U);
}

TEST(Pending, FinishesOnceWhenAllWorksAreDone) {
  const UnderWay under_way;
  Pending p = under_way.pending_of();
  EXPECT_FALSE(p.done());
  under_way.first->completed = true;
  EXPECT_FALSE(p.done());
  under_way.second->completed = true;
  EXPECT_TRUE(p.done());
  EXPECT_EQ(g_log, "") << "nobody has asked for the result";
  EXPECT_EQ(p.tensor().item<int>(), 7);
  EXPECT_EQ(p.wait()[0].item<int>(), 7);
  EXPECT_EQ(g_log, "wait wait finish ");
  EXPECT_TRUE(p.done());
}

TEST(Pending, HoldsItsBuffersUntilItWasWaitedFor) {
  const UnderWay under_way;
  const at::Tensor buffer = at::ones({2});
  Pending p = under_way.pending_of({buffer});
  EXPECT_EQ(buffer.use_count(), 2U);
  p.wait();
  EXPECT_EQ(buffer.use_count(), 1U);
}

TEST(Pending, WhatComesAfterIsDoneToTheResults) {
  const auto twice = [](Tensors results) {
    g_log += "twice ";
    for (at::Tensor& t : results) t = t * 2;
    return results;
  };
  EXPECT_EQ(after(ready({at::full({1}, 3)}), twice).tensor().item<int>(), 6);
  const UnderWay under_way;
  Pending p = after(after(under_way.pending_of(), twice), twice);
  EXPECT_EQ(g_log, "");
  EXPECT_EQ(p.tensor().item<int>(), 28);
  EXPECT_EQ(g_log, "wait wait finish twice twice ");
}

TEST(Pending, OneThatIsDroppedWaits) {
  const UnderWay under_way;
  { const Pending p = under_way.pending_of(); }
  EXPECT_EQ(g_log, "wait wait ") << "and makes no result";
  const UnderWay fails("a rank is gone");
  { const Pending p = fails.pending_of(); }
  EXPECT_EQ(g_log, "wait wait ");
  EXPECT_TRUE(fails.failed->load());
}

TEST(Pending, AnErrorIsThrownAgain) {
  const UnderWay under_way("a rank is gone");
  const at::Tensor buffer = at::ones({2});
  Pending p = under_way.pending_of({buffer});
  for (int i = 0; i < 2; ++i) {
    expect_error<WorldError>([&] { p.wait(); },
                             {"[op] over group [g=2] did not finish: a rank is gone"});
  }
  EXPECT_EQ(g_log, "wait wait ");
  EXPECT_EQ(buffer.use_count(), 1U);
}

// The other ranks may never come, and must not keep the error from being seen.
TEST(Pending, WhileAnExceptionPassesByItDoesNotWait) {
  const UnderWay under_way;
  const at::Tensor buffer = at::ones({2});
  try {
    const Pending p = under_way.pending_of({buffer});
    throw std::runtime_error("a bug");
  } catch (const std::runtime_error&) {
    g_log += "caught ";
    // One that is made meanwhile waits as ever.
    const Pending p = ready({});
  }
  EXPECT_EQ(g_log, "caught ");
  EXPECT_EQ(under_way.context->abandoned.size(), 1U);
  EXPECT_EQ(buffer.use_count(), 2U) << "the group keeps it";
  under_way.context->abandoned.clear();
  EXPECT_EQ(buffer.use_count(), 1U);
}

TEST(Pending, AForkLeavesItToItsParent) {
  const UnderWay under_way;
  EXPECT_EQ(testing::in_fork([&] {
              Pending asked = under_way.pending_of();
              { const Pending dropped = under_way.pending_of(); }
              const std::string text = testing::message_of<WorldError>([&] { asked.wait(); });
              return g_log.empty() && text.starts_with("[World] the op over group [g=2] belongs");
            }),
            1);
}

TEST(Pending, OneTensorIsAskedOfOneMember) {
  expect_error<ValueError>([] { ready({}).tensor(); },
                           {"[Pending::tensor] there are 0 results", "use wait()"});
  expect_error<ValueError>([] { ready({at::ones({1}), at::ones({1})}).tensor(); }, {"2 results"});
}

}  // namespace
}  // namespace intarsia

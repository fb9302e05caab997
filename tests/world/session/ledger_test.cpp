#include "intarsia/ledger.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "intarsia/collectives.h"
#include "intarsia/in_process.h"
#include "world/collectives_check.h"
#include "world/counting_backend.h"
#include "world/gloo_threads.h"

namespace intarsia {
namespace {

const auto kHere = std::source_location::current();

TEST(Ledger, KeepsTheLastCallsAndCountsAll) {
  Ledger ledger(3);
  const auto a = ledger.add_group("A");
  const auto b = ledger.add_group("B");
  for (int i = 0; i < 4; ++i) {
    ledger.record(a, CallKind::all_gather, at::kFloat, 8, {.tensor = "w"}, kHere);
  }
  ledger.record(b, CallKind::barrier, at::kByte, 0, {}, kHere);
  const auto entries = ledger.entries();
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].sequence, 2U);
  EXPECT_EQ(entries[1].sequence, 3U);
  EXPECT_EQ(entries[2].group, b);
  EXPECT_EQ(entries[2].sequence, 0U);
  EXPECT_EQ(ledger.totals().calls, 5U);
  EXPECT_EQ(ledger.totals(CallKind::all_gather).bytes, 32U);
  EXPECT_EQ(ledger.group_collectives(a), 4U);
}

TEST(Ledger, CountsForTheCallerToo) {
  run_in_process(2, [](World& world) {
    LedgerTotals sent;
    const Call call{.tensor = "x", .sent = &sent};
    all_gather(world.everyone(), at::ones({3}), 0, {}, call).wait();
    EXPECT_EQ(sent.calls, 1U);
    EXPECT_EQ(sent.bytes, 12U);
    const std::vector<std::int64_t> swap{1, 0};
    permute(world.everyone(), at::ones({2}), swap, {}, call).wait();
    EXPECT_EQ(sent.calls, 3U) << "a send and a receive";
    EXPECT_EQ(sent.bytes, 20U) << "what is received is not handed over";
    all_gather(world.everyone(), at::ones({0}), 0, {}, call).wait();
    EXPECT_EQ(sent.calls, 3U) << "nothing to send";
  });
}

TEST(Ledger, RecordsNamesAndTheCallersLine) {
  run_in_process(2, [](World& world) {
    const auto line = std::source_location::current().line() + 1;
    all_gather(world.everyone(), at::ones({3}), 0, {}, {"w1", "linear", "model.block2"}).wait();
    const LedgerEntry e = world.ledger().entries().at(0);
    EXPECT_EQ(e.kind, CallKind::all_gather);
    EXPECT_EQ(e.dtype, at::kFloat);
    EXPECT_EQ(e.bytes, 12);
    EXPECT_EQ(e.where.line(), line);
    const std::string dump = world.ledger().dump();
    EXPECT_NE(
        dump.find("#0 all_gather over [g=2] Float 12 B tensor w1 for linear in model.block2 at "),
        std::string::npos)
        << dump;
    EXPECT_NE(dump.find("ledger_test.cpp:" + std::to_string(line)), std::string::npos) << dump;
  });
}

TEST(Ledger, EqualsWhatAWrappedBackendCounts) {
  for (const int size : {2, 3}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    testing::in_threads(size, [&](int rank) {
      testing::Counts counts;
      const auto wrap = [&counts](Backend inner) -> Backend {
        return c10::make_intrusive<testing::CountingBackend>(inner, counts);
      };
      const auto world = World::assemble(testing::gloo_parts(rank, size, store, wrap));
      testing::check_collectives(*world);
      EXPECT_GT(counts.calls, 500U);
      EXPECT_EQ(world->ledger().totals().calls, counts.calls);
      EXPECT_EQ(world->ledger().totals().bytes, counts.bytes);
      std::printf("rank %d of %d: %llu calls, %llu bytes in both\n", rank, size,
                  static_cast<unsigned long long>(counts.calls),
                  static_cast<unsigned long long>(counts.bytes));
    });
  }
}

}  // namespace
}  // namespace intarsia

#include "intarsia/ledger.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
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
    ledger.record(a, CallKind::all_gather, at::kFloat, 8, "", {.tensor = "w"}, kHere);
  }
  ledger.record(b, CallKind::barrier, at::kByte, 0, "", {}, kHere);
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

TEST(Ledger, HashTellsSequencesApartButNotSizes) {
  const auto hash = [](std::initializer_list<CallKind> kinds, std::int64_t bytes,
                       const char* tensor) {
    Ledger ledger;
    const auto g = ledger.add_group("g");
    for (const CallKind k : kinds) {
      ledger.record(g, k, at::kFloat, bytes, "", {.tensor = tensor}, kHere);
    }
    return ledger.group_hash(g);
  };
  using enum CallKind;
  EXPECT_EQ(hash({all_gather, all_reduce}, 4, "w"), hash({all_gather, all_reduce}, 8, "w"));
  EXPECT_NE(hash({all_gather, all_reduce}, 4, "w"), hash({all_reduce, all_gather}, 4, "w"));
  EXPECT_NE(hash({all_gather}, 4, "w"), hash({all_gather}, 4, "v"));
  EXPECT_NE(hash({all_gather}, 4, "w"), hash({all_gather, all_gather}, 4, "w"));
}

TEST(Ledger, HashTellsReductionsAndRootsApart) {
  std::mutex mutex;
  std::map<std::string, std::set<std::uint64_t>> hashes;
  for (const char* how : {"P(sum)", "P(prod)"}) {
    for (const std::int64_t root : {0, 1}) {
      run_in_process(2, [&](World& world) {
        const Comm all = world.everyone();
        all_reduce(all, at::ones({2}), Placement::parse(how)).wait();
        broadcast(all, at::ones({2}), root).wait();
        const std::scoped_lock lock(mutex);
        hashes[how + std::to_string(root)].insert(world.ledger().group_hash(all.ledger_group()));
      });
    }
  }
  std::set<std::uint64_t> distinct;
  for (const auto& [name, found] : hashes) {
    EXPECT_EQ(found.size(), 1U) << name;
    distinct.insert(found.begin(), found.end());
  }
  EXPECT_EQ(distinct.size(), 4U);
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

TEST(Ledger, HashesAgreeOnAllRanks) {
  std::mutex mutex;
  std::vector<std::uint64_t> hashes;
  run_in_process(4, [&](World& world) {
    const Comm all = world.everyone();
    for (int i = 0; i < 10; ++i) {
      const Coordinate lengths{1, 2, 3, 0};
      all_gather(all, at::ones({lengths[static_cast<std::size_t>(world.rank())]}), 0, lengths)
          .wait();
      all_reduce(all, at::ones({2}, at::kBFloat16), Placement::partial()).wait();
      permute(all, at::ones({lengths[static_cast<std::size_t>(world.rank())]}),
              Coordinate{0, 3, 1, 2}, std::vector<std::vector<std::int64_t>>{{1}, {2}, {3}, {0}})
          .wait();
    }
    const std::scoped_lock lock(mutex);
    hashes.push_back(world.ledger().group_hash(all.ledger_group()));
  });
  EXPECT_EQ(hashes, std::vector<std::uint64_t>(4, hashes[0]));
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

#include "intarsia/in_process.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "error_text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "world/collectives_check.h"

namespace intarsia {
namespace {

using testing::expect_error;
const Placement kSum = Placement::partial();

TEST(InProcess, AllCollectivesOnFewRanks) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    std::atomic<std::int64_t> checks = 0;
    run_in_process(ranks, [&](World& world) { checks += testing::check_collectives(world); });
    EXPECT_GT(checks, 500 * ranks);
  }
}

TEST(InProcess, ReductionsHaveAFixedOrder) {
  std::vector<at::Tensor> results;
  for (int repeat = 0; repeat < 20; ++repeat) {
    run_in_process(5, [&](World& world) {
      const at::Tensor x = at::full({64}, 0.1f).pow(static_cast<double>(world.rank()) + 0.3);
      const at::Tensor sum = all_reduce(world.everyone(), x, kSum).tensor();
      if (world.rank() == 0) results.push_back(sum);
    });
  }
  for (const at::Tensor& r : results) EXPECT_TRUE(at::equal(r, results[0]));
}

TEST(InProcess, AnErrorOfOneRankEndsTheOthers) {
  std::atomic<int> told = 0;
  expect_error<ValueError>(
      [&] {
        run_in_process(3, [&](World& world) {
          if (world.rank() == 1) throw ValueError("[body] broken on purpose");
          try {
            all_reduce(world.everyone(), at::ones({2}), kSum).wait();
          } catch (const WorldError& error) {
            EXPECT_NE(std::string(error.what()).find("rank 1 ended with an error"),
                      std::string::npos);
            ++told;
            throw;
          }
        });
      },
      {"broken on purpose"});
  EXPECT_EQ(told, 2);
}

TEST(InProcess, ADroppedCallIsNamedByTheOthers) {
  InProcessOptions options;
  options.timeout = std::chrono::milliseconds(100);
  options.fault = [](const FaultPoint& at) {
    return Fault{.drop = at.rank == 2 && at.sequence == 1};
  };
  expect_error<WorldError>(
      [&] {
        run_in_process(
            4,
            [](World& world) {
              all_reduce(world.everyone(), at::ones({2}), kSum).wait();
              Pending second = all_reduce(world.everyone(), at::ones({2}), kSum);
              if (world.rank() != 2) second.wait();
            },
            options);
      },
      {"[all_reduce]", "waited 100 ms", "rank 2, which did not come"});
}

TEST(InProcess, AFailedCallReachesEveryone) {
  InProcessOptions options;
  options.fault = [](const FaultPoint& at) {
    return Fault{.fail = at.rank == 0 && at.kind == "broadcast" ? "cable cut" : ""};
  };
  std::atomic<int> told = 0;
  expect_error<WorldError>(
      [&] {
        run_in_process(
            3,
            [&](World& world) {
              try {
                broadcast(world.everyone(), at::ones({2}), 0).wait();
              } catch (const WorldError& error) {
                told += std::string(error.what()).find("rank 0") != std::string::npos;
                throw;
              }
            },
            options);
      },
      {"cable cut"});
  EXPECT_EQ(told, 3);
}

TEST(InProcess, ADelayChangesNothing) {
  InProcessOptions options;
  options.fault = [](const FaultPoint& at) {
    return Fault{.delay = std::chrono::milliseconds(at.sequence % 3 == 0 ? at.rank : 0)};
  };
  run_in_process(
      3, [](World& world) { testing::check_collectives(world); }, options);
}

TEST(InProcess, DifferentCallsAreNamed) {
  expect_error<WorldError>(
      [] {
        run_in_process(2, [](World& world) {
          if (world.rank() == 0) {
            all_gather(world.everyone(), at::ones({2}), 0).wait();
          } else {
            barrier(world.everyone());
          }
        });
      },
      {"rank 0 called all_gather", "rank 1 called barrier"});
}

TEST(InProcess, DifferentArgumentsAreNamed) {
  const auto refuse = [](const std::function<void(World&)>& body,
                         std::initializer_list<std::string> parts) {
    expect_error<WorldError>([&] { run_in_process(2, body); }, parts);
  };
  refuse(
      [](World& world) {
        const Reduction how = world.rank() == 0 ? Reduction::product : Reduction::sum;
        all_reduce(world.everyone(), at::ones({2}, at::kLong), Placement::partial(how)).wait();
      },
      {"rank 0 called all_reduce of Long by product", "rank 1 called all_reduce of Long by sum"});
  refuse([](World& world) { broadcast(world.everyone(), at::ones({2}), world.rank()).wait(); },
         {"root 0", "root 1"});
}

TEST(InProcess, AnErrorIsSeenAlthoughAResultIsPending) {
  expect_error<ValueError>(
      [] {
        run_in_process(2,
                       [](World& world) {
                         const Comm all = world.everyone();
                         if (world.rank() == 0) {
                           const Pending p = all_gather(all, at::ones({2}), 0);
                           throw ValueError("[body] a bug of rank 0");
                         }
                         barrier(world.along(Mesh::parse("[x=2:-1]+1"), {"x"}));
                       },
                       {.timeout = std::chrono::seconds(20)});
      },
      {"a bug of rank 0"});
}

TEST(InProcess, ADroppedCallSaysSoItself) {
  InProcessOptions options;
  options.timeout = std::chrono::milliseconds(50);
  options.fault = [](const FaultPoint& at) { return Fault{.drop = at.rank == 1}; };
  run_in_process(
      2,
      [](World& world) {
        if (world.rank() == 0) return;
        expect_error<WorldError>([&] { barrier(world.everyone()); }, {"dropped by the fault hook"});
      },
      options);
}

TEST(InProcess, AMissingMessageNamesItsSender) {
  InProcessOptions options;
  options.timeout = std::chrono::milliseconds(50);
  options.fault = [](const FaultPoint& at) {
    return Fault{.drop = at.rank == 1 && at.kind == "send"};
  };
  expect_error<WorldError>(
      [&] {
        run_in_process(
            2,
            [](World& world) {
              Pending p = permute(world.everyone(), at::ones({2}), Coordinate{1, 0});
              if (world.rank() == 0) p.wait();
            },
            options);
      },
      {"rank 1, which did not come"});
}

TEST(InProcess, NeedsARank) {
  expect_error<ValueError>([] { run_in_process(0, [](World&) {}); }, {"0 ranks"});
}

}  // namespace
}  // namespace intarsia

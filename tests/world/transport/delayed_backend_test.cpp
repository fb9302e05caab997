#include "world/transport/delayed_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <time.h>

#include <cstdlib>

#include "error_text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "world/gloo_threads.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Two Gloo ranks as threads, over delayed wires.
void on_slow_wires(const WireDelay& delay, const std::function<void(World&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(2, [&](int rank) {
    const auto world = World::assemble(testing::gloo_parts(
        rank, 2, store, [&](Backend inner) { return delay_backend(std::move(inner), delay); }));
    body(*world);
  });
}

TEST(DelayedBackend, CollectivesTakeTheirTimeAndFollowEachOther) {
  // 4,000 bytes at 10,000 per second, and 200 ms: 600 ms each.
  on_slow_wires({milliseconds(200), 10000}, [](World& world) {
    const Comm comm = world.everyone();
    barrier(comm);  // the group is made
    const auto begin = Clock::now();
    const at::Tensor mine = at::full({1000}, static_cast<float>(world.rank() + 1));
    Pending first = all_reduce(comm, mine, Placement::partial());
    Pending second = all_reduce(comm, mine * 2, Placement::partial());
    EXPECT_LT(seconds_since(begin), 0.5) << "the calls return at once";
    EXPECT_FALSE(first.done());
    EXPECT_TRUE(at::equal(first.tensor(), at::full({1000}, 3.0F)));
    EXPECT_GE(seconds_since(begin), 0.599);
    EXPECT_FALSE(second.done());
    EXPECT_TRUE(at::equal(second.tensor(), at::full({1000}, 6.0F)));
    EXPECT_GE(seconds_since(begin), 1.199);
  });
}

TEST(DelayedBackend, WhatStaysIsNotCountedAndBothWaysAreFree) {
  // 4,000 bytes at 10,000 per second.
  on_slow_wires({milliseconds(0), 10000}, [](World& world) {
    const Comm comm = world.everyone();
    const at::Tensor mine = at::full({1000}, static_cast<float>(world.rank()));
    barrier(comm);
    const auto timed = [](const std::function<void()>& run) {
      const auto begin = Clock::now();
      run();
      return seconds_since(begin);
    };
    const double all_to_all_time = timed([&] { (void)all_to_all(comm, mine, 0, 0).tensor(); });
    EXPECT_GE(all_to_all_time, 0.199);  // half of it goes to the other
    EXPECT_LT(all_to_all_time, 0.38);
    const std::vector<std::int64_t> swap{1, 0};
    const double permute_time = timed([&] { (void)permute(comm, mine, swap).tensor(); });
    EXPECT_GE(permute_time, 0.399);  // it sends while it receives
    EXPECT_LT(permute_time, 0.7);
    const double all_gather_time = timed([&] { (void)all_gather(comm, mine, 0).tensor(); });
    EXPECT_GE(all_gather_time, 0.399);
    EXPECT_LT(all_gather_time, 0.7);
  });
}

TEST(DelayedBackend, WaitingCostsNoProcessorTime) {
  double spent = 0;
  on_slow_wires({milliseconds(400), 0}, [&](World& world) {
    const Comm comm = world.everyone();
    barrier(comm);
    const double before = processor_seconds();
    (void)all_gather(comm, at::ones({4}), 0).tensor();
    if (world.rank() == 0) spent = processor_seconds() - before;
  });
  EXPECT_LT(spent, 0.1);
}

TEST(DelayedBackend, EveryCollectiveIsRight) {
  on_slow_wires({milliseconds(1), 0}, [](World& world) {
    const Comm comm = world.everyone();
    const at::Tensor mine = at::full({2}, static_cast<double>(world.rank()), at::kDouble);
    EXPECT_TRUE(at::equal(all_gather(comm, mine, 0).tensor(), at::tensor({0.0, 0.0, 1.0, 1.0})));
    EXPECT_TRUE(at::equal(broadcast(comm, mine, 1).tensor(), at::tensor({1.0, 1.0})));
    EXPECT_TRUE(at::equal(all_to_all(comm, mine, 0, 0).tensor(), at::tensor({0.0, 1.0})));
    EXPECT_TRUE(at::equal(reduce_scatter(comm, mine, 0, Placement::partial()).tensor(),
                          at::tensor({1.0}, at::kDouble)));
    const std::vector<std::int64_t> swap{1, 0};
    EXPECT_TRUE(at::equal(permute(comm, mine, swap).tensor(), 1 - mine));
    barrier(comm);
  });
}

TEST(DelayedBackend, ReadsItsVariable) {
  const auto read = [](const char* text) {
    return read_wire_delay([=](const std::string& name) -> std::optional<std::string> {
      EXPECT_EQ(name, "INTARSIA_WIRE_DELAY");
      if (text == nullptr) return std::nullopt;
      return text;
    });
  };
  EXPECT_FALSE(read(nullptr).has_value());
  EXPECT_EQ(read("250,1e9")->latency.count(), 250);
  EXPECT_EQ(read("250,1e9")->bytes_per_second, 1e9);
  expect_error<ValueError>([&] { read("250"); }, {"INTARSIA_WIRE_DELAY", "250"});
  expect_error<ValueError>([&] { read("250,fast"); }, {"INTARSIA_WIRE_DELAY", "fast"});
  expect_error<ValueError>(
      [] {
        delay_backend({}, {std::chrono::microseconds(-1), 0});
      },
      {"no less than 0, not by -1 us"});
}

TEST(DelayedBackend, WorldsAreDelayedByTheirOptions) {
  const int port = testing::free_port();
  testing::in_threads(2, [&](int rank) {
    Rendezvous r;
    r.rank = rank;
    r.size = 2;
    r.address = "127.0.0.1";
    r.port = port;
    const auto world = World::connect(
        r, {.timeout = std::chrono::seconds(30), .wire_delay = WireDelay{milliseconds(100), 0}});
    const Comm comm = world->everyone();
    comm.connect();
    const auto begin = Clock::now();
    barrier(comm);
    EXPECT_GE(seconds_since(begin), 0.099);
  });
}

}  // namespace
}  // namespace intarsia

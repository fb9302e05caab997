// Many threads: worlds beside each other, the cache cleared in use, eight ranks that train.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include "intarsia/communication.h"
#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_whole;
using testing::values;

int repetitions() {
  const char* text = std::getenv("INTARSIA_REPEAT");
  return text == nullptr ? 5 : std::atoi(text);
}

/// A step of a two-layer network on 8 ranks: rows of the batch over dp, the hidden layer over tp.
void train(World& world, const Mesh& mesh) {
  const Layout rows = Layout::parse("S(0),R", mesh);
  std::vector<Tensor> plain{values({6, 10}, 1) * 0.3, values({10, 5}, 2) * 0.3};
  std::vector<Tensor> ours{distribute(plain[0], Layout::parse("R,S(1)", mesh), world),
                           distribute(plain[1], Layout::parse("R,S(0)", mesh), world)};
  for (std::uint64_t step = 0; step < 2; ++step) {
    const Tensor x = values({9, 6}, 10 + step);
    const auto grads = [&](const std::vector<Tensor>& p, const Tensor& batch) {
      std::vector<Tensor> leaves;
      for (const Tensor& t : p) leaves.push_back(t.detach().set_requires_grad(true));
      const Tensor loss = batch.mm(leaves[0]).relu().mm(leaves[1]).pow(2).mean();
      return torch::autograd::grad({loss}, leaves);
    };
    const auto want = grads(plain, x);
    const auto got = grads(ours, distribute(x, rows, world));
    for (std::size_t i = 0; i < plain.size(); ++i) {
      expect_whole(got[i], want[i], "gradient");
      plain[i] = plain[i] - 0.1 * want[i];
      ours[i] = ours[i] - 0.1 * got[i];
    }
  }
}

TEST(Threads, EightRanksTrain) {
  const Mesh mesh = Mesh::parse("[dp=4,tp=2]");
  for (int i = 0; i < repetitions(); ++i) {
    run_in_process(8, [&](World& world) { train(world, mesh); },
                   {.timeout = std::chrono::seconds(120)});
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Threads, TwoWorldsAtOnce) {
  for (int i = 0; i < repetitions(); ++i) {
    std::vector<std::thread> threads;
    for (const char* text : {"[dp=2,tp=2]", "[dp=1,tp=3]"}) {
      threads.emplace_back([text] {
        const Mesh mesh = Mesh::parse(text);
        run_in_process(static_cast<int>(mesh.highest()) + 1,
                       [&](World& world) { train(world, mesh); },
                       {.timeout = std::chrono::seconds(120)});
      });
    }
    for (std::thread& t : threads) t.join();
  }
}

TEST(Threads, CacheClearedWhileRanksTrain) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  for (int i = 0; i < repetitions(); ++i) {
    run_in_process(4,
                   [&](World& world) {
                     std::atomic<bool> stop = false;
                     std::thread clears([&] {
                       while (!stop) {
                         clear_cache(world);
                         cache_counters(world);
                         std::this_thread::sleep_for(std::chrono::microseconds(100));
                       }
                     });
                     train(world, mesh);
                     stop = true;
                     clears.join();
                   },
                   {.timeout = std::chrono::seconds(120)});
  }
}

/// What many threads do first at once: ops that move, views, writes in place, a formula, a
/// fallback.
std::vector<Tensor> first_calls(const Tensor& rows, const Tensor& columns) {
  Tensor sum = rows + columns;
  sum.add_(1);
  return {sum,
          rows.mm(columns.t()),
          rows.softmax(-1),
          rows.view({-1}).cumsum(0),
          rows.t().relu(),
          rows.sum(0),
          rows.std(-1),
          columns.index_select(0, at::tensor({2, 0}))};
}

/// Runs `body` in threads that begin together.
void at_once(int threads, const std::function<void()>& body) {
  std::atomic<int> waiting = threads;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&] {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      body();
    });
  }
  for (std::thread& t : all) t.join();
}

TEST(Threads, FirstCallsAtOnceInLockstep) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  const Tensor rows = values({5, 6}, 1);
  const Tensor columns = values({5, 6}, 2);
  const auto want = first_calls(rows, columns);
  for (int i = 0; i < repetitions(); ++i) {
    const Lockstep lockstep(mesh);
    World& world = lockstep.world();
    at_once(4, [&] {
      const auto got = first_calls(distribute(rows, Layout::parse("S(0),R", mesh), world),
                                   distribute(columns, Layout::parse("R,S(1)", mesh), world));
      for (std::size_t k = 0; k < want.size(); ++k) expect_whole(got[k], want[k], "first call");
    });
  }
}

TEST(Threads, FirstCallsAtOnceInASimulatedWorld) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  for (int i = 0; i < repetitions(); ++i) {
    const auto world = simulate({.size = 4});
    at_once(4, [&] {
      const auto got = first_calls(randn({5, 6}, Layout::parse("S(0),R", mesh), *world),
                                   randn({5, 6}, Layout::parse("R,S(1)", mesh), *world));
      EXPECT_EQ(got[1].sizes(), at::IntArrayRef({5, 5}));
    });
    world->close();
  }
}

}  // namespace
}  // namespace intarsia

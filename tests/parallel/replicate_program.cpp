// Data parallel training over real processes, beside the same model alone: under a launcher.
//
//     replicate_program [--lose-a-rank]
//
// `--lose-a-rank`: the last rank leaves in the middle, without a word; the others must get a
// WorldError from backward, and soon.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <string_view>

#include "intarsia/error.h"
#include "intarsia/world.h"
#include "parallel/training.h"

namespace intarsia::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// A model of many parameters of uneven sizes, some of another dtype.
void train_many(World& world) {
  const Mesh mesh({{"dp", world.size()}});
  ReplicatedTensors tensors;
  for (std::size_t i = 0; i < 1000; ++i) {
    const auto length = static_cast<std::int64_t>(1 + i * i % 97);
    const at::ScalarType dtype = i % 10 == 0 ? at::kFloat : at::kDouble;
    tensors.parameters.push_back(
        {"p" + std::to_string(i), values({length}, i, dtype).set_requires_grad(true)});
  }
  const std::vector<std::string> axes{"dp"};
  const auto replica =
      replicate(tensors, world, mesh, axes, {.bucket_bytes = 20000, .first_bucket_bytes = 3000});
  const auto n = static_cast<double>(world.size());
  for (std::size_t step = 0; step < 5; ++step) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (std::size_t i = 0; i < 1000; ++i) {
      at::Tensor& p = tensors.parameters[i].tensor;
      p.mutable_grad().reset();
      // Each rank leaves out others, in each step others, and some are left out by all.
      if (i % 50 == 7 || (i + step + static_cast<std::size_t>(world.rank())) % 5 == 0) continue;
      loss = loss + p.sum() * static_cast<double>(i);
    }
    loss.backward();
    for (std::size_t i = 0; i < 1000; ++i) {
      const at::Tensor& p = tensors.parameters[i].tensor;
      double users = 0;
      for (std::size_t r = 0; r < static_cast<std::size_t>(world.size()); ++r) {
        users += i % 50 == 7 || (i + step + r) % 5 == 0 ? 0 : 1;
      }
      ASSERT_EQ(p.grad().defined(), users > 0) << i;
      if (users == 0) continue;
      const at::Tensor want = at::full_like(p, static_cast<double>(i) * users / n);
      expect_close(p.grad(), want, tensors.parameters[i].name, 1e-6);
    }
  }
  EXPECT_GT(replica->counters().buckets, 10U);
}

/// What the ranks that stay see when one has gone.
void lose_a_rank(World& world) {
  const Mesh mesh({{"dp", world.size()}});
  Net model(1);
  const auto replica = replicate(*model, world, mesh, "dp");
  const auto step = [&] { model->forward(values({4, 7}, 1), 0).sum().backward(); };
  step();
  if (world.rank() == world.size() - 1) ::_exit(0);
  // Connections to a process that is gone must not end this one.
  struct sigaction broken_pipe {};
  EXPECT_EQ(::sigaction(SIGPIPE, nullptr, &broken_pipe), 0);
  EXPECT_EQ(broken_pipe.sa_handler, SIG_IGN);
  const auto begin = Clock::now();
  try {
    step();
    ADD_FAILURE() << "a rank has gone, and backward did not notice";
  } catch (const WorldError& error) {
    std::cout << error.what() << std::endl;
    EXPECT_NE(std::string(error.what()).find("bucket 0"), std::string::npos);
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);  // the store may be gone too
}

void train(World& world) {
  const auto route = [](std::int64_t rank, int step) {
    return static_cast<int>((rank + step) % 3);
  };
  const ReplicateOptions small{
      .bucket_bytes = 300, .first_bucket_bytes = 80, .buffers = BufferSync::averaged};
  train_beside(world, {});
  train_beside(world, {.clearing = Clearing::to_zero, .route = route});
  train_beside(world, {.accumulated = 3, .route = route, .options = small});
  train_many(world);
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::FLAGS_gtest_throw_on_failure = true;
  try {
    const auto world = intarsia::World::connect({.timeout = std::chrono::seconds(10)});
    if (argc > 1 && std::string_view(argv[1]) == "--lose-a-rank") {
      intarsia::testing::lose_a_rank(*world);
    }
    intarsia::testing::train(*world);
    std::cout << "rank " << world->rank() << " of " << world->size() << " trained alike\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

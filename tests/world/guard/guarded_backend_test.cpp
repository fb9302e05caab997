#include "world/guard/guarded_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "error_text.h"
#include "world/gloo_threads.h"
#include "world/guard/ranks.h"

namespace intarsia {
namespace {

using testing::all_of;
using testing::expect_error;
using testing::Meet;
using testing::on_ranks;

/// Runs `of_rank` on two ranks over Gloo, whose calls are compared.
void over_gloo(const std::function<void(int rank, c10d::Backend&, const Meet&)>& of_rank) {
  constexpr int kRanks = 2;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_ranks(kRanks, [&](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const WorldParts parts = testing::gloo_parts(rank, kRanks, store);
    const auto backend = guarded_backend(parts.make_backend("all", rank, all_of(kRanks)),
                                         guard->join("all", all_of(kRanks)));
    of_rank(rank, *backend, meet);
    meet();
  });
}

at::Tensor filled(int rank, at::IntArrayRef sizes = {2, 3}) {
  return at::full(sizes, rank + 1, at::kFloat);
}

TEST(GuardedBackend, GivesTheNumbersOfTheBackend) {
  over_gloo([](int rank, c10d::Backend& backend, const Meet&) {
    EXPECT_EQ(backend.getBackendName(), "gloo");
    for (int round = 0; round < 20; ++round) {
      std::vector<at::Tensor> t{filled(rank)};
      backend.allreduce(t, c10d::AllreduceOptions())->wait();
      EXPECT_TRUE(at::equal(t[0], at::full({2, 3}, 3.0)));
      t = {filled(rank)};
      const auto future = backend.allreduce(t, c10d::AllreduceOptions())->getFuture();
      future->wait();
      EXPECT_TRUE(at::equal(future->value().toTensorVector()[0], at::full({2, 3}, 3.0)));
      t = {filled(rank)};
      c10d::BroadcastOptions from;
      from.rootRank = 1;
      backend.broadcast(t, from)->wait();
      EXPECT_TRUE(at::equal(t[0], filled(1)));
      std::vector<at::Tensor> in{filled(rank)};
      std::vector<std::vector<at::Tensor>> out{{filled(7), filled(7)}};
      backend.allgather(out, in, c10d::AllgatherOptions())->wait();
      EXPECT_TRUE(at::equal(out[0][1], filled(1)));
      at::Tensor all = at::empty({4, 3});
      backend._allgather_base(all, in[0], c10d::AllgatherOptions())->wait();
      EXPECT_TRUE(at::equal(all, at::cat({filled(0), filled(1)})));
      at::Tensor part = at::empty({1, 3});
      backend._reduce_scatter_base(part, in[0], c10d::ReduceScatterOptions())->wait();
      EXPECT_TRUE(at::equal(part, at::full({1, 3}, 3.0)));
      backend.barrier(c10d::BarrierOptions())->wait();
    }
  });
}

TEST(GuardedBackend, RanksThatDisagreeAreToldAndNothingIsSent) {
  over_gloo([](int rank, c10d::Backend& backend, const Meet&) {
    std::vector<at::Tensor> t{filled(rank, rank == 0 ? at::IntArrayRef{2, 3} : at::IntArrayRef{7})};
    expect_error<GuardError>([&] { backend.allreduce(t, c10d::AllreduceOptions())->wait(); },
                             {"rank 0 makes all_reduce (sum) of Float [2,3]",
                              "rank 1 makes all_reduce (sum) of Float [7]"});
    EXPECT_TRUE(at::equal(t[0], filled(rank, t[0].sizes()))) << "no number came";
  });
}

TEST(GuardedBackend, WhoHasAFutureIsToldToo) {
  over_gloo([](int rank, c10d::Backend& backend, const Meet& meet) {
    std::vector<at::Tensor> t{filled(rank)};
    c10d::AllreduceOptions how;
    if (rank == 1) how.reduceOp = c10d::ReduceOp::MAX;
    const auto told = [&] {
      const auto future = backend.allreduce(t, how)->getFuture();
      if (rank == 0) meet();  // the other comes later
      future->waitAndThrow();
    };
    if (rank == 1) meet();
    expect_error<GuardError>(told, {"rank 0 makes all_reduce (sum) of Float [2,3]",
                                    "rank 1 makes all_reduce (max) of Float [2,3]"});
  });
}

TEST(GuardedBackend, MessagesBetweenTwoRanksPass) {
  over_gloo([](int rank, c10d::Backend& backend, const Meet&) {
    std::vector<at::Tensor> t{filled(rank)};
    if (rank == 0) {
      backend.send(t, 1, 5)->wait();
    } else {
      backend.recv(t, 0, 5)->wait();
      EXPECT_TRUE(at::equal(t[0], filled(0)));
    }
  });
}

}  // namespace
}  // namespace intarsia

#include "intarsia/collectives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Lengths = std::vector<std::int64_t>;
using Tensors = std::vector<at::Tensor>;
const Placement kSum = Placement::partial();

at::Tensor ints(Lengths values, Lengths sizes = {-1}) {
  return at::tensor(values, at::kLong).view(sizes);
}

/// What the backend was asked for.
std::string calls_of(World& world) {
  std::string out;
  for (const LedgerEntry& e : world.ledger().entries()) {
    out += std::string(to_text(e.kind)) + ' ' + std::to_string(e.bytes) + "; ";
  }
  return out;
}

TEST(CollectivesOfThree, GatherUnevenPiecesAlongAnyDimension) {
  run_in_process(3, [](World& world) {
    const Lengths lengths{2, 0, 1};
    const Tensors pieces{ints({1, 2, 5, 6}, {2, 2}), ints({}, {2, 0}), ints({3, 7}, {2, 1})};
    const at::Tensor mine = pieces[static_cast<std::size_t>(world.rank())];
    const at::Tensor want = ints({1, 2, 3, 5, 6, 7}, {2, 3});
    EXPECT_TRUE(at::equal(all_gather(world.everyone(), mine, 1, lengths).tensor(), want));
    EXPECT_TRUE(at::equal(all_gather(world.everyone(), mine.t(), -2, lengths).tensor(), want.t()));
    EXPECT_EQ(calls_of(world), "all_gather 32; all_gather 32; ")
        << "all are as long as the longest";
  });
}

TEST(CollectivesOfThree, ReduceHalvesHereAndFloatsThere) {
  run_in_process(3, [](World& world) {
    const Comm all = world.everyone();
    // In halves 2,048 + 1 is 2,048 again.
    const at::Tensor half = at::full({2, 2}, world.rank() == 0 ? 2048 : 1, at::kHalf);
    const at::Tensor sum = all_reduce(all, half.t(), kSum).tensor();
    EXPECT_TRUE(at::equal(sum, at::full({2, 2}, 2050, at::kHalf)));
    // Of four elements two are combined by rank 0 and two by rank 1; rank 2 sends as many.
    EXPECT_EQ(calls_of(world), "all_to_all 8; all_gather 4; ");
    const at::Tensor mean =
        all_reduce(all, at::full({2}, 3.0 * world.rank()), Placement::partial(Reduction::avg))
            .tensor();
    EXPECT_TRUE(at::equal(mean, at::full({2}, 3.0)));
    EXPECT_TRUE(calls_of(world).ends_with("all_gather 4; all_reduce 8; "));
  });
}

TEST(CollectivesOfThree, ScatterWhatTheyReduce) {
  run_in_process(3, [](World& world) {
    const Comm all = world.everyone();
    const at::Tensor mine = ints({1, 2, 3, 4, 5, 6}, {2, 3}) * (world.rank() + 1);
    const at::Tensor uneven = reduce_scatter(all, mine, 1, kSum, Lengths{1, 2, 0}).tensor();
    const Tensors want{ints({6, 24}, {2, 1}), ints({12, 18, 30, 36}, {2, 2}), ints({}, {2, 0})};
    EXPECT_TRUE(at::equal(uneven, want[static_cast<std::size_t>(world.rank())]));
    const at::Tensor even =
        reduce_scatter(all, mine, 1, Placement::partial(Reduction::max)).tensor();
    EXPECT_TRUE(at::equal(even, 3 * ints({1, 2, 3, 4, 5, 6}, {2, 3}).narrow(1, world.rank(), 1)));
  });
}

TEST(CollectivesOfThree, ExchangeRowsForColumns) {
  run_in_process(3, [](World& world) {
    // Of [[0, 1, 2], [10, 11, 12], [20, 21, 22]] ranks hold 0, 1 and 2 rows, then 2, 0 and 1
    // columns.
    const at::Tensor square = ints({0, 1, 2, 10, 11, 12, 20, 21, 22}, {3, 3});
    const Lengths rows{0, 1, 2};
    const Lengths columns{2, 0, 1};
    const std::int64_t r = world.rank();
    const at::Tensor mine = square.narrow(0, r == 2 ? 1 : 0, rows[static_cast<std::size_t>(r)]);
    const at::Tensor got = all_to_all(world.everyone(), mine, 1, 0, columns, rows).tensor();
    EXPECT_TRUE(at::equal(got, square.narrow(1, r == 2 ? 2 : 0, r == 0 ? 2 : r == 1 ? 0 : 1)));
    const at::Tensor back = all_to_all(world.everyone(), got, 0, 1, rows, columns).tensor();
    EXPECT_TRUE(at::equal(back, mine));
  });
}

TEST(CollectivesOfThree, BroadcastAndPermuteLeaveTheirInputs) {
  run_in_process(3, [](World& world) {
    const std::int64_t r = world.rank();
    const at::Tensor mine = ints({r, 10 * r});
    EXPECT_TRUE(at::equal(broadcast(world.everyone(), mine, 2).tensor(), ints({2, 20})));
    EXPECT_TRUE(at::equal(permute(world.everyone(), mine, Lengths{2, 0, 1}).tensor(),
                          ints({(r + 1) % 3, 10 * ((r + 1) % 3)})));
    EXPECT_TRUE(at::equal(mine, ints({r, 10 * r})));
    // Ranks 0 and 1 change places; what rank 1 holds has no elements.
    const std::vector<Lengths> shapes{{2}, {0, 3}, {1}};
    const Tensors pieces{ints({1, 2}), ints({}, {0, 3}), ints({5})};
    const at::Tensor got =
        permute(world.everyone(), pieces[static_cast<std::size_t>(r)], Lengths{1, 0, 2}, shapes)
            .tensor();
    EXPECT_TRUE(at::equal(got, pieces[r == 2 ? 2 : r == 0 ? 1 : 0]));
  });
}

TEST(CollectivesOfThree, ResultsHaveMemoryOfTheirOwn) {
  run_in_process(3, [](World& world) {
    const Comm all = world.everyone();
    const at::Tensor mine = at::full({3}, world.rank() + 1.0);
    for (const at::Tensor& got :
         {all_reduce(all, mine, kSum).tensor(), all_gather(all, mine, 0).tensor(),
          broadcast(all, mine, 0).tensor(), broadcast(all, mine, 2).tensor(),
          reduce_scatter(all, mine, 0, kSum).tensor(),
          permute(all, mine, Lengths{0, 1, 2}).tensor()}) {
      got.fill_(-1);
    }
    EXPECT_TRUE(at::equal(mine, at::full({3}, world.rank() + 1.0)));
  });
}

TEST(CollectivesOfThree, NothingIsSentWhereNothingIs) {
  run_in_process(3, [](World& world) {
    const Comm all = world.everyone();
    const at::Tensor none = at::zeros({0, 3});
    EXPECT_EQ(all_gather(all, none, 0).tensor().sizes(), none.sizes());
    EXPECT_EQ(all_reduce(all, none, kSum).tensor().sizes(), none.sizes());
    EXPECT_EQ(reduce_scatter(all, none, 1, kSum).tensor().sizes(), at::IntArrayRef({0, 1}));
    EXPECT_EQ(broadcast(all, none, 0).tensor().sizes(), none.sizes());
    EXPECT_EQ(calls_of(world), "");
  });
}

TEST(CollectivesOfThree, RefusalsComeBeforeTheFirstCall) {
  run_in_process(3, [](World& world) {
    const Comm all = world.everyone();
    const at::Tensor x = at::ones({4, 3});
    for (const auto& call : std::vector<std::function<void()>>{
             [&] {
               all_gather(all, x, 0, Lengths{4, 4});
             },
             [&] { all_reduce(all, x, Placement::replicate()); },
             [&] { reduce_scatter(all, x, 0, kSum); },
             [&] { all_to_all(all, x, 0, 1); },
             [&] { broadcast(all, x, 3); },
             [&] {
               permute(all, x, Lengths{0, 1, 1});
             },
         }) {
      EXPECT_THROW(call(), ValueError);
    }
    EXPECT_EQ(calls_of(world), "");
    barrier(all);
    EXPECT_EQ(calls_of(world), "barrier 0; ");
  });
}

TEST(CollectivesOfOne, GiveTheInputOutsideAutograd) {
  const auto world = World::connect(Rendezvous{});
  const Comm one = world->everyone();
  const at::Tensor x = at::tensor({-3.0, 4.0}).set_requires_grad(true);
  for (const at::Tensor& got :
       {all_gather(one, x, 0).tensor(), all_reduce(one, x, kSum).tensor(),
        reduce_scatter(one, x, 0, kSum).tensor(), all_to_all(one, x, 0, 0).tensor(),
        broadcast(one, x, 0).tensor(), permute(one, x, Lengths{0}).tensor()}) {
    EXPECT_EQ(got.data_ptr(), x.data_ptr());
    EXPECT_FALSE(got.requires_grad());
  }
  const at::Tensor norm = reduce_scatter(one, x, 0, Placement::partial_norm(3)).tensor();
  EXPECT_TRUE(at::equal(norm, at::tensor({3.0, 4.0})));
  barrier(one);
  EXPECT_EQ(calls_of(*world), "");
}

TEST(CollectivesInLockstep, TakeLengthsForEachMember) {
  const Lockstep lockstep("[dp=2,tp=2]");
  World& world = lockstep.world();
  const Comm tp = world.along(lockstep.mesh(), {"tp"});
  const Tensors pieces{ints({1}), ints({2, 3}), ints({4, 5}), ints({})};
  Pending gathered = all_gather(tp, pieces, 0, Lengths{1, 2, 1, 2, 2, 0, 2, 0});
  EXPECT_TRUE(gathered.done());
  EXPECT_TRUE(at::equal(gathered.wait()[1], ints({1, 2, 3})));
  EXPECT_TRUE(at::equal(gathered.wait()[3], ints({4, 5})));
  const Tensors partials{ints({1, 2}), ints({3, 4}), ints({5, 6, 7}), ints({8, 9, 10})};
  const auto scattered =
      reduce_scatter(tp, partials, 0, kSum, Lengths{1, 1, 1, 1, 0, 3, 0, 3}).wait();
  EXPECT_TRUE(at::equal(scattered[1], ints({6})));
  EXPECT_EQ(scattered[2].numel(), 0);
  EXPECT_TRUE(at::equal(scattered[3], ints({13, 15, 17})));
  barrier(tp);
  EXPECT_EQ(calls_of(world), "all_gather 40; reduce_scatter 80; barrier 0; ");
}

}  // namespace
}  // namespace intarsia

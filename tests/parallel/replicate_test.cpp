#include "intarsia/replicate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "parallel/replicate/buckets.h"
#include "parallel/training.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::Clearing;
using testing::expect_error;
using testing::Net;
using testing::train_beside;
using testing::Training;
using testing::values;

const Mesh kTwo = Mesh::parse("[dp=2]");
const std::vector<std::string> kDp{"dp"};

void on_ranks(int n, const std::function<void(World&)>& body) {
  run_in_process(n, body, {.timeout = std::chrono::seconds(30)});
}

Tensor leaf(std::vector<std::int64_t> sizes, std::uint64_t seed) {
  return values(std::move(sizes), seed).set_requires_grad(true);
}

// ---- buckets -----------------------------------------------------------------------------------

TEST(Buckets, CloseBeforeTheyGrowTooLarge) {
  const std::vector<Parcel> parcels{{.bytes = 4}, {.bytes = 5}, {.bytes = 6}, {.bytes = 2}};
  const std::vector<std::size_t> order{3, 2, 1, 0};
  const auto buckets = make_buckets(parcels, order, {.first = 4, .others = 9});
  EXPECT_EQ(buckets, (std::vector<std::vector<std::size_t>>{{3}, {2}, {1, 0}}));
}

TEST(Buckets, TakeALargeParcelAlongWhereTheyAreSmall) {
  const std::vector<Parcel> parcels{{.bytes = 40}, {.bytes = 1}, {.bytes = 30}, {.bytes = 1}};
  const std::vector<std::size_t> order{3, 2, 1, 0};
  const auto buckets = make_buckets(parcels, order, {.first = 4, .others = 9});
  EXPECT_EQ(buckets, (std::vector<std::vector<std::size_t>>{{3, 2}, {1, 0}}));
}

TEST(Buckets, HoldOneDtypeEachAndAreInTheOrderInWhichTheyAreFull) {
  const std::vector<Parcel> parcels{{.dtype = at::kFloat, .bytes = 4},
                                    {.dtype = at::kDouble, .bytes = 8},
                                    {.dtype = at::kFloat, .bytes = 4},
                                    {.dtype = at::kDouble, .bytes = 8}};
  const std::vector<std::size_t> order{0, 1, 3, 2};
  const auto buckets = make_buckets(parcels, order, {.first = 100, .others = 100});
  EXPECT_EQ(buckets, (std::vector<std::vector<std::size_t>>{{1, 3}, {0, 2}}));
}

// ---- beside one process on the whole batch -----------------------------------------------------

TEST(Replicate, TrainsLikeOneProcessOnTheWholeBatch) {
  for (const int n : {2, 3, 4}) on_ranks(n, [](World& world) { train_beside(world, {}); });
}

TEST(Replicate, TrainsWithGradientsSetToZero) {
  on_ranks(3, [](World& world) { train_beside(world, {.clearing = Clearing::to_zero}); });
}

TEST(Replicate, TrainsWithSmallBuckets) {
  for (const std::int64_t bytes : {1, 100, 300}) {
    const ReplicateOptions options{
        .bucket_bytes = bytes, .first_bucket_bytes = 80, .buffers = BufferSync::averaged};
    on_ranks(2, [&](World& world) { train_beside(world, {.options = options}); });
  }
}

TEST(Replicate, AveragesWhatWasAccumulatedWithinNoSync) {
  for (const Clearing clearing : {Clearing::to_none, Clearing::to_zero}) {
    on_ranks(2,
             [&](World& world) { train_beside(world, {.clearing = clearing, .accumulated = 3}); });
  }
}

TEST(Replicate, GraphsMayDifferBetweenRanksAndSteps) {
  const auto route = [](std::int64_t rank, int step) {
    return static_cast<int>((rank + step) % 3);
  };
  for (const std::int64_t bytes : {1, 300, 1 << 20}) {
    const ReplicateOptions options{
        .bucket_bytes = bytes, .first_bucket_bytes = bytes, .buffers = BufferSync::averaged};
    for (const Clearing clearing : {Clearing::to_none, Clearing::to_zero}) {
      on_ranks(3, [&](World& world) {
        train_beside(world, {.clearing = clearing, .route = route, .options = options});
      });
    }
  }
}

TEST(Replicate, LateRanksChangeNothing) {
  InProcessOptions options;
  options.fault = [](const FaultPoint& at) {
    return Fault{.delay = std::chrono::milliseconds((at.rank * 7 + at.sequence) % 4)};
  };
  run_in_process(
      3, [](World& world) { train_beside(world, {.steps = 4}); }, options);
}

TEST(Replicate, AveragesOverSeveralAxesAndAlongOneOfThem) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_ranks(4, [&](World& world) {
    const auto average = [&](const std::vector<std::string>& axes) {
      Tensor w = leaf({3}, 1);
      const auto replica = replicate({{{"w", w}}, {}}, world, mesh, axes);
      (w * static_cast<double>(world.rank())).sum().backward();
      return w.grad()[0].item<double>();
    };
    EXPECT_EQ(average({"dp", "tp"}), 1.5);
    EXPECT_EQ(average({"dp"}), world.rank() % 2 == 0 ? 1.0 : 2.0);
    EXPECT_EQ(average({"tp"}), world.rank() < 2 ? 0.5 : 2.5);
  });
}

// ---- what a round does -------------------------------------------------------------------------

TEST(Replicate, ThousandSmallParametersTravelInOneBucket) {
  on_ranks(2, [](World& world) {
    ReplicatedTensors tensors;
    for (int i = 0; i < 1000; ++i) {
      tensors.parameters.push_back({"p" + std::to_string(i), leaf({3}, static_cast<unsigned>(i))});
    }
    const auto replica = replicate(tensors, world, kTwo, kDp);
    for (int step = 0; step < 3; ++step) {
      Tensor loss = at::zeros({}, at::kDouble);
      const double factor = static_cast<double>(world.rank()) + 1;
      for (std::size_t i = 0; i < 1000; ++i) {
        tensors.parameters[i].tensor.mutable_grad().reset();
        loss = loss + tensors.parameters[i].tensor.sum() * (factor * static_cast<double>(i));
      }
      loss.backward();
      for (std::size_t i = 0; i < 1000; ++i) {
        const Tensor want = at::full({3}, 1.5 * static_cast<double>(i), at::kDouble);
        ASSERT_TRUE(at::equal(tensors.parameters[i].tensor.grad(), want)) << i;
      }
    }
    const ReplicaCounters counters = replica->counters();
    EXPECT_EQ(counters.buckets, 1U);
    EXPECT_EQ(counters.copies, 3000U);              // one for each gradient
    EXPECT_EQ(counters.collectives, 1U + 3U + 1U);  // values, gradients, and once their order
  });
}

TEST(Replicate, ZeroedGradientsAreNotCopied) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({8}, 1);
    const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
    for (int step = 0; step < 4; ++step) {
      if (step > 0) w.mutable_grad().zero_();
      (w * 2).sum().backward();
      EXPECT_TRUE(at::equal(w.grad(), at::full({8}, 2.0, at::kDouble)));
    }
    EXPECT_EQ(replica->counters().copies, 1U);
  });
}

TEST(Replicate, GradientsThatAreNotClearedAddUp) {
  on_ranks(3, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=3]");
    Tensor w = leaf({4}, 1);
    const auto replica = replicate({{{"w", w}}, {}}, world, mesh, kDp);
    const double mine = static_cast<double>(world.rank());
    for (int step = 1; step <= 3; ++step) {
      (w * mine).sum().backward();
      EXPECT_TRUE(at::allclose(w.grad(), at::full({4}, 1.0 * step, at::kDouble)));
    }
  });
}

TEST(Replicate, WhatNobodyUsedKeepsItsGradient) {
  on_ranks(3, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=3]");
    Tensor used = leaf({2}, 1);
    Tensor idle = leaf({2}, 2);
    Tensor old = leaf({2}, 3);
    const auto replica =
        replicate({{{"used", used}, {"idle", idle}, {"old", old}}, {}}, world, mesh, kDp);
    (old * 0.1 + used).sum().backward();
    const Tensor before = old.grad().clone();
    used.sum().backward();
    EXPECT_FALSE(idle.grad().defined());
    EXPECT_TRUE(at::equal(old.grad(), before));  // bit by bit
    // One rank uses it: all have the sum of the old gradient and the average.
    (world.rank() == 2 ? (old * 3 + used).sum() : used.sum()).backward();
    EXPECT_TRUE(at::allclose(old.grad(), before + 1));
  });
}

TEST(Replicate, WhatOnlyNoSyncUsedIsAveragedByTheNextRound) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({2}, 1);
    Tensor other = leaf({2}, 2);
    const auto replica = replicate({{{"w", w}, {"other", other}}, {}}, world, kTwo, kDp);
    {
      const auto local = replica->no_sync();
      if (world.rank() == 1) (w * 4).sum().backward();
      replica->finish();  // does nothing here
    }
    EXPECT_EQ(w.grad().defined(), world.rank() == 1);
    other.sum().backward();
    EXPECT_TRUE(at::equal(w.grad(), at::full({2}, 2.0, at::kDouble)));
    EXPECT_EQ(replica->counters().rounds, 1U);
  });
}

TEST(Replicate, ARankWithoutGradientsFinishes) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({2}, 1);
    const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
    for (int step = 0; step < 3; ++step) {
      w.mutable_grad().reset();
      if (world.rank() == step % 2) {
        (w * 4).sum().backward();
      } else {
        replica->finish();
      }
      ASSERT_TRUE(w.grad().defined());
      EXPECT_TRUE(at::equal(w.grad(), at::full({2}, 2.0, at::kDouble)));
    }
    replica->finish();  // all of them: nobody used it
    EXPECT_TRUE(at::equal(w.grad(), at::full({2}, 2.0, at::kDouble)));
  });
}

TEST(Replicate, BucketsFollowTheOrderOfGradients) {
  on_ranks(2, [](World& world) {
    std::vector<Tensor> w;
    ReplicatedTensors tensors;
    for (int i = 0; i < 4; ++i) {
      w.push_back(leaf({4}, static_cast<unsigned>(i)));
      tensors.parameters.push_back({"p" + std::to_string(i), w.back()});
    }
    const auto replica =
        replicate(tensors, world, kTwo, kDp, {.bucket_bytes = 64, .first_bucket_bytes = 32});
    using Names = std::vector<std::vector<std::string>>;
    EXPECT_EQ(replica->buckets(), (Names{{"p3"}, {"p2", "p1"}, {"p0"}}));
    // Used in the order 2, 0, 3, 1: gradients come the other way round.
    const auto step = [&] {
      for (Tensor& p : w) p.mutable_grad().reset();
      Tensor h = values({4}, 9);
      for (const std::size_t i : {2, 0, 3, 1}) h = (h * w[i]).tanh();
      h.sum().backward();
    };
    step();
    EXPECT_EQ(replica->buckets(), (Names{{"p1"}, {"p3", "p0"}, {"p2"}}));
    const Tensor before = w[2].grad().clone();
    step();
    EXPECT_TRUE(at::equal(w[2].grad(), before));
    EXPECT_EQ(replica->counters().buckets, 3U);
  });
}

TEST(Replicate, ReducesInAnotherDtype) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({64}, 1).detach().to(at::kFloat).set_requires_grad(true);
    const auto replica =
        replicate({{{"w", w}}, {}}, world, kTwo, kDp, {.reduce_dtype = at::kBFloat16});
    const Tensor factor = values({64}, 7 + static_cast<unsigned>(world.rank()), at::kFloat);
    for (int step = 1; step <= 2; ++step) {
      w.mutable_grad().reset();
      (w * factor).sum().backward();
      const Tensor want = (values({64}, 7, at::kFloat) + values({64}, 8, at::kFloat)) / 2;
      EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(at::allclose(w.grad(), want, 0.01, 0.01));
      EXPECT_FALSE(at::equal(w.grad(), want));  // it was rounded on the way
    }
    const BillEntry sent = bill(world).entries[0];
    EXPECT_EQ(sent.count, 2U);
    EXPECT_EQ(sent.calls, 4U) << "partial values to the ranks that add them, and sums to all";
    EXPECT_EQ(sent.bytes, 2U * ((64 + 1) + (32 + 1)) * 2);
  });
}

TEST(Replicate, HalvesAndComplexNumbersAreReducedToo) {
  on_ranks(3, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=3]");
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kComplexDouble}) {
      Tensor w = at::ones({5}, dtype).set_requires_grad(true);
      const auto replica = replicate({{{"w", w}}, {}}, world, mesh, kDp);
      at::real((w * static_cast<double>(3 * world.rank())).sum()).backward();
      EXPECT_TRUE(at::allclose(w.grad(), at::full({5}, 3, dtype), 0.02));
    }
  });
}

TEST(Replicate, KeepsTheStridesOfParameters) {
  on_ranks(2, [](World& world) {
    Tensor w = values({2, 3, 4, 4}, 1).contiguous(at::MemoryFormat::ChannelsLast);
    w.set_requires_grad(true);
    const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
    (w * values({2, 3, 4, 4}, 2)).sum().backward();
    EXPECT_EQ(w.grad().strides(), w.strides());
    EXPECT_TRUE(at::allclose(w.grad(), values({2, 3, 4, 4}, 2)));
  });
}

TEST(Replicate, BuffersAreKeptAsTheOptionSays) {
  on_ranks(2, [](World& world) {
    const auto after = [&](BufferSync how) {
      Tensor w = leaf({2}, 1);
      Tensor mean = at::zeros({3});
      Tensor steps = at::zeros({}, at::kLong);
      const auto replica = replicate({{{"w", w}}, {{"mean", mean}, {"steps", steps}}}, world, kTwo,
                                     kDp, {.buffers = how});
      mean.fill_(world.rank() + 1);
      steps.fill_(world.rank() + 5);
      w.sum().backward();
      return std::pair(mean[0].item<double>(), steps.item<std::int64_t>());
    };
    EXPECT_EQ(after(BufferSync::from_first), (std::pair<double, std::int64_t>(1.0, 5)));
    EXPECT_EQ(after(BufferSync::averaged), (std::pair<double, std::int64_t>(1.5, 5)));
    EXPECT_EQ(after(BufferSync::own),
              (std::pair<double, std::int64_t>(world.rank() + 1.0, world.rank() + 5)));
  });
}

TEST(Replicate, TheBillHasALineForEachBucket) {
  on_ranks(2, [](World& world) {
    Tensor a = leaf({4}, 1);
    Tensor b = leaf({6}, 2);
    const auto replica = replicate({{{"a", a}, {"b", b}}, {}}, world, kTwo, kDp,
                                   {.bucket_bytes = 16, .first_bucket_bytes = 16});
    clear_bill(world);
    const Budget budget(world);
    for (int i = 0; i < 2; ++i) (a.sum() + b.sum()).backward();
    budget.expect("4 P->R, 1 R->R");  // the order of gradients, once
    const Bill sent = bill(world);
    std::uint64_t bytes = 0;
    for (const BillEntry& e : sent.entries) {
      EXPECT_EQ(e.op, "replicate");
      EXPECT_EQ(e.axis, "dp");
      EXPECT_TRUE(e.backward);
      EXPECT_FALSE(e.implicit);
      bytes += e.bytes;
    }
    EXPECT_EQ(bytes, 2U * 8 * (4 + 6 + 2) + 3 * 8);
    EXPECT_NE(sent.to_string().find("bucket 0, f64[6], b"), std::string::npos) << sent.to_string();
  });
}

TEST(Replicate, GroupsOfOneCostNothing) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[dp=1]");
  Tensor w = leaf({2}, 1);
  const auto replica = replicate({{{"w", w}}, {}}, *world, mesh, kDp);
  const auto local = replica->no_sync();
  w.sum().backward();
  replica->finish();
  EXPECT_EQ(replica->counters().collectives, 0U);
  EXPECT_TRUE(replica->buckets().empty());
  EXPECT_EQ(bill(*world).count(), 0U);
}

TEST(Replicate, HooksEndWithTheReplica) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({2}, 1);
    for (int i = 0; i < 2; ++i) {
      const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
      w.mutable_grad().reset();
      (w * static_cast<double>(world.rank())).sum().backward();
      EXPECT_EQ(w.grad()[0].item<double>(), 0.5);
    }
    w.mutable_grad().reset();
    (w * static_cast<double>(world.rank())).sum().backward();
    EXPECT_EQ(w.grad()[0].item<double>(), static_cast<double>(world.rank()));
  });
}

// ---- refusals and failures ---------------------------------------------------------------------

TEST(Replicate, NamesTheFirstTensorThatDiffers) {
  on_ranks(3, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=3]");
    const std::int64_t width = world.rank() == 2 ? 5 : 4;
    const ReplicatedTensors tensors{{{"a", leaf({2}, 1)}, {"b", leaf({3, width}, 2)}}, {}};
    expect_error<WorldError>([&] { (void)replicate(tensors, world, mesh, kDp); },
                             {"[replicate] the ranks of group [g=3] have different models",
                              "the rank at 0 of the group has parameter 'b' f64[3, 4]",
                              "the one at 2 has parameter 'b' f64[3, 5]"});
    ReplicatedTensors fewer{{{"a", leaf({2}, 1)}}, {}};
    if (world.rank() == 1) fewer.buffers.push_back({"mean", at::zeros({2})});
    expect_error<WorldError>([&] { (void)replicate(fewer, world, mesh, kDp); },
                             {"has nothing more, the one at 1 has buffer 'mean'"});
  });
}

TEST(Replicate, RefusesLockstep) {
  const auto world = lockstep_world(2);
  expect_error<UnsupportedError>(
      [&] {
        (void)replicate({{{"w", leaf({2}, 1)}}, {}}, *world, kTwo, kDp);
      },
      {"[replicate] all ranks of this world live in one process", "run_in_process"});
}

TEST(Replicate, RefusesWhatItCannotReplicate) {
  on_ranks(2, [](World& world) {
    const auto refused = [&](const Tensor& w, const ReplicateOptions& options = {}) {
      (void)replicate({{{"w", w}}, {}}, world, kTwo, kDp, options);
    };
    const Tensor ours = ones({4}, Layout::parse("S(0)", kTwo), world);
    expect_error<ValueError>([&] { refused(ours); },
                             {"'w' is a distributed tensor, f32[4@dp]", "takes plain ones"});
    expect_error<ValueError>([&] { refused(leaf({2}, 1) * 2); }, {"'w' is the result of an op"});
    expect_error<ValueError>([&] { refused(leaf({2}, 1), {.bucket_bytes = 0}); },
                             {"buckets hold at least 1 byte, not 0"});
    expect_error<ValueError>([&] { refused(leaf({2}, 1), {.reduce_dtype = at::kLong}); },
                             {"cannot be reduced in i64"});
    Tensor w = leaf({2}, 1);
    const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
    expect_error<ValueError>([&] { refused(w); }, {"parameter 'w' is replicated already"});
  });
}

TEST(Replicate, RefusesSparseGradients) {
  on_ranks(2, [](World& world) {
    Tensor table = leaf({5, 2}, 1);
    const auto replica = replicate({{{"table", table}}, {}}, world, kTwo, kDp);
    const Tensor rows = at::embedding(table, at::tensor({1, 2}), -1, false, /*sparse=*/true);
    expect_error<UnsupportedError>([&] { rows.sum().backward(); },
                                   {"the gradient of 'table' is sparse", "sparse=False"});
    // Nothing had been sent: the next backward is right.
    table.mutable_grad().reset();
    (table * static_cast<double>(world.rank())).sum().backward();
    EXPECT_EQ(table.grad()[0][0].item<double>(), 0.5);
  });
}

TEST(Replicate, RefusesGraphsOfGradients) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({3}, 1);
    const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
    expect_error<UnsupportedError>([&] { w.pow(3).sum().backward({}, true, true); },
                                   {"the gradient of 'w' has a graph of its own"});
    // The way out: gradients of gradients by grad().
    w.mutable_grad().reset();
    const Tensor g = torch::autograd::grad({w.pow(3).sum()}, {w}, {}, true, true)[0];
    g.square().sum().backward();
    EXPECT_TRUE(at::allclose(w.grad(), 36 * w.detach().pow(3)));
  });
}

TEST(Replicate, RefusesParametersThatAreUnfrozenLater) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({2}, 1);
    Tensor frozen = values({2}, 2);
    const auto replica = replicate({{{"w", w}, {"frozen", frozen}}, {}}, world, kTwo, kDp);
    (w * frozen).sum().backward();
    frozen.set_requires_grad(true);
    expect_error<ValueError>([&] { (w * frozen).sum().backward(); },
                             {"parameter 'frozen' was frozen", "call replicate again"});
    frozen.set_requires_grad(false);
    w.mutable_grad().reset();
    w.sum().backward();
    EXPECT_EQ(w.grad()[0].item<double>(), 1.0);
    w.set_requires_grad(false);  // frozen later: it is not used, that is all
    replica->finish();
    EXPECT_EQ(w.grad()[0].item<double>(), 1.0);
  });
}

/// Runs a backward within the backward.
struct Within : torch::autograd::Function<Within> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& w) {
    context->save_for_backward({w});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const at::AutoGradMode with_grad(true);
    (context->get_saved_variables()[0] * 2).sum().backward();
    return {grads[0], Tensor()};
  }
};

TEST(Replicate, RefusesABackwardWithinAnother) {
  on_ranks(2, [](World& world) {
    Tensor w = leaf({2}, 1);
    const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
    expect_error<UnsupportedError>([&] { Within::apply(leaf({2}, 3), w).sum().backward(); },
                                   {"a backward ran within another one", "use_reentrant=False"});
  });
}

/// Throws in backward.
struct Throws : torch::autograd::Function<Throws> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("of the user");
  }
};

TEST(Replicate, ABackwardThatThrewIsForgottenIfNothingWasSent) {
  on_ranks(2, [](World& world) {
    Tensor a = leaf({2}, 1);
    Tensor b = leaf({2}, 2);
    const auto replica = replicate({{{"a", a}, {"b", b}}, {}}, world, kTwo, kDp);
    expect_error<std::runtime_error>([&] { (Throws::apply(a) * b).sum().backward(); },
                                     {"of the user"});
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    ((a + b) * static_cast<double>(world.rank())).sum().backward();
    EXPECT_EQ(a.grad()[0].item<double>(), 0.5);
    EXPECT_EQ(b.grad()[0].item<double>(), 0.5);
  });
}

TEST(Replicate, ABackwardThatThrewOnAllRanksAfterSendingIsForgotten) {
  on_ranks(3, [](World& world) {
    Tensor a = leaf({2}, 1);
    Tensor b = leaf({2}, 2);
    const auto replica = replicate({{{"a", a}, {"b", b}}, {}}, world, Mesh::parse("[dp=3]"), kDp,
                                   {.bucket_bytes = 1, .first_bucket_bytes = 1});
    for (int again = 0; again < 3; ++again) {
      expect_error<std::runtime_error>([&] { (Throws::apply(a) * b).sum().backward(); },
                                       {"of the user"});
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      ((a + b) * static_cast<double>(world.rank())).sum().backward();
      EXPECT_EQ(a.grad()[0].item<double>(), 1.0);
      EXPECT_EQ(b.grad()[0].item<double>(), 1.0);
    }
  });
}

TEST(Replicate, ARankWhoseBackwardThrewAloneAfterSendingIsNamed) {
  run_in_process(
      2,
      [](World& world) {
        Tensor a = leaf({2}, 1);
        Tensor b = leaf({2}, 2);
        const auto replica = replicate({{{"a", a}, {"b", b}}, {}}, world, kTwo, kDp,
                                       {.bucket_bytes = 1, .first_bucket_bytes = 1});
        if (world.rank() == 0) {
          expect_error<WorldError>([&] { (a * b).sum().backward(); }, {"did not finish"});
          return;
        }
        expect_error<std::runtime_error>([&] { (Throws::apply(a) * b).sum().backward(); },
                                         {"of the user"});
        expect_error<WorldError>(
            [&] { (a * b).sum().backward(); },
            {"that of rank 1 ended with an error, but rank 0 did not come", "begin anew"});
        expect_error<WorldError>([&] { replica->finish(); },
                                 {"a round before this failed", "that of rank 1 ended"});
      },
      {.timeout = std::chrono::milliseconds(500)});
}

TEST(Replicate, ALostRankIsAWorldErrorOfBackward) {
  InProcessOptions options;
  options.timeout = std::chrono::milliseconds(200);
  options.fault = [](const FaultPoint& at) {
    return Fault{.drop = at.rank == 1 && at.kind == "all_reduce"};
  };
  run_in_process(
      2,
      [](World& world) {
        Tensor w = leaf({2}, 1);
        const auto replica = replicate({{{"w", w}}, {}}, world, kTwo, kDp);
        expect_error<WorldError>(
            [&] { w.sum().backward(); },
            {"[all_reduce] over group [g=2] did not finish", "bucket 0, f64[2], w for replicate"});
        expect_error<WorldError>([&] { w.sum().backward(); }, {"a round before this failed"});
      },
      options);
}

}  // namespace
}  // namespace intarsia

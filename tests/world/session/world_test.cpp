#include "intarsia/world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <thread>

#include "error_text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "world/collectives_check.h"
#include "world/gloo_threads.h"

namespace intarsia {
namespace {

using testing::expect_error;
const Placement kSum = Placement::partial();

TEST(World, AloneNeedsNoLauncherAndNoStore) {
  const auto world = World::connect(Rendezvous{});
  EXPECT_EQ(world->rank(), 0);
  EXPECT_EQ(world->size(), 1);
  EXPECT_GT(testing::check_collectives(*world), 500);
  EXPECT_EQ(world->ledger().totals().calls, 0U);
}

TEST(World, GroupsAreMadeOncePerSetOfRanks) {
  run_in_process(4, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
    const Comm tp = world.along(mesh, {"tp"});
    const Comm same = world.along(Mesh::parse("[a=2,x=2]"), {"x"});
    tp.connect();
    same.connect();
    EXPECT_EQ(tp.name(), same.name());
    EXPECT_EQ(tp.ledger_group(), same.ledger_group());
    EXPECT_EQ(tp.index(), world.rank() % 2);
    EXPECT_EQ(world.along(mesh, {"tp", "dp"}).index(), world.rank() % 2 * 2 + world.rank() / 2);
  });
}

TEST(World, GroupsAreMadeOnlyByTheirMembers) {
  run_in_process(4, [](World& world) {
    const Comm first_two = world.along(Mesh::parse("[x=2]"), {"x"});
    first_two.connect();  // the others have nothing to do
    EXPECT_EQ(world.ledger().groups(), world.rank() < 2 ? 1U : 0U);
    EXPECT_EQ(first_two.members().size(), world.rank() < 2 ? 1U : 0U);
  });
}

TEST(World, AProcessMayHostNoRank) {
  WorldParts parts;
  parts.hosted = {};
  parts.size = 4;
  const auto world = World::assemble(std::move(parts));
  const Comm all = world->everyone();
  EXPECT_TRUE(all.members().empty());
  EXPECT_TRUE(all_gather(all, at::TensorList(), 0).wait().empty());
  expect_error<ValueError>([&] { (void)world->rank(); }, {"hosts 0 ranks", "hosted()"});
  expect_error<ValueError>([&] { (void)all.index(); }, {"0 members", "members()"});
}

TEST(World, AdoptsAProcessGroupByName) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(2, [&](int rank) {
    BackendRequest request;
    request.store = store;
    request.index = rank;
    request.size = 2;
    request.timeout = std::chrono::seconds(30);
    request.address = "127.0.0.1";
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, 2);
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, make_gloo(request));
    const std::string name = "adopted" + std::to_string(rank);
    c10d::register_process_group(name, group);
    setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    {
      for (int round = 0; round < 2; ++round) {  // also a second time
        const auto world = World::adopt(name);
        EXPECT_EQ(world->rank(), rank);
        EXPECT_GT(testing::check_collectives(*world, /*quick=*/true), 500);
      }
    }
    c10d::unregister_process_group(name);
  });
  unsetenv("GLOO_SOCKET_IFNAME");
  expect_error<ValueError>([] { (void)World::adopt("nobody"); }, {"'nobody'", "group_name"});
}

TEST(World, AdoptsTheDeviceOfAGroupThatIsNotForTheCpu) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  BackendRequest request;
  request.store = store;
  request.timeout = std::chrono::seconds(30);
  request.address = "127.0.0.1";
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
  group->setBackend(at::kMeta, c10d::ProcessGroup::BackendType::GLOO, make_gloo(request));
  EXPECT_EQ(World::adopt(group)->device().type(), at::kMeta);
  group->setBoundDeviceId(at::Device(at::kMeta, 0));
  EXPECT_EQ(World::adopt(group)->device(), at::Device(at::kMeta, 0));
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, make_gloo(request));
  EXPECT_EQ(World::adopt(group)->device(), at::Device(at::kCPU));
  WorldOptions options;
  options.device = at::Device(at::kMeta, 0);
  EXPECT_EQ(World::adopt(group, options)->device(), at::Device(at::kMeta, 0));
}

TEST(World, ClosesItsGroupsAndSaysSoAfterwards) {
  run_in_process(2, [](World& world) {
    const Comm all = world.everyone();
    barrier(all);
    world.close();
    world.close();
    EXPECT_TRUE(world.closed());
    expect_error<WorldError>([&] { barrier(all); }, {"[g=2]", "closed"});
    expect_error<WorldError>([&] { (void)world.everyone(); }, {"closed"});
  });
}

TEST(World, CanBeMadeAgainAfterItWasClosed) {
  std::vector<Rendezvous> ranks(2);
  const int port = testing::free_port();
  for (int rank = 0; rank < 2; ++rank) {
    ranks[static_cast<std::size_t>(rank)].rank = rank;
    ranks[static_cast<std::size_t>(rank)].size = 2;
    ranks[static_cast<std::size_t>(rank)].port = port;
  }
  for (int round = 0; round < 3; ++round) {
    testing::in_threads(2, [&](int rank) {
      const auto world = World::connect(ranks[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(all_reduce(world->everyone(), at::ones({1}), kSum).tensor().item<float>(), 2);
    });
  }
}

TEST(World, UnreachableStoreSaysWhatToCheck) {
  Rendezvous r;
  r.rank = 1;
  r.size = 2;
  r.port = 9;  // nobody listens to "discard"
  r.launcher = Launcher::plain;
  expect_error<WorldError>([&] { World::connect(r, {.timeout = std::chrono::seconds(1)}); },
                           {"rank 1 of 2", "127.0.0.1:9", "has rank 0 started"});
}

TEST(World, RefusalsNameTheValues) {
  const auto world = World::connect(Rendezvous{});
  expect_error<ValueError>([&] { (void)world->along(Mesh::parse("[x=2]"), {"x"}); },
                           {"[x=2]", "rank 1", "1 ranks"});
  expect_error<ValueError>([&] { (void)world->along(Mesh::parse("[x=3]{0,5,1}"), {"x"}); },
                           {"rank 5"});
  expect_error<ValueError>([&] { (void)world->along(Mesh::parse("[x=1]"), {"y"}); }, {"'y'", "x"});
  // Without NCCL, or without a GPU: other words, the same way out.
  expect_error<UnsupportedError>([] { World::connect({.backend = "nccl"}); }, {"gloo"});
  expect_error<ValueError>(
      [] {
        World::assemble({.hosted = {0, 1}, .size = 3});
      },
      {"one rank, none, or all", "2 of 3"});
  expect_error<ValueError>([] { World::assemble({.hosted = {3}, .size = 2}); },
                           {"rank 3", "size 2"});
  const BackendRequest none;
  expect_error<Error>([&] { make_backend("nccl", none); }, {"nccl"});
  expect_error<UnsupportedError>([&] { make_backend("ucc", none); }, {"no ucc backend"});
  expect_error<UnsupportedError>([&] { make_backend("mpi", none); },
                                 {"MPI", "all processes together"});
  expect_error<ValueError>([&] { make_backend("carrier pigeon", none); },
                           {"'carrier pigeon'", "gloo"});
}

TEST(Collectives, MayBeWaitedForInAnyOrder) {
  run_in_process(2, [](World& world) {
    const Comm all = world.everyone();
    std::vector<Pending> two;
    for (const int value : {1, 10}) {
      two.push_back(all_reduce(all, at::full({4}, value, at::kBFloat16), kSum));
    }
    const auto first = static_cast<std::size_t>(world.rank());
    two[first].wait();
    two[1 - first].wait();
    EXPECT_EQ(two[0].tensor()[0].item<float>(), 2);
    EXPECT_EQ(two[1].tensor()[3].item<float>(), 20);
  });
}

TEST(Collectives, CutAndJoinAlongOneDimension) {
  run_in_process(2, [](World& world) {
    const at::Tensor mine = at::arange(3) + 10 * world.rank();
    const at::Tensor got = all_to_all(world.everyone(), mine, 0, 0, Coordinate{2, 1}).tensor();
    EXPECT_TRUE(at::equal(got, world.rank() == 0 ? at::tensor({0, 1, 10, 11}).to(at::kLong)
                                                 : at::tensor({2, 12}).to(at::kLong)));
  });
}

TEST(Collectives, AFailureIsThrownAgain) {
  InProcessOptions options;
  options.timeout = std::chrono::milliseconds(50);
  options.fault = [](const FaultPoint& at) { return Fault{.drop = at.rank == 1}; };
  run_in_process(
      2,
      [](World& world) {
        if (world.rank() == 1) return;
        Pending p = all_gather(world.everyone(), at::ones({2}), 0);
        for (int i = 0; i < 2; ++i) {
          expect_error<WorldError>([&] { p.wait(); }, {"[all_gather] over group [g=2]", "rank 1",
                                                       "#0 all_gather over [g=2] Float 8 B"});
        }
      },
      options);
}

TEST(Collectives, AGroupOfOneGivesTheSameAsMany) {
  const auto world = World::connect(Rendezvous{});
  const Comm one = world->everyone();
  const at::Tensor x = at::tensor({-3.0, 4.0});
  EXPECT_TRUE(at::equal(all_reduce(one, x, Placement::partial_norm(2)).tensor(), x.abs()));
  expect_error<ValueError>(
      [&] {
        all_gather(one, x, 0, Coordinate{7, 9});
      },
      {"1 ranks", "2 lengths"});
  expect_error<ValueError>([&] { reduce_scatter(one, x, 0, kSum, Coordinate{1}); },
                           {"add up to 1"});
}

TEST(Collectives, ZeroTensorsOfAutogradAreZeros) {
  run_in_process(2, [](World& world) {
    const at::Tensor zero = at::_efficientzerotensor({3}, at::kFloat);
    EXPECT_TRUE(at::equal(all_gather(world.everyone(), zero, 0).tensor(), at::zeros({6})));
    EXPECT_TRUE(at::equal(all_reduce(world.everyone(), zero, kSum).tensor(), at::zeros({3})));
  });
}

TEST(Collectives, MayRunWhileTheWorldIsClosed) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> missing = 2;
    run_in_process(2,
                   [&missing](World& world) {
                     const Comm all = world.everyone();
                     // They begin together, however busy the machine is: a barrier would time out.
                     --missing;
                     while (missing > 0) std::this_thread::yield();
                     std::thread closer([&world] { world.close(); });
                     try {
                       for (int i = 0; i < 50; ++i) (void)all_gather(all, at::ones({2}), 0);
                     } catch (const WorldError&) {
                       // closed, which is fine; freed memory would not be
                     }
                     closer.join();
                   },
                   {.timeout = std::chrono::milliseconds(200)});
  }
}

TEST(Collectives, AnEmptyNormKeepsItsDtype) {
  run_in_process(2, [](World& world) {
    const at::Tensor norm =
        all_reduce(world.everyone(), at::empty({0}, at::kHalf), Placement::partial_norm(2))
            .tensor();
    EXPECT_EQ(norm.scalar_type(), at::kHalf);
  });
}

TEST(Collectives, RefusalsNameTheValues) {
  run_in_process(2, [](World& world) {
    const Comm all = world.everyone();
    const at::Tensor x = at::ones({3, 2});
    const auto refuse = [](const std::function<void()>& call,
                           std::initializer_list<std::string> parts) {
      expect_error<ValueError>(call, parts);
    };
    refuse([&] { all_gather(all, {x, x}, 0); }, {"[all_gather]", "1 members", "2 tensors"});
    refuse([&] { all_gather(all, x, 2); }, {"dimension 2", "2 dimensions"});
    refuse([&] { all_gather(all, x, 0, Coordinate{1}); }, {"2 ranks", "1 lengths"});
    refuse([&] { all_gather(all, x, 0, Coordinate{4, 4}); }, {"3 long", "say 4"});
    refuse([&] { all_gather(all, at::Tensor(), 0); }, {"undefined"});
    refuse([&] { all_gather(all, x, 0, Coordinate{3, -1}); }, {"(3,-1)", "negative"});
    expect_error<UnsupportedError>([&] { all_reduce(all, x.to(at::kUInt16), kSum); },
                                   {"u16", "signed"});
    refuse([&] { all_reduce(all, x, Placement::shard(0)); }, {"S(0)", "P(sum)"});
    refuse([&] { all_reduce(all, at::ones({2}, at::kLong), Placement::partial(Reduction::avg)); },
           {"P(avg)", "i64", "P(sum) and divide"});
    refuse([&] { reduce_scatter(all, x, 0, kSum); }, {"length 3", "2 equal parts"});
    refuse(
        [&] {
          reduce_scatter(all, x, 0, kSum, Coordinate{2, 2});
        },
        {"(2,2)", "add up to 4", "3 long"});
    refuse([&] { all_to_all(all, x, 0, 1); }, {"[all_to_all]", "length 3"});
    refuse([&] { all_to_all(all, x, 1, 0, {}, Coordinate{4, 4}); }, {"3 long", "say 4"});
    refuse(
        [&] {
          permute(all, x, Coordinate{1, 0}, std::vector<std::vector<std::int64_t>>{{4}, {4}});
        },
        {"(3,2)", "say (4)"});
    refuse([&] { broadcast(all, x, 2); }, {"no rank at 2", "of 2"});
    refuse([&] { permute(all, x, Coordinate{0, 0}); }, {"(0,0)", "2 ranks"});
    refuse(
        [&] {
          permute(all, x, Coordinate{1, 0}, std::vector<std::vector<std::int64_t>>{{1}});
        },
        {"1 shapes"});
    const Comm other = world.along(Mesh::parse("[x=1]").range("x", 0, 1), {"x"});
    if (world.rank() == 1) {
      refuse([&] { all_gather(other, at::TensorList(), 0).tensor(); }, {"0 results", "wait()"});
    } else {  // alone in its group
      refuse(
          [&] { all_reduce(other, at::ones({2}, at::kLong), Placement::partial(Reduction::avg)); },
          {"P(avg)"});
      refuse([&] { (void)other.ledger_group(); }, {"one rank"});
      EXPECT_FALSE(
          all_gather(other, at::ones({2}).set_requires_grad(true), 0).tensor().requires_grad());
    }
    expect_error<UnsupportedError>([&] { all_gather(all, x.to_sparse(), 0); }, {"sparse", "dense"});
  });
}

}  // namespace
}  // namespace intarsia

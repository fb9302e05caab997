#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "error_text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "world/collectives_check.h"
#include "world/gloo_threads.h"
#include "world/transport/backends.h"
#include "world/transport/delayed_backend.h"
#include "world/transport/reductions.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;
using Clock = std::chrono::steady_clock;
using Lengths = std::vector<std::int64_t>;
const Placement kSum = Placement::partial();

BackendRequest request_for(const c10::intrusive_ptr<c10d::Store>& store, int index, int size) {
  BackendRequest request;
  request.store = store;
  request.index = index;
  request.size = size;
  request.timeout = std::chrono::seconds(30);
  request.address = "127.0.0.1";
  return request;
}

/// Ranks as threads, whose groups use shared memory.
void in_shared_memory(int size, const std::function<void(World&)>& body,
                      milliseconds timeout = std::chrono::seconds(30),
                      const testing::Wrap& wrap = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(size, [&](int rank) {
    WorldParts parts = testing::gloo_parts(rank, size, store);
    parts.timeout = timeout;
    parts.make_backend = [&](const std::string& name, int index,
                             const std::vector<std::int64_t>& ranks) {
      BackendRequest request = request_for(c10::make_intrusive<c10d::PrefixStore>(name, store),
                                           index, static_cast<int>(ranks.size()));
      request.timeout = timeout;
      request.ranks = ranks;
      Backend made = make_backend("shm", request);
      EXPECT_EQ(made->getBackendName(), "shm");
      return wrap ? wrap(std::move(made)) : made;
    };
    const auto world = World::assemble(std::move(parts));
    body(*world);
  });
}

/// What a rank brings: numbers whose sum depends on the order of terms.
at::Tensor values(std::int64_t rank, std::int64_t count, at::ScalarType type = at::kFloat) {
  const at::Tensor i = at::arange(count, at::kFloat);
  const at::Tensor v =
      (i * (0.37 + static_cast<double>(rank))).sin() * (10.0 * static_cast<double>(rank) + 1);
  return c10::isComplexType(type) ? at::complex(v, v.flip(0)).to(type) : v.to(type);
}

std::vector<at::Tensor> values_of_all(std::int64_t n, std::int64_t count,
                                      at::ScalarType type = at::kFloat) {
  std::vector<at::Tensor> all;
  for (std::int64_t r = 0; r < n; ++r) all.push_back(values(r, count, type));
  return all;
}

TEST(BackendShm, AllCollectivesOnFewRanks) {
  for (const int ranks : {2, 3, 4, 7}) {
    std::atomic<std::int64_t> checks = 0;
    in_shared_memory(ranks,
                     [&](World& world) { checks += testing::check_collectives(world, true); });
    EXPECT_GT(checks, 150 * ranks);
  }
}

// Slots hold 262,144 bytes, of which a part is taken by their head: lengths around one and several.
TEST(BackendShm, LengthsAroundThoseOfSlots) {
  for (const int ranks : {2, 3}) {
    in_shared_memory(ranks, [&](World& world) {
      const Comm comm = world.everyone();
      const std::int64_t n = world.size();
      for (const std::int64_t count : {0, 1, 5, 16'384, 65'450, 65'536, 65'537, 262'144, 700'001}) {
        const auto all = values_of_all(n, count * n);
        const at::Tensor mine = all[static_cast<std::size_t>(world.rank())];
        const at::Tensor sum = from_partials(combine(all, kSum), kSum, n, at::kFloat);
        ASSERT_TRUE(at::equal(all_gather(comm, mine, 0).tensor(), at::cat(all)));
        ASSERT_TRUE(at::equal(broadcast(comm, mine, n - 1).tensor(), all.back()));
        ASSERT_TRUE(at::equal(all_reduce(comm, mine, kSum).tensor(), sum));
        ASSERT_TRUE(at::equal(all_reduce(comm, mine.narrow(0, 0, count), kSum).tensor(),
                              sum.narrow(0, 0, count)));
        ASSERT_TRUE(at::equal(reduce_scatter(comm, mine, 0, kSum).tensor(),
                              sum.narrow(0, world.rank() * count, count)));
        std::vector<at::Tensor> arriving;
        for (const at::Tensor& t : all)
          arriving.push_back(t.narrow(0, world.rank() * count, count));
        ASSERT_TRUE(at::equal(all_to_all(comm, mine, 0, 0).tensor(), at::cat(arriving)));
      }
    });
  }
}

TEST(BackendShm, ExchangesOfVeryDifferentLengths) {
  // Rank i sends length[i][j] to rank j: nothing, little, and many rounds.
  const std::vector<Lengths> length{{0, 900'001, 3}, {1, 0, 0}, {400'000, 0, 70'000}};
  in_shared_memory(3, [&](World& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    Lengths joins;
    std::vector<at::Tensor> arriving;
    at::Tensor mine;
    for (std::size_t i = 0; i < 3; ++i) {
      std::int64_t begin = 0;
      std::int64_t total = 0;
      for (std::size_t j = 0; j < 3; ++j) {
        if (j < me) begin += length[i][j];
        total += length[i][j];
      }
      const at::Tensor theirs = values(static_cast<std::int64_t>(i), total);
      if (i == me) mine = theirs;
      joins.push_back(length[i][me]);
      arriving.push_back(theirs.narrow(0, begin, length[i][me]));
    }
    const Comm comm = world.everyone();
    for (int repeat = 0; repeat < 3; ++repeat) {
      ASSERT_TRUE(
          at::equal(all_to_all(comm, mine, 0, 0, length[me], joins).tensor(), at::cat(arriving)));
    }
  });
}

TEST(BackendShm, ReductionsAreThoseOfLockstepBitForBit) {
  for (const char* text : {"P(sum)", "P(avg)", "P(prod)", "P(min)", "P(max)"}) {
    const Placement how = Placement::parse(text);
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
      if (c10::isComplexType(type) && !is_linear(how)) continue;
      in_shared_memory(3, [&](World& world) {
        for (const std::int64_t count : {300, 120'000}) {
          auto all = values_of_all(3, count, type);
          if (!c10::isComplexType(type)) all[1][7] = std::nan("");
          const at::Tensor want = from_partials(combine(all, how), how, 3, type);
          const at::Tensor mine = all[static_cast<std::size_t>(world.rank())];
          const auto same = [](const at::Tensor& a, const at::Tensor& b) {
            return at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
          };
          const at::Tensor got = all_reduce(world.everyone(), mine, how).tensor();
          EXPECT_TRUE(same(got, want)) << text << ' ' << type << ' ' << count;
          const at::Tensor part = reduce_scatter(world.everyone(), mine, 0, how).tensor();
          EXPECT_TRUE(same(part, want.narrow(0, world.rank() * count / 3, count / 3)))
              << text << ' ' << type << ' ' << count;
        }
      });
    }
  }
}

TEST(BackendShm, CallsReturnAtOnceAndStayInOrder) {
  std::atomic<bool> called = false;
  in_shared_memory(2, [&](World& world) {
    const Comm comm = world.everyone();
    barrier(comm);
    while (world.rank() == 1 && !called) std::this_thread::sleep_for(milliseconds(1));
    std::vector<Pending> under_way;
    for (int k = 0; k < 20; ++k) {
      under_way.push_back(all_reduce(comm, at::full({100'000}, k + 1.0), kSum));
      under_way.push_back(all_gather(comm, at::full({3}, k + 0.5), 0));
    }
    if (world.rank() == 0) {
      EXPECT_FALSE(under_way[0].done());
      called = true;
    }
    for (int k = 19; k >= 0; --k) {
      const auto i = static_cast<std::size_t>(2 * k);
      ASSERT_TRUE(at::equal(under_way[i + 1].tensor(), at::full({6}, k + 0.5)));
      ASSERT_TRUE(at::equal(under_way[i].tensor(), at::full({100'000}, 2.0 * (k + 1))));
    }
    EXPECT_TRUE(under_way[0].done());
  });
}

TEST(BackendShm, SeveralGroupsAtOnce) {
  in_shared_memory(4, [](World& world) {
    const Mesh mesh({{"a", 2}, {"b", 2}});
    const std::vector<Comm> comms{world.along(mesh, {"a"}), world.along(mesh, {"b"}),
                                  world.everyone()};
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<Pending> under_way;
      for (const Comm& comm : comms) {
        under_way.push_back(
            all_reduce(comm, at::full({50'000}, static_cast<double>(world.rank())), kSum));
      }
      const auto r = static_cast<double>(world.rank());
      const std::vector<double> want{2 * static_cast<double>(world.rank() % 2) + 2,
                                     r < 2 ? 1.0 : 5.0, 6.0};
      for (std::size_t i = 3; i-- > 0;) {
        ASSERT_TRUE(at::equal(under_way[i].tensor(), at::full({50'000}, want[i]))) << i;
      }
    }
  });
}

TEST(BackendShm, WhoDoesNotComeIsNamedAndTheGroupIsOver) {
  std::atomic<int> told = 0;
  in_shared_memory(
      3,
      [&](World& world) {
        const Comm comm = world.everyone();
        comm.connect();
        if (world.rank() == 2) {
          while (told < 2) std::this_thread::sleep_for(milliseconds(1));
          all_reduce(comm, at::ones({4}), kSum).wait();  // the others had brought their terms
          expect_error<WorldError>([&] { barrier(comm); }, {"has closed: ", "did not come"});
          return;
        }
        expect_error<WorldError>(
            [&] { all_reduce(comm, at::ones({4}), kSum).wait(); },
            {"[all_reduce] over group [g=3] did not finish: ", "rank 2, which did not come"});
        expect_error<WorldError>([&] { barrier(comm); }, {"rank 2, which did not come"});
        ++told;
        while (told < 2) std::this_thread::sleep_for(milliseconds(1));
      },
      std::chrono::seconds(2));
}

TEST(BackendShm, DifferentCallsAreTold) {
  in_shared_memory(2, [](World& world) {
    const Comm comm = world.everyone();
    expect_error<WorldError>(
        [&] {
          if (world.rank() == 0) {
            all_gather(comm, at::ones({4}), 0).wait();
          } else {
            barrier(comm);
          }
        },
        {"called all_gather", "called barrier"});
  });
  in_shared_memory(2, [](World& world) {
    expect_error<WorldError>(
        [&] { all_gather(world.everyone(), at::ones({4 + world.rank()}), 0).wait(); },
        {"all_gather: rank ", " brings ", " bytes for rank ", ", which expects "});
  });
  // As many terms as one rank has in all, the other has for each rank.
  in_shared_memory(2, [](World& world) {
    expect_error<WorldError>(
        [&] {
          all_reduce(world.everyone(), at::ones({10'000 + 10'000 * world.rank()}), kSum).wait();
        },
        {"called all_reduce of 10000 Float by P(sum)",
         "called all_reduce of 20000 Float by P(sum)"});
  });
}

TEST(BackendShm, ClosingEndsWhatIsUnderWay) {
  in_shared_memory(3, [](World& world) {
    const Comm comm = world.everyone();
    barrier(comm);
    const auto begin = Clock::now();
    if (world.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      world.close();
    } else {
      expect_error<WorldError>([&] { all_reduce(comm, at::ones({1'000'000}), kSum).wait(); },
                               {"closed"});
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  });
  // Its own calls end too.
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(2, [&](int rank) {
    Backend backend = make_backend("shm", request_for(store, rank, 2));
    if (rank == 1) {
      store->get("over");
      return;
    }
    std::vector<at::Tensor> tensors{at::ones({1'000'000})};
    const auto first = backend->allreduce(tensors, {});
    const auto second = backend->allreduce(tensors, {});
    EXPECT_FALSE(first->isCompleted());
    const auto begin = Clock::now();
    backend.reset();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    EXPECT_TRUE(first->isCompleted() && second->isCompleted());
    EXPECT_FALSE(second->isSuccess());
    EXPECT_NE(second->exception(), nullptr);
    expect_error<WorldError>([&] { first->wait(); }, {"its group was closed"});
    store->set("over", std::vector<std::uint8_t>{1});
  });
}

TEST(BackendShm, AbortEndsWhatIsUnderWay) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(2, [&](int rank) {
    const Backend backend = make_backend("shm", request_for(store, rank, 2));
    if (rank == 0) {
      const auto work = backend->barrier({});
      backend->abort();
      expect_error<WorldError>([&] { work->wait(); }, {"this rank has closed"});
      store->set("aborted", std::vector<std::uint8_t>{1});
    } else {
      store->get("aborted");
      expect_error<WorldError>(
          [&] {
            backend->barrier({})->wait();
            backend->barrier({})->wait();
          },
          {"rank 0 has closed: its group was closed"});
    }
  });
}

TEST(BackendShm, OneRankAlone) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Backend backend = make_backend("shm", request_for(store, 0, 1));
  at::Tensor in = values(0, 1'000'000);
  at::Tensor out = at::zeros_like(in);
  std::vector<at::Tensor> tensors{in.clone()};
  std::vector<std::int64_t> counts;
  backend->_allgather_base(out, in, {})->wait();
  EXPECT_TRUE(at::equal(out, in));
  out.zero_();
  backend->alltoall_base(out, in, counts, counts, {})->wait();
  EXPECT_TRUE(at::equal(out, in));
  out.zero_();
  backend->_reduce_scatter_base(out, in, {})->wait();
  EXPECT_TRUE(at::equal(out, in));
  backend->allreduce(tensors, {})->wait();
  backend->broadcast(tensors, {})->wait();
  backend->barrier({})->wait();
  EXPECT_TRUE(at::equal(tensors[0], in));
}

TEST(BackendShm, RefusesInWords) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Backend backend = make_backend("shm", request_for(store, 0, 1));
  at::Tensor meta = at::empty({4}, at::kMeta);
  at::Tensor four = at::ones({4});
  at::Tensor five = at::ones({5});
  std::vector<at::Tensor> tensors{at::ones({4, 4}).t()};
  std::vector<std::int64_t> counts{3};
  expect_error<UnsupportedError>(
      [&] { backend->_allgather_base(meta, meta, {}); },
      {"[all_gather]", "tensors of the CPU", "on meta", "use the backend nccl"});
  expect_error<ValueError>([&] { backend->allreduce(tensors, {}); }, {"pass contiguous()"});
  expect_error<ValueError>([&] { backend->_allgather_base(five, four, {}); },
                           {"pieces of 16 bytes from 1 ranks do not make 20 bytes"});
  expect_error<ValueError>([&] { backend->_reduce_scatter_base(five, four, {}); },
                           {"16 bytes are not 1 parts of 20 bytes"});
  expect_error<ValueError>([&] { backend->alltoall_base(four, four, counts, counts, {}); },
                           {"the parts (3) do not make up a tensor of 4 elements"});
  BackendRequest cuda = request_for(store, 0, 1);
  cuda.device = at::Device(at::kCUDA, 0);
  expect_error<UnsupportedError>([&] { make_backend("shm", cuda); },
                                 {"on cuda:0", "use the backend nccl"});
}

TEST(BackendShm, ADelayedWireWrapsIt) {
  in_shared_memory(
      2,
      [](World& world) {
        const Comm comm = world.everyone();
        barrier(comm);
        const auto begin = Clock::now();
        Pending sum = all_reduce(comm, at::full({10}, 1.5), kSum);
        EXPECT_FALSE(sum.done());
        EXPECT_TRUE(at::equal(sum.tensor(), at::full({10}, 3.0)));
        EXPECT_GE(Clock::now() - begin, milliseconds(99));
      },
      std::chrono::seconds(30),
      [](Backend inner) {
        return delay_backend(std::move(inner), {milliseconds(100), 0});
      });
}

}  // namespace
}  // namespace intarsia

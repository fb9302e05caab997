#include "world/transport/shared_collectives.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"
#include "intarsia/error.h"
#include "world/gloo_threads.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;
using Ints = std::vector<std::int32_t>;
using Bytes = SharedCollectives::Bytes;
const Placement kSum = Placement::partial();

Bytes bytes_of(Ints& ints) { return std::as_writable_bytes(std::span(ints)); }
Bytes bytes_of(Ints& ints, std::size_t begin, std::size_t count) {
  return std::as_writable_bytes(std::span(ints).subspan(begin, count));
}

/// 0, 1, 2 and so on, from `first`.
Ints counting(std::size_t count, int first) {
  Ints out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

/// Ranks as threads, which errors call 10, 11, 12 and so on.
void among(int size, const std::function<void(SharedCollectives&, int)>& body,
           milliseconds timeout = std::chrono::seconds(30)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::int64_t> names(static_cast<std::size_t>(size));
  std::iota(names.begin(), names.end(), 10);
  testing::in_threads(size, [&](int rank) {
    const auto memory = make_host_memory(store, rank, size, SharedCollectives::bytes(),
                                         {std::chrono::seconds(30), names});
    SharedCollectives calls(*memory, names, timeout);
    body(calls, rank);
  });
}

TEST(SharedCollectives, GatherInTheOrderOfRanks) {
  among(3, [](SharedCollectives& calls, int rank) {
    Ints in{rank, 10 * rank};
    Ints out(6, -1);
    calls.all_gather(bytes_of(out), bytes_of(in));
    EXPECT_EQ(out, (Ints{0, 0, 1, 10, 2, 20}));
    calls.all_gather({}, {});  // nothing from nobody
    calls.barrier();
  });
}

TEST(SharedCollectives, ExchangePartsOfDifferentLengths) {
  // Rank r sends r elements to rank 0, one to rank 1 and nothing to rank 2.
  among(3, [](SharedCollectives& calls, int rank) {
    const auto n = static_cast<std::size_t>(rank);
    Ints in(n + 1, rank);
    in.back() = 100 + rank;
    Ints out(rank < 2 ? 3 : 0, -1);
    const std::vector<SharedCollectives::ConstBytes> parts{
        bytes_of(in, 0, n), bytes_of(in, n, 1), {}};
    if (rank == 0) {
      calls.all_to_all({bytes_of(out, 0, 0), bytes_of(out, 0, 1), bytes_of(out, 1, 2)}, parts);
      EXPECT_EQ(out, (Ints{1, 2, 2}));
    } else if (rank == 1) {
      calls.all_to_all({bytes_of(out, 0, 1), bytes_of(out, 1, 1), bytes_of(out, 2, 1)}, parts);
      EXPECT_EQ(out, (Ints{100, 101, 102}));
    } else {
      calls.all_to_all({Bytes(), Bytes(), Bytes()}, parts);
    }
  });
}

TEST(SharedCollectives, BroadcastFromAnyRoot) {
  among(3, [](SharedCollectives& calls, int rank) {
    for (int root = 0; root < 3; ++root) {
      Ints values{rank, rank + 5};
      calls.broadcast(bytes_of(values), root);
      EXPECT_EQ(values, (Ints{root, root + 5}));
    }
  });
}

TEST(SharedCollectives, ReduceInOneRoundOrTwo) {
  among(3, [](SharedCollectives& calls, int rank) {
    // 64 KiB are read by all at once, what is longer is reduced in parts, here uneven ones.
    for (const std::size_t count : {0U, 1U, 16384U, 16385U, 20000U}) {
      Ints values = counting(count, rank * 7);
      calls.all_reduce(bytes_of(values), at::kInt, kSum);
      for (std::size_t i = 0; i < count; ++i) values[i] -= 3 * static_cast<int>(i);
      EXPECT_TRUE(values == Ints(count, 21)) << count;
    }
  });
}

TEST(SharedCollectives, ReduceByMaximumAndAverage) {
  among(2, [](SharedCollectives& calls, int rank) {
    Ints in{rank, 5 - rank, rank * 2, -rank};
    Ints out(2);
    calls.reduce_scatter(bytes_of(out), bytes_of(in), at::kInt, Placement::partial(Reduction::max));
    EXPECT_EQ(out, rank == 0 ? (Ints{1, 5}) : (Ints{2, 0}));
    std::vector<double> value{rank + 1.0};
    calls.all_reduce(std::as_writable_bytes(std::span(value)), at::kDouble,
                     Placement::partial(Reduction::avg));
    EXPECT_EQ(value[0], 1.5);
  });
}

// A slot holds 65,536 integers less its head: one round, one more, and more rounds than slots.
TEST(SharedCollectives, SpreadWhatIsLongOverRounds) {
  among(2, [](SharedCollectives& calls, int rank) {
    for (const std::size_t count : {65'000U, 65'536U, 280'000U}) {
      Ints in = counting(count, rank * static_cast<int>(count));
      Ints out(2 * count, -1);
      calls.all_gather(bytes_of(out), bytes_of(in));
      EXPECT_TRUE(out == counting(2 * count, 0)) << count;
    }
  });
}

TEST(SharedCollectives, WhoBringsNothingTakesPartInAllRounds) {
  among(2, [](SharedCollectives& calls, int rank) {
    for (const std::size_t count : {1U, 280'000U}) {
      Ints in = counting(count, 0);
      Ints out(count, -1);
      if (rank == 0) {
        calls.all_to_all({Bytes(), Bytes()}, {Bytes(), bytes_of(in)});
      } else {
        calls.all_to_all({bytes_of(out), Bytes()}, {Bytes(), Bytes()});
        EXPECT_TRUE(out == in) << count;
      }
    }
  });
}

TEST(SharedCollectives, ManyCallsUseTheSlotsAgain) {
  among(3, [](SharedCollectives& calls, int rank) {
    for (int k = 0; k < 50; ++k) {
      Ints values{k * 10 + rank};
      calls.broadcast(bytes_of(values), k % 3);
      ASSERT_EQ(values[0], k * 10 + k % 3);
      calls.all_reduce(bytes_of(values), at::kInt, kSum);
      ASSERT_EQ(values[0], 3 * (k * 10 + k % 3));
    }
  });
}

TEST(SharedCollectives, OneRankGetsItsOwn) {
  among(1, [](SharedCollectives& calls, int) {
    Ints in{3, 4};
    Ints out(2);
    calls.all_gather(bytes_of(out), bytes_of(in));
    EXPECT_EQ(out, in);
    calls.all_reduce(bytes_of(out), at::kInt, kSum);
    calls.broadcast(bytes_of(out), 0);
    calls.barrier();
    EXPECT_EQ(out, in);
  });
}

/// The memory of the first of two ranks, which writes down what is reserved. The other is as quick.
class NotingMemory final : public SymmetricMemory {
 public:
  std::vector<std::pair<std::size_t, std::size_t>> reserved;

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::size_t bytes() const override { return memory_.size(); }
  std::byte* at(int) const override { return const_cast<std::byte*>(memory_.data()); }
  void reserve(std::size_t begin, std::size_t bytes) override {
    reserved.emplace_back(begin, bytes);
  }
  void signal(int slot, std::uint64_t value) override { signals_.at(slot) = value; }
  std::uint64_t value(int, int slot) const override { return signals_.at(slot); }
  void wait(int, int, std::uint64_t, Clock::time_point) override {}
  std::string why_gone(int) const override { return {}; }
  bool has_died(int) const override { return false; }
  void close(std::string_view) override {}

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(SharedCollectives::bytes());
  std::array<std::uint64_t, kSignals> signals_{};
};

// Memory that was not reserved may be missing when it is written to.
TEST(SharedCollectives, SlotsAreReservedAsFarAsTheyAreUsed) {
  NotingMemory memory;
  SharedCollectives calls(memory, {0, 1}, milliseconds(1000));
  using Reserved = std::vector<std::pair<std::size_t, std::size_t>>;
  Ints few{1, 2};
  for (int i = 0; i < 5; ++i) calls.broadcast(bytes_of(few), 0);  // the fifth in the first again
  EXPECT_EQ(memory.reserved,
            (Reserved{{0, 65536}, {262144, 65536}, {524288, 65536}, {786432, 65536}}));
  memory.reserved.clear();
  Ints many(20'000);  // 80,000 bytes in the second
  calls.broadcast(bytes_of(many), 0);
  EXPECT_EQ(memory.reserved, (Reserved{{262144 + 65536, 65536}}));
}

TEST(SharedCollectives, DifferentCallsAreNamed) {
  const auto refuse = [](const std::function<void(SharedCollectives&, int)>& body,
                         const std::string& as_zero, const std::string& as_one) {
    among(2, [&](SharedCollectives& calls, int rank) {
      expect_error<WorldError>([&] { body(calls, rank); }, {rank == 0 ? as_zero : as_one});
    });
  };
  refuse(
      [](SharedCollectives& calls, int rank) {
        Ints one{1};
        if (rank == 0) calls.barrier();
        if (rank == 1) calls.all_reduce(bytes_of(one), at::kInt, kSum);
      },
      "[shm] rank 10 called barrier, but rank 11 called all_reduce of 1 Int by P(sum)",
      "rank 11 called all_reduce of 1 Int by P(sum), but rank 10 called barrier");
  refuse(
      [](SharedCollectives& calls, int rank) {
        Ints in(static_cast<std::size_t>(rank) + 1);
        Ints out(in.size() * 2);
        calls.all_gather(bytes_of(out), bytes_of(in));
      },
      "[shm] all_gather: rank 11 brings 8 bytes for rank 10, which expects 4",
      "[shm] all_gather: rank 10 brings 4 bytes for rank 11, which expects 8");
}

TEST(SharedCollectives, WhoDoesNotComeIsNamed) {
  std::atomic<bool> over = false;
  among(
      2,
      [&](SharedCollectives& calls, int rank) {
        if (rank == 0) return over.wait(false);
        expect_error<WorldError>([&] { calls.barrier(); }, {" ms for rank 10, which did not come"});
        over = true;
        over.notify_all();
      },
      milliseconds(30));
}

}  // namespace
}  // namespace intarsia

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/symmetric_memory.h"
#include "world/gloo_threads.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;
using Clock = SymmetricMemory::Clock;
using Memory = std::unique_ptr<SymmetricMemory>;

constexpr std::size_t kBytes = 1 << 20;

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(20); }

/// Ranks as threads, each with its memory.
void with_memory(int size, const std::function<void(SymmetricMemory&)>& body,
                 const HostMemoryOptions& options = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(
      size, [&](int rank) { body(*make_host_memory(store, rank, size, kBytes, options)); });
}

/// The bytes that all our shared memory in this process takes up.
std::int64_t allocated() {
  std::int64_t sum = 0;
  DIR* all = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(all)) {
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    std::array<char, 128> target{};
    if (::readlink(path.c_str(), target.data(), target.size() - 1) < 0) continue;
    struct stat file {};
    if (std::string(target.data()).rfind("/memfd:intarsia", 0) != 0) continue;
    if (::stat(path.c_str(), &file) == 0) sum += file.st_blocks * 512;
  }
  ::closedir(all);
  return sum;
}

TEST(HostMemory, EveryRankReachesTheOthers) {
  for (const int size : {1, 2, 3, 4, 7}) {
    with_memory(size, [&](SymmetricMemory& memory) {
      EXPECT_EQ(memory.size(), size);
      EXPECT_EQ(memory.bytes(), kBytes);
      memory.reserve(0, kBytes);
      for (int round = 1; round <= 50; ++round) {
        std::byte* mine = memory.at(memory.rank()) + kBytes / 2 * (round % 2);
        std::memset(mine, 10 * memory.rank() + round, kBytes / 2);
        memory.signal(3, static_cast<std::uint64_t>(round));
        for (int r = 0; r < size; ++r) {
          memory.wait(r, 3, static_cast<std::uint64_t>(round), soon());
          const std::byte* theirs = memory.at(r) + kBytes / 2 * (round % 2);
          ASSERT_EQ(std::to_integer<int>(theirs[0]), 10 * r + round);
          ASSERT_EQ(std::to_integer<int>(theirs[kBytes / 2 - 1]), 10 * r + round);
        }
        memory.signal(4, static_cast<std::uint64_t>(round));
        for (int r = 0; r < size; ++r) {
          memory.wait(r, 4, static_cast<std::uint64_t>(round), soon());
        }
      }
    });
  }
}

TEST(HostMemory, ASleeperIsWoken) {
  with_memory(2, [](SymmetricMemory& memory) {
    const auto begin = Clock::now();
    if (memory.rank() == 0) {
      memory.wait(1, 1, 1, soon());  // it will sleep
      std::this_thread::sleep_for(milliseconds(30));
      memory.signal(0, 1);
    } else {
      memory.signal(1, 1);
      memory.wait(0, 0, 1, soon());
      EXPECT_GE(Clock::now() - begin, milliseconds(20));
      EXPECT_EQ(memory.value(0, 0), 1U);
    }
  });
}

TEST(HostMemory, WhoDoesNotComeIsNamed) {
  with_memory(4,
              [](SymmetricMemory& memory) {
                if (memory.rank() == 1) memory.signal(0, 1);
                if (memory.rank() == 0) {
                  memory.wait(1, 0, 1, soon());
                  expect_error<WorldError>(
                      [&] { memory.wait(2, 0, 1, Clock::now() + milliseconds(50)); },
                      {"waited ", " ms for rank 12, 13, which did not come"});
                }
                memory.signal(1, 1);
                memory.wait(0, 1, 1, soon());
              },
              {.names = {10, 11, 12, 13}});
}

TEST(HostMemory, ClosingEndsTheWaitsOfOthers) {
  with_memory(2, [](SymmetricMemory& memory) {
    if (memory.rank() == 0) {
      memory.signal(0, 7);
      memory.close("it has enough");
      memory.close("nobody reads this");
      return;
    }
    memory.wait(0, 0, 7, soon());  // what came before is not lost
    const auto begin = Clock::now();
    expect_error<WorldError>([&] { memory.wait(0, 0, 8, soon()); },
                             {"[SymmetricMemory] rank 0 has closed: it has enough"});
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  });
}

TEST(HostMemory, ClosingEndsItsOwnWaits) {
  with_memory(2, [](SymmetricMemory& memory) {
    if (memory.rank() == 0) {
      std::thread closes([&] {
        std::this_thread::sleep_for(milliseconds(20));
        memory.close("enough");
      });
      const auto begin = Clock::now();
      expect_error<WorldError>([&] { memory.wait(1, 0, 1, soon()); },
                               {"this rank has closed: enough"});
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
      closes.join();
    } else {
      expect_error<WorldError>([&] { memory.wait(0, 1, 1, soon()); },
                               {"rank 0 has closed: enough"});
    }
  });
}

TEST(HostMemory, TakesUpMemoryWhenItIsReserved) {
  with_memory(1, [](SymmetricMemory& memory) {
    const std::int64_t before = allocated();
    EXPECT_LT(before, 65536);
    memory.reserve(kBytes / 2, 262144);
    EXPECT_EQ(allocated() - before, 262144);
    memory.reserve(kBytes / 2, 262144);
    EXPECT_EQ(allocated() - before, 262144);
    expect_error<ValueError>([&] { memory.reserve(kBytes - 1, 2); },
                             {"2 bytes at 1048575 are not within the 1048576 bytes of a rank"});
  });
  EXPECT_EQ(allocated(), 0) << "nothing is left";
}

TEST(HostMemory, RanksOfSeveralHostsShareNone) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(3, [&](int rank) {
    HostMemoryOptions options;
    if (rank == 1) options.host = "elsewhere";
    EXPECT_EQ(make_host_memory(store, rank, 3, kBytes, options), nullptr);
  });
}

TEST(HostMemory, TheHostIsTheSameInOneProcess) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GT(host_identity().size(), 36U);
}

TEST(HostMemory, RefusesInWords) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  expect_error<ValueError>([&] { make_host_memory(store, 2, 2, kBytes); },
                           {"there is no rank 2 in a group of 2"});
  expect_error<ValueError>([&] { make_host_memory(store, 0, 2, kBytes, {.names = {1}}); },
                           {"1 names were given for 2 ranks"});
  expect_error<WorldError>(
      [&] { make_host_memory(store, 0, 1, std::size_t{1} << 60); },
      {"1152921504606846976 bytes of rank 0 could not be mapped", "use the backend gloo"});
  expect_error<WorldError>(
      [&] {
        make_host_memory(store, 0, 2, kBytes, {.timeout = milliseconds(50), .names = {4, 6}});
      },
      {"waited 50 ms for rank 6, which did not come to share memory"});
  const auto other = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(2, [&](int rank) {
    expect_error<ValueError>(
        [&] { make_host_memory(other, rank, 2, 100 + 100 * std::size_t(rank)); },
        {"all must ask for the same"});
  });
}

}  // namespace
}  // namespace intarsia

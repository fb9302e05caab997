#include "world/session/meeting.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;

Attendance rank_of(std::int64_t rank, std::int64_t size, std::string backend = "gloo") {
  return {rank, size, std::move(backend), "here", 1000 + rank};
}

/// What each of some processes is told, by place: empty where all is well.
std::vector<std::string> register_all(const std::vector<Attendance>& processes,
                                      milliseconds timeout = milliseconds(20000)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> told(processes.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        register_rank(*store, processes[i], processes[i].rank == 0, timeout);
      } catch (const WorldError& error) {
        told[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

void expect_in(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

TEST(Meeting, AllWhoComeMeet) {
  std::vector<Attendance> all;
  for (int rank = 0; rank < 4; ++rank) all.push_back(rank_of(rank, 4));
  for (const std::string& told : register_all(all)) EXPECT_EQ(told, "");
}

TEST(Meeting, ARankThatComesTwiceIsNamedToAll) {
  Attendance again = rank_of(2, 4);
  again.process = 77;
  const auto told = register_all({rank_of(0, 4), rank_of(1, 4), rank_of(2, 4), again});
  for (const std::string& text : told) {
    expect_in(text,
              {"two processes were started as rank 2", "process 1002 ", "process 77 ", "RANK"});
  }
}

TEST(Meeting, ARankThatComesAgainLaterIsAloneWithTheError) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::thread other([&] { register_rank(*store, rank_of(1, 2), false, milliseconds(20000)); });
  register_rank(*store, rank_of(0, 2), true, milliseconds(20000));
  other.join();
  Attendance again = rank_of(1, 2);
  again.process = 77;
  expect_error<WorldError>([&] { register_rank(*store, again, false, milliseconds(20000)); },
                           {"two processes were started as rank 1", "77"});
}

TEST(Meeting, WorldsOfOtherSizesAreNamedToAll) {
  for (const std::string& text :
       register_all({rank_of(0, 4), rank_of(1, 4), rank_of(2, 4), rank_of(3, 5)})) {
    expect_in(text, {"rank 3 (process 1003 on host here)", "of 4", "of 5", "in a world of ",
                     "WORLD_SIZE"});
  }
}

TEST(Meeting, OtherBackendsAreNamedToAll) {
  for (const std::string& text : register_all({rank_of(0, 2), rank_of(1, 2, "shm")})) {
    expect_in(text, {"gloo", "shm", "INTARSIA_BACKEND"});
  }
}

TEST(Meeting, ThoseWhoDoNotComeAreNamedAtTheTimeout) {
  for (const std::string& text : register_all({rank_of(0, 4), rank_of(2, 4)}, milliseconds(300))) {
    expect_in(text, {"waited 300 ms for ranks 1, 3 of 4, which did not come"});
  }
}

/// A socket at a loopback address that listens, and its port.
std::pair<int, int> listener() {
  const int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = ::inet_addr("127.0.0.1");
  ::bind(number, reinterpret_cast<sockaddr*>(&at), sizeof(at));
  ::listen(number, 4);
  socklen_t length = sizeof(at);
  ::getsockname(number, reinterpret_cast<sockaddr*>(&at), &length);
  return {number, ntohs(at.sin_port)};
}

Rendezvous rendezvous(int rank, int size, int port) {
  Rendezvous r;
  r.launcher = Launcher::plain;
  r.rank = rank;
  r.size = size;
  r.address = "127.0.0.1";
  r.port = port;
  return r;
}

TEST(Meeting, AServerThatIsNoStoreEndsAtTheTimeout) {
  const auto [number, port] = listener();
  expect_error<WorldError>([port = port] { (void)meet(rendezvous(1, 2, port), milliseconds(500)); },
                           {"could not reach the store", "127.0.0.1"});
  ::close(number);
}

TEST(Meeting, APortInUseIsRefused) {
  const auto [number, port] = listener();
  expect_error<WorldError>(
      [port = port] { (void)meet(rendezvous(0, 2, port), milliseconds(5000)); },
      {"could not listen there", "is the port free"});
  ::close(number);
}

bool answers(const char* address, int port) {
  const int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = ::inet_addr(address);
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool connected = ::connect(number, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
  ::close(number);
  return connected;
}

TEST(Meeting, TheStoreListensWhereMasterAddrSaysAndNowhereElse) {
  const auto [number, port] = listener();
  ::close(number);  // free again
  const auto store = meet(rendezvous(0, 2, port), milliseconds(5000));
  EXPECT_TRUE(answers("127.0.0.1", port));
  EXPECT_FALSE(answers("127.0.0.2", port));
}

}  // namespace
}  // namespace intarsia

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "error_text.h"
#include "world/gloo_threads.h"
#include "world/transport/backends.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;

BackendRequest request_for(const c10::intrusive_ptr<c10d::Store>& store, int index, int size,
                           const std::string& address = "127.0.0.1") {
  BackendRequest request;
  request.store = store;
  request.index = index;
  request.size = size;
  request.timeout = std::chrono::seconds(30);
  request.address = address;
  return request;
}

/// The sum of 1, 2, 3, ... over ranks that meet at an address.
void expect_sums(int size, const std::string& address, bool lazy = false) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(size, [&](int rank) {
    BackendRequest request = request_for(store, rank, size, address);
    request.lazy = lazy;
    const Backend backend = make_gloo(request);
    EXPECT_EQ(backend->getBackendName(), "gloo");
    EXPECT_EQ(backend->getRank(), rank);
    EXPECT_EQ(backend->getSize(), size);
    std::vector<at::Tensor> tensors{at::full({3}, rank + 1.0)};
    backend->allreduce(tensors)->wait();
    EXPECT_TRUE(at::equal(tensors[0], at::full({3}, size * (size + 1) / 2.0)));
  });
}

/// Sets a variable until the end of the scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(BackendGloo, RanksMeetInTheStore) {
  expect_sums(1, "127.0.0.1");
  expect_sums(3, "localhost");
}

// Others find a rank by what it has written to the store: a port and an address of IPv4.
TEST(BackendGloo, AJobThatMeetsOnLoopbackStaysThere) {
  for (const char* address : {"127.0.0.1", "127.8.9.1", "localhost", "::1"}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const Backend backend = make_gloo(request_for(store, 0, 1, address));
    const std::vector<std::uint8_t> written = store->get("0/0");
    const std::array<std::uint8_t, 4> loopback{127, 0, 0, 1};
    EXPECT_NE(std::search(written.begin(), written.end(), loopback.begin(), loopback.end()),
              written.end())
        << address;
  }
}

TEST(BackendGloo, LazyMembersConnectWhenTheyTalk) {
  BackendRequest request = request_for(c10::make_intrusive<c10d::HashStore>(), 0, 2);
  request.timeout = milliseconds(50);
  request.lazy = true;
  EXPECT_NE(make_gloo(request), nullptr) << "although the other never comes";
  request.lazy = false;
  request.store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_ANY_THROW(make_gloo(request));
  expect_sums(3, "127.0.0.1", /*lazy=*/true);
}

TEST(BackendGloo, TheTimeoutEndsItsWaits) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::in_threads(2, [&](int rank) {
    BackendRequest request = request_for(store, rank, 2);
    request.timeout = milliseconds(rank == 0 ? 100 : 20'000);
    const Backend backend = make_gloo(request);
    if (rank == 0) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_ANY_THROW(backend->barrier()->wait());
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
      store->set("given up", std::vector<std::uint8_t>{1});
    } else {
      store->get("given up");
    }
  });
}

TEST(BackendGloo, TheFirstNamedInterfaceIsTaken) {
  {
    const Variable interface("GLOO_SOCKET_IFNAME", "lo,nowhere0");
    expect_sums(2, "10.0.0.1");  // would not be loopback
  }
  {
    const Variable interface("GLOO_SOCKET_IFNAME", "nowhere0,lo");
    const auto store = c10::make_intrusive<c10d::HashStore>();
    expect_error<std::exception>([&] { make_gloo(request_for(store, 0, 1)); }, {"nowhere0"});
  }
  const Variable empty("GLOO_SOCKET_IFNAME", "");  // as if it were not set
  expect_sums(1, "127.0.0.1");
}

}  // namespace
}  // namespace intarsia

// Gloo ranks as threads of one process, on loopback, with a chance to wrap each backend.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/world.h"
#include "world/transport/backends.h"

namespace intarsia::testing {

using Wrap = std::function<Backend(Backend)>;

/// Parts of a world of `size` Gloo ranks that meet in `store`.
inline WorldParts gloo_parts(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
                             const Wrap& wrap = {}) {
  WorldParts parts;
  parts.hosted = {rank};
  parts.size = size;
  parts.timeout = std::chrono::seconds(30);
  parts.store = store;
  parts.make_backend = [store, wrap](const std::string& name, int index,
                                     const std::vector<std::int64_t>& ranks) {
    BackendRequest request;
    request.store = c10::make_intrusive<c10d::PrefixStore>(name, store);
    request.index = index;
    request.size = static_cast<int>(ranks.size());
    request.timeout = std::chrono::seconds(30);
    request.address = "127.0.0.1";
    const Backend gloo = make_gloo(request);
    return wrap ? wrap(gloo) : gloo;
  };
  return parts;
}

/// A port of loopback that nobody listened to a moment ago.
inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ::bind(fd, reinterpret_cast<const sockaddr*>(&address), length);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

/// Runs `body(rank)` in a thread for each rank, and throws the first error again.
inline void in_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace intarsia::testing

#include "world/transport/backends.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// A group of one rank.
BackendRequest alone() {
  BackendRequest request;
  request.store = c10::make_intrusive<c10d::HashStore>();
  request.timeout = std::chrono::seconds(30);
  request.address = "127.0.0.1";
  return request;
}

TEST(Backends, AreMadeByName) {
  for (const char* name : {"gloo", "shm"}) {
    const Backend backend = make_backend(name, alone());
    EXPECT_EQ(backend->getBackendName(), name);
    EXPECT_EQ(backend->getSize(), 1);
  }
}

TEST(Backends, EveryLibtorchHasGlooAndSharedMemory) {
  EXPECT_TRUE(has_backend("gloo"));
  EXPECT_TRUE(has_backend("shm"));
  for (const char* name : {"mpi", "Gloo", "glo", "gloo ", ""}) EXPECT_FALSE(has_backend(name));
}

TEST(Backends, CheckingMakesNone) {
  for (const char* name : {"gloo", "nccl", "shm", "ucc"}) {
    if (has_backend(name)) check_backend(name);  // there is no store that it could meet in
  }
}

TEST(Backends, AbsentOnesSaySo) {
  for (const std::string name : {"nccl", "ucc"}) {
    if (has_backend(name)) continue;
    expect_error<UnsupportedError>([&] { check_backend(name); }, {"no " + name + " backend"});
    expect_error<UnsupportedError>([&] { make_backend(name, alone()); },
                                   {"no " + name + " backend"});
  }
}

TEST(Backends, UnknownNamesAreRefused) {
  for (const auto& call :
       {std::function<void(const char*)>(check_backend),
        std::function<void(const char*)>([](const char* name) { make_backend(name, alone()); })}) {
    expect_error<ValueError>([&] { call("glo"); },
                             {"[World] there is no backend 'glo'; use gloo, shm, nccl or ucc"});
    expect_error<UnsupportedError>([&] { call("mpi"); }, {"all processes together", "mpirun"});
  }
}

}  // namespace
}  // namespace intarsia

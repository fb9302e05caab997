#include "world/transport/devices.h"

#include <gtest/gtest.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/world.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// A kind of device that no libtorch here has: three of them, and it counts who waits for which.
struct ThreeDevices final : c10::impl::NoOpDeviceGuardImpl<at::kMAIA> {
  static inline std::vector<int> waited;
  c10::DeviceIndex deviceCount() const noexcept override { return 3; }
  void synchronizeDevice(c10::DeviceIndex index) const override { waited.push_back(index); }
};
struct NoDevice final : c10::impl::NoOpDeviceGuardImpl<at::kFPGA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};
C10_REGISTER_GUARD_IMPL(MAIA, ThreeDevices);
C10_REGISTER_GUARD_IMPL(FPGA, NoDevice);

TEST(Devices, TheCpuIsAlwaysThere) {
  check_device(at::kCPU, "gloo");
  synchronize(at::kCPU);
}

TEST(Devices, ThoseThatAreThereMayBeUsed) {
  for (int i = 0; i < 3; ++i) check_device({at::kMAIA, static_cast<c10::DeviceIndex>(i)}, "gloo");
}

TEST(Devices, ThoseThatAreNotSayWhyAndWhatToDo) {
  expect_error<UnsupportedError>(
      [] {
        check_device({at::kMAIA, 3}, "gloo");
      },
      {"maia:3 cannot be used", "sees 3 maia devices", "at most 3"});
  expect_error<UnsupportedError>(
      [] {
        check_device({at::kFPGA, 0}, "gloo");
      },
      {"fpga:0 cannot be used", "sees no fpga device", "gloo or shm"});
  expect_error<UnsupportedError>(
      [] {
        check_device({at::kHPU, 0}, "gloo");
      },
      {"hpu:0 cannot be used", "built without hpu", "gloo or shm"});
}

TEST(Devices, NcclMovesCudaTensorsOnly) {
  expect_error<ValueError>([] { check_device(at::kCPU, "nccl"); }, {"not those of cpu"});
}

TEST(Devices, TheCurrentOneIsThatOfTheThread) {
  EXPECT_EQ(current_device(at::kCPU), at::Device(at::kCPU));
  EXPECT_EQ(current_device(at::kMAIA).type(), at::kMAIA);
}

TEST(Devices, SynchronizingWaitsForTheOneThatIsNamed) {
  ThreeDevices::waited.clear();
  synchronize({at::kMAIA, 2});
  EXPECT_EQ(ThreeDevices::waited, (std::vector<int>{2}));
}

/// With a libtorch for the CPU there is no NCCL, with a CUDA build on a machine without GPUs no
/// device: one sentence in both.
TEST(Devices, AWorldOnCudaSaysWhyItCannotBe) {
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA) &&
      c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() > 0) {
    GTEST_SKIP() << "there is a CUDA device here";
  }
  WorldOptions options;
  options.device = at::Device(at::kCUDA, 0);
  expect_error<UnsupportedError>([&] { World::connect(Rendezvous{}, options); },
                                 {"[World] ", "gloo"});
}

}  // namespace
}  // namespace intarsia

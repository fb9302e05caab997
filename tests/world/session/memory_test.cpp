#include "intarsia/memory.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>

#include <thread>

#include "error_text.h"
#include "intarsia/error.h"
#include "world/session/memory.h"

namespace intarsia {
namespace {

constexpr auto kCpu = c10::DeviceType::CPU;
constexpr auto kMeta = c10::DeviceType::Meta;

at::Tensor bytes(std::int64_t count, at::DeviceType device = kCpu) {
  return at::empty({count}, at::device(device).dtype(at::kByte));
}

TEST(MemoryMeter, CountsTheBytesThatTensorsHold) {
  const MemoryMeter meter;
  EXPECT_EQ(meter.live(), 0);
  at::Tensor a = at::empty({3, 5}, at::kFloat);
  EXPECT_EQ(meter.live(), 60);
  const at::Tensor view = a.t().narrow(0, 1, 2);
  EXPECT_EQ(meter.live(), 60) << "a view has no memory of its own";
  a.reset();
  EXPECT_EQ(meter.live(), 60) << "the view holds it";
  const at::Tensor b = bytes(7);
  EXPECT_EQ(meter.live(), 67);
}

TEST(MemoryMeter, PeaksAreOfWhatLivesTogether) {
  MemoryMeter meter;
  bytes(100);
  const at::Tensor a = bytes(30);
  bytes(40);
  EXPECT_EQ(meter.live(), 30);
  EXPECT_EQ(meter.peak(), 100);
  meter.reset();
  EXPECT_EQ(meter.peak(), 30);
  bytes(50);
  EXPECT_EQ(meter.peak(), 80);
}

TEST(MemoryMeter, WhatWasThereBeforeDoesNotCount) {
  const MemoryMeter first;
  at::Tensor before = bytes(100);
  const MemoryMeter second;
  const at::Tensor after = bytes(20);
  EXPECT_EQ(first.live(), 120);
  EXPECT_EQ(second.live(), 20);
  before.reset();
  EXPECT_EQ(first.live(), 20);
  EXPECT_EQ(second.live(), 20);
  EXPECT_EQ(second.peak(), 20);
}

TEST(MemoryMeter, TensorsOutliveMeters) {
  at::Tensor kept;
  const MemoryMeter outer;
  {
    const MemoryMeter inner;
    kept = bytes(10);
    EXPECT_EQ(inner.live(), 10);
  }
  kept.reset();
  EXPECT_EQ(outer.live(), 0);
}

TEST(MemoryMeter, DevicesAreCountedAsAskedFor) {
  const c10::impl::ExcludeDispatchKeyGuard pieces(kPieces);
  const MemoryMeter cpu;
  const MemoryMeter meta({kMeta});
  const MemoryMeter both({kCpu, kMeta});
  const at::Tensor a = bytes(10, kCpu);
  const at::Tensor b = bytes(3, kMeta);
  EXPECT_EQ(cpu.live(), 10);
  EXPECT_EQ(meta.live(), 3);
  EXPECT_EQ(both.live(), 13);
}

TEST(MemoryMeter, OnMetaOnlyPiecesCount) {
  const MemoryMeter meter({kMeta});
  const at::Tensor module = bytes(100, kMeta);
  EXPECT_EQ(meter.live(), 0);
  {
    const c10::impl::ExcludeDispatchKeyGuard pieces(kPieces);
    const at::Tensor piece = bytes(8, kMeta);
    EXPECT_EQ(meter.live(), 8);
  }
  EXPECT_EQ(meter.live(), 0);
}

TEST(MemoryMeter, AThreadMayAllocateUncounted) {
  const MemoryMeter meter;
  const Uncounted outer;
  { const Uncounted inner; }
  at::Tensor uncounted = bytes(100);
  at::Tensor counted;
  std::thread([&] { counted = bytes(9); }).join();
  EXPECT_EQ(meter.live(), 9);
  uncounted.reset();
  EXPECT_EQ(meter.live(), 9) << "neither is its end counted";
}

TEST(MemoryMeter, MemoryWithoutItsOwnerCountsToo) {
  const MemoryMeter meter;
  c10::Allocator* const allocator = c10::GetAllocator(kCpu);
  void* const counted = allocator->raw_allocate(64);
  EXPECT_EQ(meter.live(), 64);
  allocator->raw_deallocate(counted);
  EXPECT_EQ(meter.live(), 0);
  EXPECT_EQ(allocator->raw_allocate(0), nullptr);
  {
    const Uncounted uncounted;
    void* const other = allocator->raw_allocate(64);
    EXPECT_EQ(meter.live(), 0);
    allocator->raw_deallocate(other);
  }
  EXPECT_EQ(meter.live(), 0);
}

TEST(MemoryMeter, RefusesOtherDevices) {
  testing::expect_error<UnsupportedError>(
      [] {
        const MemoryMeter meter({kCpu, c10::DeviceType::CUDA});
      },
      {"[MemoryMeter] cannot count memory of cuda", "cpu and meta can be counted"});
}

}  // namespace
}  // namespace intarsia

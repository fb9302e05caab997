// Which gradients travel together.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <vector>

namespace intarsia {

/// A gradient as far as buckets are concerned.
struct Parcel {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::int64_t bytes = 0;

  bool goes_with(const Parcel& other) const {
    return dtype == other.dtype && device == other.device;
  }
};

struct BucketLimits {
  std::int64_t first = 0;
  std::int64_t others = 0;
};

/// Puts parcels, which come in this order, into buckets of one dtype and device. None that is half
/// full or more grows above its limit. Buckets are in the order in which they are full.
std::vector<std::vector<std::size_t>> make_buckets(std::span<const Parcel> parcels,
                                                   std::span<const std::size_t> order,
                                                   const BucketLimits& limits);

}  // namespace intarsia

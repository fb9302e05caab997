// Runs ops on many distinct shapes and with scalars that differ each time, and prints what the
// cache of decisions and the process hold: neither may grow with what was seen.
//
//     cache_memory [SHAPES]
#include <ATen/ATen.h>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "intarsia/communication.h"
#include "intarsia/tensor.h"
#include "perf/resident_memory.h"
#include "tensor/core/spec.h"

namespace {

using intarsia::testing::resident_bytes;

using namespace intarsia;

constexpr std::int64_t kWarm = 20000;  // shapes before memory is looked at
constexpr std::int64_t kLimitMiB = 5;

/// Distinct for distinct i below 8^6, and as large for small i as for large ones.
std::vector<std::int64_t> shape_of(std::int64_t i) {
  constexpr std::int64_t kShapes = 1 << 18;
  std::int64_t mixed = i * 104729 % kShapes;  // odd, so every value comes once
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < 6; ++d, mixed /= 8) sizes.push_back(1 + mixed % 8);
  return sizes;
}

/// What a training step does to a tensor: new ones, in place, views, reductions, gradients.
void use_shape(std::int64_t i, const Layout& layout, World& world) {
  const auto step = static_cast<double>(i);
  const at::Tensor x = ones(shape_of(i), layout, world, at::requires_grad(i % 8 == 0));
  const at::Tensor loss = x.mul(step).add_(x, step + 1).transpose(0, 5).sum(1).sum();
  if (loss.requires_grad()) loss.backward();
}

/// Scalars that change each step, on tensors that do not.
void use_scalars(std::int64_t i, at::Tensor& x, const at::Tensor& y) {
  const double step = 1e-6 * static_cast<double>(i);
  x.mul_(1 - step).add_(y, step).lerp_(y, step).addcmul_(y, y, step).clamp_(-step, 1 + step);
  const std::vector<at::Tensor> to{x};
  const std::vector<at::Tensor> from{y};
  at::_foreach_add_(to, from, step);
}

struct Held {
  std::size_t specs = 0;  // the most that were alive at once, after the first shapes
  std::size_t entries = 0;
};

Held make_and_drop(std::int64_t first, std::int64_t end, const Layout& layout, World& world) {
  Held most;
  for (std::int64_t i = first; i < end; ++i) {
    use_shape(i, layout, world);
    most.specs = std::max(most.specs, Spec::alive());
    most.entries = std::max(most.entries, cache_counters(world).entries);
  }
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t shapes = argc > 1 ? std::stoll(argv[1]) : 200000;
  const auto world = World::connect(Rendezvous{});
  const Layout layout = Layout::parse("S(0),S(1)", Mesh::parse("[dp=1,tp=1]"));

  make_and_drop(0, kWarm, layout, *world);
  const std::int64_t before = resident_bytes();
  const Held most = make_and_drop(kWarm, shapes, layout, *world);
  const std::int64_t grown = resident_bytes() - before;
  const CacheCounters cache = cache_counters(*world);

  std::uint64_t misses = 0;
  {
    const at::NoGradGuard no_grad;
    at::Tensor x = ones({8, 8}, layout, *world);
    const at::Tensor y = ones({8, 8}, layout, *world);
    use_scalars(0, x, y);
    misses = cache_counters(*world).misses;
    for (std::int64_t i = 1; i <= shapes; ++i) use_scalars(i, x, y);
    misses = cache_counters(*world).misses - misses;
  }
  const std::size_t at_end = Spec::alive();
  clear_cache(*world);
  const std::size_t unused = Spec::alive();

  std::cout << shapes << " shapes: " << cache.misses << " decisions made, " << cache.evictions
            << " dropped; at most " << most.entries << " kept of " << cache.limit << " allowed\n"
            << "specs alive: at most " << most.specs << ", " << at_end << " at the end, " << unused
            << " after the cache was cleared\n"
            << shapes << " steps with other scalars made " << misses << " decisions\n"
            << "resident memory grew by " << grown / 1024 << " KiB after the first " << kWarm
            << " shapes (under " << kLimitMiB * 1024 << ")\n";
  const bool full = cache.entries == cache.limit && most.entries <= cache.limit;
  return full && misses == 0 && unused == 0 && grown < kLimitMiB * 1024 * 1024 ? 0 : 1;
}

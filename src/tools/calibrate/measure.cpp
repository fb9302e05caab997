#include "tools/calibrate/measure.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "intarsia/attention.h"
#include "intarsia/collectives.h"
#include "tools/calibrate/fit.h"
#include "world/collectives/flat.h"
#include "world/transport/devices.h"

namespace intarsia::tools {
namespace {

/// Long enough for every trial, and used by all, as a program uses its buffers again.
struct Buffers {
  at::Tensor in;
  at::Tensor out;

  Buffers(std::span<const Trial> trials, at::Device device) {
    std::int64_t most = 1;
    for (const Trial& t : trials) most = std::max(most, t.elements);
    in = at::ones({most}, at::TensorOptions(at::kFloat).device(device));
    out = at::zeros_like(in);
  }
};

/// Elements to or from each rank of the group: as many for all, or all for `partner`.
Counts counts_of(const Trial& t, std::int64_t partner) {
  const auto size = static_cast<std::size_t>(t.comm.size());
  if (t.what == Measured::all_to_all) return Counts(size, t.elements / t.comm.size());
  Counts out(size, 0);
  out[static_cast<std::size_t>((partner + t.comm.size()) % t.comm.size())] = t.elements;
  return out;
}

void run_once(const Trial& t, const Buffers& buffers) {
  const auto nothing = [] { return flat::Tensors{}; };
  const at::Tensor in = buffers.in.narrow(0, 0, t.elements);
  const at::Tensor out = buffers.out.narrow(0, 0, t.elements);
  switch (t.what) {
    case Measured::all_to_all:
    case Measured::one_partner:
      flat::all_to_all(t.comm, {{in}, {out}, nothing}, {counts_of(t, t.comm.index() + 1)},
                       {counts_of(t, t.comm.index() - 1)}, {{}, Where::current()})
          .wait();
      return;
    case Measured::all_gather:
      flat::all_gather(t.comm, {{in.narrow(0, 0, t.elements / t.comm.size())}, {out}, nothing},
                       {{}, Where::current()})
          .wait();
      return;
    case Measured::all_reduce:
      all_reduce(t.comm, {in}, Placement::partial()).wait();
      return;
    case Measured::copy:
      out.copy_(in);
      return;
    case Measured::attention: {
      const at::Tensor q =
          in.view({1, kAttention.heads, kAttention.positions, kAttention.head_size});
      attention(q, q, q);
      return;
    }
    case Measured::matmul: {
      const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(t.elements)));
      at::Tensor product = out.view({side, side});
      at::mm_out(product, in.view({side, side}), in.view({side, side}));
      return;
    }
  }
}

/// Of one call on this rank.
double seconds(const Trial& t, const Buffers& buffers, const Comm& everyone) {
  constexpr std::int64_t kBytesInARow = std::int64_t{1} << 20;
  constexpr std::int64_t kMostInARow = 32;
  const std::int64_t calls = std::clamp<std::int64_t>(kBytesInARow / t.bytes(), 1, kMostInARow);
  const at::Device device = buffers.in.device();
  synchronize(device);
  barrier(everyone);
  if (calls > 1) run_once(t, buffers);  // ranks leave the barrier at different times
  return seconds_each(device, calls, [&] { run_once(t, buffers); });
}

}  // namespace

std::string_view to_text(Measured what) {
  switch (what) {
    case Measured::all_to_all:
      return "all_to_all";
    case Measured::one_partner:
      return "one_partner";
    case Measured::all_gather:
      return "all_gather";
    case Measured::all_reduce:
      return "all_reduce";
    case Measured::copy:
      return "copy";
    case Measured::attention:
      return "attention";
    case Measured::matmul:
      return "matmul";
  }
  return "";
}

std::int64_t Trial::bytes() const { return elements * kElementSize; }

double Trial::messages() const {
  const auto others = static_cast<double>(comm.size() - 1);
  switch (what) {
    case Measured::one_partner:
      return 1;
    case Measured::all_reduce:
      return 2 * others;
    case Measured::copy:
    case Measured::attention:
    case Measured::matmul:
      return 0;
    default:
      return others;
  }
}

double Trial::received() const {
  const auto full = static_cast<double>(bytes());
  const auto size = static_cast<double>(comm.size());
  switch (what) {
    case Measured::one_partner:
      return full;
    case Measured::all_reduce:
      return 2 * full * (size - 1) / size;
    case Measured::copy:
    case Measured::attention:
    case Measured::matmul:
      return 0;
    default:
      return full * (size - 1) / size;
  }
}

std::vector<double> measure(World& world, std::span<const Trial> trials, int repeats) {
  const Buffers buffers(trials, world.device());
  const Comm everyone = world.everyone();
  for (const Trial& t : trials) seconds(t, buffers, everyone);  // makes groups, touches memory
  return measure(world, trials.size(), repeats,
                 [&](std::size_t i) { return seconds(trials[i], buffers, everyone); });
}

double seconds_each(const at::Device& device, std::int64_t calls,
                    const std::function<void()>& call) {
  synchronize(device);
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < calls; ++i) call();
  synchronize(device);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(calls);
}

std::vector<double> measure(World& world, std::size_t kinds, int repeats,
                            const std::function<double(std::size_t)>& seconds) {
  const auto count = static_cast<std::int64_t>(kinds);
  at::Tensor times = at::empty({count, repeats}, at::kDouble);
  std::vector<std::int64_t> order(kinds);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random;  // gives all ranks the same numbers
  for (std::int64_t r = 0; r < repeats; ++r) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    for (const std::int64_t i : order) {
      times[i][r] = seconds(static_cast<std::size_t>(i));
    }
  }
  const at::Tensor slowest =
      all_reduce(world.everyone(), {times.to(world.device())}, Placement::partial(Reduction::max))
          .tensor()
          .cpu();
  std::vector<double> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const at::Tensor row = slowest[i].contiguous();
    const auto* first = row.const_data_ptr<double>();
    out.push_back(median({first, first + repeats}));
  }
  return out;
}

}  // namespace intarsia::tools

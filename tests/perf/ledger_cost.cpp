// What recording costs: collectives over a backend that does nothing, ledger on and off in turns.
// `ledger_cost on|off N` only makes N calls, for counting instructions.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/collectives.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kCalls = 4000;
constexpr int kRounds = 61;

/// Every call is done at once.
class NullBackend final : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "null"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<Done>();
  }

 private:
  struct Done final : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };
};

void call(const intarsia::Comm& comm, const at::Tensor& x, int times) {
  for (int i = 0; i < times; ++i) {
    intarsia::all_reduce(comm, x, intarsia::Placement::partial(),
                         {"layers.12.attention.wq.weight", "aten::mm", "model.layers.12.attention"})
        .wait();
  }
}

double microseconds_per_call(intarsia::World& world, const intarsia::Comm& comm,
                             const at::Tensor& x, bool on) {
  world.ledger().enable(on);
  const auto start = Clock::now();
  call(comm, x, kCalls);
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kCalls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  intarsia::WorldParts parts;
  parts.size = 2;
  parts.make_backend =
      [](const std::string&, int index,
         const std::vector<std::int64_t>& ranks) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<NullBackend>(index, static_cast<int>(ranks.size()));
  };
  const auto world = intarsia::World::assemble(std::move(parts));
  const intarsia::Comm comm = world->everyone();
  const at::Tensor x = at::ones({8, 8});
  if (argc == 3) {
    world->ledger().enable(std::string_view(argv[1]) == "on");
    call(comm, x, std::stoi(argv[2]));
    return 0;
  }
  std::vector<double> difference;
  std::vector<double> off;
  for (int round = 0; round < kRounds; ++round) {
    off.push_back(microseconds_per_call(*world, comm, x, false));
    difference.push_back(microseconds_per_call(*world, comm, x, true) - off.back());
  }
  std::cout << "a collective call over a backend that does nothing: " << median(off)
            << " us with the ledger off; the ledger adds " << median(difference)
            << " us (median of " << kRounds << " alternating pairs of " << kCalls << " calls)\n"
            << median(difference) << "\n";
  return median(difference) <= 0.3 ? 0 : 1;
}

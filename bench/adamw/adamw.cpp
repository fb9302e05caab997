// Steps of torch::optim::AdamW over many small parameters: plain ones and distributed ones in
// turns.
//
//     adamw [PARAMETERS] [ROUNDS]
//
// Results are compared first. Prints the best CPU time of a step of each, and their ratio last.
#include <torch/torch.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "intarsia/tensor.h"

namespace {

using namespace intarsia;

constexpr std::int64_t kSide = 64;

double cpu_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

/// Parameters with a gradient each, and their optimizer.
struct Side {
  template <class Place>
  Side(std::int64_t count, Place&& place) {
    torch::manual_seed(0);
    for (std::int64_t i = 0; i < count; ++i) {
      parameters.push_back(place(torch::randn({kSide, kSide})).set_requires_grad(true));
      parameters.back().mutable_grad() = place(torch::randn({kSide, kSide}));
    }
    optimizer = std::make_unique<torch::optim::AdamW>(parameters);
  }
  double step() {
    const double start = cpu_milliseconds();
    optimizer->step();
    return cpu_milliseconds() - start;
  }
  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::stoll(argv[1]) : 1000;
  const int rounds = argc > 2 ? std::stoi(argv[2]) : 60;
  torch::set_num_threads(1);
  const auto world = World::connect(Rendezvous{});
  const Layout layout = Layout::parse("S(0)", Mesh::parse("[x=1]"));

  Side plain(count, [](const at::Tensor& t) { return t; });
  Side ours(count, [&](const at::Tensor& t) { return distribute(t, layout, *world); });
  for (int i = 0; i < 3; ++i) {
    plain.step();
    ours.step();
  }
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    if (!local(ours.parameters[i].detach()).equal(plain.parameters[i].detach())) {
      std::cout << "parameter " << i << " differs after 3 steps\n";
      return 1;
    }
  }
  double best_plain = 1e9;
  double best_ours = 1e9;
  for (int i = 0; i < rounds; ++i) {
    best_plain = std::min(best_plain, plain.step());
    best_ours = std::min(best_ours, ours.step());
  }
  std::cout << "C++ AdamW, " << count << " parameters of " << kSide << "x" << kSide
            << ", equal after 3 steps: plain " << best_plain << " ms, ours " << best_ours
            << " ms a step (best of " << rounds << " in turns)\n"
            << best_ours / best_plain << "\n";
}

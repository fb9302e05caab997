// Data parallel training in plain libtorch: each process has the full model and a part of the
// data.
#include <torch/torch.h>

#include <intarsia/intarsia.h>

#include <exception>
#include <iostream>

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(2, 32));
    scores = register_module("scores", torch::nn::Linear(32, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return scores(hidden(x).tanh()); }
  torch::nn::Linear hidden = nullptr;
  torch::nn::Linear scores = nullptr;
};

int main() {
  try {
    // Meets the other processes as torchrun, mpirun, srun or the environment says, or is alone.
    const auto world = intarsia::World::connect();
    const intarsia::Mesh mesh({{"dp", world->size()}});

    // Points in a square, in two classes: inside of a circle, or outside. Each rank makes its own.
    torch::manual_seed(world->rank());
    const auto points = torch::rand({512, 2}) * 2 - 1;
    const auto classes = (points.norm(2, 1) < 0.8).to(torch::kLong);

    Net model;
    // From here on: the values of rank 0, and gradients that are averages over all ranks.
    const auto replica = intarsia::replicate(model, *world, mesh, "dp");
    torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.02));

    for (int epoch = 0; epoch < 10; ++epoch) {
      double sum = 0;
      for (int batch = 0; batch < 8; ++batch) {
        const auto x = points.narrow(0, batch * 64, 64);
        const auto y = classes.narrow(0, batch * 64, 64);
        optimizer.zero_grad();
        const auto loss = torch::nn::functional::cross_entropy(model.forward(x), y);
        loss.backward();  // sends gradients while it runs, and returns when they are averaged
        optimizer.step();
        sum += loss.item<double>();
      }
      if (world->rank() == 0) std::cout << "epoch " << epoch << ": loss " << sum / 8 << std::endl;
    }
    const double weights = model.scores->weight.square().sum().item<double>();
    std::cout << "rank " + std::to_string(world->rank()) + " of " + std::to_string(world->size()) +
                     " ends with weights of " + std::to_string(weights) + "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

// A user's first program with modules: layouts by braces with one, two and three entries, modules
// as values, pointers and holders, a training step with each, and the errors that a user catches.
#include <intarsia/intarsia.h>
#include <torch/torch.h>

#include <iostream>

using namespace intarsia;

struct Net : torch::nn::Module {
  torch::nn::Linear up{nullptr}, down{nullptr};
  Net() {
    up = register_module("up", torch::nn::Linear(4, 8));
    down = register_module("down", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
};

/// The losses of two steps, which are the same in every layout.
std::string losses(Net& net) {
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  std::string text;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = net.forward(at::arange(24.0).reshape({6, 4}).div(24)).square().mean();
    loss.backward();
    optimizer.step();
    text += " " + std::to_string(std::lround(loss.item<double>() * 1e6));
  }
  return text;
}

int main() {
  try {
    const auto world = World::connect();
    const Mesh mesh({{"dp", 1}, {"tp", world->size()}});
    const auto say = [&](const std::string& what, const std::string& text) {
      if (world->rank() == 0) std::cout << what << ":" << text << std::endl;
    };

    torch::manual_seed(1);
    auto none = build(*world, mesh, {}, [] { return Net(); });
    say("no entry", losses(none));
    torch::manual_seed(1);
    auto one = build(*world, mesh, {{"up.*", "R,S(0)"}}, [] { return std::make_shared<Net>(); });
    say("one entry", losses(*one));
    torch::manual_seed(1);
    auto two =
        build(*world, mesh, {{"up.*", "R,S(0)"}, {"down.weight", "R,S(1)"}}, [] { return Net(); });
    say("two entries", losses(two));
    torch::manual_seed(1);
    auto three =
        build(*world, mesh, {{"up.*", "R,S(0)"}, {"down.weight", "R,S(1)"}, {"down.bias", "R,R"}},
              [] { return std::make_shared<Net>(); });
    say("three entries", losses(*three));
    torch::manual_seed(1);
    auto sharded = build_sharded(*world, mesh, {}, {.shard = {"tp"}}, [] { return Net(); });
    say("sharded", losses(*sharded));

    // What the library refuses is one type, whether its own functions or ATen's ops refuse it.
    try {
      (void)Layout::parse("S(0)", mesh);
    } catch (const Failure& failure) {
      say("layout", std::string(" ") + failure.text());
    }
    try {
      const at::Tensor x = ones({4, 3}, Layout::parse("R,S(0)", mesh), *world);
      (void)x.mm(x);
    } catch (const Failure& failure) {
      const bool is_value = failure.kind() == Failure::Kind::value;
      say("op", std::string(is_value ? " value " : " other ") + failure.text());
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

// How much of the communication of a training step is hidden behind its computation.
//
//     overlap [--mode MODE] [--rounds N] [--chunks N] [--compute-only]
//
// One process among those that a launcher started, on a wire that INTARSIA_WIRE_DELAY slows down.
// Times three things in turn, so that what else the machine does meets all of them: the computation
// alone, the communication alone, and the step, which does both; for tensor parallelism also the
// step with all as a whole. Rank 0 prints the medians as JSON.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/communication.h"
#include "intarsia/fully_shard.h"
#include "intarsia/overlap.h"
#include "intarsia/replicate.h"
#include "intarsia/tensor.h"

namespace {

using intarsia::World;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLayers = 16;
constexpr std::int64_t kWidth = 256;
// So many that what Gloo itself computes, which no wire's delay is, takes a small part.
constexpr std::int64_t kRows = 6144;

/// What is measured of one way to train.
struct Subject {
  std::function<void()> compute;
  std::function<void()> communicate;
  std::function<void()> step;
  std::function<void()> whole = {};  ///< the step without chunks, if it has some
  std::function<std::string()> report = [] { return std::string(); };
  std::function<std::int64_t()> chunks = {};  ///< how many the step has
};

struct Model {
  std::vector<at::Tensor> weights;
  at::Tensor batch;
};

Model make_model() {
  Model model;
  at::Generator g = at::detail::createCPUGenerator(1);
  for (std::int64_t i = 0; i < kLayers; ++i) {
    model.weights.push_back((at::randn({kWidth, kWidth}, g) / 16).set_requires_grad(true));
  }
  model.batch = at::randn({kRows, kWidth}, g);
  return model;
}

void clear_gradients(Model& model) {
  for (at::Tensor& w : model.weights) w.mutable_grad().reset();
}

/// Forward, backward and update.
void train(Model& model, const at::Tensor& batch) {
  clear_gradients(model);
  at::Tensor h = batch;
  for (const at::Tensor& w : model.weights) h = h.mm(w).tanh();
  h.square().mean().backward();
  const at::NoGradGuard no_grad;
  for (at::Tensor& w : model.weights) w.sub_(w.grad(), 0.01);
}

struct Options {
  std::string mode = "ddp";
  int rounds = 15;
  std::int64_t chunks = 0;  ///< of tensor parallelism
  bool compute_only = false;
};

Subject data_parallel(World& world, const Options&) {
  const auto model = std::make_shared<Model>(make_model());
  intarsia::ReplicatedTensors tensors;
  for (std::size_t i = 0; i < model->weights.size(); ++i) {
    tensors.parameters.push_back({"layer" + std::to_string(i), model->weights[i]});
  }
  const std::vector<std::string> axes{"dp"};
  const auto replica =
      intarsia::replicate(tensors, world, intarsia::Mesh({{"dp", world.size()}}), axes,
                          {.bucket_bytes = 512 * 1024, .first_bucket_bytes = 256 * 1024});
  return {.compute =
              [=] {
                const auto local = replica->no_sync();
                train(*model, model->batch);
              },
          // The same buckets, with nothing in them.
          .communicate =
              [=] {
                clear_gradients(*model);
                replica->finish();
              },
          .step = [=] { train(*model, model->batch); }};
}

Subject fully_sharded(World& world, const Options&) {
  const auto plain = std::make_shared<Model>(make_model());
  const intarsia::Mesh mesh({{"dp", world.size()}});
  const auto whole = intarsia::Layout::replicated(mesh);
  const auto rows = intarsia::Layout::parse("S(0)", mesh);
  const auto model = std::make_shared<Model>();
  std::vector<intarsia::ParameterGroup> groups;
  for (std::size_t i = 0; i < plain->weights.size(); ++i) {
    const at::Tensor weight =
        intarsia::distribute(plain->weights[i].detach(), whole, world).set_requires_grad(true);
    model->weights.push_back(weight);
    if (i % 2 == 0) groups.push_back({.name = "layers" + std::to_string(i), .parameters = {}});
    groups.back().parameters.push_back({"layer" + std::to_string(i), weight});
  }
  const auto sharding = intarsia::fully_shard(groups, {.shard = {"dp"}});
  // Each rank computes on as many rows as the plain model; or on one, which takes no time.
  model->batch = intarsia::from_local(plain->batch, rows, world);
  const at::Tensor little = intarsia::from_local(plain->batch.narrow(0, 0, 1), rows, world);
  return {.compute = [=] { train(*plain, plain->batch); },
          .communicate = [=, keep = sharding] { train(*model, little); },
          .step = [=, keep = sharding] { train(*model, model->batch); },
          .report = [=] { return sharding->report(); }};
}

/// Blocks of two linear layers, between which each rank holds a part of the sequence.
struct Blocks {
  std::vector<at::Tensor> up;
  std::vector<at::Tensor> down;
  at::Tensor input;

  static constexpr std::int64_t kBlocks = 2;
  static constexpr std::int64_t kPositions = 1024;
  static constexpr std::int64_t kDim = 1024;

  /// Each rank has `hidden` of the hidden units.
  Blocks(World& world, std::int64_t hidden) {
    const intarsia::Mesh mesh({{"tp", world.size()}});
    const auto cut = [&](const at::Tensor& piece, const char* layout) {
      return intarsia::from_local(piece, intarsia::Layout::parse(layout, mesh), world)
          .detach()
          .set_requires_grad(true);
    };
    at::Generator g = at::detail::createCPUGenerator(1);
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      up.push_back(cut(at::randn({hidden, kDim}, g) / 16, "S(0)"));
      down.push_back(cut(at::randn({kDim, hidden}, g) / 32, "S(1)"));
    }
    input = cut(at::randn({1, kPositions / world.size(), kDim}, g), "S(1)");
  }

  void train(std::int64_t chunks) {
    at::Tensor h = input;
    for (std::size_t i = 0; i < up.size(); ++i) {
      const auto made = intarsia::gathered_linears(h, {{up[i]}}, "tp", {.chunks = chunks});
      h = intarsia::scattered_linear(made[0].tanh(), {down[i]}, "tp", 1, {.chunks = chunks});
    }
    h.square().mean().backward();
    clear();
  }

  /// How many gathers the first layer sends.
  std::int64_t chunks_of(World& world, std::int64_t chunks) {
    intarsia::clear_bill(world);
    intarsia::gathered_linears(input, {{up[0]}}, "tp", {.chunks = chunks});
    return static_cast<std::int64_t>(intarsia::bill(world).count());
  }

  void clear() {
    for (auto* list : {&up, &down}) {
      for (at::Tensor& w : *list) w.mutable_grad().reset();
    }
    input.mutable_grad().reset();
  }
};

/// What one rank computes of the blocks, on plain tensors.
void compute_blocks(const Blocks& blocks) {
  at::Tensor h = at::ones({1, Blocks::kPositions, Blocks::kDim}).set_requires_grad(true);
  std::vector<at::Tensor> leaves;
  const auto leaf = [&](const at::Tensor& t) {
    leaves.push_back(intarsia::local(t.detach()).detach().set_requires_grad(true));
    return leaves.back();
  };
  at::Tensor y = h;
  for (std::size_t i = 0; i < blocks.up.size(); ++i) {
    y = at::linear(at::linear(y, leaf(blocks.up[i])).tanh(), leaf(blocks.down[i]));
  }
  y.square().mean().backward();
}

Subject tensor_parallel(World& world, const Options& options) {
  constexpr std::int64_t kHidden = 1024;
  const auto blocks = std::make_shared<Blocks>(world, kHidden);
  const auto little = std::make_shared<Blocks>(world, 1);
  return {
      .compute = [=] { compute_blocks(*blocks); },
      .communicate = [=] { little->train(1); },
      .step = [=, chunks = options.chunks] { blocks->train(chunks); },
      .whole = [=] { blocks->train(1); },
      .chunks = [=, &world, chunks = options.chunks] { return blocks->chunks_of(world, chunks); }};
}

const std::map<std::string, std::function<Subject(World&, const Options&)>> kModes{
    {"ddp", data_parallel}, {"fsdp", fully_sharded}, {"tp", tensor_parallel}};

double seconds(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Options read(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--compute-only") {
      options.compute_only = true;
    } else if (name == "--mode" && i + 1 < argc) {
      options.mode = argv[++i];
    } else if (name == "--rounds" && i + 1 < argc) {
      options.rounds = std::stoi(argv[++i]);
    } else if (name == "--chunks" && i + 1 < argc) {
      options.chunks = std::stoi(argv[++i]);
    } else {
      throw std::invalid_argument(
          "overlap [--mode MODE] [--rounds N] [--chunks N] [--compute-only]");
    }
  }
  return options;
}

void run(const Options& options) {
  const auto world = World::connect();
  const Subject subject = kModes.at(options.mode)(*world, options);
  const intarsia::Comm everyone = world->everyone();
  std::vector<std::pair<std::string, const std::function<void()>*>> kinds{
      {"compute", &subject.compute}};
  if (!options.compute_only) {
    kinds.emplace_back("communicate", &subject.communicate);
    kinds.emplace_back("step", &subject.step);
    if (subject.whole) kinds.emplace_back("whole", &subject.whole);
  }
  std::map<std::string, std::vector<double>> times;
  constexpr int kWarmUp = 3;
  for (int round = 0; round < options.rounds + kWarmUp; ++round) {
    for (const auto& [name, body] : kinds) {
      intarsia::barrier(everyone);
      const double took = seconds(*body);
      if (round >= kWarmUp) times[name].push_back(took);
    }
  }
  const std::int64_t chunks = subject.chunks ? subject.chunks() : 1;
  if (world->rank() != 0) return;
  std::string text;
  for (const auto& [name, list] : times) {
    text += (text.empty() ? "{\"" : ", \"") + name + "\": " + std::to_string(median(list));
  }
  std::cout << text << ", \"chunks\": " << chunks << "}" << std::endl;
  std::cerr << subject.report();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(read(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

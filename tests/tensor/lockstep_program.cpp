// Trains the transformer of models.h on a mesh, in several layouts, and beside it on one rank with
// plain tensors; compares the loss and every gradient of every step.
//
//   lockstep_program --mesh TEXT [--world lockstep] [--steps N] [--write FILE] [--against FILE]
//
// Without `--world lockstep` this is one of the processes that a launcher started. Nothing else
// differs between the two: `train` knows neither, and trains the plain model too. `--write` keeps
// losses and gradients (rank 0's), `--against` compares with those of another run.
//
// All is float64. Cutting a tensor changes the order in which terms are summed, which is about
// 1e-13 of the largest element here (see models_program.cpp); AdamW divides by the size of a
// gradient, and so makes at most some thousand times of it. Hence 1e-9, in parts of the largest
// element of each tensor. A piece that is missing or counted twice is an error of order 1.
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "intarsia/build.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"
#include "tensor/models.h"

namespace intarsia::testing {
namespace {

constexpr double kTolerance = 1e-9;
constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kBatch = 7;

/// Nothing is a multiple of anything: heads, columns and vocabulary are cut unevenly, and not
/// between heads.
const LlamaOptions kModel{
    .vocabulary = 51, .dim = 36, .heads = 6, .hidden = 43, .layers = 2, .positions = 7};

struct Options {
  std::string mesh = {};
  bool lockstep = false;
  int steps = 3;
  std::string write = {};
  std::string against = {};
};

/// What training gave, step by step.
struct Trace {
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
};

at::Tensor whole(const at::Tensor& t) {
  const torch::NoGradGuard no_grad;
  return (has_layout(t) ? full(t) : t).detach().clone();
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<at::Tensor> parameters) {
  if (name == "SGD") {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  }
  return std::make_unique<torch::optim::AdamW>(
      std::move(parameters), torch::optim::AdamWOptions(0.002).weight_decay(0.01));
}

/// The program: the same text for one rank, for lockstep and for processes. `lay` places a batch.
Trace train(Llama& model, const std::string& optimizer_name, int steps,
            const std::function<at::Tensor(const at::Tensor&)>& lay) {
  using torch::nn::functional::CrossEntropyFuncOptions;
  const auto optimizer = make_optimizer(optimizer_name, model->parameters());
  Trace trace;
  const auto keep = [&](const std::string& name, const at::Tensor& value) {
    trace.names.push_back(name);
    trace.values.push_back(whole(value));
  };
  for (int step = 0; step < steps; ++step) {
    const std::string at_step = " of step " + std::to_string(step);
    auto generator = at::detail::createCPUGenerator(100 + static_cast<unsigned>(step));
    const at::Tensor text = torch::randint(0, kModel.vocabulary, {kBatch, kModel.positions + 1},
                                           generator, torch::kLong);
    at::Tensor next = text.slice(1, 1).clone();
    next.slice(0, 0, 2).slice(1, 5).fill_(-100);  // positions that do not count, on some ranks
    optimizer->zero_grad();
    const at::Tensor scores = model->forward(lay(text.slice(1, 0, kModel.positions).contiguous()));
    const at::Tensor loss = torch::nn::functional::cross_entropy(
        scores, lay(next).flatten(), CrossEntropyFuncOptions().ignore_index(-100));
    loss.backward();
    keep("loss" + at_step, loss);
    for (const auto& item : model->named_parameters()) {
      keep("gradient of " + item.key() + at_step, item.value().grad());
    }
    optimizer->step();
  }
  for (const auto& item : model->named_parameters()) keep(item.key(), item.value());
  return trace;
}

/// How parameters and batch lie. The first half of the axes cut the batch, the others the model.
struct Scheme {
  std::string name;
  LayoutPatterns patterns;
  std::string batch;
};

/// The same placement on some axes, and another on the others.
std::string placements(const Mesh& mesh, const std::string& first_half, const std::string& rest) {
  std::string text;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    text += (a == 0 ? "" : ",") + (2 * a < mesh.axes() ? first_half : rest);
  }
  return text;
}

/// Columns, then rows, over the axes of the model. `cut_by_both`: those of the batch cut weights
/// too, along the other dimension.
LayoutPatterns columns_and_rows(const Mesh& mesh, bool cut_by_both) {
  const std::string columns = placements(mesh, cut_by_both ? "S(1)" : "R", "S(0)");
  const std::string rows = placements(mesh, cut_by_both ? "S(0)" : "R", "S(1)");
  return {{"*.attention.wo.weight", rows}, {"*.attention.w*.weight", columns},
          {"*.gate.weight", columns},      {"*.up.weight", columns},
          {"*.down.weight", rows},         {"tokens.weight", columns},
          {"head.weight", columns}};
}

std::vector<Scheme> schemes(const Mesh& mesh) {
  const std::string everywhere = placements(mesh, "S(0)", "S(0)");
  const std::string by_batch = placements(mesh, "S(0)", "R");
  return {{"tensor parallel", columns_and_rows(mesh, false), by_batch},
          {"parameters cut over all axes", {{"*weight", everywhere}}, everywhere},
          {"tensor parallel and cut", columns_and_rows(mesh, true), by_batch}};
}

struct Difference {
  double largest = 0;  ///< in parts of the largest element
  std::string where = "nowhere";
};

Difference compare(const Trace& got, const std::vector<at::Tensor>& want) {
  if (got.values.size() != want.size()) throw std::runtime_error("runs of different length");
  Difference d;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double scale = want[i].abs().max().item<double>();
    if (!(scale > 0)) throw std::runtime_error(got.names[i] + " is 0 or no number");
    const double apart = (got.values[i] - want[i]).abs().max().item<double>() / scale;
    if (!(apart <= d.largest)) d = {apart, got.names[i]};
  }
  return d;
}

/// Both runs of one layout; prints on the process that has rank 0. Returns what ours gave.
Trace run(World& world, const Mesh& mesh, const Scheme& scheme, const std::string& optimizer,
          int steps, Difference& difference, bool prints) {
  torch::manual_seed(kSeed);
  Llama ours = build(world, mesh, scheme.patterns, [] { return Llama(kModel); });
  Llama plain(kModel);
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : plain->named_parameters()) {
      item.value().copy_(whole(ours->named_parameters()[item.key()]));
    }
  }
  const Layout by_batch = Layout::parse(scheme.batch, mesh);
  const Trace here = train(ours, optimizer, steps,
                           [&](const at::Tensor& t) { return distribute(t, by_batch, world); });
  const Trace alone = train(plain, optimizer, steps, [](const at::Tensor& t) { return t; });
  for (const auto& item : ours->named_parameters()) {
    if (layout_of(item.value().grad()) != layout_of(item.value())) {
      throw std::runtime_error(item.key() + " has a gradient as " + describe(item.value().grad()));
    }
    assert_replicas(item.value(), item.key());
    assert_replicas(item.value().grad(), "gradient of " + item.key());
  }
  difference = compare(here, alone.values);
  if (!prints) return here;
  std::cout << mesh.to_string() << " " << scheme.name << ", " << optimizer << ": "
            << here.values.size() << " values, largest relative difference from one rank "
            << difference.largest << " (" << difference.where << ")\n";
  const std::size_t each = 1 + ours->named_parameters().size();
  std::cout.precision(12);
  for (int step = 0; step < steps; ++step) {
    const auto first = here.values.begin() + static_cast<std::ptrdiff_t>(each) * step;
    double squares = 0;
    for (auto g = first + 1; g != first + static_cast<std::ptrdiff_t>(each); ++g) {
      squares += g->square().sum().item<double>();
    }
    std::cout << "  step " << step << ": loss " << first->item<double>() << ", norm of gradients "
              << std::sqrt(squares) << "\n";
  }
  std::cout.precision(3);
  return here;
}

bool run_all(World& world, const Mesh& mesh, const Options& options) {
  const bool prints = world.hosted().front() == 0;
  std::cout.precision(3);
  Trace all;
  Difference worst;
  for (const char* optimizer : {"SGD", "AdamW"}) {
    for (const Scheme& scheme : schemes(mesh)) {
      Difference d;
      const Trace trace = run(world, mesh, scheme, optimizer, options.steps, d, prints);
      if (!(d.largest <= worst.largest)) worst = d;
      for (std::size_t i = 0; i < trace.names.size(); ++i) {
        all.names.push_back(scheme.name + ", " + optimizer + ", " + trace.names[i]);
        all.values.push_back(trace.values[i]);
      }
    }
  }
  bool right = worst.largest <= kTolerance;
  if (!options.against.empty()) {
    std::vector<at::Tensor> others;
    torch::load(others, options.against);
    const Difference d = compare(all, others);
    right = right && d.largest <= kTolerance;
    std::cout << mesh.to_string() << " " << all.values.size()
              << " values, against the other run: " << d.largest << " (" << d.where << ")\n";
  }
  if (!options.write.empty() && prints) torch::save(all.values, options.write);
  if (prints) {
    std::cout << mesh.to_string() << " " << all.values.size()
              << " values, against one rank: " << worst.largest << " (" << worst.where << ")"
              << std::endl;
  }
  return right;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--mesh") {
      options.mesh = value;
    } else if (name == "--world" && value == "lockstep") {
      options.lockstep = true;
    } else if (name == "--steps") {
      options.steps = std::stoi(value);
    } else if (name == "--write") {
      options.write = value;
    } else if (name == "--against") {
      options.against = value;
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  return options;
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) {
  using namespace intarsia;
  at::set_num_threads(1);
  torch::set_default_dtype(torch::scalarTypeToTypeMeta(torch::kDouble));
  try {
    const testing::Options options = testing::parse(argc, argv);
    const Mesh mesh = Mesh::parse(options.mesh);
    if (options.lockstep) {
      const Lockstep lockstep(mesh);
      return testing::run_all(lockstep.world(), mesh, options) ? 0 : 1;
    }
    const auto world = World::connect({.timeout = std::chrono::seconds(60)});
    return testing::run_all(*world, mesh, options) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

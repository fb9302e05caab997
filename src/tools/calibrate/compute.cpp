#include "tools/calibrate/compute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/tensor.h"
#include "plan/report.h"
#include "tools/calibrate/fit.h"
#include "tools/calibrate/measure.h"

namespace intarsia::tools {
namespace {

constexpr double kShortest = 0.01;  // seconds for which a task is timed
constexpr int kChain = 50;          // ops one after the other, whose calls are timed
constexpr std::int64_t kMostOperands = 1024;
/// Of results that stay at a time, so that memory is used again, but not at once.
constexpr std::size_t kKeptBytes = std::size_t{16} << 20;

using Task = std::function<void()>;
using Op = std::function<at::Tensor(const at::Tensor&)>;

double slowest(World& world, double here) {
  const at::Tensor one = at::full({1}, here, at::TensorOptions(at::kDouble));
  return all_reduce(world.everyone(), {one.to(world.device())}, Placement::partial(Reduction::max))
      .tensor()
      .cpu()
      .item<double>();
}

std::vector<double> measure_tasks(World& world, const std::vector<Task>& tasks, int repeats) {
  const at::Device device = world.device();
  std::vector<std::int64_t> calls;  // the same on all ranks, as tasks may be collectives
  for (const Task& task : tasks) {
    task();
    const double seconds = slowest(world, seconds_each(device, 1, task));
    calls.push_back(std::max<std::int64_t>(1, std::llround(kShortest / seconds)));
  }
  return measure(world, tasks.size(), repeats, [&](std::size_t i) {
    barrier(world.everyone());
    return seconds_each(device, calls[i], tasks[i]);
  });
}

at::Tensor ones(World& world, at::IntArrayRef sizes) {
  return at::ones(sizes, at::TensorOptions(at::kFloat).device(world.device()));
}

// ---- what is measured ----

/// Tensors of one size, on which an op is timed one after the other: as in a program, an operand
/// was not touched a moment ago.
std::vector<at::Tensor> operands(World& world, const ComputeOptions& options,
                                 at::IntArrayRef sizes) {
  const at::Tensor first = ones(world, sizes).mul_(0.5);
  const auto bytes = static_cast<std::int64_t>(first.nbytes());
  const std::int64_t number =
      std::clamp<std::int64_t>(options.operand_bytes / bytes, 2, kMostOperands);
  std::vector<at::Tensor> out{first};
  while (std::ssize(out) < number) out.push_back(first.clone());
  return out;
}

/// Seconds of each op on each of the operands.
std::vector<double> measure_ops(World& world, const std::vector<at::Tensor>& operands,
                                const std::vector<Op>& ops, int repeats) {
  std::vector<Task> tasks;
  for (const Op& op : ops) {
    tasks.emplace_back([&operands, &op] {
      std::deque<at::Tensor> kept;
      for (const at::Tensor& x : operands) {
        kept.push_back(op(x));
        if (kept.size() * kept.back().nbytes() > kKeptBytes) kept.pop_front();
      }
    });
  }
  std::vector<double> seconds = measure_tasks(world, tasks, repeats);
  for (double& s : seconds) s /= static_cast<double>(operands.size());
  return seconds;
}

/// The three products of a linear layer, forward and backward.
Curve products_of(World& world, const ComputeOptions& options) {
  std::vector<Curve::Point> points;
  for (const std::int64_t side : {32, 64, 128, 256, 512, 768}) {
    const at::Tensor weight = ones(world, {side, side});
    const std::vector<double> seconds =
        measure_ops(world, operands(world, options, {side, side}),
                    {[&](const auto& x) { return at::mm(x, weight.t()); },
                     [&](const auto& x) { return at::mm(x, weight); },
                     [&](const auto& x) { return at::mm(weight.t(), x); }},
                    options.repeats);
    const double operations = 3 * 2 * std::pow(static_cast<double>(side), 3);
    points.emplace_back(operations / 3,
                        rounded(operations / (seconds[0] + seconds[1] + seconds[2])));
  }
  return Curve(std::move(points));
}

Curve memory_of(World& world, const ComputeOptions& options) {
  constexpr double kTensors = 2;
  std::vector<Curve::Point> points;
  for (const std::int64_t size : {1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23}) {
    const double seconds =
        measure_ops(world, operands(world, options, {size}),
                    {[](const auto& x) { return at::mul(x, 2); }}, options.repeats)[0];
    const double bytes = kTensors * 4 * static_cast<double>(size);
    points.emplace_back(bytes, rounded(bytes / seconds));
  }
  return Curve(std::move(points));
}

/// Ops whose kernels do more than read and write, on tensors of (256, 1024).
std::map<std::string, double> elementwise_of(World& world, const ComputeOptions& options) {
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kColumns = 1024;
  constexpr std::int64_t kHeadSize = 64;
  constexpr double kEps = 1e-5;
  const at::Tensor weight = ones(world, {kColumns});
  const at::Tensor index = at::arange(kRows, at::TensorOptions(at::kLong).device(world.device()));
  const at::Tensor mean = ones(world, {kRows, 1});
  using X = const at::Tensor&;
  const std::vector<std::pair<std::string, Op>> ops{
      {"gelu", [](X x) { return at::gelu(x); }},
      {"gelu_backward", [](X x) { return at::gelu_backward(x, x); }},
      {"silu", [](X x) { return at::silu(x); }},
      {"silu_backward", [](X x) { return at::silu_backward(x, x); }},
      {"sigmoid", [](X x) { return at::sigmoid(x); }},
      {"tanh", [](X x) { return at::tanh(x); }},
      {"exp", [](X x) { return at::exp(x); }},
      {"log", [](X x) { return at::log(x); }},
      {"pow", [](X x) { return at::pow(x, 2); }},
      {"sum", [](X x) { return at::sum(x, {0}); }},  // as of the gradients of biases and norms
      {"mean", [](X x) { return at::mean(x, {-1}); }},
      {"linalg_vector_norm", [](X x) { return at::linalg_vector_norm(x, 2, {{-1}}); }},
      // Heads that are turned and brought to the front.
      {"cat",
       [](X x) {
         return at::cat(x.view({-1, kHeadSize}).chunk(2, -1), -1);
       }},
      {"clone",
       [](X x) {
         return x.view({kRows, -1, kHeadSize}).transpose(0, 1).clone(at::MemoryFormat::Contiguous);
       }},
      {"_softmax", [](X x) { return at::_softmax(x, -1, false); }},
      {"_softmax_backward_data",
       [](X x) { return at::_softmax_backward_data(x, x, -1, at::kFloat); }},
      {"_log_softmax", [](X x) { return at::_log_softmax(x, -1, false); }},
      {"_log_softmax_backward_data",
       [](X x) { return at::_log_softmax_backward_data(x, x, -1, at::kFloat); }},
      {"native_layer_norm",
       [=](X x) {
         return std::get<0>(at::native_layer_norm(x, {kColumns}, weight, weight, kEps));
       }},
      {"native_layer_norm_backward",
       [=](X x) {
         return std::get<0>(at::native_layer_norm_backward(x, x, {kColumns}, mean, mean, weight,
                                                           weight, {true, true, true}));
       }},
      {"embedding_dense_backward",
       [=](X x) { return at::embedding_dense_backward(x, index, kRows, -1, false); }},
  };
  std::vector<Op> run;
  for (const auto& [name, op] : ops) run.push_back(op);
  const std::vector<double> seconds =
      measure_ops(world, operands(world, options, {kRows, kColumns}), run, options.repeats);
  std::map<std::string, double> out;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    out[ops[i].first] = rounded(seconds[i] / (kRows * kColumns));
  }
  return out;
}

/// Forward and backward, by the size of heads, which decides how much of the time its exponentials
/// take.
void measure_attention(World& world, const ComputeOptions& options, StepCosts& costs) {
  constexpr std::int64_t kBatch = 4;
  constexpr std::int64_t kHeads = 8;
  constexpr std::int64_t kPositions = 256;
  constexpr double kForward = 4;  // operations for a query, a key and an element of a head
  constexpr double kBackward = 10;
  std::vector<Curve::Point> forward;
  std::vector<Curve::Point> backward;
  for (const std::int64_t size : {32, 64, 128}) {
    const auto qs = operands(world, options, {kBatch, kHeads, kPositions, size});
    for (const at::Tensor& q : qs) q.requires_grad_();
    const at::Tensor grad = at::ones_like(qs[0]);
    std::size_t calls = 0;
    const auto attend = [&](const at::Tensor& q) {
      const at::Tensor k = qs[++calls % qs.size()].detach();
      const at::Tensor v = qs[(calls + 1) % qs.size()].detach();
      return at::scaled_dot_product_attention(q, k, v);
    };
    const std::vector<double> seconds = measure_ops(
        world, qs,
        {attend,
         [&](const at::Tensor& q) { return torch::autograd::grad({attend(q)}, {q}, {grad})[0]; }},
        options.repeats);
    const double places = kBatch * kHeads * kPositions * kPositions * static_cast<double>(size);
    forward.emplace_back(size, rounded(kForward * places / seconds[0]));
    const double back = std::max(seconds[1] - seconds[0], seconds[0] / 4);
    backward.emplace_back(size, rounded(kBackward * places / back));
  }
  costs.attention = Curve(std::move(forward));
  costs.attention_backward = Curve(std::move(backward));
}

/// Seconds that an op on distributed tensors takes beside its kernel.
double call_of(World& world, int repeats) {
  const Mesh mesh({{"all", world.size()}});
  const at::Tensor x =
      distribute(ones(world, {1}), Layout::replicated(mesh), world).requires_grad_();
  const auto chain = [=] {
    at::Tensor y = x;
    for (int i = 0; i < kChain; ++i) y = y.mul(2);
    torch::autograd::grad({y}, {x}, {at::ones_like(y)});
  };
  return rounded(measure_tasks(world, {chain}, repeats)[0] / (2 * kChain));
}

/// What follows from products and sums over all ranks, each alone and together. Many in a row, as
/// ranks leave the barrier before them at different times.
void measure_together(World& world, int repeats, StepCosts& costs) {
  constexpr int kInARow = 16;
  constexpr std::int64_t kSide = 256;
  const at::Tensor a = ones(world, {kSide, kSide});
  const Comm everyone = world.everyone();
  const auto sum = [=](const at::Tensor& t) {
    return all_reduce(everyone, {t}, Placement::partial());
  };
  const at::Tensor few = ones(world, {1 << 10});
  const at::Tensor many = ones(world, {1 << 20});
  const auto in_a_row = [](const Task& task) {
    return [=] {
      for (int i = 0; i < kInARow; ++i) task();
    };
  };
  const std::vector<double> alone =
      measure_tasks(world,
                    {in_a_row([=] { at::mm(a, a); }), in_a_row([=] { sum(few).wait(); }),
                     in_a_row([=] { sum(many).wait(); })},
                    repeats);
  // As long as the long sum, on all ranks equally many.
  const double most = slowest(world, alone[2] / alone[0]);
  const Task compute = [=, times = std::max<std::int64_t>(1, std::llround(most))] {
    for (std::int64_t i = 0; i < times; ++i) at::mm(a, a);
  };
  const std::vector<double> together = measure_tasks(world,
                                                     {in_a_row(compute), in_a_row([=] {
                                                        compute();
                                                        sum(few).wait();
                                                      }),
                                                      in_a_row([=] {
                                                        auto sent = sum(many);
                                                        compute();
                                                        sent.wait();
                                                      })},
                                                     repeats);
  const double computing = together[0] / kInARow;
  const double apart = std::max(0.0, (together[1] - together[0] - alone[1]) / kInARow);
  costs.skew = rounded(apart / std::sqrt(computing));
  const double hidden = alone[2] + together[0] - together[2];
  costs.hides = rounded(std::clamp(hidden / std::min(alone[2], together[0]), 0.0, 1.0));
}

}  // namespace

void measure_compute(World& world, const ComputeOptions& options, StepCosts& costs) {
  costs.products = products_of(world, options);
  costs.memory = memory_of(world, options);
  costs.seconds_per_element = elementwise_of(world, options);
  measure_attention(world, options, costs);
  costs.call = call_of(world, options.repeats);
  measure_together(world, options.repeats, costs);
}

std::string compute_text(const StepCosts& costs) {
  constexpr double kGiga = 1e9;
  constexpr double kMega = 1e6;
  constexpr double kPercent = 100;
  std::string out =
      concat("an op takes ", time_text(costs.call), " beside its kernel\nproducts of");
  for (const auto& [operations, rate] : costs.products.points()) {
    out += concat(" ", rounded(operations / kMega), " megaflops: ", rounded(rate / kGiga),
                  " gigaflops;");
  }
  out += "\nelementwise ops over";
  for (const auto& [bytes, rate] : costs.memory.points()) {
    out += concat(" ", bytes_text(static_cast<std::int64_t>(bytes)), ": ", rounded(rate / kGiga),
                  " GB/s;");
  }
  return out + concat("\n", rounded(costs.hides * kPercent),
                      "% of a collective hides behind what is computed meanwhile; in a second of "
                      "computing ranks "
                      "come apart by ",
                      time_text(costs.skew), "\n");
}

}  // namespace intarsia::tools

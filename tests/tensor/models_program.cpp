// Trains the models of models.h on [dp=2,tp=2] and, beside it in every process, alone; compares all
// losses, gradients, parameters and buffers of every step. One process among the 4 that a launcher
// started, or with `--in-process 4` on threads. `--steps N`, `--only MODEL`: less of it;
// `--seed N`: other initial values.
//
// What may differ. Cutting a tensor changes the order in which terms are summed, and nothing else.
// Another order changes a sum of n terms by about u sqrt(n) of its size (u: the dtype's epsilon),
// and the relative errors of sums behind each other add in quadrature. So a result that is n terms
// deep, over all sums between it and the inputs, may differ by
//
//     t = 8 u sqrt(n)    of the largest element of its tensor,
//
// where 8 is for sums whose terms cancel in part. With n = 1,000 that is 6e-14 in float64 and 3e-5
// in float32. A piece that is missing or counted twice is an error of order 1.
//
// float64: the two runs meet only at the start, and so their parameters come apart. Where these
// differ by d (the root of the sum of squares of all parameters' |difference| / |value|), loss and
// gradients may differ by t_k = t + 8 d. The parameters themselves may differ by t for each
// step made. AdamW divides by the size of a gradient, and so makes more of the noise in a small
// one: an element moves by lr m / (sqrt(v) + e), so that noise of t_k max|g| moves it by
// lr t_k max|g| / (sqrt(v) + e). That is added for each element. At the rates used here it exceeds
// t only where a gradient is below about a hundredth of the largest, and stays below 1e-8.
//
// float32: with AdamW such noise would soon hide everything. Therefore all is compared at equal
// inputs. First the loss and the gradients at equal parameters, to t. Then the plain run takes
// over our gradients; the update has no sums, and AdamW's less than 16 operations behind each
// other, so that parameters must then agree to 16 u. Then it takes over our parameters and buffers.
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include "intarsia/build.h"
#include "intarsia/communication.h"
#include "intarsia/in_process.h"
#include "intarsia/tensor.h"
#include "tensor/models.h"

namespace intarsia::testing {
namespace {

struct Options {
  int in_process = 0;
  int steps = 10;
  std::string only = {};
  std::uint64_t seed = 1;
};

/// The largest error of one kind, by the part that it is of its tolerance.
struct Worst {
  double ratio = -1;
  double error = 0;
  std::string where = {};
};
std::ostream& operator<<(std::ostream& out, const Worst& w) {
  return out << w.error << ", " << w.ratio << " of the tolerance (" << w.where << ")\n";
}

/// Compares, and keeps the worst of each kind.
class Comparison {
 public:
  /// `tolerance`: in parts of the largest element. `more`: for each element, is added to that.
  /// Returns |difference| / |value|.
  double check(Worst& worst, const std::string& what, const at::Tensor& got, const at::Tensor& want,
               double tolerance, const at::Tensor& more = {}) {
    const torch::NoGradGuard no_grad;
    ++count_;
    if (!has_layout(got) || got.sizes() != want.sizes() || got.dtype() != want.dtype()) {
      violated(what + " is " + describe(got) + ", not " + describe(want));
      return 1;
    }
    const at::Tensor expected = want.to(at::kDouble);
    const double scale = expected.abs().max().item<double>();
    const at::Tensor apart = (full(got).to(at::kDouble) - expected).abs();
    at::Tensor allowed = torch::full_like(expected, tolerance * scale);
    if (more.defined()) allowed += more;
    // Where nothing is allowed because all is 0, equal values are right.
    const at::Tensor parts = torch::where(apart == 0, 0.0, apart / allowed);
    const double ratio = parts.max().item<double>();
    const double error = ratio == 0 ? 0 : (apart.max() / scale).item<double>();
    if (!(ratio <= worst.ratio)) worst = {ratio, error, what};
    worst_ = std::max(worst_, std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio);
    if (!(ratio <= 1)) {
      std::ostringstream out;
      out << what << ": error " << error << ", " << ratio << " times what is allowed, "
          << describe(got);
      violated(out.str());
    }
    return error == 0 ? 0 : (apart.norm() / expected.norm()).item<double>();
  }
  void require(bool holds, const std::string& what) {
    ++count_;
    if (!holds) violated(what);
  }
  void enter(const std::string& name) { name_ = name; }

  std::int64_t count() const { return count_; }
  std::int64_t violations() const { return violations_; }
  double worst() const { return worst_; }

 private:
  void violated(const std::string& what) {
    if (++violations_ <= 20) std::cerr << name_ + ": " + what + "\n" << std::flush;
  }

  std::string name_;
  std::int64_t count_ = 0;
  std::int64_t violations_ = 0;
  double worst_ = 0;
};

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

/// A model, how it lies, and what it is fed.
template <class Model>
struct Case {
  std::string name;
  LayoutPatterns patterns;
  std::function<Batch(at::Generator)> batch;
  std::int64_t rows;  ///< over which the gradient of a weight is summed
  /// What goes over tp in forward, if that shall be held to the textbook's.
  std::string forward_over_tp = {};
};

Case<Mlp> mlp_case() {
  return {.name = "mlp",
          .patterns = {{"up.*", "R,S(0)"}, {"down.weight", "R,S(1)"}, {"head.*", "R,S(0)"}},
          .batch =
              [](at::Generator g) {
                return Batch{torch::randn({8, 16}, g), torch::randint(0, 10, {8}, g, torch::kLong)};
              },
          .rows = 8};
}

Case<Cnn> cnn_case() {
  return {.name = "cnn",
          .patterns = {{"conv1.weight", "R,S(0)"}, {"conv2.weight", "R,S(1)"}},
          .batch =
              [](at::Generator g) {
                return Batch{torch::randn({8, 3, 8, 8}, g),
                             torch::randint(0, 10, {8}, g, torch::kLong)};
              },
          .rows = 8 * 8 * 8};
}

/// The two halves of the batch have different numbers of positions that do not count.
/// `cut_vocabulary`: embedding and head are cut too. If not, forward has the textbook's two
/// all-reduces for each layer.
Case<Llama> llama_case(bool cut_vocabulary) {
  LayoutPatterns patterns = {{"*.attention.wo.weight", "R,S(1)"},
                             {"*.attention.w*.weight", "R,S(0)"},
                             {"*.gate.weight", "R,S(0)"},
                             {"*.up.weight", "R,S(0)"},
                             {"*.down.weight", "R,S(1)"}};
  if (cut_vocabulary) {
    patterns.emplace_back("tokens.weight", "R,S(0)");
    patterns.emplace_back("head.weight", "R,S(0)");
  }
  return {.name = cut_vocabulary ? "llama_cut_vocabulary" : "llama",
          .patterns = patterns,
          .batch =
              [](at::Generator g) {
                const at::Tensor text = torch::randint(0, 51, {8, 9}, g, torch::kLong);
                at::Tensor next = text.slice(1, 1).clone();
                next.slice(0, 0, 2).slice(1, 5).fill_(-100);
                next.slice(0, 7, 8).slice(1, 3).fill_(-100);
                return Batch{text.slice(1, 0, 8).contiguous(), next};
              },
          .rows = 8 * 8,
          .forward_over_tp = cut_vocabulary ? "" : "4 P->R"};
}

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& target) {
  using torch::nn::functional::CrossEntropyFuncOptions;
  return torch::nn::functional::cross_entropy(scores, target.flatten(),
                                              CrossEntropyFuncOptions().ignore_index(-100));
}

/// How many terms deep the sums of one step are: through every matrix forward (its columns) and
/// backward (its rows), over the rows of the batch for the gradient, and there and back again for
/// each norm.
template <class Model>
double summed_terms(const Model& model, std::int64_t rows) {
  double terms = static_cast<double>(rows);
  for (const at::Tensor& p : model->parameters()) {
    if (p.dim() < 2) {
      terms += 2.0 * static_cast<double>(rows);
    } else {
      const double inner =
          static_cast<double>(p.numel()) / static_cast<double>(p.size(0) * p.size(1));
      terms += inner * static_cast<double>(p.size(0) + p.size(1));
    }
  }
  return terms;
}

template <class Model>
void copy_into(const Model& plain, const Model& ours) {
  const torch::NoGradGuard no_grad;
  for (auto& item : plain->named_parameters()) {
    item.value().copy_(full(ours->named_parameters()[item.key()]));
  }
  for (auto& item : plain->named_buffers()) {
    item.value().copy_(full(ours->named_buffers()[item.key()]));
  }
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

/// How far noise of `noise` in the gradient can move each element in the update just made.
at::Tensor moved_by_noise(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                          double noise) {
  const auto& adamw =
      static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
  const auto& state = static_cast<const torch::optim::AdamWParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
  const double correction =
      1 - std::pow(std::get<1>(adamw.betas()), static_cast<double>(state.step()));
  return adamw.lr() * noise / ((state.exp_avg_sq() / correction).sqrt() + adamw.eps());
}

/// What went over one axis, forward or backward.
std::string over(const Bill& all, const std::string& axis, bool backward) {
  Bill some;
  for (const BillEntry& e : all.entries) {
    if (e.axis == axis && e.backward == backward) some.entries.push_back(e);
  }
  return some.transitions();
}

/// Trains one model with one optimizer, both ways. `show_bill`: of the last step.
template <class Model>
void train(World& world, const Case<Model>& c, const std::string& optimizer, int steps,
           bool show_bill, Comparison& compare) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  const Layout by_batch = Layout::parse("S(0),R", mesh);
  const auto dtype = torch::typeMetaToScalarType(torch::get_default_dtype());
  const bool free = dtype == at::kDouble;
  const double u = free ? std::numeric_limits<double>::epsilon()
                        : static_cast<double>(std::numeric_limits<float>::epsilon());

  Model ours = build(world, mesh, c.patterns, [] { return Model(); });
  Model plain;
  copy_into(plain, ours);
  const auto our_optimizer = make_optimizer(optimizer, ours->parameters());
  const auto plain_optimizer = make_optimizer(optimizer, plain->parameters());
  const double terms = summed_terms(plain, c.rows);
  const double t = 8 * u * std::sqrt(terms);
  const std::string name = c.name + " " + optimizer + (free ? " float64" : " float32");
  compare.enter(name);

  Worst loss, gradients, parameters, buffers;
  std::map<std::string, at::Tensor> moved;  // see moved_by_noise; summed over the steps
  double apart = 0;                         // the square of d
  double first_loss = 0;
  double last_loss = 0;
  Bill last_bill;
  for (int step = 0; step < steps; ++step) {
    const std::string at_step = ", step " + std::to_string(step);
    const double t_k = t + 8 * std::sqrt(apart);
    const Batch batch = c.batch(at::detail::createCPUGenerator(100 + static_cast<unsigned>(step)));

    clear_bill(world);
    our_optimizer->zero_grad();
    const at::Tensor our_loss = loss_of(ours->forward(distribute(batch.input, by_batch, world)),
                                        distribute(batch.target, by_batch, world));
    our_loss.backward();
    const Bill one_step = bill(world);

    plain_optimizer->zero_grad();
    const at::Tensor plain_loss = loss_of(plain->forward(batch.input), batch.target);
    plain_loss.backward();

    compare.check(loss, "loss" + at_step, our_loss, plain_loss, t_k);
    for (auto& item : plain->named_parameters()) {
      const at::Tensor got = ours->named_parameters()[item.key()].grad();
      at::Tensor& want = item.value().mutable_grad();
      compare.require(got.defined() && want.defined(), item.key() + " has no gradient" + at_step);
      if (!got.defined() || !want.defined()) continue;
      compare.check(gradients, item.key() + at_step, got, want, t_k);
      if (!free) want.copy_(full(got));
    }

    if (!c.forward_over_tp.empty()) {
      compare.require(over(one_step, "tp", false) == c.forward_over_tp,
                      "forward sends " + over(one_step, "tp", false) + " over tp, not " +
                          c.forward_over_tp + at_step);
    }

    const Budget update(world);
    our_optimizer->step();
    plain_optimizer->step();
    compare.require(update.spent().empty(), "the update communicates " + update.spent() + at_step);
    apart = 0;
    for (const auto& item : plain->named_parameters()) {
      const at::Tensor& want = item.value();
      at::Tensor& more = moved[item.key()];
      if (free && optimizer == "AdamW") {
        const double noise = t_k * want.grad().abs().max().item<double>();
        const at::Tensor here = moved_by_noise(*plain_optimizer, want, noise);
        more = more.defined() ? more + here : here;
      }
      const double d =
          compare.check(parameters, item.key() + at_step, ours->named_parameters()[item.key()],
                        want, free ? t * (step + 1) : 16 * u, more);
      if (free) apart += d * d;
    }
    for (const auto& item : plain->named_buffers()) {
      compare.check(buffers, item.key() + at_step, ours->named_buffers()[item.key()], item.value(),
                    t_k);
    }
    if (!free) copy_into(plain, ours);

    last_loss = plain_loss.item<double>();
    if (step == 0) first_loss = last_loss;
    last_bill = one_step;
  }
  if (world.rank() != 0) return;
  std::ostringstream out;
  out.precision(3);
  out << name << ": " << steps << " steps, loss " << first_loss << " to " << last_loss
      << ", sums of " << terms << " terms, largest errors:\n";
  out << "  loss " << loss << "  gradients " << gradients << "  parameters " << parameters;
  if (!buffers.where.empty()) out << "  buffers " << buffers;
  if (show_bill) {
    out << "the bill of one step of " << c.name << ":\n" << last_bill.to_string();
    for (const char* axis : {"dp", "tp"}) {
      out << "over " << axis << " forward: " << over(last_bill, axis, false)
          << "; backward: " << over(last_bill, axis, true) << "\n";
    }
  }
  std::cout << out.str() << std::flush;
}

/// The default dtype must not change while this runs: it is one for the process.
void train_all(World& world, const Options& options, Comparison& compare) {
  const bool float64 = torch::get_default_dtype() == torch::scalarTypeToTypeMeta(torch::kDouble);
  for (const char* optimizer : {"SGD", "AdamW"}) {
    const auto run = [&](const auto& c) {
      if (!options.only.empty() && options.only != c.name) return;
      const bool show_bill = float64 && std::string(optimizer) == "SGD";
      train(world, c, optimizer, options.steps, show_bill, compare);
    };
    run(mlp_case());
    run(cnn_case());
    run(llama_case(false));
    run(llama_case(true));
  }
}

/// Prints what this rank found, and says whether all was right.
bool conclude(std::int64_t rank, const Comparison& compare) {
  std::ostringstream out;
  out.precision(3);
  out << "rank " << rank << ": " << compare.count() << " comparisons, " << compare.violations()
      << " wrong, max error / tolerance = " << compare.worst() << "\n";
  std::cout << out.str() << std::flush;
  return compare.violations() == 0 && compare.count() > 0;
}

bool run_on_threads(const Options& options) {
  std::atomic<bool> right = true;
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    torch::set_default_dtype(torch::scalarTypeToTypeMeta(dtype));
    run_in_process(options.in_process, [&](World& world) {
      Comparison compare;
      train_all(world, options, compare);
      if (!conclude(world.rank(), compare)) right = false;
    });
  }
  return right;
}

bool run_launched(const Options& options) {
  const auto world = World::connect({.timeout = std::chrono::seconds(60)});
  Comparison compare;
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    torch::set_default_dtype(torch::scalarTypeToTypeMeta(dtype));
    train_all(*world, options, compare);
  }
  return conclude(world->rank(), compare);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--in-process") {
      options.in_process = std::stoi(value);
    } else if (name == "--steps") {
      options.steps = std::stoi(value);
    } else if (name == "--only") {
      options.only = value;
    } else if (name == "--seed") {
      options.seed = std::stoull(value);
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  return options;
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) {
  using namespace intarsia::testing;
  at::set_num_threads(1);
  try {
    const Options options = parse(argc, argv);
    torch::manual_seed(options.seed);  // else the generator starts differently in every process
    const bool right = options.in_process > 0 ? run_on_threads(options) : run_launched(options);
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

// Normalisation over cut dimensions: what it sends, and training with the statistics of a batch
// that no rank has whole.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "intarsia/communication.h"
#include "intarsia/lockstep.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_whole;
using testing::on_mesh;
using testing::values;

// ---- what is sent ----------------------------------------------------------------------------

struct Sending {
  std::string name;
  std::vector<Tensor> inputs;
  std::vector<std::string> layouts;
  std::function<Tensor(const std::vector<Tensor>&)> op;
  std::string forward;
  std::string backward;
  std::uint64_t forward_bytes = 0;  ///< of the partial values on one of two ranks
};

std::vector<Sending> sendings() {
  const Tensor x = values({5, 6, 4}, 1);
  const Tensor four = values({4}, 2);
  const Tensor six = values({6}, 3);
  const auto layer = [](const auto& t) { return at::layer_norm(t[0], {4}, t[1], t[2]); };
  const auto group = [](std::int64_t groups) {
    return
        [groups](const std::vector<Tensor>& t) { return at::group_norm(t[0], groups, t[1], t[2]); };
  };
  const auto batch = [](bool training) {
    return [training](const std::vector<Tensor>& t) {
      const Tensor mean = at::zeros({6}, at::kDouble);
      const Tensor var = at::ones({6}, at::kDouble);
      return at::batch_norm(t[0], t[1], t[2], mean, var, training, 0.1, 1e-5, false);
    };
  };
  // An all-reduce of n doubles hands over 8 n bytes on each of two ranks.
  constexpr std::uint64_t kRows = 8 * 5 * 6;
  return {
      {"layer_norm",
       {x, four, four},
       {"S(2)", "S(0)", "S(0)"},
       layer,
       "2 P->R",
       "1 P->R",
       2 * kRows},
      {"layer_norm, batch", {x, four, four}, {"S(0)", "R", "R"}, layer, "", "2 P->R"},
      {"rms_norm",
       {x, four},
       {"S(2)", "S(0)"},
       [](const auto& t) { return at::rms_norm(t[0], {4}, t[1]); },
       "1 P->R",
       "1 P->R",
       kRows},
      {"group_norm",
       {x, six, six},
       {"S(2)", "R", "R"},
       group(3),
       "2 P->R",
       "3 P->R",
       2 * 8 * 5 * 3},
      {"group_norm, whole groups", {x, six, six}, {"S(1)", "S(0)", "S(0)"}, group(2), "", ""},
      {"group_norm, batch", {x, six, six}, {"S(0)", "R", "R"}, group(3), "", "2 P->R"},
      {"batch_norm", {x, six, six}, {"S(0)", "R", "R"}, batch(true), "2 P->R", "1 P->R", 2 * 8 * 6},
      {"batch_norm, places",
       {x, six, six},
       {"S(2)", "R", "R"},
       batch(true),
       "2 P->R",
       "1 P->R",
       2 * 8 * 6},
      {"batch_norm, evaluation", {x, six, six}, {"S(0)", "R", "R"}, batch(false), "", "2 P->R"},
      {"batch_norm, evaluation of channels",
       {x, six, six},
       {"S(1)", "S(0)", "S(0)"},
       batch(false),
       "",
       ""},
      {"var", {x}, {"S(2)"}, [](const auto& t) { return t[0].var(2); }, "1 P->R", "1 P->R", kRows},
      {"max",
       {x},
       {"S(2)"},
       [](const auto& t) { return std::get<0>(t[0].max(2)); },
       "1 P->R",
       "1 P->R",
       kRows},
  };
}

TEST(Norms, SendReducedSizesOnly) {
  const Mesh mesh = Mesh::parse("[a=2]");
  for (const Sending& s : sendings()) {
    on_mesh(mesh, [&](World& world) {
      std::vector<Tensor> inputs;
      for (std::size_t i = 0; i < s.inputs.size(); ++i) {
        inputs.push_back(distribute(s.inputs[i].clone(), Layout::parse(s.layouts[i], mesh), world)
                             .set_requires_grad(true));
      }
      clear_bill(world);
      Budget forward(world);
      const Tensor out = s.op(inputs);
      EXPECT_EQ(forward.spent(), s.forward) << s.name << '\n' << bill(world).to_string();
      // Few bytes are reduced by an exchange: a rank hands them over once for each rank.
      EXPECT_EQ(bill(world).bytes(), 2 * s.forward_bytes) << s.name << bill(world).to_string();
      const Tensor grad = at::ones_like(out);
      Budget backward(world);
      torch::autograd::backward({out}, {grad});
      EXPECT_EQ(backward.spent(), s.backward) << s.name << '\n' << bill(world).to_string();
    });
  }
}

TEST(Norms, PositionsOfExtremesAreNotGathered) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor whole = values({5, 7}, 1);
    const Tensor x = distribute(whole, Layout::parse("S(1)", mesh), world);
    Budget budget(world);
    const Tensor at_dim = x.argmax(1);
    const Tensor at_all = x.argmin();
    budget.expect("2 P->R");
    expect_whole(at_dim, whole.argmax(1), "argmax");
    expect_whole(at_all, whole.argmin(), "argmin");
  });
}

// ---- training --------------------------------------------------------------------------------

/// A layer and what it keeps.
struct BatchNorm {
  Tensor weight;
  Tensor bias;
  Tensor mean;
  Tensor var;
};

BatchNorm new_layer() {
  return {values({3}, 1), values({3}, 2), values({3}, 3), values({3}, 4).abs() + 0.5};
}

/// Two steps of training, and one evaluation: the loss after each.
std::vector<Tensor> train(BatchNorm& layer, const std::vector<Tensor>& batches) {
  std::vector<Tensor> losses;
  for (std::size_t step = 0; step < batches.size(); ++step) {
    const bool training = step + 1 < batches.size();
    const Tensor weight = layer.weight.detach().requires_grad_(true);
    const Tensor bias = layer.bias.detach().requires_grad_(true);
    const Tensor y = at::batch_norm(batches[step], weight, bias, layer.mean, layer.var, training,
                                    0.1, 1e-5, false);
    const Tensor loss = (y * y.sin()).sum();
    losses.push_back(loss.detach());
    const auto grads = torch::autograd::grad({loss}, {weight, bias});
    layer.weight = (layer.weight - grads[0] * 0.1).detach();
    layer.bias = (layer.bias - grads[1] * 0.1).detach();
  }
  return losses;
}

std::vector<Tensor> batches_of(const std::vector<std::int64_t>& sizes) {
  std::vector<Tensor> out;
  for (std::uint64_t step = 0; step < 3; ++step) out.push_back(values(sizes, 10 + step));
  return out;
}

/// `statistics`: the layout of the running mean and variance; empty for plain tensors.
void check_training(World& world, const Mesh& mesh, const std::vector<std::int64_t>& sizes,
                    const std::string& input, const std::string& parameters,
                    const std::string& statistics) {
  const std::string what = input + ", parameters " + parameters + ", statistics " + statistics +
                           " on " + mesh.to_string();
  const std::vector<Tensor> batches = batches_of(sizes);
  BatchNorm plain = new_layer();
  const std::vector<Tensor> want = train(plain, batches);
  const auto laid_out = [&](const Tensor& t, const std::string& layout) {
    return layout.empty() ? t : distribute(t, Layout::parse(layout, mesh), world);
  };
  BatchNorm ours = new_layer();
  ours.weight = laid_out(ours.weight, parameters);
  ours.bias = laid_out(ours.bias, parameters);
  ours.mean = laid_out(ours.mean, statistics);
  ours.var = laid_out(ours.var, statistics);
  std::vector<Tensor> ours_batches;
  for (const Tensor& b : batches) ours_batches.push_back(laid_out(b, input));
  const std::vector<Tensor> got = train(ours, ours_batches);
  for (std::size_t i = 0; i < want.size(); ++i) expect_whole(got[i], want[i], what + ", loss");
  expect_whole(ours.weight, plain.weight, what + ", weight");
  expect_whole(ours.bias, plain.bias, what + ", bias");
  expect_whole(ours.mean, plain.mean, what + ", running mean");
  expect_whole(ours.var, plain.var, what + ", running variance");
}

/// Batches that are cut unevenly, and of which some ranks have nothing.
void check_all(World& world, const Mesh& mesh) {
  for (const char* statistics : {"", "R,R", "S(0),R", "R,S(0)"}) {
    for (const char* parameters : {"R,R", "S(0),R", "R,S(0)"}) {
      for (const char* input : {"S(0),R", "S(0),S(1)", "S(1),S(0)", "S(0),S(0)", "R,S(2)", "R,R",
                                "S(1),R", "S(2),S(0)"}) {
        check_training(world, mesh, {5, 3, 2}, input, parameters, statistics);
        if (::testing::Test::HasFatalFailure()) return;
      }
      check_training(world, mesh, {2, 3}, "R,S(0)", parameters, statistics);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(BatchNormTraining, EqualsOneProcessOnThreads) {
  const Mesh mesh = Mesh::parse("[a=2,b=3]");
  on_mesh(mesh, [&](World& world) { check_all(world, mesh); });
}

TEST(BatchNormTraining, EqualsOneProcessInLockstep) {
  const Lockstep lockstep("[a=2,b=3]");
  check_all(lockstep.world(), lockstep.mesh());
}

TEST(BatchNormTraining, EvaluationLeavesStatisticsAlone) {
  const Lockstep lockstep("[a=2]");
  World& world = lockstep.world();
  const Tensor x = distribute(values({5, 3}, 1), Layout::parse("S(1)", lockstep.mesh()), world);
  const Tensor mean = values({3}, 2);
  const Tensor var = values({3}, 3).abs();
  const Tensor before = mean.clone();
  Budget budget(world);
  at::batch_norm(x, {}, {}, mean, var, false, 0.1, 1e-5, false);
  budget.expect("");
  EXPECT_TRUE(at::equal(mean, before));
}

}  // namespace
}  // namespace intarsia

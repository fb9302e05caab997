// A small Llama trains a step in the world that the launcher made, and in a simulated one: both
// must send the same, entry by entry, and hold the same memory at most, up to 2 %.
//
//   predict_program [MESH]      such as [dp=2,tp=2]; by default all layouts that fit the world
#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <iostream>
#include <map>

#include "intarsia/intarsia.h"

namespace intarsia {
namespace {

constexpr std::int64_t kDim = 128;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kHeadDim = kDim / kHeads;
constexpr std::int64_t kHidden = 320;
constexpr std::int64_t kVocabulary = 768;
constexpr std::int64_t kLayers = 3;
constexpr std::int64_t kBatch = 8;
constexpr std::int64_t kLength = 64;
constexpr double kTolerance = 0.02;

/// Placements for each kind of parameter, and for the batch.
struct Layouts {
  std::string mesh;
  std::string columns;
  std::string rows;
  std::string norm;
  std::string batch;
};

class Llama {
 public:
  Llama(const Layouts& layouts, World& world) {
    const Mesh mesh = Mesh::parse(layouts.mesh);
    const auto add = [&](const std::string& name, at::IntArrayRef sizes, const std::string& text) {
      p_[name] = randn(sizes, Layout::parse(text, mesh), world).mul_(0.05).set_requires_grad(true);
    };
    add("embedding", {kVocabulary, kDim}, layouts.columns);
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = std::to_string(i);
      for (const char* name : {"q", "k", "v"}) add(layer + name, {kDim, kDim}, layouts.columns);
      add(layer + "o", {kDim, kDim}, layouts.rows);
      add(layer + "gate", {kHidden, kDim}, layouts.columns);
      add(layer + "up", {kHidden, kDim}, layouts.columns);
      add(layer + "down", {kDim, kHidden}, layouts.rows);
      add(layer + "norm1", {kDim}, layouts.norm);
      add(layer + "norm2", {kDim}, layouts.norm);
    }
    add("norm", {kDim}, layouts.norm);
    add("output", {kVocabulary, kDim}, layouts.columns);
    const at::Tensor angles = at::outer(at::arange(kLength, at::kFloat),
                                        at::pow(10000.0, at::arange(0, kHeadDim, 2) / -kHeadDim));
    cos_ = at::cat({angles.cos(), angles.cos()}, -1);
    sin_ = at::cat({angles.sin(), angles.sin()}, -1);
  }

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> out;
    for (const auto& [name, t] : p_) out.push_back(t);
    return out;
  }

  at::Tensor loss(const at::Tensor& tokens) const {
    at::Tensor x = at::embedding(p_.at("embedding"), tokens);
    for (std::int64_t i = 0; i < kLayers; ++i) x = layer(x, std::to_string(i));
    const at::Tensor logits = at::linear(norm(x, "norm"), p_.at("output"));
    return at::cross_entropy_loss(logits.flatten(0, 1), tokens.flatten());
  }

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * p_.at(name);
  }

  at::Tensor rotate(const at::Tensor& x) const {
    const auto halves = x.chunk(2, -1);
    return x * cos_ + at::cat({-halves[1], halves[0]}, -1) * sin_;
  }

  at::Tensor layer(const at::Tensor& input, const std::string& i) const {
    const auto heads = [&](const at::Tensor& h, const char* name) {
      return at::linear(h, p_.at(i + name)).unflatten(-1, {kHeads, kHeadDim}).transpose(1, 2);
    };
    at::Tensor h = norm(input, i + "norm1");
    const at::Tensor a = at::scaled_dot_product_attention(
        rotate(heads(h, "q")), rotate(heads(h, "k")), heads(h, "v"), {}, 0, /*is_causal=*/true);
    const at::Tensor x = input + at::linear(a.transpose(1, 2).flatten(2), p_.at(i + "o"));
    h = norm(x, i + "norm2");
    return x +
           at::linear(at::silu(at::linear(h, p_.at(i + "gate"))) * at::linear(h, p_.at(i + "up")),
                      p_.at(i + "down"));
  }

  std::map<std::string, at::Tensor> p_;
  at::Tensor cos_;
  at::Tensor sin_;
};

KeptTensors train(const Layouts& layouts, World& world) {
  const Llama model(layouts, world);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
  const at::Tensor tokens = randint(0, kVocabulary, {kBatch, kLength},
                                    Layout::parse(layouts.batch, Mesh::parse(layouts.mesh)), world);
  model.loss(tokens).backward();
  optimizer.step();
  KeptTensors kept{.parameters = model.parameters()};
  for (const auto& [key, state] : optimizer.state()) {
    auto& moments = static_cast<torch::optim::AdamWParamState&>(*state);
    kept.optimizer.push_back(moments.exp_avg());
    kept.optimizer.push_back(moments.exp_avg_sq());
  }
  return kept;
}

bool compare(const Layouts& layouts, World& world) {
  const MemoryMeter meter;
  clear_bill(world);
  KeptTensors kept = train(layouts, world);
  const std::int64_t real = meter.peak();
  const std::int64_t parameters = held_bytes(kept.parameters);
  kept = {};
  const Bill sent = bill(world);
  const Prediction predicted = predict({.mesh = Mesh::parse(layouts.mesh), .rank = world.rank()},
                                       [&](World& simulated) { return train(layouts, simulated); });
  const double ratio = static_cast<double>(predicted.peak) / static_cast<double>(real);
  const bool same_bill = predicted.bill.to_string() == sent.to_string();
  if (world.rank() == 0 || !same_bill) {
    std::cout << predicted.to_string() << "\n  real peak " << real << ", predicted "
              << predicted.peak << ", ratio " << ratio << std::endl;
  }
  if (!same_bill)
    std::cout << "real:\n"
              << sent.to_string() << "simulated:\n"
              << predicted.bill.to_string() << std::endl;
  return same_bill && std::abs(ratio - 1) <= kTolerance && predicted.parameters == parameters;
}

int run(int argc, char** argv) {
  at::manual_seed(1);
  const std::vector<Layouts> all{
      {"[dp=2]", "S(0)", "S(0)", "S(0)", "S(0)"},
      {"[tp=2]", "S(0)", "S(1)", "R", "R"},
      {"[dp=4]", "S(0)", "S(0)", "S(0)", "S(0)"},
      {"[dp=2,tp=2]", "R,S(0)", "R,S(1)", "R,R", "S(0),R"},
      {"[dp=2,tp=2]", "S(0),S(0) | 0:tp>dp", "S(0),S(1)", "S(0),R", "S(0),R"},
  };
  const std::int64_t size = read_rendezvous(process_environment()).size;
  bool good = true;
  int compared = 0;
  for (const Layouts& layouts : all) {
    if (argc > 1 ? layouts.mesh != argv[1] : Mesh::parse(layouts.mesh).size() != size) continue;
    const auto world = World::connect();  // a new one each time, which has no buffers yet
    good = compare(layouts, *world) && good;
    ++compared;
    world->close();
  }
  return good && compared > 0 ? 0 : 1;
}

}  // namespace
}  // namespace intarsia

int main(int argc, char** argv) { return intarsia::run(argc, argv); }

// A small model for tests of pipelines: layers one after the other, on any places, and beside it
// the same on plain tensors.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <string>
#include <vector>

#include "intarsia/pipeline.h"
#include "intarsia/tensor.h"

namespace intarsia::testing {

/// Of each layer: y = gelu(x w + b).
struct ChainValues {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;

  explicit ChainValues(int layers, std::int64_t width = 6) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{5});
    for (int i = 0; i < layers; ++i) {
      weights.push_back(at::randn({width, width}, generator, at::kDouble) * 0.5);
      biases.push_back(at::randn({width}, generator, at::kDouble) * 0.1);
    }
  }
};

inline at::Tensor run_layer(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return at::gelu(at::addmm(b, x, w));
}

/// The layers of one stage, with parameters on its mesh.
struct ChainStage {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;

  ChainStage(const ChainValues& values, int first, int end, const Mesh& mesh, World& world,
             const std::string& layout = "") {
    const Layout of_weights =
        layout.empty() ? Layout::replicated(mesh) : Layout::parse(layout, mesh);
    for (int i = first; i < end; ++i) {
      const auto k = static_cast<std::size_t>(i);
      weights.push_back(distribute(values.weights[k], of_weights, world).requires_grad_());
      biases.push_back(
          distribute(values.biases[k], Layout::replicated(mesh), world).requires_grad_());
    }
  }

  at::Tensor run(at::Tensor x) const {
    for (std::size_t i = 0; i < weights.size(); ++i) x = run_layer(x, weights[i], biases[i]);
    return x;
  }
  NamedTensors parameters(int first) const {
    NamedTensors out;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::string name = "layer" + std::to_string(first + static_cast<int>(i));
      out.emplace_back(name + ".w", weights[i]);
      out.emplace_back(name + ".b", biases[i]);
    }
    return out;
  }
};

/// Rows of inputs and targets for each microbatch.
inline std::vector<StageTensors> chain_batches(const std::vector<std::int64_t>& rows,
                                               std::int64_t width = 6) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{7});
  std::vector<StageTensors> out;
  for (const std::int64_t r : rows) {
    out.push_back({at::randn({r, width}, generator, at::kDouble),
                   at::randn({r, width}, generator, at::kDouble)});
  }
  return out;
}

/// Losses, and the gradients of weights and biases, of the same on plain tensors.
struct ChainReference {
  double loss = 0;
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;

  ChainReference(const ChainValues& values, const std::vector<StageTensors>& batches) {
    std::vector<at::Tensor> w;
    std::vector<at::Tensor> b;
    for (const at::Tensor& t : values.weights) w.push_back(t.clone().requires_grad_());
    for (const at::Tensor& t : values.biases) b.push_back(t.clone().requires_grad_());
    double rows = 0;
    for (const StageTensors& batch : batches) rows += static_cast<double>(batch[0].size(0));
    for (const StageTensors& batch : batches) {
      at::Tensor x = batch[0];
      for (std::size_t i = 0; i < w.size(); ++i) x = run_layer(x, w[i], b[i]);
      const double share = static_cast<double>(batch[0].size(0)) / rows;
      losses.push_back(0);
      if (share == 0) continue;
      const at::Tensor one = at::mse_loss(x, batch[1]);
      (one * share).backward();
      losses.back() = one.item<double>();
      loss += losses.back() * share;
    }
    for (const at::Tensor& t : w) weights.push_back(t.grad());
    for (const at::Tensor& t : b) biases.push_back(t.grad());
  }
};

}  // namespace intarsia::testing

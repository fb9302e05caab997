// A Llama in plain torch::nn: one model code for every mesh.
//
// Nothing in here knows the layouts of parameters. A plan of tensor parallelism may place tensors
// between modules; without one, or on plain tensors, `placed_input` and `placed_output` do nothing.
#pragma once

#include <intarsia/tensor_parallel.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>

namespace llama {

struct Config {
  std::int64_t dim = 256;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 2;
  std::int64_t hidden = 704;
  std::int64_t vocabulary = 1024;
  double rotary_base = 500000;
  double epsilon = 1e-5;
  double dropout = 0;
  /// The kernel of attention: `sdpa` or `math`.
  std::string attention = "sdpa";
  /// The longest sequence.
  std::int64_t positions = 64;
  intarsia::TensorParallelPlan plan = {};
};

/// `debug`, `8B`, `70B` or `405B`. std::out_of_range for another name.
Config config_named(const std::string& name);

struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl(std::int64_t dim, double epsilon);
  at::Tensor forward(const at::Tensor& x);

  double epsilon;
  at::Tensor weight;
};
TORCH_MODULE(RmsNorm);

/// Turns pairs (i, i + head_dim / 2) of each head by angles that grow with the position.
struct RotaryImpl : torch::nn::Module {
  RotaryImpl(std::int64_t head_dim, std::int64_t positions, double base);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor cos, sin;
};
TORCH_MODULE(Rotary);

/// Grouped-query attention: several heads of queries share one of keys and values.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Config& config);
  at::Tensor forward(const at::Tensor& x);

  Config config;
  std::int64_t head_dim;
  torch::nn::Linear wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
  Rotary rotary{nullptr};
};
TORCH_MODULE(Attention);

/// SwiGLU.
struct FeedForwardImpl : torch::nn::Module {
  explicit FeedForwardImpl(const Config& config);
  at::Tensor forward(const at::Tensor& x);

  intarsia::TensorParallelPlan plan;
  torch::nn::Linear w1{nullptr}, w2{nullptr}, w3{nullptr};
};
TORCH_MODULE(FeedForward);

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Config& config);
  at::Tensor forward(at::Tensor x);

  RmsNorm attention_norm{nullptr}, feed_forward_norm{nullptr};
  Attention attention{nullptr};
  FeedForward feed_forward{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Layer);

/// From token numbers [batch, positions] to logits [batch, positions, vocabulary].
struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const Config& config);
  at::Tensor forward(const at::Tensor& tokens);
  /// The mean cross entropy of the tokens that follow.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  intarsia::TensorParallelPlan plan;
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  RmsNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace llama

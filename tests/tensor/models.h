// Three models as any user of libtorch would write them: nothing in here knows of distribution.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace intarsia::testing {

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(std::int64_t in = 16, std::int64_t hidden = 43, std::int64_t classes = 10) {
    up = register_module("up", torch::nn::Linear(in, hidden));
    down = register_module("down", torch::nn::Linear(hidden, in));
    head = register_module("head", torch::nn::Linear(in, classes));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(x + down(torch::relu(up(x)))); }

  torch::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
};
TORCH_MODULE(Mlp);

struct CnnImpl : torch::nn::Module {
  explicit CnnImpl(std::int64_t channels = 7, std::int64_t classes = 10) {
    using torch::nn::Conv2dOptions;
    conv1 = register_module(
        "conv1", torch::nn::Conv2d(Conv2dOptions(3, channels, 3).padding(1).bias(false)));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(channels));
    conv2 = register_module(
        "conv2", torch::nn::Conv2d(Conv2dOptions(channels, 12, 3).padding(1).bias(false)));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(12));
    head = register_module("head", torch::nn::Linear(12, classes));
  }
  torch::Tensor forward(const torch::Tensor& image) {
    torch::Tensor x = torch::max_pool2d(torch::relu(norm1(conv1(image))), 2);
    x = torch::relu(norm2(conv2(x)));
    return head(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Cnn);

struct RmsNormImpl : torch::nn::Module {
  explicit RmsNormImpl(std::int64_t dim) {
    weight = register_parameter("weight", torch::ones(dim));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x * torch::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + 1e-5) * weight;
  }

  torch::Tensor weight;
};
TORCH_MODULE(RmsNorm);

inline torch::nn::Linear linear_without_bias(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

/// `x` is [batch, heads, positions, head_dim]; pairs (i, i + head_dim / 2) are turned.
inline torch::Tensor rotate(const torch::Tensor& x, const torch::Tensor& cos,
                            const torch::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + torch::cat({-halves[1], halves[0]}, -1) * sin;
}

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(std::int64_t dim, std::int64_t heads, std::int64_t positions) : heads(heads) {
    wq = register_module("wq", linear_without_bias(dim, dim));
    wk = register_module("wk", linear_without_bias(dim, dim));
    wv = register_module("wv", linear_without_bias(dim, dim));
    wo = register_module("wo", linear_without_bias(dim, dim));
    const std::int64_t head_dim = dim / heads;
    const torch::Tensor turns =
        torch::pow(10000.0, -torch::arange(0, head_dim, 2, torch::kDouble) / head_dim);
    const torch::Tensor angles = torch::outer(torch::arange(positions, torch::kDouble), turns);
    const auto dtype = torch::typeMetaToScalarType(torch::get_default_dtype());
    cos = register_buffer("cos", torch::cat({angles, angles}, -1).cos().to(dtype));
    sin = register_buffer("sin", torch::cat({angles, angles}, -1).sin().to(dtype));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto b = x.size(0);
    const auto s = x.size(1);
    const auto split = [&](const torch::Tensor& t) {
      return t.view({b, s, heads, -1}).transpose(1, 2);
    };
    const torch::Tensor q = rotate(split(wq(x)), cos.slice(0, 0, s), sin.slice(0, 0, s));
    const torch::Tensor k = rotate(split(wk(x)), cos.slice(0, 0, s), sin.slice(0, 0, s));
    const torch::Tensor a = torch::scaled_dot_product_attention(
        q, k, split(wv(x)), /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return wo(a.transpose(1, 2).reshape({b, s, -1}));
  }

  std::int64_t heads;
  torch::nn::Linear wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
  torch::Tensor cos, sin;
};
TORCH_MODULE(Attention);

struct SwiGluImpl : torch::nn::Module {
  SwiGluImpl(std::int64_t dim, std::int64_t hidden) {
    gate = register_module("gate", linear_without_bias(dim, hidden));
    up = register_module("up", linear_without_bias(dim, hidden));
    down = register_module("down", linear_without_bias(hidden, dim));
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::silu(gate(x)) * up(x)); }

  torch::nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(SwiGlu);

struct LlamaLayerImpl : torch::nn::Module {
  LlamaLayerImpl(std::int64_t dim, std::int64_t heads, std::int64_t hidden,
                 std::int64_t positions) {
    norm1 = register_module("norm1", RmsNorm(dim));
    attention = register_module("attention", Attention(dim, heads, positions));
    norm2 = register_module("norm2", RmsNorm(dim));
    mlp = register_module("mlp", SwiGlu(dim, hidden));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(norm1(x));
    return x + mlp(norm2(x));
  }

  RmsNorm norm1{nullptr}, norm2{nullptr};
  Attention attention{nullptr};
  SwiGlu mlp{nullptr};
};
TORCH_MODULE(LlamaLayer);

struct LlamaOptions {
  std::int64_t vocabulary = 51;
  std::int64_t dim = 32;
  std::int64_t heads = 4;
  std::int64_t hidden = 43;
  std::int64_t layers = 2;
  std::int64_t positions = 8;
};

struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const LlamaOptions& o = {}) {
    tokens = register_module("tokens", torch::nn::Embedding(o.vocabulary, o.dim));
    for (std::int64_t i = 0; i < o.layers; ++i) {
      layers->push_back(LlamaLayer(o.dim, o.heads, o.hidden, o.positions));
    }
    register_module("layers", layers);
    norm = register_module("norm", RmsNorm(o.dim));
    head = register_module("head", linear_without_bias(o.dim, o.vocabulary));
  }
  /// From [batch, positions] token numbers to [batch * positions, vocabulary] scores.
  torch::Tensor forward(const torch::Tensor& text) {
    torch::Tensor x = tokens(text);
    for (const auto& layer : *layers) x = layer->as<LlamaLayer>()->forward(x);
    return head(norm(x)).flatten(0, 1);
  }

  torch::nn::Embedding tokens{nullptr};
  torch::nn::ModuleList layers;
  RmsNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace intarsia::testing

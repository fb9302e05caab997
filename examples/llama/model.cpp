#include "model.h"

#include <torch/nn/init.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <map>

namespace llama {
namespace {

torch::nn::Linear linear(std::int64_t in, std::int64_t out) {
  torch::nn::Linear made(torch::nn::LinearOptions(in, out).bias(false));
  torch::nn::init::normal_(made->weight, 0, 0.02);
  return made;
}

/// [batch, positions, heads * head_dim] to [batch, heads, positions, head_dim].
at::Tensor split_heads(const at::Tensor& x, std::int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim}).transpose(1, 2);
}

at::Tensor share(const at::Tensor& x, std::int64_t by) {
  return x.unsqueeze(2).expand({-1, -1, by, -1, -1}).flatten(1, 2);
}

using Kernel = at::Tensor (*)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

at::Tensor sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0,
                                          /*is_causal=*/true);
}

at::Tensor plain_math(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor later = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
  const at::Tensor scores =
      q.matmul(k.transpose(2, 3)) * (1 / std::sqrt(static_cast<double>(q.size(3))));
  return scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1).matmul(v);
}

const std::map<std::string, Kernel> kKernels{{"sdpa", sdpa}, {"math", plain_math}};

}  // namespace

Config config_named(const std::string& name) {
  static const std::map<std::string, Config> known{
      {"debug", {}},
      {"8B", {4096, 32, 32, 8, 14336, 128256}},
      {"70B", {8192, 80, 64, 8, 28672, 128256}},
      {"405B", {16384, 126, 128, 8, 53248, 128256}},
  };
  return known.at(name);
}

RmsNormImpl::RmsNormImpl(std::int64_t dim, double epsilon) : epsilon(epsilon) {
  weight = register_parameter("weight", torch::ones(dim));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  return at::rms_norm(x, weight.sizes(), weight, epsilon);
}

RotaryImpl::RotaryImpl(std::int64_t head_dim, std::int64_t positions, double base) {
  const at::Tensor turns = at::pow(base, at::arange(0, head_dim, 2, at::kDouble) / -head_dim);
  const at::Tensor angles = at::outer(at::arange(positions, at::kDouble), turns).repeat({1, 2});
  const auto dtype = c10::typeMetaToScalarType(torch::get_default_dtype());
  cos = register_buffer("cos", angles.cos().to(dtype));
  sin = register_buffer("sin", angles.sin().to(dtype));
}

at::Tensor RotaryImpl::forward(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  const auto length = x.size(2);
  return x * cos.slice(0, 0, length) +
         at::cat({-halves[1], halves[0]}, -1) * sin.slice(0, 0, length);
}

AttentionImpl::AttentionImpl(const Config& c) : config(c), head_dim(c.dim / c.heads) {
  wq = register_module("wq", linear(c.dim, c.heads * head_dim));
  wk = register_module("wk", linear(c.dim, c.key_value_heads * head_dim));
  wv = register_module("wv", linear(c.dim, c.key_value_heads * head_dim));
  wo = register_module("wo", linear(c.heads * head_dim, c.dim));
  rotary = register_module("rotary", Rotary(head_dim, c.positions, c.rotary_base));
}

at::Tensor AttentionImpl::forward(const at::Tensor& given) {
  const auto made =
      placed_linears(given, config.plan, "attention", {{wq->weight}, {wk->weight}, {wv->weight}});
  const at::Tensor q = rotary(split_heads(made[0], head_dim));
  const at::Tensor k = rotary(split_heads(made[1], head_dim));
  const at::Tensor v = split_heads(made[2], head_dim);
  const std::int64_t by = config.heads / config.key_value_heads;
  const at::Tensor mixed = kKernels.at(config.attention)(q, share(k, by), share(v, by));
  return placed_linear(mixed.transpose(1, 2).flatten(2), config.plan, "wo", {wo->weight});
}

FeedForwardImpl::FeedForwardImpl(const Config& c) : plan(c.plan) {
  w1 = register_module("w1", linear(c.dim, c.hidden));
  w3 = register_module("w3", linear(c.dim, c.hidden));
  w2 = register_module("w2", linear(c.hidden, c.dim));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& given) {
  const auto made = placed_linears(given, plan, "feed_forward", {{w1->weight}, {w3->weight}});
  return placed_linear(at::silu(made[0]) * made[1], plan, "w2", {w2->weight});
}

LayerImpl::LayerImpl(const Config& c) {
  attention_norm = register_module("attention_norm", RmsNorm(c.dim, c.epsilon));
  attention = register_module("attention", Attention(c));
  feed_forward_norm = register_module("feed_forward_norm", RmsNorm(c.dim, c.epsilon));
  feed_forward = register_module("feed_forward", FeedForward(c));
  dropout = register_module("dropout", torch::nn::Dropout(c.dropout));
}

at::Tensor LayerImpl::forward(at::Tensor x) {
  x = x + dropout(attention(attention_norm(x)));
  return x + dropout(feed_forward(feed_forward_norm(x)));
}

LlamaImpl::LlamaImpl(const Config& c) : plan(c.plan) {
  embed = register_module("embed", torch::nn::Embedding(c.vocabulary, c.dim));
  torch::nn::init::normal_(embed->weight, 0, 0.02);
  for (std::int64_t i = 0; i < c.layers; ++i) layers->push_back(Layer(c));
  register_module("layers", layers);
  norm = register_module("norm", RmsNorm(c.dim, c.epsilon));
  head = register_module("head", linear(c.dim, c.vocabulary));
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = placed_output(embed(tokens), plan, "embed");
  for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
  return placed_output(head(placed_input(norm(x), plan, "head")), plan, "head");
}

at::Tensor LlamaImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return at::cross_entropy_loss(forward(tokens).flatten(0, 1), targets.flatten());
}

}  // namespace llama

// Ops on distributed tensors give what they give on plain ones, forward and backward, in every
// layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>

#include "intarsia/communication.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_whole;
using testing::on_mesh;
using testing::some_layouts;
using testing::values;

using Op = std::function<Tensor(const std::vector<Tensor>&)>;

struct Case {
  std::string name;
  std::vector<Tensor> inputs;
  Op op;
};

Tensor whole_numbers(std::vector<std::int64_t> sizes, std::int64_t below, std::uint64_t seed) {
  at::Generator g = at::detail::createCPUGenerator(seed);
  return at::randint(below, sizes, g, at::TensorOptions(at::kLong));
}

std::vector<Case> cases() {
  const Tensor x = values({6, 5}, 1);
  const Tensor y = values({6, 5}, 2);
  const Tensor v = values({5}, 3);
  const Tensor w = values({5, 7}, 4);
  const Tensor b = values({7}, 5);
  const Tensor big = values({3, 4, 6}, 6);
  const Tensor q = values({2, 4, 5, 3}, 7);
  const Tensor image = values({4, 3, 7, 6}, 8);
  const Tensor kernel = values({5, 3, 3, 3}, 9);
  const Tensor table = values({9, 4}, 10);
  const Tensor ids = whole_numbers({6, 3}, 9, 11);
  const Tensor labels = whole_numbers({6}, 5, 12);
  const auto one = [](auto f) { return [f](const std::vector<Tensor>& t) { return f(t[0]); }; };
  return {
      {"add", {x, y}, [](const auto& t) { return t[0] + t[1]; }},
      {"add_broadcast", {x, v}, [](const auto& t) { return t[0] + t[1]; }},
      {"sub_scalar", {x}, one([](const Tensor& t) { return t - 2; })},
      {"scalar_sub", {x}, one([](const Tensor& t) { return 2 - t; })},
      {"mul", {x, y}, [](const auto& t) { return t[0] * t[1]; }},
      {"div", {x, y}, [](const auto& t) { return t[0] / (t[1].abs() + 1); }},
      {"pow", {x}, one([](const Tensor& t) { return t.pow(3); })},
      {"relu", {x}, one([](const Tensor& t) { return t.relu(); })},
      {"gelu", {x}, one([](const Tensor& t) { return at::gelu(t); })},
      {"silu", {x}, one([](const Tensor& t) { return at::silu(t); })},
      {"tanh", {x}, one([](const Tensor& t) { return t.tanh(); })},
      {"where", {x, y}, [](const auto& t) { return at::where(t[0] > 0, t[0], t[1]); }},
      {"clamp", {x}, one([](const Tensor& t) { return t.clamp(-0.5, 0.5); })},
      {"masked_fill", {x}, one([](const Tensor& t) { return t.masked_fill(t > 0, 7); })},
      {"to_float", {x}, one([](const Tensor& t) { return t.to(at::kFloat).to(at::kDouble); })},
      {"mm", {x, w}, [](const auto& t) { return t[0].mm(t[1]); }},
      {"vector_matrix", {v, w}, [](const auto& t) { return t[0].matmul(t[1]).log_softmax(0); }},
      {"matmul_3d", {big, values({6, 2}, 20)}, [](const auto& t) { return t[0].matmul(t[1]); }},
      {"linear",
       {x, values({7, 5}, 21), b},
       [](const auto& t) { return at::linear(t[0], t[1], t[2]); }},
      {"linear_3d",
       {big, values({7, 6}, 22), b},
       [](const auto& t) { return at::linear(t[0], t[1], t[2]); }},
      {"bmm", {big, values({3, 6, 5}, 23)}, [](const auto& t) { return t[0].bmm(t[1]); }},
      {"mv", {x, v}, [](const auto& t) { return t[0].mv(t[1]); }},
      {"sum", {x}, one([](const Tensor& t) { return t.sum(); })},
      {"sum_dim", {big}, one([](const Tensor& t) {
         return t.sum({0, 2});
       })},
      {"sum_keep", {big}, one([](const Tensor& t) { return t.sum({1}, true); })},
      {"mean", {x}, one([](const Tensor& t) { return t.mean(); })},
      {"mean_dim", {big}, one([](const Tensor& t) { return t.mean({1}); })},
      {"amax", {x}, one([](const Tensor& t) { return t.amax(0); })},
      {"max_all", {x}, one([](const Tensor& t) { return t.max(); })},
      {"max_dim", {x}, one([](const Tensor& t) { return std::get<0>(t.max(1)); })},
      {"prod", {x}, one([](const Tensor& t) { return t.prod(1); })},
      {"norm", {x}, one([](const Tensor& t) { return t.norm(); })},
      {"norm_dim", {x}, one([](const Tensor& t) { return at::linalg_vector_norm(t, 3, {1}); })},
      {"norm_inf", {x}, one([](const Tensor& t) {
         return at::linalg_vector_norm(t, std::numeric_limits<double>::infinity());
       })},
      {"var", {x}, one([](const Tensor& t) { return t.var(1); })},
      {"logsumexp", {x}, one([](const Tensor& t) { return t.logsumexp(1); })},
      {"cumsum", {x}, one([](const Tensor& t) { return t.cumsum(0); })},
      {"softmax", {x}, one([](const Tensor& t) { return t.softmax(-1); })},
      {"log_softmax", {x}, one([](const Tensor& t) { return t.log_softmax(0); })},
      {"topk", {x}, one([](const Tensor& t) { return std::get<0>(t.topk(2)); })},
      {"sort", {x}, one([](const Tensor& t) { return std::get<0>(t.sort(0)); })},
      {"layer_norm",
       {big, values({6}, 24), values({6}, 25)},
       [](const auto& t) { return at::layer_norm(t[0], {6}, t[1], t[2]); }},
      {"batch_norm",
       {image, values({3}, 26), values({3}, 27)},
       [](const auto& t) {
         return at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false);
       }},
      {"conv",
       {image, kernel, values({5}, 28)},
       [](const auto& t) { return at::conv2d(t[0], t[1], t[2], 2, 1); }},
      {"max_pool", {image}, one([](const Tensor& t) { return at::max_pool2d(t, 2); })},
      {"avg_pool", {image}, one([](const Tensor& t) {
         return at::adaptive_avg_pool2d(t, {2, 2});
       })},
      {"embedding", {table, ids}, [](const auto& t) { return at::embedding(t[0], t[1], 2); }},
      {"nll",
       {x, labels},
       [](const auto& t) {
         return at::cross_entropy_loss(t[0], t[1], {}, at::Reduction::Mean, 3);
       }},
      {"nll_none",
       {x, labels},
       [](const auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, at::Reduction::None); }},
      {"nll_weighted",
       {x, labels, v.abs()},
       [](const auto& t) {
         return at::cross_entropy_loss(t[0], t[1], t[2].detach(), at::Reduction::Mean);
       }},
      {"mse", {x, y}, [](const auto& t) { return at::mse_loss(t[0], t[1]); }},
      {"smooth_l1", {x, y}, [](const auto& t) { return at::smooth_l1_loss(t[0], t[1]); }},
      {"attention",
       {q, values({2, 4, 5, 3}, 29), values({2, 4, 5, 3}, 30)},
       [](const auto& t) {
         return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true);
       }},
      {"attention_mask",
       {q, q, q, values({5, 5}, 31)},
       [](const auto& t) {
         return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3].detach());
       }},
      {"cat",
       {x, y},
       [](const auto& t) {
         return at::cat({t[0], t[1], t[0]}, 0);
       }},
      {"stack",
       {x, y},
       [](const auto& t) {
         return at::stack({t[0], t[1]}, 1);
       }},
      {"index_select", {x}, one([](const Tensor& t) {
         return t.index_select(1, at::tensor({3, 0, 3}, at::kLong));
       })},
      {"gather",
       {x, whole_numbers({6, 2}, 5, 32)},
       [](const auto& t) { return t[0].gather(1, t[1]); }},
      {"index", {x, whole_numbers({4}, 6, 33)}, [](const auto& t) { return t[0].index({t[1]}); }},
      {"index_mask", {x}, one([](const Tensor& t) { return t.index({t.detach().sum(1) > 0}); })},
      {"pad", {x}, one([](const Tensor& t) {
         return at::constant_pad_nd(t, {1, 2}, 3);
       })},
      {"tril", {big}, one([](const Tensor& t) { return t.tril(); })},
      {"flip", {x}, one([](const Tensor& t) { return t.flip({0}); })},
      {"roll", {x}, one([](const Tensor& t) { return t.roll(2, 1); })},
      {"view", {big}, one([](const Tensor& t) {
         return t.view({12, 6}) * 2;
       })},
      {"view_split", {x}, one([](const Tensor& t) {
         return t.view({3, 2, 5}) * 2;
       })},
      {"reshape_t", {x}, one([](const Tensor& t) {
         return t.t().reshape({6, 5}) * 2;
       })},
      {"transpose", {big}, one([](const Tensor& t) { return t.transpose(0, 2) * 2; })},
      {"permute", {big}, one([](const Tensor& t) {
         return t.permute({2, 0, 1}) * 2;
       })},
      {"squeeze", {values({1, 6, 1, 5}, 34)}, one([](const Tensor& t) { return t.squeeze() * 2; })},
      {"unsqueeze", {x}, one([](const Tensor& t) { return t.unsqueeze(1) * 2; })},
      {"expand", {x}, one([](const Tensor& t) {
         return t.unsqueeze(1).expand({6, 3, 5}) * 2;
       })},
      {"select", {x}, one([](const Tensor& t) { return t.select(1, 3) * 2; })},
      {"slice", {x}, one([](const Tensor& t) { return t.slice(0, 1, 5, 2) * 2; })},
      {"chunk", {x}, one([](const Tensor& t) { return t.chunk(2, 0)[1] * 2; })},
      {"split", {x}, one([](const Tensor& t) { return t.split(2, 1)[1] * 2; })},
      {"unbind", {x}, one([](const Tensor& t) { return t.unbind(0)[4] * 2; })},
      {"diagonal", {big}, one([](const Tensor& t) { return t.diagonal(0, 1, 2) * 2; })},
      {"unfold", {x}, one([](const Tensor& t) { return t.unfold(0, 2, 2) * 2; })},
      {"einsum",
       {x, w},
       [](const auto& t) {
         return at::einsum("ij,jk->ki", {t[0], t[1]});
       }},
      {"plain_mask", {x}, one([](const Tensor& t) {
         return t * values({6, 5}, 40);
       })},
      {"rotary", {big}, one([](const Tensor& t) {
         const Tensor c = at::view_as_complex(t.reshape({3, 4, 3, 2}));
         const Tensor turn = at::polar(at::ones({4, 3}, at::kDouble), values({4, 3}, 41));
         return at::view_as_real(c * turn).flatten(2);
       })},
  };
}

/// A layout for one of a case's inputs: what the dimensions allow.
std::string fitting(const std::string& text, const Tensor& t) {
  const bool partial = text.find('P') != std::string::npos;
  if (t.dim() == 0) return "R,R";
  if (!t.is_floating_point() && partial) return "R,R";
  if (t.dim() == 1 && text.find("1)") != std::string::npos) return "R,R";
  if (t.dim() == 1 && text.find("S(1") != std::string::npos) return "R,R";
  return text;
}

void check_case(const Case& c, const Mesh& mesh, const std::string& first, const std::string& rest,
                World& world) {
  const std::string what = c.name + " with " + first + " and " + rest;
  std::vector<Tensor> plain;
  std::vector<Tensor> ours;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Tensor& t = c.inputs[i];
    const Layout layout = Layout::parse(fitting(i == 0 ? first : rest, t), mesh);
    plain.push_back(t.detach().clone().set_requires_grad(t.is_floating_point()));
    ours.push_back(distribute(t, layout, world).set_requires_grad(t.is_floating_point()));
  }
  const Tensor want = c.op(plain);
  const Tensor got = c.op(ours);
  expect_whole(got, want, what);
  const Tensor weight = values(want.sizes().vec(), 99);
  std::vector<Tensor> inputs;
  std::vector<Tensor> our_inputs;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (!plain[i].requires_grad()) continue;
    inputs.push_back(plain[i]);
    our_inputs.push_back(ours[i]);
  }
  const auto grads = torch::autograd::grad({(want * weight).sum()}, inputs, {}, {}, false, true);
  const auto our_grads =
      torch::autograd::grad({(got * weight).sum()}, our_inputs, {}, {}, false, true);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    ASSERT_EQ(grads[i].defined(), our_grads[i].defined()) << what << " input " << i;
    if (!grads[i].defined()) continue;
    ASSERT_TRUE(has_layout(our_grads[i])) << what << ": a plain gradient of input " << i;
    expect_whole(our_grads[i], grads[i], what + ", gradient of input " + std::to_string(i), 1e-8);
  }
}

class Ops : public ::testing::TestWithParam<std::string> {};

TEST_P(Ops, EqualPlainOnesInEveryLayout) {
  for (const char* text : {"[dp=2,tp=2]", "[dp=3,tp=1]"}) {
    const Mesh mesh = Mesh::parse(text);
    on_mesh(mesh, [&](World& world) {
      for (const Case& c : cases()) {
        try {
          check_case(c, mesh, GetParam(), GetParam(), world);
          check_case(c, mesh, GetParam(), "R,R", world);
          check_case(c, mesh, "R,R", GetParam(), world);
          check_case(c, mesh, GetParam(), "S(0),R", world);
        } catch (const std::exception& e) {
          FAIL() << c.name << " in " << GetParam() << ": " << e.what();
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Ops, ::testing::ValuesIn(some_layouts()),
                         [](const auto& info) { return "Layout" + std::to_string(info.index); });

}  // namespace
}  // namespace intarsia

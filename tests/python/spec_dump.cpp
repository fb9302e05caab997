// Prints what distributed tensors come out of some ops: one line for each op and layout of its
// input. test_spec.py computes the same in Python, where many ops have a Meta kernel written in
// Python that a C++ process does not have, and compares the lines. Run it as two processes; rank 0
// prints.
#include <ATen/ATen.h>
#include <intarsia/intarsia.h>

#include <exception>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

std::string text_of(const Tensors& results) {
  std::ostringstream out;
  for (const at::Tensor& t : results)
    out << " " << intarsia::describe(t) << " strides " << t.strides();
  return out.str();
}

struct Case {
  std::string name;
  std::function<Tensors(const at::Tensor&)> run;
};

std::vector<Case> cases() {
  const at::Tensor w = at::ones({5, 6});
  const at::Tensor index = at::arange(3);
  const at::Tensor kernel = at::ones({4, 4, 3, 3});
  return {
      {"relu", [](const at::Tensor& x) { return Tensors{at::relu(x)}; }},
      {"gelu", [](const at::Tensor& x) { return Tensors{at::gelu(x)}; }},
      {"linear", [w](const at::Tensor& x) { return Tensors{at::linear(x, w)}; }},
      {"matmul", [](const at::Tensor& x) { return Tensors{at::matmul(x, x.t())}; }},
      {"layer_norm", [](const at::Tensor& x) { return Tensors{at::layer_norm(x, {6})}; }},
      {"softmax", [](const at::Tensor& x) { return Tensors{at::softmax(x, 1)}; }},
      {"log_softmax", [](const at::Tensor& x) { return Tensors{at::log_softmax(x, 0)}; }},
      {"sum", [](const at::Tensor& x) { return Tensors{at::sum(x, {0})}; }},
      {"mean", [](const at::Tensor& x) { return Tensors{at::mean(x)}; }},
      {"var", [](const at::Tensor& x) { return Tensors{at::var(x, at::IntArrayRef{1})}; }},
      {"amax", [](const at::Tensor& x) { return Tensors{at::amax(x, {1})}; }},
      {"argmax", [](const at::Tensor& x) { return Tensors{at::argmax(x, 1)}; }},
      {"norm", [](const at::Tensor& x) { return Tensors{at::linalg_vector_norm(x)}; }},
      {"cumsum", [](const at::Tensor& x) { return Tensors{at::cumsum(x, 0)}; }},
      {"index", [index](const at::Tensor& x) { return Tensors{at::index(x, {index})}; }},
      {"index_select",
       [index](const at::Tensor& x) { return Tensors{at::index_select(x, 1, index)}; }},
      {"embedding", [index](const at::Tensor& x) { return Tensors{at::embedding(x, index)}; }},
      {"nll",
       [](const at::Tensor& x) { return Tensors{at::nll_loss(x, at::zeros({4}, at::kLong))}; }},
      {"cross_entropy",
       [](const at::Tensor& x) {
         return Tensors{at::cross_entropy_loss(x, at::zeros({4}, at::kLong))};
       }},
      {"conv2d",
       [kernel](const at::Tensor& x) {
         return Tensors{at::conv2d(x.reshape({4, 1, 6, 1}).expand({4, 4, 6, 5}), kernel)};
       }},
      {"transpose", [](const at::Tensor& x) { return Tensors{x.t()}; }},
      {"view",
       [](const at::Tensor& x) {
         return Tensors{x.reshape({2, 2, 6})};
       }},
      {"flatten", [](const at::Tensor& x) { return Tensors{x.flatten()}; }},
      {"cat",
       [](const at::Tensor& x) {
         return Tensors{at::cat({x, x}, 1)};
       }},
      {"stack",
       [](const at::Tensor& x) {
         return Tensors{at::stack({x, x})};
       }},
      {"split", [](const at::Tensor& x) { return x.split(3, 1); }},
      {"topk",
       [](const at::Tensor& x) {
         auto [values, indices] = at::topk(x, 2);
         return Tensors{values, indices};
       }},
      {"max",
       [](const at::Tensor& x) {
         auto [values, indices] = at::max(x, 0);
         return Tensors{values, indices};
       }},
      {"where", [](const at::Tensor& x) { return Tensors{at::where(x > 3, x, 0.0)}; }},
      {"add", [](const at::Tensor& x) { return Tensors{x + at::ones({6})}; }},
      {"double", [](const at::Tensor& x) { return Tensors{x.to(at::kDouble) + 1}; }},
      {"attention",
       [](const at::Tensor& x) {
         const at::Tensor q = x.reshape({4, 1, 3, 2});
         return Tensors{at::scaled_dot_product_attention(q, q, q)};
       }},
      {"triu", [](const at::Tensor& x) { return Tensors{at::triu(x)}; }},
      {"flip", [](const at::Tensor& x) { return Tensors{at::flip(x, {0})}; }},
      {"pad",
       [](const at::Tensor& x) {
         return Tensors{at::constant_pad_nd(x, {1, 1})};
       }},
  };
}

void dump(intarsia::World& world) {
  const intarsia::Mesh mesh({{"x", world.size()}});
  const at::Tensor whole = at::arange(24.0).to(at::kFloat).reshape({4, 6});
  for (const std::string layout : {"S(0)", "S(1)", "R"}) {
    for (const Case& one : cases()) {
      std::string text;
      try {
        text = text_of(
            one.run(intarsia::distribute(whole, intarsia::Layout::parse(layout, mesh), world)));
      } catch (const std::exception&) {
        text = " refused";
      }
      if (world.rank() == 0) std::cout << one.name << " " << layout << ":" << text << "\n";
    }
  }
}

}  // namespace

int main() {
  try {
    const auto world = intarsia::World::connect();
    dump(*world);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

// A library as a user would write it: an op of its own and its rule. tests/tools/ops_test.py has
// `intarsia ops` load it; with USER_OP_WRONG set in the environment the rule is a wrong one.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstdlib>

#include "intarsia/rule.h"

namespace {

at::Tensor scaled_mm(const at::Tensor& a, const at::Tensor& b, double scale) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // which has no formula for it
  return a.mm(b).mul_(scale);
}

at::Tensor twice_mm(const at::Tensor& a, const at::Tensor& b) { return scaled_mm(a, b, 2); }

at::Tensor halved(const at::Tensor& a) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return a / 2;
}

TORCH_LIBRARY(mylib, m) {
  m.def("scaled_mm(Tensor a, Tensor b, float scale=1.0) -> Tensor");
  m.def("twice_mm(Tensor a, Tensor b) -> Tensor");
  m.def("halved(Tensor a) -> Tensor");
}

TORCH_LIBRARY_IMPL(mylib, CPU, m) {
  m.impl("scaled_mm", scaled_mm);
  m.impl("twice_mm", twice_mm);
  m.impl("halved", halved);  // has no rule
}

std::vector<intarsia::Row> rows(const intarsia::Question&) {
  // A sum of products that is cut along the sum is not a maximum.
  const bool wrong = std::getenv("USER_OP_WRONG") != nullptr;
  return intarsia::parse_rows(
      {"S(0),R -> S(0)", "R,S(1) -> S(1)", wrong ? "S(1),S(0) -> P(max)" : "S(1),S(0) -> P(sum)"});
}

const intarsia::RuleHandle rule = intarsia::add_rule(
    {.name = "mylib::scaled_mm", .rows = rows, .sizes = [](const intarsia::Question& q) {
       return intarsia::Shapes{{q.in(0).sizes[0], q.in(1).sizes[1]}};
     }});

// The rule of twice_mm:
const intarsia::RuleHandle short_rule =
    intarsia::add_rule(intarsia::index_rule("mylib::twice_mm", "MK,KN -> MN"));
// and that is all.

}  // namespace

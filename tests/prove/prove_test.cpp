#include "intarsia/prove.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/rule.h"
#include "intarsia/tensor.h"
#include "prove/case.h"
#include "prove/made_pieces.h"

namespace intarsia {
namespace {

using testing::expect_error;

// An op that is not ours: rows times columns, twice.
at::Tensor twice_mm(const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b).mul(2); }

TORCH_LIBRARY(prove_test, m) { m.def("twice_mm(Tensor a, Tensor b) -> Tensor"); }
TORCH_LIBRARY_IMPL(prove_test, CPU, m) { m.impl("twice_mm", &twice_mm); }

const std::vector<std::string> kSamples{"prove_test::twice_mm(f64[3, 4], f64[4, 5])",
                                        "prove_test::twice_mm(f64[5, 2], f64[2, 3])"};

Shapes product_sizes(const Question& q) { return {{q.in(0).sizes[0], q.in(1).sizes[1]}}; }

Rule twice_rule(std::initializer_list<std::string_view> rows) {
  return {"prove_test::twice_mm", [all = parse_rows(rows)](const Question&) { return all; },
          product_sizes};
}

TEST(Rows, HaveATextForm) {
  for (const char* text : {"S(0),R -> S(0)", "P,R -> P", "R,R -> P(max),S(1)", "SS(1,2) -> S(0)",
                           "S(2),R,R -> S(2) in runs", "S(1),S(0) -> S(1) in 6 parts"}) {
    EXPECT_EQ(Row::parse(text).to_string(), text);
    EXPECT_EQ(Row::parse(Row::parse(text).to_string()), Row::parse(text));
  }
  EXPECT_TRUE(Row::parse("P,R -> P").linear);
  EXPECT_FALSE(Row::parse("P(sum),R -> P(sum)").linear);
  expect_error<ValueError>([] { Row::parse("S(0),R"); }, {"Row::parse", "->"});
  expect_error<ValueError>([] { Row::parse("P,P(max) -> P"); }, {"mixes P"});
}

TEST(Cases, HaveATextForm) {
  for (const char* text :
       {"aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]",
        "aten::add.Tensor(f64[4], f64[4]) in place with P(sum),R; S(0),S(0) | 0:b>a on [a=2,b=3]",
        "aten::relu(f64[4]) into out= with S(0) on [a=2]"}) {
    EXPECT_EQ(Case::parse(text).to_string(), text);
  }
  expect_error<ValueError>([] { Case::parse("aten::relu(f64[4])"); }, {"prove_case", "with"});
  expect_error<ValueError>([] { Case::parse("aten::relu(f64[4]) with R; R on [a=2]"); },
                           {"2 layouts for 1 tensors"});
}

TEST(Terms, DifferOnAllRanksAndCombineToTheValue) {
  const Mesh mesh = Mesh::parse("[a=3]");
  const Lockstep lockstep(mesh);
  for (const char* how : {"P(sum)", "P(avg)", "P(min)", "P(max)", "P(prod)"}) {
    const at::Tensor whole = TensorSample::parse("f64[40]").make(1);
    const Layout layout = Layout::parse(how, mesh);
    const auto pieces = made_pieces(whole, layout, 7);
    ASSERT_EQ(pieces.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_FALSE(at::allclose(pieces[i], whole)) << how << " is the value on rank " << i;
      EXPECT_FALSE(at::allclose(pieces[i], pieces[(i + 1) % 3])) << how;
      EXPECT_TRUE(pieces[i].lt(0).any().item<bool>() && pieces[i].gt(0).any().item<bool>()) << how;
    }
    const at::Tensor t = from_locals(pieces, layout, lockstep.world());
    EXPECT_TRUE(at::allclose(full(t), whole, 1e-12, 1e-12)) << how;
  }
}

TEST(Prover, HoldsForRightRules) {
  for (const char* op : {"mm", "cumsum", "aten::sum.dim_IntList", "gather"}) {
    const Proof proof = prove(op, {.combinations = 48, .sampled = 4, .missing = false});
    EXPECT_TRUE(proof.holds()) << proof.to_string();
    EXPECT_GT(proof.cases, 100U);
  }
  EXPECT_GT(prove("mm", {.combinations = 48, .missing = false}).gradients, 100U);
}

TEST(Prover, ListsTheRowsThatAnOpWithoutARuleCouldHave) {
  const Proof proof = prove_samples(kSamples, {.backward = false});
  EXPECT_TRUE(proof.holds()) << proof.to_string();
  std::vector<std::string> rows;
  for (const MissingRow& m : proof.missing) rows.push_back(m.row);
  for (const char* row : {"S(0),R -> S(0)", "R,S(1) -> S(1)", "S(1),S(0) -> P(sum)",
                          "P(sum),R -> P(sum)", "R,P(sum) -> P(sum)"}) {
    EXPECT_EQ(std::count(rows.begin(), rows.end(), row), 1) << row << '\n' << proof.to_string();
  }
  EXPECT_EQ(rows.size(), 5U) << proof.to_string();
}

TEST(Prover, ProvesARuleThatAUserAdds) {
  const RuleHandle rule = add_rule(twice_rule(
      {"S(0),R -> S(0)", "R,S(1) -> S(1)", "S(1),S(0) -> P(sum)", "P,R -> P", "R,P -> P"}));
  const Proof proof = prove_samples(kSamples, {.backward = false});
  EXPECT_TRUE(proof.holds()) << proof.to_string();
  EXPECT_TRUE(proof.missing.empty()) << proof.to_string();
}

TEST(Prover, ShowsTheSmallestCounterExample) {
  const RuleHandle rule = add_rule(twice_rule({"S(1),S(0) -> R"}));  // the reduction is missing
  const Proof proof = prove_samples(kSamples, {.backward = false, .missing = false});
  ASSERT_FALSE(proof.holds());
  const std::string call = proof.wrong[0].call;
  EXPECT_EQ(call, "prove_test::twice_mm(f64[1, 1], f64[1, 1]) with S(0); R on [a=2]")
      << proof.to_string();
  EXPECT_NE(prove_case(call), "");
}

TEST(Prover, RefusesRowsThatAreNeverUsed) {
  const RuleHandle rule = add_rule(twice_rule({"S(1),S(0) -> P(sum)", "S(1),S(0) -> P(max)"}));
  const Proof proof = prove_samples(kSamples, {.backward = false, .missing = false});
  ASSERT_EQ(proof.wrong.size(), 1U) << proof.to_string();
  EXPECT_NE(proof.wrong[0].difference.find("S(1),S(0) -> P(max); only one"), std::string::npos)
      << proof.to_string();
}

TEST(Prover, AddedRulesGoAgain) {
  const auto sizes = [](const Question& q) { return Shapes{q.in(0).sizes}; };
  {
    // Wrong on purpose: a maximum of parts is not a maximum of the whole.
    const RuleHandle rule =
        add_rule({"cumsum", [](const Question&) { return parse_rows({"S(0) -> S(0)"}); }, sizes});
    EXPECT_FALSE(prove("cumsum", {.combinations = 16, .sampled = 0, .missing = false}).holds());
  }
  EXPECT_TRUE(prove("cumsum", {.combinations = 16, .sampled = 0, .missing = false}).holds());
}

TEST(Prover, SaysWhatItNeeds) {
  expect_error<ValueError>([] { prove("aten::no_such_op"); },
                           {"aten::no_such_op", "prove_samples"});
  expect_error<ValueError>([] { prove_samples({}); }, {"no samples"});
  expect_error<ValueError>([] { prove_samples({"aten::mm(f64[2, 3], f64[2, 3])"}); },
                           {"refuses the sample", "f64[2, 3]"});
  expect_error<ValueError>(
      [] {
        prove_samples({"aten::relu(f64[2])", "aten::neg(f64[2])"});
      },
      {"aten::relu", "aten::neg"});
  expect_error<ValueError>([] { (void)add_rule({"x", nullptr, nullptr}); }, {"'x' lacks rows"});
}

}  // namespace
}  // namespace intarsia

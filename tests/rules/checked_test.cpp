#include "rules/checked.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "rules/asked.h"

namespace intarsia {
namespace {

using testing::Asked;
using testing::expect_error;
using testing::sized;
using testing::Texts;
using testing::texts;
using testing::unset;

/// A rule that always answers the same, checked.
Rule answering(std::initializer_list<std::string_view> rows, const Shapes& sizes,
               RuleOptions options = {}) {
  return checked({"mylib::op", [all = parse_rows(rows)](const Question&) { return all; },
                  [sizes](const Question&) { return sizes; }, std::move(options)});
}

void do_nothing(const c10::OperatorHandle&, torch::jit::Stack&) {}

Asked product() { return {"aten::mm", {sized({2, 3}), sized({3, 4})}}; }

TEST(Checked, RightAnswersComeAsTheyAre) {
  const Rule rule = answering({"S(0),R -> S(0)", "P,R -> P"}, {{2, 4}}, {.runs_empty = true});
  EXPECT_EQ(rule.name, "mylib::op");
  EXPECT_EQ(texts(rule.rows(product())), (Texts{"S(0),R -> S(0)", "P,R -> P"}));
  EXPECT_EQ(rule.sizes(product()), (Shapes{{2, 4}}));
  EXPECT_TRUE(rule.options.runs_empty);
  EXPECT_EQ(texts(answering({}, {}).rows(product())), Texts{});
  EXPECT_EQ(answering({}, {}).sizes(product()), Shapes{});  // only the result tells them
}

TEST(Checked, OutIsNeitherOperandNorResult) {
  const Asked out("aten::mm.out", {sized({2, 3}), sized({3, 4}), sized({2, 4})});
  EXPECT_EQ(texts(answering({"S(0),R -> S(0)"}, {}).rows(out)), (Texts{"S(0),R -> S(0)"}));
}

TEST(Checked, EveryRowHasAPlacementForEachOperand) {
  expect_error<ValueError>(
      [] {
        answering({"S(0),R -> S(0)", "S(0) -> S(0)"}, {}).rows(product());
      },
      {"[add_rule]", "mylib::op", "'S(0) -> S(0)' for 1 operand,", "aten::mm has 2 tensors",
       "optional"});
  // An optional tensor that was not passed counts.
  const Asked layer("aten::native_batch_norm",
                    {sized({2, 3}), unset(), unset(), unset(), unset(), true, 0.1, 0.1});
  expect_error<ValueError>([&] { answering({"R -> R,R,R"}, {}).rows(layer); }, {"has 5 tensors"});
}

TEST(Checked, EveryRowHasAPlacementForEachResult) {
  expect_error<ValueError>([] { answering({"S(0),R -> S(0),R"}, {}).rows(product()); },
                           {"'S(0),R -> S(0),R' with 2 results", "aten::mm has 1"});
  // What gives nothing has changed something.
  const Asked nothing("aten::_assert_async", {sized({})});
  EXPECT_EQ(texts(answering({"R -> R"}, {}).rows(nothing)), (Texts{"R -> R"}));
  expect_error<ValueError>([&] { answering({"R -> R,R"}, {}).rows(nothing); }, {"with 2 results"});
}

TEST(Checked, RowsByFormulaNeedAFormula) {
  constexpr std::string_view kRow = "S(1),S(0) -> R by formula";
  expect_error<ValueError>([&] { answering({kRow}, {}).rows(product()); },
                           {std::string(kRow), "has no formula", "RuleOptions::formula"});
  EXPECT_EQ(texts(answering({kRow}, {}, {.formula = do_nothing}).rows(product())),
            (Texts{std::string(kRow)}));
}

TEST(Checked, SizesAreThoseOfAllResultsAndNotNegative) {
  expect_error<ValueError>(
      [] {
        answering({}, {{2, 4}, {2}}).sizes(product());
      },
      {"the sizes of 2 results", "aten::mm has 1", "give none"});
  expect_error<ValueError>(
      [] {
        answering({}, {{2, -4}}).sizes(product());
      },
      {"mylib::op gives a result the sizes (2,-4)"});
  EXPECT_EQ(answering({}, {{0, 4}}).sizes(product()), (Shapes{{0, 4}}));
}

}  // namespace
}  // namespace intarsia

#include <gtest/gtest.h>

#include <algorithm>

#include "error_text.h"
#include "intarsia/error.h"
#include "rules/added.h"
#include "rules/asked.h"

namespace intarsia {
namespace {

using testing::Asked;
using testing::expect_error;
using testing::sized;
using testing::Texts;
using testing::texts;

Rule named(const std::string& name, std::string_view row = "S(0),R -> S(0)") {
  return {name, [rows = parse_rows({row})](const Question&) { return rows; },
          [](const Question&) { return Shapes(); }};
}

/// The rows that the rule of this name has for a product.
Texts rows_of(std::string_view name) {
  return texts(find_rule(name)->rows(Asked("aten::mm", {sized({2, 3}), sized({3, 4})})));
}

TEST(Table, FindsEveryRuleByItsName) {
  const auto rules = all_rules();
  EXPECT_GT(rules.size(), 200);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    EXPECT_EQ(find_rule(rules[i]->name), rules[i]) << rules[i]->name;
    EXPECT_TRUE(rules[i]->rows && rules[i]->sizes) << rules[i]->name;
    EXPECT_TRUE(i == 0 || rules[i - 1]->name < rules[i]->name) << rules[i]->name;
  }
}

TEST(Table, KnowsNoOtherNames) {
  for (const char* name : {"", "A", "mm_", "mmm", "m", "zz", "mylib::mm"}) {
    EXPECT_EQ(find_rule(name), nullptr) << name;
  }
}

TEST(Table, PointwiseOpsNeedNoRow) {
  EXPECT_EQ(find_rule("erfinv"), nullptr);
  EXPECT_EQ(find_rule("aten::mm"), find_rule("mm"));
  const auto rule = find_rule("erfinv", true);
  ASSERT_NE(rule, nullptr);
  EXPECT_TRUE(rule->options.follows_strides);
  EXPECT_EQ(texts(rule->rows(Asked("aten::erfinv", {sized({4, 5})}))),
            (Texts{"S(0) -> S(0)", "S(1) -> S(1)"}));
  EXPECT_EQ(find_rule("masked_fill", true)->name, "masked_fill");  // where they have one, it counts
}

TEST(Table, EntriesSayHowPiecesDiffer) {
  EXPECT_EQ(find_rule("sum")->options.form, LocalForm::same);
  EXPECT_EQ(find_rule("mean")->options.form, LocalForm::mean_from_sum);
  EXPECT_EQ(find_rule("nll_loss_forward")->options.form, LocalForm::loss_from_sum);
  EXPECT_EQ(find_rule("embedding")->options.form, LocalForm::rows_of_table);
  EXPECT_EQ(find_rule("index_put")->options.form, LocalForm::rows_of_result);
  EXPECT_EQ(find_rule("convolution")->options.form, LocalForm::window);
  EXPECT_EQ(find_rule("cumsum")->options.form, LocalForm::scan);
  EXPECT_TRUE(find_rule("addmm")->options.runs_empty);
  EXPECT_EQ(find_rule("slice_backward")->options.sizes_argument, "input_sizes");
  EXPECT_TRUE(find_rule("_softmax")->options.formula);
  EXPECT_FALSE(find_rule("mm")->options.formula);
}

TEST(Table, TheLastAddedRuleIsUsedUntilItIsRemoved) {
  const Texts ours = rows_of("mm");
  {
    const RuleHandle first = add_rule(named("mm"));
    EXPECT_EQ(rows_of("mm"), (Texts{"S(0),R -> S(0)"}));
    RuleHandle second = add_rule(named("aten::mm", "R,S(1) -> S(1)"));  // the same op
    EXPECT_EQ(second.name(), "mm");
    EXPECT_EQ(rows_of("mm"), (Texts{"R,S(1) -> S(1)"}));
    second.remove();
    EXPECT_EQ(rows_of("mm"), (Texts{"S(0),R -> S(0)"}));
    second.remove();  // once more does nothing
  }
  EXPECT_EQ(rows_of("mm"), ours);
}

TEST(Table, AMovedHandleKeepsTheRule) {
  std::optional<RuleHandle> kept;
  {
    RuleHandle handle = add_rule(named("mylib::kept"));
    kept.emplace(std::move(handle));
  }
  EXPECT_NE(find_rule("mylib::kept"), nullptr);
  kept.reset();
  EXPECT_EQ(find_rule("mylib::kept"), nullptr);
}

TEST(Table, GenerationChangesWithEveryRule) {
  const auto before = rules_generation();
  std::optional<RuleHandle> handle = add_rule(named("mylib::generation"));
  const auto added = rules_generation();
  EXPECT_NE(added, before);
  handle.reset();
  EXPECT_NE(rules_generation(), added);
  EXPECT_NE(rules_generation(), before);
}

TEST(Table, AddedRulesAreCheckedAndNotListed) {
  const RuleHandle handle = add_rule(named("mylib::short", "S(0) -> S(0)"));
  expect_error<ValueError>([] { rows_of("mylib::short"); },
                           {"[add_rule]", "mylib::short", "1 operand"});
  const auto rules = all_rules();
  EXPECT_TRUE(std::none_of(rules.begin(), rules.end(),
                           [](const auto& rule) { return rule->name == "mylib::short"; }));
}

TEST(Table, RefusalsSayWhatARuleLacks) {
  Rule without_rows = named("mylib::op");
  without_rows.rows = nullptr;
  expect_error<ValueError>([&] { (void)add_rule(without_rows); },
                           {"[add_rule]", "'mylib::op' lacks rows"});
  Rule without_sizes = named("mylib::op");
  without_sizes.sizes = nullptr;
  expect_error<ValueError>([&] { (void)add_rule(without_sizes); }, {"'mylib::op' lacks sizes"});
  expect_error<ValueError>([] { (void)add_rule(named("")); }, {"'' lacks a name"});
}

Texts heard;
void hear(const std::string& name) { heard.push_back(name); }

// The last one of this file: who listened before does so no longer.
TEST(Table, ListenersHearOfRulesBeforeAndAfter) {
  std::optional<RuleHandle> early = add_rule(named("mylib::early"));
  heard.clear();
  listen_to_rules(hear);
  EXPECT_EQ(heard, (Texts{"mylib::early"}));
  std::optional<RuleHandle> later = add_rule(named("aten::later"));
  early.reset();
  EXPECT_EQ(heard, (Texts{"mylib::early", "later", "mylib::early"}));
}

}  // namespace
}  // namespace intarsia

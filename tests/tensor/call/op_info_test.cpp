#include "tensor/call/op_info.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace intarsia {
namespace {

OpInfo info(const char* name, const char* overload = "") {
  return OpInfo(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

/// One letter for each argument: t(ensor), l(ist of tensors), f(ixed) or n(umber, by its type).
std::string kinds(const OpInfo& op) {
  std::string out;
  for (const OpInfo::Argument& a : op.arguments) out += "tlfn"[static_cast<int>(a.kind)];
  return out;
}

/// One letter for each argument: w(ritten), o(ut) or `-`.
std::string writes(const OpInfo& op) {
  std::string out;
  for (const OpInfo::Argument& a : op.arguments) out += a.is_out ? 'o' : a.written ? 'w' : '-';
  return out;
}

TEST(OpInfo, ArgumentsAreReadByTheirTypes) {
  EXPECT_EQ(kinds(info("aten::add", "Tensor")), "ttn");        // alpha
  EXPECT_EQ(kinds(info("aten::sum", "dim_IntList")), "tfff");  // dim, keepdim, dtype
  EXPECT_EQ(kinds(info("aten::index", "Tensor")), "tl");       // a list of optional tensors
  EXPECT_EQ(kinds(info("aten::stack")), "lf");
  EXPECT_EQ(kinds(info("aten::native_layer_norm")), "tfttn");  // sizes, weight?, bias?, eps
  EXPECT_EQ(kinds(info("aten::bernoulli")), "tn");             // a generator
  EXPECT_EQ(kinds(info("aten::_foreach_add", "ScalarList")), "ln");
  EXPECT_EQ(kinds(info("aten::scatter_reduce", "two")), "tfttff");  // a text, a flag
}

TEST(OpInfo, NumbersOnWhichARuleDependsAreFixed) {
  EXPECT_EQ(kinds(info("aten::histc")), "tfff");  // bins, min, max
  EXPECT_EQ(kinds(info("aten::norm", "ScalarOpt_dim")), "tfff");
  EXPECT_EQ(kinds(info("aten::pow", "Tensor_Scalar")), "tn");
}

TEST(OpInfo, KnowsWhatIsWritten) {
  const OpInfo in_place = info("aten::add_", "Tensor");
  EXPECT_EQ(in_place.name, "aten::add_.Tensor");
  EXPECT_EQ(in_place.base_name, "add");
  EXPECT_EQ(writes(in_place), "w--");
  EXPECT_TRUE(in_place.in_place);
  EXPECT_FALSE(in_place.has_out);
  const OpInfo out = info("aten::add", "out");
  EXPECT_EQ(writes(out), "---o");
  EXPECT_TRUE(out.has_out);
  EXPECT_FALSE(out.in_place);
  EXPECT_TRUE(info("aten::_foreach_add_", "Scalar").in_place);
  EXPECT_EQ(writes(info("aten::add", "Tensor")), "---");
}

TEST(OpInfo, StatisticsAreWrittenOnTheSide) {
  const OpInfo norm = info("aten::native_batch_norm");
  EXPECT_EQ(writes(norm), "---ww---");  // input, weight, bias, running_mean, running_var, ...
  EXPECT_TRUE(norm.hidden_writes);
  EXPECT_FALSE(norm.in_place);
  EXPECT_EQ(norm.returns, 3U);
  EXPECT_FALSE(info("aten::native_layer_norm").hidden_writes);
}

TEST(OpInfo, CountsOfStepsOfAdagradAreRead) {
  EXPECT_EQ(writes(info("aten::_fused_adagrad_")).substr(0, 4), "www-");
  EXPECT_EQ(writes(info("aten::_fused_adam_")).substr(0, 6), "wwwww-");
}

TEST(OpInfo, FamiliesSayHowAnOpIsRun) {
  EXPECT_EQ(info("aten::mm").family, Family::rule);
  EXPECT_EQ(info("aten::copy_").family, Family::rule);
  EXPECT_EQ(info("aten::t").family, Family::view);
  EXPECT_EQ(info("aten::split", "Tensor").family, Family::view);
  EXPECT_EQ(info("aten::_unsafe_view").family, Family::view);
  EXPECT_NE(info("aten::_unsafe_view", "out").family, Family::view);
  EXPECT_EQ(info("aten::zeros_like").family, Family::like);
  EXPECT_NE(info("aten::zeros_like", "out").family, Family::like);
  EXPECT_EQ(info("aten::rand_like").family, Family::random);
  EXPECT_EQ(info("aten::bernoulli").family, Family::random);
  EXPECT_EQ(info("aten::normal_").family, Family::random);
  EXPECT_NE(info("aten::normal", "Tensor_float").family, Family::random);
  EXPECT_EQ(info("aten::_foreach_mul_", "Scalar").family, Family::each);
  EXPECT_EQ(info("aten::_fused_adam_").family, Family::each);
  EXPECT_EQ(info("aten::squeeze_", "dim").family, Family::reshapes);
  EXPECT_EQ(info("aten::squeeze", "dim").family, Family::view);
  EXPECT_EQ(info("aten::resize_").family, Family::refused);
  EXPECT_EQ(info("aten::nonzero").family, Family::fallback);
}

TEST(OpInfo, OverloadsAndOtherNamesShareARule) {
  const auto rule = [](const char* name, const char* overload = "") {
    return info(name, overload).rule;
  };
  EXPECT_EQ(rule("aten::add_", "Tensor"), rule("aten::add", "out"));
  EXPECT_EQ(rule("aten::_unsafe_index", "Tensor"), rule("aten::index", "Tensor"));
  EXPECT_EQ(rule("aten::_index_put_impl_"), rule("aten::index_put"));
  EXPECT_NE(rule("aten::lgamma"), nullptr) << "tagged as pointwise";
  EXPECT_EQ(rule("aten::nonzero"), nullptr);
}

TEST(OpInfo, OpsOfOthersHaveRulesByTheirFullName) {
  torch::Library library(torch::Library::DEF, "op_info_test", std::nullopt, __FILE__, __LINE__);
  library.def("mm(Tensor a, Tensor b) -> Tensor");
  EXPECT_EQ(info("op_info_test::mm").family, Family::fallback) << "it is not ATen's";
  RuleHandle added = add_rule(index_rule("op_info_test::mm", "MK,KN -> MN"));
  EXPECT_EQ(info("op_info_test::mm").family, Family::rule);
  EXPECT_EQ(info("op_info_test::mm").rule->name, "op_info_test::mm");
  added.remove();
  EXPECT_EQ(info("op_info_test::mm").rule, nullptr);
}

}  // namespace
}  // namespace intarsia

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "rules/asked.h"

namespace intarsia {
namespace {

using testing::Asked;
using testing::expect_error;
using testing::indices;
using testing::Ints;
using testing::sized;
using testing::unset;
using Dims = std::vector<std::size_t>;

/// The answer of a question that is asked at once.
template <class Answer>
auto ask(const Asked& asked, const Answer& answer) {
  return answer(static_cast<Question>(asked));
}

TEST(Question, OutIsNoOperand) {
  const Asked add("aten::add.out", {sized({2, 3}), sized({3}), 1, sized({2, 3})});
  const Question q = add;
  EXPECT_EQ(q.inputs(), 2);
  EXPECT_EQ(q.in().size(), 2);
  EXPECT_EQ(q.results(), 1);
  EXPECT_EQ(q.in(1).sizes, (Shape{3}));
  EXPECT_EQ(q.operand("out"), std::nullopt);
}

TEST(Question, ResultsAreTensors) {
  const Asked norm("aten::native_layer_norm", {sized({2, 3}), Ints{3}, unset(), unset(), 0.1});
  EXPECT_EQ(ask(norm, [](const Question& q) { return q.results(); }), 3);
  const Asked nothing("aten::_assert_async", {sized({})});
  EXPECT_EQ(ask(nothing, [](const Question& q) { return q.results(); }), 0);
}

TEST(Question, OperandsInListsCountOneByOne) {
  const Asked cat("aten::cat", {std::vector<at::Tensor>{sized({2}), sized({3}), sized({4})}, 0});
  const Question q = cat;
  EXPECT_EQ(q.inputs(), 3);
  EXPECT_EQ(q.in(2).sizes, (Shape{4}));
  EXPECT_EQ(q.operand("tensors"), 0);
  const std::vector<std::optional<at::Tensor>> list{std::nullopt, indices({5})};
  const Asked put("aten::index_put", {sized({2, 3}), list, sized({2, 5})});
  const Question p = put;
  EXPECT_EQ(p.inputs(), 4);
  EXPECT_FALSE(p.in(1).given);
  EXPECT_EQ(p.in(2).dtype, at::kLong);
  EXPECT_EQ(p.operand("indices"), 1);
  EXPECT_EQ(p.operand("values"), 3);
}

TEST(Question, OperandsThatWereNotPassedKeepTheirPlace) {
  const Asked norm("aten::native_layer_norm", {sized({2, 3}), Ints{3}, unset(), sized({3}), 0.1});
  const Question q = norm;
  EXPECT_EQ(q.inputs(), 3);
  EXPECT_FALSE(q.in(1).given);
  EXPECT_EQ(q.operand("weight"), std::nullopt);
  EXPECT_EQ(q.operand("bias"), 2);
  EXPECT_EQ(q.operand("eps"), std::nullopt);
  EXPECT_EQ(q.operand("momentum"), std::nullopt);
}

TEST(Question, NumbersHaveDefaults) {
  const Asked sum("aten::nansum", {sized({2, 3}), unset(), true});
  const Question q = sum;
  EXPECT_TRUE(q.flag("keepdim"));
  EXPECT_FALSE(q.flag("transposed"));
  EXPECT_EQ(q.integer("dim", 7), 7);      // not passed
  EXPECT_EQ(q.integer("keepdim", 8), 8);  // no integer
  EXPECT_EQ(q.integer("groups"), 0);      // not an argument
  EXPECT_EQ(q.arg("groups"), nullptr);
  EXPECT_TRUE(q.arg("dim")->isNone());
  const Asked topk("aten::topk", {sized({2, 3}), 2});
  EXPECT_EQ(ask(topk, [](const Question& t) { return t.integer("k"); }), 2);
}

TEST(Question, DimensionsCountFromTheFront) {
  const auto dim = [](const Ints& sizes, std::int64_t d) {
    return ask(Asked("aten::cumsum", {sized(sizes), d}), [](const Question& q) { return q.dim(); });
  };
  EXPECT_EQ(dim({2, 3, 4}, -1), 2);
  EXPECT_EQ(dim({2, 3, 4}, 1), 1);
  EXPECT_EQ(dim({}, -1), 0);  // a scalar has one, as in ATen
  expect_error<ValueError>(
      [&] {
        dim({2, 3}, 2);
      },
      {"[aten::cumsum]", "dimension 2", "2 dimensions", "-2..1"});
}

TEST(Question, NoDimensionsMeanAll) {
  const auto dims = [](const char* op, const c10::IValue& dim) {
    return ask(Asked(op, {sized({2, 3, 4}), dim}), [](const Question& q) { return q.dims(); });
  };
  EXPECT_EQ(dims("aten::sum.dim_IntList", Ints{-1, 0}), (Dims{2, 0}));
  EXPECT_EQ(dims("aten::sum.dim_IntList", Ints{}), std::nullopt);
  EXPECT_EQ(dims("aten::sum.dim_IntList", unset()), std::nullopt);
  EXPECT_EQ(dims("aten::argmax", -2), (Dims{1}));
  EXPECT_EQ(dims("aten::any.dims", Ints{}), Dims{});  // but for these
  EXPECT_EQ(dims("aten::any.dims", unset()), std::nullopt);
  expect_error<ValueError>([&] { dims("aten::amax", Ints{0, -4}); }, {"[aten::amax]", "-4"});
}

TEST(Question, ArgumentsAreFoundByName) {
  const Asked mm("aten::mm", {sized({2, 3}), sized({3, 4})});
  const Question q = mm;
  EXPECT_EQ(argument_index(q.schema(), "self"), 0);
  EXPECT_EQ(argument_index(q.schema(), "mat2"), 1);
  EXPECT_EQ(argument_index(q.schema(), "mat"), std::nullopt);
}

}  // namespace
}  // namespace intarsia

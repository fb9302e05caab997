#include "tensor/core/arguments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace intarsia {
namespace {

using at::Tensor;
using OptionalTensors = c10::List<std::optional<Tensor>>;

Tensor number(double value) { return at::scalar_tensor(value); }

/// The numbers that the walk meets, -1 for an undefined tensor.
std::vector<double> walked(const c10::IValue& value) {
  std::vector<double> out;
  for_each_tensor(value,
                  [&](const Tensor& t) { out.push_back(t.defined() ? t.item<double>() : -1); });
  return out;
}

TEST(Arguments, TheWalkMeetsEveryTensorInOrder) {
  EXPECT_EQ(walked(number(4)), (std::vector<double>{4}));
  EXPECT_EQ(walked(c10::List<Tensor>({number(2), number(1)})), (std::vector<double>{2, 1}));
  EXPECT_EQ(walked(OptionalTensors({number(3), std::nullopt, number(5)})),
            (std::vector<double>{3, 5}));
}

TEST(Arguments, UndefinedTensorsAreMetAndMissingOnesAreNot) {
  EXPECT_EQ(walked(Tensor()), (std::vector<double>{-1}));
  EXPECT_EQ(walked(c10::List<Tensor>({number(2), Tensor()})), (std::vector<double>{2, -1}));
  EXPECT_EQ(walked(std::optional<Tensor>()), std::vector<double>{});
  EXPECT_EQ(walked(OptionalTensors({std::nullopt})), std::vector<double>{});
}

TEST(Arguments, OtherValuesHoldNoTensors) {
  for (const c10::IValue& value :
       {c10::IValue(), c10::IValue(7), c10::IValue(2.5), c10::IValue("text"),
        c10::IValue(c10::List<std::int64_t>({1, 2})), c10::IValue(c10::List<Tensor>())}) {
    EXPECT_EQ(walked(value), std::vector<double>{});
  }
}

TEST(Arguments, ListsOfTensorsAreKnownWithoutElements) {
  EXPECT_TRUE(is_tensor_list(c10::List<Tensor>()));
  EXPECT_TRUE(is_tensor_list(OptionalTensors()));
  EXPECT_FALSE(is_tensor_list(number(1)));
  EXPECT_FALSE(is_tensor_list(c10::IValue()));
  EXPECT_FALSE(is_tensor_list(c10::List<std::int64_t>({1})));
}

TEST(Arguments, AReplacedListHasTheSameTypeAndOrder) {
  const c10::List<Tensor> list({number(1), number(2), number(3)});
  const c10::IValue out =
      replaced_list(list, [](const c10::IValue& e) { return c10::IValue(e.toTensor() * 10); });
  EXPECT_TRUE(out.isTensorList());
  EXPECT_EQ(walked(out), (std::vector<double>{10, 20, 30}));
  EXPECT_EQ(walked(list), (std::vector<double>{1, 2, 3}));
  const auto same = [](const c10::IValue& e) { return e; };
  EXPECT_TRUE(replaced_list(c10::List<Tensor>(), same).isTensorList());
  EXPECT_TRUE(replaced_list(OptionalTensors(), same).isOptionalTensorList());
}

TEST(Arguments, ElementsOfAnOptionalListMayBeMissingBeforeAndAfter) {
  const OptionalTensors list({number(1), std::nullopt, number(3)});
  // 1 goes, 3 stays, and what was missing is there.
  const c10::IValue out = replaced_list(list, [](const c10::IValue& e) -> c10::IValue {
    if (e.isNone()) return number(2);
    return e.toTensor().item<double>() == 1 ? c10::IValue() : e;
  });
  ASSERT_TRUE(out.isOptionalTensorList());
  ASSERT_EQ(out.toListRef().size(), 3U);
  EXPECT_TRUE(out.toListRef()[0].isNone());
  EXPECT_EQ(walked(out), (std::vector<double>{2, 3}));
}

TEST(Arguments, AListOfTensorsTakesNoneForNoElement) {
  const c10::List<Tensor> list({number(1)});
  EXPECT_THROW(replaced_list(list, [](const c10::IValue&) { return c10::IValue(); }), c10::Error);
}

}  // namespace
}  // namespace intarsia

#include "tensor/core/on_use.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace intarsia {
namespace {

using at::Tensor;

/// Brings 10 * index + 0..5 in two rows, and counts how often it is asked.
class Numbers final : public UseSource {
 public:
  Tensor in_use(std::size_t index) override {
    ++asked;
    return at::arange(6, at::kLong).view({2, 3}) + 10 * static_cast<std::int64_t>(index);
  }
  Layout layout_in_use(std::size_t) const override { return Layout(); }
  void written(std::size_t) override { ++writes_; }
  std::uint64_t writes() const override { return writes_; }

  int asked = 0;

 private:
  std::uint64_t writes_ = 0;
};

c10::OperatorHandle op(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

TEST(OnUse, IsWhatTheSourceHasAtItsIndex) {
  const auto source = std::make_shared<Numbers>();
  EXPECT_TRUE(at::equal(OnUse{source}.tensor(), at::arange(6).view({2, 3})));
  EXPECT_EQ((OnUse{source, 3}.tensor()[1][2].item<std::int64_t>()), 35);
  EXPECT_EQ(source->asked, 2) << "made anew each time";
}

TEST(OnUse, ViewsAreTakenInTheirOrder) {
  const OnUse use{std::make_shared<Numbers>()};
  const torch::jit::Stack second{0, 1};  // dim, index
  const OnUse column = use.then(op("aten::t", ""), {}).then(op("aten::select", "int"), second);
  EXPECT_TRUE(at::equal(column.tensor(), at::tensor({1, 4}, at::kLong)));
  const OnUse row = use.then(op("aten::select", "int"), second);
  EXPECT_TRUE(at::equal(row.tensor(), at::tensor({3, 4, 5}, at::kLong)));
}

TEST(OnUse, AnotherViewLeavesTheFirstAsItWas) {
  const OnUse use{std::make_shared<Numbers>(), 1};
  const OnUse turned = use.then(op("aten::t", ""), {});
  EXPECT_EQ(use.views.size(), 0U);
  EXPECT_EQ(use.tensor().size(0), 2);
  EXPECT_EQ(turned.views.size(), 1U);
  EXPECT_EQ(turned.tensor().size(0), 3);
  EXPECT_EQ(turned.index, 1U);
  EXPECT_EQ(turned.source, use.source);
}

TEST(OnUse, GradientsOfAViewAreNotTakenByTheSource) {
  OnUse use{std::make_shared<Numbers>()};
  use.takes_gradients = true;
  EXPECT_FALSE(use.then(op("aten::t", ""), {}).takes_gradients);
}

TEST(OnUse, ACastHoldsUntilTheSourceIsWritten) {
  const auto source = std::make_shared<Numbers>();
  source->written(0);
  OnUse use{source};
  EXPECT_TRUE(use.holds());
  use.cast_after = 1;
  const OnUse view = use.then(op("aten::t", ""), {});
  EXPECT_TRUE(use.holds());
  EXPECT_TRUE(view.holds());
  source->written(0);
  EXPECT_FALSE(use.holds());
  EXPECT_FALSE(view.holds()) << "a view of the cast is as old";
  use.cast_after = std::nullopt;
  EXPECT_TRUE(use.holds()) << "what is no cast always comes from the source";
}

}  // namespace
}  // namespace intarsia

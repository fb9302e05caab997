#include "tensor/local/kernel_log.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/predict.h"
#include "intarsia/tensor.h"
#include "world/session/step_log.h"

namespace intarsia {
namespace {

using at::Tensor;

/// What is noted while `run` runs.
template <class Run>
std::vector<StepEvent> noted(const Run& run) {
  const KernelObserver observer;
  StepLog log;
  run();
  return log.take();
}

TEST(KernelLog, NotesWhatKernelsReadAndWrite) {
  const Tensor x = at::ones({4, 6});
  const auto events = noted([&] { at::add(x, x); });
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "add");
  EXPECT_EQ(events[0].elements, 24);
  EXPECT_EQ(events[0].bytes, 3 * 24 * 4);
  EXPECT_EQ(noted([&] { at::ones({4}).mul_(2); }).back().name, "mul") << "in place";
}

TEST(KernelLog, NotesOpsThatReturnNothing) {
  const std::vector<Tensor> lists{at::ones({4}), at::ones({6})};
  const auto events = noted([&] { at::_foreach_add_(lists, 1); });
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "_foreach_add");
  EXPECT_EQ(events[0].bytes, (4 + 6) * 4);
  EXPECT_TRUE(events[0].in_place);
}

TEST(KernelLog, CountsOperationsOfProducts) {
  const Tensor a = at::ones({4, 6});
  const Tensor b = at::ones({6, 5});
  const Tensor bias = at::ones({5});
  const auto products = [](const auto& run) {
    const auto events = noted(run);
    double sum = 0;
    for (const StepEvent& e : events) sum += e.products * e.count;
    return sum;
  };
  constexpr double kOnce = 2 * 4 * 6 * 5;
  EXPECT_EQ(products([&] { at::mm(a, b); }), kOnce);
  EXPECT_EQ(products([&] { at::addmm(bias, a, b); }), kOnce);
  EXPECT_EQ(products([&] { at::linear(a, b.t(), bias); }), kOnce) << "expressed by others";
  EXPECT_EQ(products([&] { at::bmm(a.expand({3, 4, 6}), b.expand({3, 6, 5})); }), 3 * kOnce);
  EXPECT_EQ(products([&] { at::mv(a, at::ones({6})); }), 2 * 4 * 6);
  const Tensor image = at::ones({2, 3, 8, 8});
  const Tensor weight = at::ones({5, 3, 3, 3});
  EXPECT_EQ(products([&] { at::conv2d(image, weight); }), 2 * (2 * 5 * 6 * 6) * (3 * 3 * 3));
}

TEST(KernelLog, CountsOperationsOfAttention) {
  const Tensor q = at::ones({2, 3, 16, 8});
  const auto attention = [&](bool causal) {
    double sum = 0;
    for (const StepEvent& e :
         noted([&] { at::scaled_dot_product_attention(q, q, q, {}, 0.0, causal); })) {
      sum += e.attention;
    }
    return sum;
  };
  constexpr double kAll = 4.0 * 2 * 3 * 16 * 16 * 8;
  EXPECT_EQ(attention(false), kAll);
  EXPECT_EQ(attention(true), kAll) << "of few keys none is skipped";
}

TEST(KernelLog, ViewsAndEmptyMemoryAreNoWork) {
  const Tensor x = at::ones({4, 6});
  EXPECT_TRUE(noted([&] { x.view({24}).slice(0, 2).t().detach(); }).empty());
  EXPECT_TRUE(noted([&] { at::empty({1000}); }).empty());
  EXPECT_TRUE(noted([] {}).empty());
}

TEST(KernelLog, PicksReadOnlyWhatTheyGive) {
  const Tensor table = at::ones({1000, 8});
  const Tensor index = at::zeros({3}, at::kLong);
  EXPECT_EQ(noted([&] { at::embedding(table, index); }).back().bytes, 2 * 3 * 8 * 4);
}

TEST(KernelLog, AnOpThatFailsIsNotNoted) {
  const Tensor x = at::ones({4, 6});
  EXPECT_TRUE(noted([&] { EXPECT_ANY_THROW(at::mm(x, x)); }).empty());
  EXPECT_EQ(noted([&] { at::add(x, x); }).size(), 1U) << "the next one is";
}

TEST(KernelLog, OfDistributedTensorsThatOfTheirPieces) {
  const Mesh mesh = Mesh::parse("[a=4]");
  const Prediction p = predict({.mesh = mesh}, [&](World& world) {
    const Layout rows = Layout::parse("S(0)", mesh);
    const Tensor x = ones({8, 6}, rows, world);
    const Tensor w = ones({6, 5}, Layout::replicated(mesh), world).requires_grad_();
    x.mm(w).sum().backward();  // learned by the first step, and not noted
    return KeptTensors{.step = [=] { x.mm(w).sum().backward(); }};
  });
  std::vector<std::string> names;
  double products = 0;
  int calls = 0;
  for (const StepEvent& e : p.events) {
    if (e.kind == StepEvent::Kind::kernel && !e.is_call) names.push_back(e.name);
    calls += e.is_call ? 1 : 0;
    products += e.products;
  }
  EXPECT_EQ(products, 2 * (2 * 2 * 6 * 5)) << "of a quarter of the rows: forward, and of w";
  EXPECT_EQ(names.front(), "mm");
  EXPECT_GE(calls, 4) << "mm and sum, and their gradients";
  const StepTime time = p.time({});
  EXPECT_GT(time.computes, 0);
  EXPECT_GE(time.total, time.computes);
  EXPECT_ANY_THROW(predict({.mesh = mesh}, [](World&) { return KeptTensors{}; }).time({}));
}

}  // namespace
}  // namespace intarsia

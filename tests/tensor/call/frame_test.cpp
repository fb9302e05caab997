#include "tensor/call/frame.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using torch::jit::Stack;
using Key = std::vector<std::uint64_t>;
using Keys = std::set<Key>;

OpInfo info(const char* name, const char* overload = "") {
  return OpInfo(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

/// The words of a call's key, without that of the op.
Key key(const OpInfo& op, Stack stack) {
  const Frame f(op, stack);
  EXPECT_EQ(f.key[0], reinterpret_cast<std::uintptr_t>(&op));
  return {f.key.begin() + 1, f.key.end()};
}

/// A world of two ranks, and a tensor {4, 3} in it.
struct Two {
  Lockstep lockstep{"[a=2]"};
  Tensor in(const char* layout, const Tensor& full) const {
    return distribute(full, Layout::parse(layout, lockstep.mesh()), lockstep.world());
  }
  Tensor x = in("S(0)", at::ones({4, 3}));
};

TEST(Frame, ListsTensorsOneByOne) {
  const Two two;
  const OpInfo index = info("aten::index", "Tensor");
  const Tensor rows = at::zeros({2}, at::kLong);
  Stack stack{"below", two.x, c10::List<std::optional<Tensor>>({std::nullopt, rows})};
  const Frame f(index, stack);
  EXPECT_EQ(f.base, 1U);
  ASSERT_EQ(f.tensors.size(), 3U);
  EXPECT_EQ(f.tensors[0].impl, &impl_of(two.x));
  EXPECT_EQ(f.tensors[0].argument, 0U);
  EXPECT_FALSE(f.tensors[1].given());
  EXPECT_EQ(f.tensors[1].argument, 1U);
  EXPECT_TRUE(f.tensors[2].tensor->is_same(rows));
  EXPECT_EQ(f.tensors[2].impl, nullptr);
  EXPECT_EQ(f.tensors[2].argument, 1U);
  EXPECT_EQ(f.lead, &impl_of(two.x));
  EXPECT_EQ(f.mesh(), two.lockstep.mesh());
}

TEST(Frame, NumbersThatDecideNothingCountByTheirType) {
  const Two two;
  const OpInfo add = info("aten::add", "Tensor");
  const Key one = key(add, {two.x, two.x, 1});
  EXPECT_EQ(one, key(add, {two.x, two.x, 2}));
  EXPECT_EQ(key(add, {two.x, two.x, 1.5}), key(add, {two.x, two.x, 2.5}));
  EXPECT_EQ((Keys{one, key(add, {two.x, two.x, 1.0}), key(add, {two.x, two.x, true}),
                  key(add, {two.x, two.x, c10::complex<double>(1, 1)})})
                .size(),
            4U);
}

TEST(Frame, WhatDecidesLayoutsCountsByItsValue) {
  const Two two;
  using Ints = c10::List<std::int64_t>;
  const OpInfo sum = info("aten::sum", "dim_IntList");
  EXPECT_EQ((Keys{key(sum, {two.x, Ints({0}), false, c10::IValue()}),
                  key(sum, {two.x, Ints({1}), false, c10::IValue()}),
                  key(sum, {two.x, Ints({0, 1}), false, c10::IValue()}),
                  key(sum, {two.x, Ints(), false, c10::IValue()}),
                  key(sum, {two.x, c10::IValue(), false, c10::IValue()}),
                  key(sum, {two.x, Ints({0}), true, c10::IValue()}),
                  key(sum, {two.x, Ints({0}), false, at::kDouble})})
                .size(),
            7U);
  const OpInfo div = info("aten::div", "Tensor_mode");
  EXPECT_EQ((Keys{key(div, {two.x, two.x, "floor"}), key(div, {two.x, two.x, "trunc"}),
                  key(div, {two.x, two.x, c10::IValue()})})
                .size(),
            3U);
  const OpInfo histc = info("aten::histc");
  EXPECT_NE(key(histc, {two.x, 4, 0.5, 1.0}), key(histc, {two.x, 4, 0.25, 1.0}));
  const OpInfo copy = info("aten::_to_copy");
  const auto to = [&](const char* device) {
    const c10::IValue none;
    return key(copy, {two.x, none, none, at::Device(device), none, false, none});
  };
  EXPECT_EQ((Keys{to("cpu"), to("meta"), to("cuda:0"), to("cuda:1")}).size(), 4U);
}

TEST(Frame, DistributedTensorsCountByTheirSpec) {
  const Two two;
  const OpInfo add = info("aten::add", "Tensor");
  const Tensor same = two.in("S(0)", at::zeros({4, 3}));
  EXPECT_EQ(key(add, {two.x, two.x, 1}), key(add, {same, two.x, 1}));
  const Tensor columns = two.in("S(1)", at::zeros({4, 3}));
  EXPECT_NE(key(add, {two.x, two.x, 1}), key(add, {columns, two.x, 1}));
  EXPECT_NE(key(add, {columns, two.x, 1}), key(add, {two.x, columns, 1}));
}

TEST(Frame, PlainTensorsCountByAllButTheirValues) {
  const Two two;
  const OpInfo add = info("aten::add", "Tensor");
  const auto beside = [&](const Tensor& plain) { return key(add, {two.x, plain, 1}); };
  EXPECT_EQ(beside(at::ones({3})), beside(at::zeros({3})));
  Tensor number = at::ones({});
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_EQ((Keys{beside(at::ones({3})), beside(at::ones({1, 3})), beside(at::ones({1})),
                  beside(at::ones({3}, at::kDouble)), beside(at::ones({6}).slice(0, 0, 6, 2)),
                  beside(at::ones({9}).slice(0, 0, 9, 3)), beside(at::ones({})), beside(number)})
                .size(),
            8U);
}

TEST(Frame, MissingTensorsAndListsHaveWordsOfTheirOwn) {
  const Two two;
  const OpInfo index = info("aten::index", "Tensor");
  using List = c10::List<std::optional<Tensor>>;
  const Tensor i = at::zeros({2}, at::kLong);
  EXPECT_EQ((Keys{key(index, {two.x, List({i})}), key(index, {two.x, List({std::nullopt, i})}),
                  key(index, {two.x, List({i, std::nullopt})}), key(index, {two.x, List({i, i})})})
                .size(),
            4U);
  const OpInfo each = info("aten::_foreach_add", "List");
  const Tensor& x = two.x;
  using Tensors = std::vector<Tensor>;
  EXPECT_NE(key(each, {Tensors{x, x}, Tensors{x}, 1}), key(each, {Tensors{x}, Tensors{x, x}, 1}));
  const OpInfo norm = info("aten::native_layer_norm");
  const c10::List<std::int64_t> last({3});
  EXPECT_EQ(key(norm, {two.x, last, c10::IValue(), c10::IValue(), 0.1}),
            key(norm, {two.x, last, Tensor(), c10::IValue(), 0.1}));
}

TEST(Frame, APartialTensorCountsWithWhatIsAtHandOfIt) {
  const Two two;
  const Tensor x = two.in("P(sum)", at::ones({4}));
  const OpInfo neg = info("aten::neg");
  const Key before = key(neg, {x});
  const Layout rows = Layout::parse("S(0)", two.lockstep.mesh());
  impl_of(x).memory();
  impl_of(x).need_extra().reduced.to = rows;
  Stack stack{x};
  const Frame f(neg, stack);
  EXPECT_EQ(f.tensors[0].reduced, rows);
  EXPECT_FALSE(f.in_backward);
  const Key reduced = key(neg, {x});
  impl_of(x).need_extra().reduced.to = Layout::replicated(two.lockstep.mesh());
  EXPECT_EQ((Keys{before, reduced, key(neg, {x})}).size(), 3U);
}

TEST(Frame, OfPartialTensorsItMattersWhetherItIsBackward) {
  const Two two;
  const Tensor x = two.in("P(sum)", at::ones({4}));
  const OpInfo neg = info("aten::neg");
  Key backward, replicated;
  const Tensor leaf = at::ones({2}).set_requires_grad(true);
  leaf.register_hook([&](const Tensor&) {
    Stack stack{x};
    EXPECT_TRUE(Frame(neg, stack).in_backward);
    backward = key(neg, {x});
    replicated = key(neg, {two.x});
  });
  leaf.sum().backward();
  EXPECT_NE(backward, key(neg, {x}));
  EXPECT_EQ(replicated, key(neg, {two.x}));
}

TEST(Frame, FindsArgumentsByNameAndReplacesThemByResults) {
  const Two two;
  const OpInfo sum = info("aten::sum", "dim_IntList");
  Stack stack{"below", two.x, c10::List<std::int64_t>({1}), true, c10::IValue()};
  Frame f(sum, stack);
  EXPECT_EQ(f.place_of("keepdim"), 2U);
  EXPECT_TRUE(f.argument(f.place_of("keepdim")).toBool());
  EXPECT_EQ(f.argument("dim")->toIntVector(), std::vector<std::int64_t>{1});
  EXPECT_EQ(f.argument("width"), nullptr);
  EXPECT_EQ(f.arguments().size(), 4U);
  f.finish(Stack{1, 2});
  ASSERT_EQ(stack.size(), 3U);
  EXPECT_EQ(stack[0].toStringRef(), "below");
  EXPECT_EQ(stack[2].toInt(), 2);
  Stack single{two.x, c10::IValue(), true, c10::IValue()};
  Frame(sum, single).finish(at::ones({7}));
  ASSERT_EQ(single.size(), 1U);
  EXPECT_EQ(single[0].toTensor().size(0), 7);
}

TEST(Frame, RefusalsNameOpTensorsAndWayOut) {
  const Two two;
  const OpInfo add = info("aten::add", "Tensor");
  Stack stack{two.x, at::ones({3}), 1};
  expect_error<ValueError>([&] { Frame(add, stack).refuse("it rains", "stay at home"); },
                           {"[aten::add.Tensor] it rains: f32[4@a, 3] on [a=2]; f32[3] plain; "
                            "stay at home"});
  const auto world = World::connect(Rendezvous{});
  Stack alone{zeros({2}, Layout::parse("[a=1] R"), *world), Tensor(), 1};
  expect_error<ValueError>([&] { Frame(add, alone).refuse("why", "way out"); },
                           {"why: f32[2] on [a=1]; way out (rank 0)"});
}

TEST(Frame, LongListsOfTensorsAreShortenedInTexts) {
  const Two two;
  const OpInfo cat = info("aten::cat");
  std::vector<Tensor> many(10, at::ones({1}));
  many[0] = two.x;
  Stack stack{many, 0};
  const std::string text = Frame(cat, stack).operands_text();
  EXPECT_TRUE(text.starts_with("f32[4@a, 3] on [a=2]; f32[1] plain; f32[1] plain;")) << text;
  EXPECT_TRUE(text.ends_with("f32[1] plain; ... (10 tensors)")) << text;
  many.resize(8);
  Stack eight{many, 0};
  const std::string all = Frame(cat, eight).operands_text();
  EXPECT_EQ(all.find("..."), std::string::npos) << all;
}

TEST(Frame, WritesToElementsThatShareMemoryAreRefused) {
  const Two two;
  const OpInfo in_place = info("aten::mul_", "Tensor");
  const OpInfo functional = info("aten::mul", "Tensor");
  const Spec shared(Layout::parse("S(0)", two.lockstep.mesh()), {4, 3}, {1, 0}, 0, at::kFloat);
  const Tensor x = make_tensor(impl_of(two.x), shared, impl_of(two.x).pieces());
  Stack written{x, two.x};
  Stack read{two.x, x};
  expect_error<ValueError>([&] { Frame(in_place, written).check_writes(); },
                           {"[aten::mul_.Tensor]", "single memory location", "clone() it before"});
  Frame(in_place, read).check_writes();
  Frame(functional, written).check_writes();
  const Spec empty(Layout::parse("S(0)", two.lockstep.mesh()), {0, 3}, {1, 0}, 0, at::kFloat);
  Stack nothing{make_tensor(impl_of(two.x), empty, {at::ones({0, 3}), at::ones({0, 3})}), two.x};
  Frame(in_place, nothing).check_writes();
}

TEST(Frame, StatisticsAreWrittenInTrainingOnly) {
  const Two two;
  const OpInfo norm = info("aten::native_batch_norm");
  const Tensor statistics = at::zeros({3});
  const auto written = [&](bool training) {
    Stack stack{two.x, c10::IValue(), c10::IValue(), statistics, statistics, training, 0.1, 1e-5};
    const Frame f(norm, stack);
    return std::vector<bool>{f.tensors[0].written, f.tensors[3].written, f.tensors[4].written};
  };
  EXPECT_EQ(written(true), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(written(false), (std::vector<bool>{false, false, false}));
}

}  // namespace
}  // namespace intarsia

#include "tensor/dispatch/execute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "tensor/dispatch/decide.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::expect_error;
using testing::FramedCall;
using testing::Ints;
using testing::laid_out;
using testing::Numbers;
using testing::numbers;
using testing::numbers_of;
using testing::row_of;
using testing::unmoved;
using Rows = std::vector<Numbers>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Pieces& pieces_of(const at::Tensor& t) { return impl_of(t).pieces(); }

class Execute : public ::testing::Test {
 protected:
  Layout layout(std::string_view text) const { return Layout::parse(text, lockstep_.mesh()); }
  at::Tensor tensor(const at::Tensor& full, std::string_view text) const {
    return laid_out(full, text, lockstep_);
  }

  /// A decision to run the op with its operands laid out as `in`, for one result of these sizes.
  Decision running(const Frame& f, const std::vector<std::string_view>& in, std::string_view out,
                   const Shape& sizes, at::ScalarType dtype = at::kDouble) const {
    Decision d = unmoved(f, {out});
    d.results = {{Result::Kind::tensor, {Spec(layout(out), sizes, dtype)}, 0}};
    for (std::size_t i = 0; i < in.size(); ++i) d.layouts[i] = layout(in[i]);
    plan_moves(f, d);
    return d;
  }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(Execute, TheOpRunsOnEveryPiece) {
  FramedCall call("aten::add", "Tensor", {tensor(counting({5}), "S(0)"), row_of({10}), 2});
  execute(call.frame, running(call.frame, {}, "S(0)", {5}));
  ASSERT_EQ(call.stack.size(), 1U);
  EXPECT_EQ(numbers_of(pieces_of(call.stack[0].toTensor())), (Rows{{20, 21, 22}, {23, 24}}));
}

TEST_F(Execute, OperandsAreMovedFirst) {
  FramedCall call("aten::neg", "", {tensor(counting({5}), "S(0)")});
  execute(call.frame, running(call.frame, {"R"}, "R", {5}));
  EXPECT_EQ(numbers_of(pieces_of(call.stack[0].toTensor())),
            (Rows{{0, -1, -2, -3, -4}, {0, -1, -2, -3, -4}}));
  const Bill sent = bill(lockstep_.world());
  ASSERT_EQ(sent.entries.size(), 1U);
  EXPECT_EQ(sent.entries[0].op, "aten::neg");
  EXPECT_TRUE(sent.entries[0].implicit);
  EXPECT_FALSE(sent.entries[0].fallback);
}

TEST_F(Execute, WhatIsWrittenElsewhereIsBroughtBack) {
  const at::Tensor x =
      from_locals({row_of({3, -1}), row_of({-4, 5})}, layout("P(sum)"), lockstep_.world());
  const at::Tensor piece = pieces_of(x)[1];
  const auto memory = impl_of(x).memory();
  FramedCall call("aten::relu_", "", {x});
  Decision d = running(call.frame, {"R"}, "R", {2});
  d.results = {{Result::Kind::written, {}, 0}};
  d.brings_back = true;
  execute(call.frame, d);
  EXPECT_TRUE(call.stack[0].toTensor().is_same(x));
  EXPECT_EQ(layout_of(x).placements_text(), "P(sum)");
  EXPECT_TRUE(pieces_of(x)[1].is_same(piece)) << "in the memory that it had";
  EXPECT_EQ(memory->writes, 1U);
  EXPECT_EQ(numbers(full(x)), (Numbers{0, 4}));
}

TEST_F(Execute, WhatIsWrittenIsBroughtBackFromTheLayoutOfTheResult) {
  const at::Tensor x = tensor(row_of({1, 2}), "R");
  FramedCall call("aten::neg_", "", {x});
  Decision d = unmoved(call.frame, {"P(sum)"});  // so that what both ranks wrote is added up
  d.results = {{Result::Kind::written, {}, 0}};
  d.brings_back = true;
  execute(call.frame, d);
  EXPECT_EQ(numbers_of(pieces_of(x)), (Rows{{-2, -4}, {-2, -4}}));
}

TEST_F(Execute, APlainTensorIsWrittenOnce) {
  const at::Tensor plain = row_of({1, 2});
  FramedCall call("aten::add_", "Tensor", {plain, tensor(row_of({10, 20}), "R"), 1});
  Decision d = unmoved(call.frame, {"R"});
  d.results = {{Result::Kind::written, {}, 0}};
  d.brings_back = true;
  execute(call.frame, d);
  EXPECT_TRUE(call.stack[0].toTensor().is_same(plain));
  EXPECT_EQ(numbers(plain), (Numbers{11, 22}));
}

TEST_F(Execute, OutIsBroughtToItsLayout) {
  const at::Tensor x = tensor(counting({3}), "S(0)");
  const at::Tensor out = tensor(at::zeros({3}, at::kDouble), "R");
  FramedCall call("aten::neg", "out", {x, out});
  Decision d = unmoved(call.frame, {"S(0)"});
  d.results = {{Result::Kind::written, {}, 1}};
  execute(call.frame, d);
  EXPECT_EQ(numbers_of(pieces_of(out)), (Rows{{0, -1, -2}, {0, -1, -2}}));
  at::Tensor plain = at::zeros({3}, at::kDouble);
  FramedCall into_plain("aten::neg", "out", {x, plain});
  Decision plain_out = unmoved(into_plain.frame, {"S(0)"});
  plain_out.results = d.results;
  execute(into_plain.frame, plain_out);
  EXPECT_EQ(numbers(plain), (Numbers{0, -1, -2}));
}

TEST_F(Execute, ANewDecisionLearnsItsDtypes) {
  FramedCall call("aten::eq", "Scalar", {tensor(counting({3}), "S(0)"), 1});
  Decision d = running(call.frame, {}, "S(0)", {3});
  execute_new(call.frame, d);
  EXPECT_EQ(d.results[0].specs[0]->dtype, at::kBool);
  EXPECT_EQ(call.stack[0].toTensor().scalar_type(), at::kBool);
}

TEST_F(Execute, ARuleThatGivesWrongSizesIsRefused) {
  FramedCall call("aten::neg", "", {tensor(counting({3}), "S(0)")});
  Decision d = running(call.frame, {}, "S(0)", {4});
  expect_error<ValueError>(
      [&] { execute_new(call.frame, d); },
      {"[aten::neg] its rule is wrong: it gave a piece of (1) where f64[4@a] has (2)",
       "`intarsia ops check neg` shows where else it fails"});
}

TEST_F(Execute, RanksThatAreSkippedAddNothing) {
  FramedCall call("aten::amax", "", {tensor(row_of({3, 4}).view({1, 2}), "S(0)"), Ints{0}});
  Decision d = running(call.frame, {}, "P(max)", {2}, at::kFloat);
  d.local.skip = {false, true};
  execute_new(call.frame, d);
  const at::Tensor out = call.stack[0].toTensor();
  EXPECT_EQ(numbers_of(pieces_of(out)), (Rows{{3, 4}, {-kInfinity, -kInfinity}}));
  EXPECT_EQ(pieces_of(out)[1].scalar_type(), at::kDouble);
}

TEST_F(Execute, FormsRunBeforeInsteadAndAfterwards) {
  const at::Tensor x = tensor(counting({4}), "S(0)");
  FramedCall call("aten::relu_", "", {x});
  Decision d = unmoved(call.frame, {"S(0)"});
  d.results = {{Result::Kind::written, {}, 0}};
  d.local.beforehand = [](std::vector<Pieces>& in) {
    for (at::Tensor& piece : in[0]) piece = piece + 10;
  };
  d.local.call = [](std::size_t m, torch::jit::Stack& stack) {
    stack = {stack[0].toTensor() * (m == 0 ? 1 : 2)};
  };
  d.local.afterwards = [](std::vector<std::vector<at::Tensor>>& results) {
    for (at::Tensor& piece : results[0]) piece = piece + 100;
  };
  // What was made beforehand is not x: the op's result is brought there.
  d.brings_back = true;
  execute(call.frame, d);
  EXPECT_EQ(numbers_of(pieces_of(x)), (Rows{{110, 111}, {124, 126}}));
}

TEST_F(Execute, AViewThatMovesIsAViewOfACopy) {
  const at::Tensor x = tensor(counting({2, 2}), "S(0)");
  FramedCall call("aten::select", "int", {x, 0, 1});
  Decision d = running(call.frame, {"R"}, "R", {2});
  d.moves_view = true;
  execute(call.frame, d);
  const at::Tensor row = call.stack[0].toTensor();
  EXPECT_EQ(numbers_of(pieces_of(row)), (Rows{{2, 3}, {2, 3}}));
  ASSERT_TRUE(impl_of(row).extra() && impl_of(row).extra()->moved_copy);
  EXPECT_TRUE(pieces_of(row)[0].is_alias_of(pieces_of(impl_of(row).extra()->moved_copy->moved)[0]));
  EXPECT_FALSE(pieces_of(row)[1].is_alias_of(pieces_of(x)[1]));
  pieces_of(row)[1].fill_(9);
  FramedCall again("aten::select", "int", {x, 0, 1});
  execute(again.frame, d);
  EXPECT_EQ(numbers_of(pieces_of(again.stack[0].toTensor())), (Rows{{2, 3}, {2, 3}}))
      << "the move that is remembered was not written to";
}

TEST_F(Execute, ResultsThatNoRuleTellsAreReplicated) {
  FramedCall call("aten::nonzero", "", {tensor(row_of({0, 7, 7}), "R")});
  Decision d = unmoved(call.frame);
  d.open_results = true;
  execute(call.frame, d);
  const at::Tensor places = call.stack[0].toTensor();
  EXPECT_EQ(layout_of(places).placements_text(), "R");
  EXPECT_EQ(numbers_of(pieces_of(places)), (Rows{{1, 2}, {1, 2}}));
  FramedCall item("aten::_local_scalar_dense", "", {tensor(row_of({5}), "R")});
  Decision number = unmoved(item.frame);
  number.open_results = true;
  execute(item.frame, number);
  EXPECT_EQ(item.stack[0].toDouble(), 5);
}

TEST_F(Execute, RandomOpsWithoutARuleDrawAlike) {
  const at::Tensor count = tensor(at::full({64}, 100.0), "R");
  FramedCall call("aten::binomial", "", {count, tensor(at::full({64}, 0.5), "R"), c10::IValue()});
  Decision d = unmoved(call.frame);
  d.open_results = true;
  execute(call.frame, d);
  const Pieces& drawn = pieces_of(call.stack[0].toTensor());
  EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
}

TEST_F(Execute, AResultOfOtherSizesThanWhatIsWrittenIsRefused) {
  const at::Tensor out = tensor(at::zeros({2}, at::kDouble), "R");
  FramedCall call("aten::neg", "out", {tensor(counting({3}), "R"), out});
  Decision d = unmoved(call.frame);
  d.open_results = true;
  expect_error<ValueError>([&] { execute(call.frame, d); },
                           {"[aten::neg.out] the result has sizes (3) where the tensor to write "
                            "has (2), and a distributed tensor cannot be resized",
                            "pass a tensor of the right sizes"});
}

TEST(ExecuteOutside, ARankOutsideOfTheMeshLearnsWhatOthersHave) {
  run_in_process(2, [](World& world) {
    const Layout inside = Layout::parse("[a=1] S(0)");  // rank 0
    const at::Tensor x = distribute(counting({3}), inside, world);
    FramedCall call("aten::eq", "Scalar", {x, 1});
    Decision d = unmoved(call.frame, {"S(0)"});
    d.results = {{Result::Kind::tensor, {impl_of(x).spec()}, 0}};
    execute_new(call.frame, d);
    EXPECT_EQ(call.stack[0].toTensor().scalar_type(), at::kBool);
    EXPECT_EQ(pieces_of(call.stack[0].toTensor()).size(), world.rank() == 0 ? 1U : 0U);

    FramedCall equal("aten::equal", "", {x, x});
    Decision value = unmoved(equal.frame);
    value.results = {{}};
    if (world.rank() == 0) {
      execute(equal.frame, value);
      EXPECT_TRUE(equal.stack[0].toBool());
    } else {
      expect_error<ValueError>(
          [&] { execute(equal.frame, value); },
          {"it returns a value, which only ranks of the mesh know", "(rank 1)"});
    }
  });
}

}  // namespace
}  // namespace intarsia

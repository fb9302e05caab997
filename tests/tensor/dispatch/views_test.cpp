#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
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
using testing::run_on_pieces;
using testing::unmoved;
using torch::jit::Stack;

Decision decided(const FramedCall& call) {
  Decision d;
  d.in = unmoved(call.frame).in;
  decide_view(call.frame, d);
  return d;
}

/// `S(0) -> S(1)`: how the tensor must be laid out, and how its view is then.
std::string layouts(const FramedCall& call) {
  const Decision d = decided(call);
  return d.layouts[0].placements_text() + " -> " + d.results[0].specs[0]->layout.placements_text();
}

class Views : public ::testing::Test {
 protected:
  at::Tensor tensor(const Ints& sizes, std::string_view layout) const {
    return laid_out(counting(sizes), layout, lockstep_);
  }

  /// The layouts of a view of a tensor of 4 rows and 6 columns.
  std::string of(std::string_view layout, const char* op, const char* overload,
                 Stack arguments) const {
    arguments.insert(arguments.begin(), tensor({4, 6}, layout));
    return layouts(FramedCall(op, overload, std::move(arguments)));
  }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(Views, PlacementsGoWhereTheirDimensionGoes) {
  EXPECT_EQ(of("S(0)", "aten::t", "", {}), "S(0) -> S(1)");
  EXPECT_EQ(of("S(1)", "aten::transpose", "int", {-2, -1}), "S(1) -> S(0)");
  EXPECT_EQ(of("SS(1,3)", "aten::permute", "", {Ints{1, 0}}), "SS(1,3) -> SS(0,3)");
  EXPECT_EQ(of("S(0)", "aten::unsqueeze", "", {0}), "S(0) -> S(1)");
  EXPECT_EQ(of("P(sum)", "aten::view", "", {Ints{24}}), "P(sum) -> P(sum)");
  EXPECT_EQ(of("S(1)", "aten::view", "", {Ints{4, 2, 3}}), "S(1) -> S(1)");
  EXPECT_EQ(of("S(1)", "aten::view", "", {Ints{24}}), "S(1) -> SS(0,4)");
  EXPECT_EQ(of("S(1)", "aten::alias", "", {}), "S(1) -> S(1)");
}

TEST_F(Views, ADimensionThatIsTakenApartIsNotSharded) {
  EXPECT_EQ(of("S(0)", "aten::select", "int", {0, 3}), "R -> R");
  EXPECT_EQ(of("S(1)", "aten::select", "int", {0, 3}), "S(1) -> S(0)");
  EXPECT_EQ(of("SS(1,3)", "aten::select", "int", {0, 3}), "SS(1,3) -> SS(0,3)");
  EXPECT_EQ(of("S(1)", "aten::unbind", "int", {0}), "S(1) -> S(0)");
  EXPECT_EQ(of("S(1)", "aten::unbind", "int", {-1}), "R -> R");
  EXPECT_EQ(of("S(0)", "aten::slice", "Tensor", {0, 1, 3}), "R -> R");
  EXPECT_EQ(of("S(0)", "aten::slice", "Tensor", {0, 0, 4}), "S(0) -> S(0)");  // all of it
  EXPECT_EQ(of("S(1)", "aten::slice", "Tensor", {0, 1, 3}), "S(1) -> S(1)");
  EXPECT_EQ(of("S(0)", "aten::split", "Tensor", {2, 1}), "S(0) -> S(0)");
  EXPECT_EQ(of("S(0)", "aten::unfold", "", {1, 2, 2}), "S(0) -> S(0)");
  EXPECT_EQ(of("S(1)", "aten::unfold", "", {1, 2, 2}), "R -> R");
  EXPECT_EQ(layouts(FramedCall("aten::diagonal", "", {tensor({3, 3, 4}, "S(2)"), 0, 0, 1})),
            "S(2) -> S(0)");
}

TEST_F(Views, SeveralAxesKeepTheirOrder) {
  const Lockstep lockstep("[a=2,b=2,c=2]");
  const at::Tensor x = laid_out(counting({4, 8}), "S(1),S(1),S(0) | 1:b>a", lockstep);
  const FramedCall row("aten::select", "int", {x, 0, 1});
  EXPECT_EQ(layouts(row), "S(1),S(1),R | 1:b>a -> S(0),S(0),R | 0:b>a");
}

TEST_F(Views, ResultsHaveSizesStridesAndOffsetOfTheFullTensor) {
  const FramedCall column("aten::select", "int", {tensor({4, 6}, "S(0)"), 1, 2});
  const SpecData spec = *decided(column).results[0].specs[0];
  EXPECT_EQ(spec.sizes, (Shape{4}));
  EXPECT_EQ(spec.strides, (Shape{6}));
  EXPECT_EQ(spec.offset, 2);
  const FramedCall halves("aten::split", "Tensor", {tensor({4, 6}, "S(0)"), 4, 1});
  const Decision d = decided(halves);
  EXPECT_EQ(d.results[0].kind, Result::Kind::list);
  ASSERT_EQ(d.results[0].specs.size(), 2U);
  EXPECT_EQ(d.results[0].specs[1]->sizes, (Shape{4, 2}));
  EXPECT_EQ(d.results[0].specs[1]->offset, 4);
}

TEST_F(Views, PartsThatConsistOfBlocksAreTakenWithoutMoves) {
  const at::Tensor x = tensor({6}, "SS(0,2)");  // 0 1, 3 4 | 2, 5
  const FramedCall second("aten::slice", "Tensor", {x, 0, -3, 6});
  EXPECT_EQ(layouts(second), "SS(0,2) -> S(0)");
  EXPECT_EQ(numbers_of(run_on_pieces(second.frame, decided(second))[0]),
            (std::vector<Numbers>{{3, 4}, {5}}));
  const FramedCall parts("aten::split_with_sizes", "", {tensor({16}, "SS(0,4)"), Ints{4, 12}});
  const Decision d = decided(parts);
  EXPECT_EQ(d.layouts[0].placements_text(), "SS(0,4)");
  EXPECT_EQ(d.results[0].specs[0]->layout.placements_text(), "S(0)");
  EXPECT_EQ(d.results[0].specs[1]->layout.placements_text(), "SS(0,3)");
  EXPECT_EQ(d.local.arguments[1][0].second.toIntVector(), (Ints{2, 6}));
  EXPECT_EQ(layouts(FramedCall("aten::slice", "Tensor", {x, 0, -100, 3})), "SS(0,2) -> S(0)");
}

TEST_F(Views, PartsOfBlocksAreMoved) {
  const auto sliced = [](const at::Tensor& x, std::int64_t start, std::int64_t end,
                         std::int64_t step = 1) {
    return layouts(FramedCall("aten::slice", "Tensor", {x, 0, start, end, step}));
  };
  const at::Tensor x = tensor({8}, "SS(0,2)");
  EXPECT_EQ(sliced(x, 0, 3), "R -> R");
  EXPECT_EQ(sliced(x, 1, 8), "R -> R");
  EXPECT_EQ(sliced(x, 0, 8, 2), "R -> R");
  EXPECT_EQ(layouts(FramedCall("aten::split", "Tensor", {x, 5, 0})), "R -> R");
  const at::Tensor uneven = tensor({7}, "SS(0,2)");  // blocks of 4 and 3 elements
  EXPECT_EQ(sliced(uneven, 0, 4), "R -> R");
  EXPECT_EQ(sliced(uneven, 0, 3), "R -> R");
}

TEST_F(Views, EachRankIsToldTheSizesOfItsPiece) {
  const auto told = [](const FramedCall& call, std::size_t m) {
    return decided(call).local.arguments[m][0].second.toIntVector();
  };
  const at::Tensor x = tensor({5, 1, 2}, "S(0)");
  const FramedCall view("aten::view", "", {x, Ints{5, 2}});
  EXPECT_EQ(told(view, 0), (Ints{3, 2}));
  EXPECT_EQ(told(view, 1), (Ints{2, 2}));
  const FramedCall squeezed("aten::squeeze", "dim", {x, 1});
  EXPECT_EQ(told(squeezed, 1), (Ints{2, 2}));
  EXPECT_EQ(decided(squeezed).local.op->schema().name(), "aten::view");
  const FramedCall expanded("aten::expand", "", {x, Ints{7, -1, 4, 2}});
  EXPECT_EQ(told(expanded, 1), (Ints{7, 2, 4, 2}));
}

TEST_F(Views, APieceWithoutElementsIsExpandedToOneWithout) {
  const FramedCall call("aten::expand", "", {tensor({1, 1}, "S(0)"), Ints{1, 3}});
  const auto pieces = run_on_pieces(call.frame, decided(call))[0];
  EXPECT_EQ(numbers(pieces[0]), (Numbers{0, 0, 0}));
  EXPECT_EQ(pieces[0].strides()[1], 0) << "a view";
  EXPECT_EQ(pieces[1].sizes(), at::IntArrayRef({0, 3}));
}

TEST_F(Views, WhatChangesValuesKeepsOnlyReductionsThatCommute) {
  EXPECT_EQ(of("P(sum)", "aten::_neg_view", "", {}), "P(sum) -> P(sum)");
  EXPECT_EQ(of("P(max)", "aten::_neg_view", "", {}), "R -> R");
  EXPECT_EQ(of("P(max)", "aten::alias", "", {}), "P(max) -> P(max)");
  EXPECT_EQ(of("P(sum)", "aten::view", "dtype", {at::kLong}), "R -> R");
  EXPECT_EQ(of("S(0)", "aten::view", "dtype", {at::kLong}), "S(0) -> S(0)");
  EXPECT_EQ(of("S(1)", "aten::view", "dtype", {at::kInt}), "R -> R");  // columns become two
}

TEST_F(Views, ComplexNumbersAreSeenAsPairs) {
  const at::Tensor z = laid_out(at::complex(row_of({1, 2}), row_of({3, 4})), "S(0)", lockstep_);
  const FramedCall real("aten::view_as_real", "", {z});
  EXPECT_EQ(layouts(real), "S(0) -> S(0)");
  Stack stack{at::conj(impl_of(z).pieces()[1])};
  decided(real).local.call(1, stack);
  EXPECT_EQ(numbers(stack[0].toTensor()), (Numbers{2, -4}));
  EXPECT_EQ(layouts(FramedCall("aten::view_as_complex", "", {tensor({4, 2}, "S(0)")})),
            "S(0) -> S(0)");
  EXPECT_EQ(layouts(FramedCall("aten::view_as_complex", "", {tensor({4, 2}, "S(1)")})), "R -> R");
}

TEST_F(Views, AsStridedCountsFromTheBeginningOfTheFullTensor) {
  const at::Tensor row = tensor({2, 3}, "S(0)").select(0, 1);  // begins at element 3
  const FramedCall call("aten::as_strided", "", {row, Ints{2}, Ints{1}, 4});
  const Decision d = decided(call);
  Stack stack{row_of({3, 4, 5}), Ints{2}, Ints{1}, 4};
  d.local.call(0, stack);
  EXPECT_EQ(numbers(stack[0].toTensor()), (Numbers{4, 5}));
  Stack apart{row_of({3, 0, 4, 0, 5}).slice(0, 0, 5, 2), Ints{2}, Ints{1}, 4};
  expect_error<UnsupportedError>(
      [&] { d.local.call(0, apart); },
      {"[aten::as_strided] the pieces do not have the strides (1) of the full tensor",
       "use view, select or slice"});
  // Strides of dimensions of one element lead nowhere.
  const FramedCall same("aten::as_strided", "", {tensor({1, 4}, "S(1)"), Ints{1, 4}, Ints{9, 1}});
  EXPECT_EQ(layouts(same), "S(1) -> S(1)");
  EXPECT_EQ(decided(same).local.op->schema().name(), "aten::alias");
}

}  // namespace
}  // namespace intarsia

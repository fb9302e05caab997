#include "tensor/local/local_forms.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::expect_error;
using testing::FramedCall;
using testing::Ints;
using testing::laid_out;
using testing::Numbers;
using testing::numbers_of;
using testing::question_of;
using testing::row_of;
using testing::run_on_pieces;
using testing::unmoved;
using Rows = std::vector<Numbers>;

// An op that tells the strides with which it was called.
TORCH_LIBRARY(intarsia_local_forms_test, m) {
  m.def("strides_of(Tensor a, Tensor b) -> Tensor", [](const at::Tensor& a, const at::Tensor& b) {
    std::vector<std::int64_t> strides = a.strides().vec();
    strides.insert(strides.end(), b.strides().begin(), b.strides().end());
    return at::tensor(strides, at::kLong);
  });
}

FramedCall strides_of(const at::Tensor& a, const at::Tensor& b) {
  return FramedCall("intarsia_local_forms_test::strides_of", "", {a, b});
}

/// The form of the op's rule, for results of these layouts.
Decision form_of(const FramedCall& call, const std::vector<std::string_view>& results,
                 const std::vector<Shape>& sizes = {}) {
  Decision d = unmoved(call.frame, results);
  set_local_form(call.frame, *call.info.rule, question_of(call.frame, d), sizes, d);
  return d;
}

Rows result_of(const FramedCall& call, std::string_view layout) {
  return numbers_of(run_on_pieces(call.frame, form_of(call, {layout}))[0]);
}

class LocalForms : public ::testing::Test {
 protected:
  at::Tensor sharded(const at::Tensor& full, std::string_view layout = "S(0)") const {
    return laid_out(full, layout, lockstep_);
  }
  static at::Tensor index(std::initializer_list<std::int64_t> values) {
    return at::tensor(Ints(values), at::kLong);
  }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(LocalForms, AMeanIsTheSumOfThePieceOverTheCountOfAll) {
  const at::Tensor x = sharded(row_of({5, 10, 15, 20, 25}));
  EXPECT_EQ(result_of(FramedCall("aten::mean", "", {x}), "P(sum)"), (Rows{{6}, {9}}));
  const at::Tensor square = sharded(row_of({2, 4, 6, 8}).view({2, 2}));
  const FramedCall rows("aten::mean", "dim", {square, Ints{-2}, true});
  EXPECT_EQ(result_of(rows, "P(sum)"), (Rows{{1, 2}, {3, 4}}));
  EXPECT_EQ(run_on_pieces(rows.frame, form_of(rows, {"P(sum)"}))[0][0].sizes(),
            at::IntArrayRef({1, 2}));
  const FramedCall columns("aten::mean", "dim", {square, Ints{1}});
  EXPECT_FALSE(form_of(columns, {"S(0)"}).local.call) << "each rank has all that it averages";
}

TEST_F(LocalForms, AMeanOfIntegersIsRefused) {
  const FramedCall call("aten::mean", "", {sharded(at::arange(5))});
  expect_error<ValueError>(
      [&] { form_of(call, {"P(sum)"}); },
      {"[aten::mean] a mean of integers is not an integer", "i64[5@a]", "pass a floating dtype"});
  const FramedCall cast("aten::mean", "", {sharded(at::arange(5)), at::kDouble});
  EXPECT_EQ(numbers_of(run_on_pieces(cast.frame, form_of(cast, {"P(sum)"}))[0]),
            (Rows{{0.6}, {1.4}}));
}

TEST_F(LocalForms, AMeanLossIsASumOverTheCountOfAll) {
  const at::Tensor x = sharded(row_of({1, 2, 3, 4, 5}));
  const at::Tensor zero = sharded(at::zeros({5}, at::kDouble));
  EXPECT_EQ(result_of(FramedCall("aten::mse_loss", "", {x, zero, 1}), "P(sum)"),
            (Rows{{14 / 5.0}, {41 / 5.0}}));
  const FramedCall backward("aten::mse_loss_backward", "",
                            {at::scalar_tensor(5, at::kDouble), x, zero, 1});
  EXPECT_EQ(result_of(backward, "S(0)"), (Rows{{2, 4, 6}, {8, 10}}));
  EXPECT_FALSE(form_of(FramedCall("aten::mse_loss", "", {x, zero, 2}), {"P(sum)"}).local.call);
  const at::Tensor same = sharded(row_of({1}), "R");
  EXPECT_FALSE(form_of(FramedCall("aten::mse_loss", "", {same, same, 1}), {"R"}).local.call);
}

TEST_F(LocalForms, AWeightedLossIsDividedByTheWeightOfAll) {
  const at::Tensor x = sharded(row_of({-1, -2, -3, -4, -5, -6, -7, -8}).view({4, 2}));
  const FramedCall call("aten::nll_loss_forward", "",
                        {x, sharded(index({0, 1, 1, 0})), row_of({1, 3}), 1, -100});
  Decision d = unmoved(call.frame, {"P(sum)", "R"});
  for (const Layout& layout : std::vector(d.out_layouts)) {
    d.results.push_back({Result::Kind::tensor, {Spec(layout, Shape{}, at::kDouble)}, 0});
  }
  set_local_form(call.frame, *call.info.rule, question_of(call.frame, d), {}, d);
  EXPECT_EQ(d.out_layouts[1].placements_text(), "P(sum)");
  const auto results = run_on_pieces(call.frame, d);
  EXPECT_EQ(numbers_of(results[0]), (Rows{{13 / 8.0}, {25 / 8.0}}));  // 1 + 3 * 4, 3 * 6 + 7
  EXPECT_EQ(numbers_of(results[1]), (Rows{{8}, {8}}));
}

TEST_F(LocalForms, RowsOfATableThatOthersHaveAreZero) {
  const at::Tensor table = sharded(counting({5, 2}));
  const FramedCall lookup("aten::embedding", "", {table, index({0, 4, 2})});
  EXPECT_EQ(result_of(lookup, "P(sum)"), (Rows{{0, 1, 0, 0, 4, 5}, {0, 0, 8, 9, 0, 0}}));
  const at::Tensor wide = sharded(counting({2, 3}), "S(1)");
  const FramedCall columns("aten::index_select", "", {wide, 1, index({2, 0})});
  EXPECT_EQ(result_of(columns, "P(sum)"), (Rows{{0, 0, 0, 3}, {2, 0, 5, 0}}));
  const FramedCall each("aten::gather", "", {wide, 1, index({2, 0, 1, 1}).view({2, 2})});
  EXPECT_EQ(result_of(each, "P(sum)"), (Rows{{0, 0, 4, 4}, {2, 0, 0, 0}}));
  EXPECT_EQ(run_on_pieces(each.frame, form_of(each, {"P(sum)"}))[0][1].sizes(),
            at::IntArrayRef({2, 2}));
  c10::List<std::optional<at::Tensor>> last;
  last.push_back(std::nullopt);
  last.push_back(index({-1}));
  EXPECT_EQ(result_of(FramedCall("aten::index", "Tensor", {wide, last}), "P(sum)"),
            (Rows{{0, 0}, {2, 5}}));
}

TEST_F(LocalForms, RowsOfATableInBlocks) {
  const at::Tensor table = sharded(counting({8, 1}), "SS(0,2)");  // 0 1 4 5 | 2 3 6 7
  const FramedCall call("aten::embedding", "", {table, index({1, 2, 5, 7})});
  EXPECT_EQ(result_of(call, "P(sum)"), (Rows{{1, 0, 5, 0}, {0, 2, 0, 7}}));
}

TEST_F(LocalForms, AnIndexBeyondAllRowsIsRefused) {
  const FramedCall call("aten::embedding", "", {sharded(counting({5, 2})), index({0, 5})});
  const Decision d = form_of(call, {"P(sum)"});
  expect_error<c10::IndexError>([&] { run_on_pieces(call.frame, d); },
                                {"index out of range: from 0 to 5 in a dimension of 5"});
}

TEST_F(LocalForms, WritesByIndexReachTheRankThatHasTheRow) {
  const at::Tensor x = row_of({10, 20, 30, 40, 50});
  const at::Tensor source = row_of({1, 2, 4});
  const FramedCall added("aten::index_add", "", {sharded(x), 0, index({4, 0, 4}), source});
  EXPECT_EQ(result_of(added, "S(0)"), (Rows{{12, 20, 30}, {40, 55}}));
  const FramedCall set("aten::scatter", "value", {sharded(x), 0, index({3, 1}), 7});
  EXPECT_EQ(result_of(set, "S(0)"), (Rows{{10, 7, 30}, {7, 50}}));
  c10::List<std::optional<at::Tensor>> places;
  places.push_back(index({-1, 2}));
  const FramedCall put("aten::index_put", "", {sharded(x), places, row_of({8, 9}), false});
  EXPECT_EQ(result_of(put, "S(0)"), (Rows{{10, 20, 9}, {40, 8}}));
  const at::Tensor square = sharded(counting({2, 2}));
  const FramedCall columns("aten::index_add", "",
                           {square, 1, index({0}), sharded(counting({2, 1}))});
  EXPECT_FALSE(form_of(columns, {"S(0)"}).local.call) << "each rank has all columns";
}

TEST_F(LocalForms, WritesInPlaceStayInThePiece) {
  const at::Tensor self = sharded(row_of({10, 20, 30, 40, 50}));
  const FramedCall call("aten::index_add_", "", {self, 0, index({4, 0}), row_of({1, 2})});
  const auto results = run_on_pieces(call.frame, form_of(call, {"S(0)"}));
  EXPECT_TRUE(results[0][1].is_same(impl_of(self).pieces()[1]));
  EXPECT_EQ(numbers_of(impl_of(self).pieces()), (Rows{{12, 20, 30}, {40, 51}}));
}

TEST_F(LocalForms, RowsThatMustBeAlignedBeginAtMultiplesOf16Bytes) {
  const Rule rule{
      .name = "strides_of", .rows = {}, .sizes = {}, .options = {.form = LocalForm::aligned}};
  const at::Tensor rows = at::ones({4, 5}, at::kFloat);
  const at::Tensor columns = at::ones({5, 4}, at::kFloat).t();
  const at::Tensor fits = at::ones({4, 8}, at::kFloat);
  const auto strides = [&](const at::Tensor& a, const at::Tensor& b) {
    const FramedCall call = strides_of(a, b);
    Decision d = unmoved(call.frame, {"R"});
    set_local_form(call.frame, rule, question_of(call.frame, d), {}, d);
    return numbers_of(run_on_pieces(call.frame, d)[0])[0];
  };
  EXPECT_EQ(strides(sharded(rows), sharded(fits)), (Numbers{8, 1, 8, 1}));
  // Two rows of the transposed matrix: its columns begin at every second element.
  EXPECT_EQ(strides(sharded(columns), sharded(fits)), (Numbers{1, 4, 8, 1}));
  EXPECT_EQ(strides(sharded(rows, "R"), sharded(fits, "R")), (Numbers{5, 1, 8, 1}));
}

TEST_F(LocalForms, PiecesLookContiguousOnlyWhereTheFullTensorDoes) {
  const Rule rule{
      .name = "strides_of", .rows = {}, .sizes = {}, .options = {.form = LocalForm::contiguity}};
  const auto form = [&](const FramedCall& call) {
    Decision d = unmoved(call.frame, {"R"});
    set_form_of_strides(call.frame, rule, d);
    return d;
  };
  const at::Tensor turned = sharded(counting({2, 3}).t(), "S(1)");  // pieces are columns of 3
  const FramedCall call = strides_of(turned, turned);
  EXPECT_EQ(numbers_of(run_on_pieces(call.frame, form(call))[0])[0], (Numbers{2, 1, 1, 3}));
  const at::Tensor straight = sharded(counting({3, 2}), "S(1)");
  EXPECT_FALSE(form(strides_of(straight, straight)).local.call);
}

TEST_F(LocalForms, PiecesLookChannelsLastOnlyWhereTheFullTensorDoes) {
  const Rule rule{
      .name = "strides_of", .rows = {}, .sizes = {}, .options = {.form = LocalForm::memory_format}};
  // In memory: height, batch, width, channels. One image of that looks channels last.
  const at::Tensor mixed = counting({2, 2, 2, 2}).permute({1, 3, 0, 2});
  const at::Tensor x = sharded(mixed);
  ASSERT_TRUE(impl_of(x).pieces()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor last = sharded(mixed.contiguous(at::MemoryFormat::ChannelsLast));
  const FramedCall call = strides_of(x, last);
  Decision d = unmoved(call.frame, {"R"});
  set_form_of_strides(call.frame, rule, d);
  const Numbers strides = numbers_of(run_on_pieces(call.frame, d)[0])[0];
  EXPECT_EQ(Numbers(strides.begin() + 1, strides.begin() + 4), (Numbers{4, 2, 1}));
  EXPECT_EQ(Numbers(strides.begin() + 5, strides.end()), (Numbers{1, 4, 2}));
}

TEST_F(LocalForms, SizesAmongTheArgumentsAreThoseOfThePiece) {
  const at::Tensor grad = sharded(counting({5}));
  const FramedCall select("aten::select_backward", "", {grad, Ints{2, 5}, 0, 1});
  const Decision d = form_of(select, {"S(1)"}, {{2, 5}});
  EXPECT_EQ(numbers_of(run_on_pieces(select.frame, d)[0]),
            (Rows{{0, 0, 0, 0, 1, 2}, {0, 0, 3, 4}}));
  EXPECT_TRUE(form_of(select, {"R"}, {{2, 5}}).local.arguments.empty());
  const FramedCall norm("aten::native_group_norm", "",
                        {sharded(counting({3, 4})), {}, {}, 3, 4, 1, 2, 1e-5});
  const Decision batch = form_of(norm, {"S(0)", "S(0)", "S(0)"});
  ASSERT_EQ(batch.local.arguments.size(), 2U);
  EXPECT_EQ(batch.local.arguments[0][0].first, 3U);
  EXPECT_EQ(batch.local.arguments[0][0].second.toInt(), 2);
  EXPECT_EQ(batch.local.arguments[1][0].second.toInt(), 1);
}

TEST_F(LocalForms, FactoriesMakePieces) {
  const at::Tensor x = sharded(counting({2}));
  const auto arguments = [&](const FramedCall& call, const Spec& spec) {
    Decision d = unmoved(call.frame);
    d.results.push_back({Result::Kind::tensor, {spec}, 0});
    set_local_factory(call.frame, d);
    return d.local.arguments;
  };
  const Layout rows = Layout::parse("S(0)", lockstep_.mesh());
  const FramedCall strided("aten::new_empty_strided", "", {x, Ints{3, 4}, Ints{1, 3}});
  const auto made = arguments(strided, Spec(rows, Shape{3, 4}, Shape{1, 3}, 0, at::kDouble));
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[0][0].second.toIntVector(), (Ints{2, 4}));
  EXPECT_EQ(made[0][1].second.toIntVector(), (Ints{1, 2}));
  EXPECT_EQ(made[1][0].second.toIntVector(), (Ints{1, 4}));
  EXPECT_EQ(made[1][1].first, 2U);
  const FramedCall zeros("aten::new_zeros", "", {x, Ints{3, 4}});
  EXPECT_EQ(arguments(zeros, Spec(rows, Shape{3, 4}, at::kDouble))[1].size(), 1U);
  const Layout replicated = Layout::replicated(lockstep_.mesh());
  EXPECT_TRUE(arguments(zeros, Spec(replicated, Shape{3, 4}, at::kDouble)).empty());
  const FramedCall like("aten::zeros_like", "", {x});
  EXPECT_TRUE(arguments(like, Spec(rows, Shape{2}, at::kDouble)).empty());
}

}  // namespace
}  // namespace intarsia

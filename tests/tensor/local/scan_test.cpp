#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "intarsia/communication.h"
#include "tensor/frames.h"
#include "tensor/local/local_forms.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using testing::FramedCall;
using testing::laid_out;
using testing::Numbers;
using testing::numbers_of;
using testing::question_of;
using testing::row_of;
using testing::run_on_pieces;
using testing::unmoved;
using Rows = std::vector<Numbers>;

Decision form_of(const Frame& f) {
  Decision d = unmoved(f);
  set_scan(f, question_of(f, d), d);
  return d;
}

/// The pieces of the running sum, product, ... along a dimension.
Rows scanned(const char* op, const at::Tensor& x, std::int64_t dim = 0) {
  const FramedCall call(op, "", {x, dim});
  return numbers_of(run_on_pieces(call.frame, form_of(call.frame))[0]);
}

TEST(Scan, PiecesBeforeAreAddedOrMultiplied) {
  const Lockstep lockstep("[a=3]");
  const at::Tensor x = laid_out(row_of({1, 2, 3, 4, 5}), "S(0)", lockstep);
  EXPECT_EQ(scanned("aten::cumsum", x), (Rows{{1, 3}, {6, 10}, {15}}));
  EXPECT_EQ(scanned("aten::cumprod", x), (Rows{{1, 2}, {6, 24}, {120}}));
  const Rows logs =
      scanned("aten::logcumsumexp", laid_out(at::log(row_of({1, 2, 3, 4, 5})), "S(0)", lockstep));
  EXPECT_NEAR(std::exp(logs[1][1]), 10, 1e-12);
  EXPECT_NEAR(std::exp(logs[2][0]), 15, 1e-12);
}

TEST(Scan, BlocksAreTakenInTheOrderOfTheDimension) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(row_of({1, 2, 3, 4, 5, 6, 7, 8}), "SS(0,2)", lockstep);
  EXPECT_EQ(scanned("aten::cumsum", x), (Rows{{1, 3, 15, 21}, {6, 10, 28, 36}}));
}

TEST(Scan, SeveralAxesInTheOrderInWhichTheyShard) {
  const Lockstep lockstep("[a=2,b=2]");
  const at::Tensor x = laid_out(row_of({1, 2, 3, 4}), "S(0),S(0) | 0:b>a", lockstep);
  EXPECT_EQ(scanned("aten::cumsum", x), (Rows{{1}, {6}, {3}, {10}}));
  const at::Tensor square = laid_out(row_of({1, 2, 3, 4}).view({2, 2}), "S(1),S(0)", lockstep);
  EXPECT_EQ(scanned("aten::cumsum", square, -1), (Rows{{1}, {3}, {3}, {7}}));
}

TEST(Scan, EmptyPiecesPassOnWhatWasBefore) {
  const Lockstep lockstep("[a=3]");
  EXPECT_EQ(scanned("aten::cumsum", laid_out(row_of({5, 7}), "S(0)", lockstep)),
            (Rows{{5}, {12}, {}}));
  // Two blocks of one element each: ranks 1 and 2 have none.
  EXPECT_EQ(scanned("aten::cumsum", laid_out(row_of({5, 7}), "SS(0,2)", lockstep)),
            (Rows{{5, 12}, {}, {}}));
  EXPECT_EQ(scanned("aten::cumsum", laid_out(row_of({}), "S(0)", lockstep)), (Rows{{}, {}, {}}));
}

TEST(Scan, SendsTheLastElementOfEachRun) {
  const Lockstep lockstep("[a=2]");
  scanned("aten::cumsum", laid_out(at::ones({100}, at::kDouble), "S(0)", lockstep));
  const Bill sent = bill(lockstep.world());
  ASSERT_EQ(sent.entries.size(), 1U);
  EXPECT_EQ(sent.entries[0].op, "aten::cumsum");
  EXPECT_EQ(sent.entries[0].transition, "scan");
  EXPECT_EQ(sent.entries[0].bytes, 2 * sizeof(double));
}

TEST(Scan, LeavesTheOpAloneAlongOtherDimensions) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(row_of({1, 2, 3, 4}).view({2, 2}), "S(0)", lockstep);
  const FramedCall along("aten::cumsum", "", {x, 1});
  EXPECT_FALSE(form_of(along.frame).local.call);
  EXPECT_FALSE(form_of(along.frame).local.afterwards);
  const FramedCall number("aten::cumsum", "", {laid_out(at::ones({}), "R", lockstep), 0});
  EXPECT_FALSE(form_of(number.frame).local.call);
}

TEST(Scan, OutAndDtypeAreThoseOfTheCall) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = at::tensor({100, 50, 20, 3}, at::kChar);
  const at::Tensor out = laid_out(at::zeros({4}, at::kLong), "SS(0,2)", lockstep);
  const FramedCall call("aten::cumsum", "out",
                        {laid_out(x, "SS(0,2)", lockstep), 0, c10::IValue(), out});
  const auto results = run_on_pieces(call.frame, form_of(call.frame));
  EXPECT_EQ(numbers_of(results[0]), (Rows{{100, 170}, {150, 173}}));
  EXPECT_EQ(results[0][1].scalar_type(), at::kLong);
}

TEST(Scan, RanksOfTheirOwnGetTheSame) {
  const Mesh mesh = Mesh::parse("[a=3]");
  const Rows expected{{1, 3}, {6, 10}, {15}};
  testing::on_mesh(mesh, [&](World& world) {
    const at::Tensor x = distribute(row_of({1, 2, 3, 4, 5}), Layout::parse("S(0)", mesh), world);
    EXPECT_EQ(scanned("aten::cumsum", x), Rows{expected[static_cast<std::size_t>(world.rank())]});
  });
}

}  // namespace
}  // namespace intarsia

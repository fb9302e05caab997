#include "tensor/core/neutral.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace intarsia {
namespace {

using at::Tensor;

/// Whether all of `got` is `value`, in this dtype.
void expect_all(const Tensor& got, const at::Scalar& value, at::ScalarType dtype) {
  EXPECT_EQ(got.scalar_type(), dtype);
  EXPECT_TRUE(at::equal(got, at::full_like(got, value))) << got;
}

Tensor piece(const char* placement, at::ScalarType dtype) {
  return neutral_piece({2, 3}, Layout::parse(placement, Mesh::parse("[a=2]")), dtype);
}

TEST(Neutral, PartialValuesOfOtherRanksChangeNothing) {
  const Tensor t = at::tensor({3.0, -2.0});
  const auto other = [&](const char* p) { return neutral_partial(t, Placement::parse(p)); };
  expect_all(other("P(sum)"), 0, at::kDouble);
  expect_all(other("P(norm:2)"), 0, at::kDouble);
  expect_all(other("P(prod)"), 1, at::kDouble);
  for (const char* same : {"P(avg)", "P(min)", "P(max)"}) EXPECT_TRUE(other(same).is_same(t));
}

TEST(Neutral, PartialBitsOfOtherRanksChangeNothing) {
  const Tensor t = at::tensor({6, -1}, at::kInt);
  expect_all(neutral_partial(t, Placement::parse("P(and)")), -1, at::kInt);
  expect_all(neutral_partial(t, Placement::parse("P(or)")), 0, at::kInt);
  expect_all(neutral_partial(t, Placement::parse("P(xor)")), 0, at::kInt);
  const Tensor flags = at::tensor({1, 0}).to(at::kBool);
  expect_all(neutral_partial(flags, Placement::parse("P(and)")), true, at::kBool);
  expect_all(neutral_partial(flags, Placement::parse("P(or)")), false, at::kBool);
}

TEST(Neutral, PiecesThatAddNothing) {
  expect_all(piece("P(sum)", at::kHalf), 0, at::kHalf);
  expect_all(piece("P(avg)", at::kFloat), 0, at::kFloat);
  expect_all(piece("P(norm:3)", at::kFloat), 0, at::kFloat);
  expect_all(piece("P(prod)", at::kLong), 1, at::kLong);
  expect_all(piece("P(and)", at::kByte), 255, at::kByte);
  expect_all(piece("P(or)", at::kByte), 0, at::kByte);
  expect_all(piece("P(xor)", at::kBool), false, at::kBool);
}

TEST(Neutral, PiecesUnderEveryOtherOrAboveIt) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    expect_all(piece("P(max)", dtype), -infinity, dtype);
    expect_all(piece("P(min)", dtype), infinity, dtype);
  }
  expect_all(piece("P(max)", at::kChar), -128, at::kChar);
  expect_all(piece("P(min)", at::kChar), 127, at::kChar);
  expect_all(piece("P(max)", at::kByte), 0, at::kByte);
  expect_all(piece("P(min)", at::kByte), 255, at::kByte);
  expect_all(piece("P(min)", at::kLong), std::numeric_limits<std::int64_t>::max(), at::kLong);
  expect_all(piece("P(max)", at::kLong), std::numeric_limits<std::int64_t>::min(), at::kLong);
  expect_all(piece("P(max)", at::kBool), false, at::kBool);
  expect_all(piece("P(min)", at::kBool), true, at::kBool);
}

TEST(Neutral, TheAxisThatIsPartialSaysIt) {
  const Mesh mesh = Mesh::parse("[a=2,b=2,c=2]");
  const auto on_axes = [&](const char* layout) {
    return neutral_piece({2}, Layout::parse(layout, mesh), at::kLong);
  };
  expect_all(on_axes("S(0),R,P(prod)"), 1, at::kLong);
  expect_all(on_axes("P(and),S(0),R"), -1, at::kLong);
  expect_all(on_axes("S(0),R,SS(0,2)"), 0, at::kLong);
}

TEST(Neutral, SizesWithoutElements) {
  const Layout layout = Layout::parse("[a=2] P(max)");
  EXPECT_EQ(neutral_piece({0, 3}, layout, at::kFloat).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(neutral_piece({}, layout, at::kFloat).dim(), 0);
}

}  // namespace
}  // namespace intarsia

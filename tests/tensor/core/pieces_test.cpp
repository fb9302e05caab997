#include "tensor/core/pieces.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace intarsia {
namespace {

using at::Tensor;

const Layout kRows = Layout::parse("[a=2] S(0)");

Spec spec(const Shape& sizes, const Shape& strides) {
  return {kRows, sizes, strides, 0, at::kFloat};
}

/// A copy with other strides than before, and the same values.
void expect_copied(const Tensor& piece, const Spec& spec, at::IntArrayRef strides) {
  const Tensor got = in_order(piece, *spec);
  EXPECT_FALSE(got.is_alias_of(piece));
  EXPECT_EQ(got.strides(), strides);
  EXPECT_TRUE(at::equal(got, piece));
}

void expect_kept(const Tensor& piece, const Spec& spec) {
  EXPECT_TRUE(in_order(piece, *spec).is_same(piece)) << piece.strides();
}

TEST(Pieces, OfAContiguousTensorAreContiguous) {
  const Spec rows(kRows, {4, 3}, at::kFloat);
  expect_kept(at::rand({2, 3}), rows);
  expect_copied(at::rand({3, 2}).t(), rows, {3, 1});
  expect_copied(at::rand({2, 6}).slice(1, 0, 3), rows, {3, 1});
}

TEST(Pieces, OfATransposedTensorAreTransposed) {
  const Spec columns = spec({4, 3}, {1, 4});
  expect_kept(at::rand({3, 2}).t(), columns);
  expect_kept(at::rand({3, 5}).t().slice(0, 0, 2), columns);  // gaps do no harm
  expect_copied(at::rand({2, 3}), columns, {1, 2});
}

TEST(Pieces, OfChannelsLastAreChannelsLast) {
  const Spec images = spec({4, 3, 2, 5}, {30, 1, 15, 3});
  expect_copied(at::rand({2, 3, 2, 5}), images, {30, 1, 15, 3});
  expect_kept(at::rand({2, 2, 5, 3}).permute({0, 3, 1, 2}), images);
}

TEST(Pieces, StridesOfOneElementAndOfNoneDoNotMatter) {
  const Spec columns = spec({4, 3}, {1, 4});
  expect_kept(at::rand({1, 3}), columns);
  expect_kept(at::rand({0, 3}), columns);
  const Tensor one = at::rand({2, 1}).as_strided({2, 1}, {1, 1});
  expect_kept(one, columns);
}

TEST(Pieces, AreExpandedOnlyWhereTheTensorIs) {
  const Spec expanded = spec({4, 3}, {1, 0});
  expect_kept(at::rand({2, 1}).expand({2, 3}), expanded);
  expect_copied(at::rand({2, 1}).expand({2, 3}), spec({4, 3}, {1, 4}), {1, 2});
  expect_copied(at::rand({1, 3}).expand({2, 3}), spec({4, 3}, {1, 4}), {1, 2});
}

TEST(Pieces, OfAllHostedRanksAreTreatedAlike) {
  const Tensor right = at::rand({3, 2}).t();
  const Tensor wrong = at::rand({2, 3});
  const Pieces got = in_order(Pieces{right, wrong}, *spec({4, 3}, {1, 4}));
  ASSERT_EQ(got.size(), 2U);
  EXPECT_TRUE(got[0].is_same(right));
  EXPECT_EQ(got[1].strides(), at::IntArrayRef({1, 2}));
}

TEST(Pieces, ApartFromOthersIsWhatSharesNoMemory) {
  const Tensor base = at::rand({4});
  const Tensor slice = base.slice(0, 1, 3);
  const Tensor own = at::rand({2});
  const std::vector<Tensor> others{base, base};
  const Pieces got = apart_from(others, Pieces{slice, own, slice});
  EXPECT_FALSE(got[0].is_alias_of(base));
  EXPECT_TRUE(at::equal(got[0], slice));
  EXPECT_TRUE(got[1].is_same(own));
  EXPECT_TRUE(got[2].is_same(slice)) << "it has none beside it";
  // Only the piece of the same rank counts.
  EXPECT_TRUE(apart_from(std::vector<Tensor>{own, base}, Pieces{slice})[0].is_same(slice));
}

}  // namespace
}  // namespace intarsia

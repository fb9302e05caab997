#include "world/collectives/hosted.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lengths = std::vector<std::int64_t>;

/// Two groups of two: members 0 and 2, and members 3 and 1 in that order.
HostedGroups crossed() { return {{{0, 2}, {3, 1}}, nullptr, 0}; }

at::Tensor ints(Lengths values) { return at::tensor(values, at::kLong); }

LengthsOf for_all(const Lengths& lengths) {
  return [&lengths](std::size_t) { return std::span(lengths); };
}

void expect_ints(const Tensors& got, const std::vector<Lengths>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t m = 0; m < got.size(); ++m) {
    EXPECT_TRUE(at::equal(got[m], ints(want[m]))) << "member " << m << ": " << got[m];
  }
}

TEST(Hosted, GathersInTheOrderOfPlaces) {
  const Tensors pieces{ints({0}), ints({1, 11}), ints({2}), ints({})};
  expect_ints(hosted::all_gather(crossed(), pieces, 0), {{0, 2}, {1, 11}, {0, 2}, {1, 11}});
  const Tensors rows{ints({1, 2}).view({1, 2}), ints({3}).view({1, 1})};
  const Tensors joined = hosted::all_gather({{{1, 0}}, nullptr, 0}, rows, 1);
  EXPECT_TRUE(at::equal(joined[0], ints({3, 1, 2}).view({1, 3})));
}

TEST(Hosted, ReducesWithinEachGroup) {
  const Tensors partials{ints({1, 2}), ints({10, 20}), ints({3, 1}), ints({30, 5})};
  expect_ints(hosted::all_reduce(crossed(), partials, Placement::partial()),
              {{4, 3}, {40, 25}, {4, 3}, {40, 25}});
  expect_ints(hosted::all_reduce(crossed(), partials, Placement::partial(Reduction::max)),
              {{3, 2}, {30, 20}, {3, 2}, {30, 20}});
}

TEST(Hosted, ReducesByAverageAndNormInTheDtypeOfItsInput) {
  const HostedGroups pair{{{0, 1}}, nullptr, 0};
  const Tensors partials{at::full({1}, 3, at::kBFloat16), at::full({1}, -4, at::kBFloat16)};
  const at::Tensor norm = hosted::all_reduce(pair, partials, Placement::partial_norm(2))[1];
  EXPECT_EQ(norm.scalar_type(), at::kBFloat16);
  EXPECT_EQ(norm.item<double>(), 5);
  const Placement avg = Placement::partial(Reduction::avg);
  EXPECT_EQ(hosted::all_reduce(pair, partials, avg)[0].item<double>(), -0.5);
}

TEST(Hosted, ScattersWhatItReducesByLengths) {
  const Tensors partials{ints({1, 2, 3}), ints({10, 20, 30}), ints({4, 5, 6}), ints({40, 50, 60})};
  const Lengths lengths{1, 2};  // member 3 has the first place in its group
  expect_ints(
      hosted::reduce_scatter(crossed(), partials, 0, Placement::partial(), for_all(lengths)),
      {{5}, {70, 90}, {7, 9}, {50}});
  const Lengths none{3, 0};
  expect_ints(hosted::reduce_scatter(crossed(), partials, 0, Placement::partial(), for_all(none)),
              {{5, 7, 9}, {}, {}, {50, 70, 90}});
}

TEST(Hosted, ExchangesPartsThatEachMemberSplitsForItself) {
  const HostedGroups pair{{{0, 1}}, nullptr, 0};
  const Tensors pieces{ints({1, 2, 3}), ints({4, 5})};
  const std::vector<Lengths> lengths{{1, 2}, {2, 0}};
  const auto own = [&](std::size_t m) { return std::span(lengths[m]); };
  expect_ints(hosted::all_to_all(pair, pieces, 0, 0, own), {{1, 4, 5}, {2, 3}});
  const Tensors squares{ints({1, 2, 3, 4}).view({2, 2}), ints({5, 6, 7, 8}).view({2, 2})};
  const Lengths equal{1, 1};
  const Tensors got = hosted::all_to_all(pair, squares, 0, 1, for_all(equal));
  EXPECT_TRUE(at::equal(got[0], ints({1, 2, 5, 6}).view({1, 4})));
  EXPECT_TRUE(at::equal(got[1], ints({3, 4, 7, 8}).view({1, 4})));
}

TEST(Hosted, BroadcastsFromAPlaceAndPermutesPlaces) {
  const Tensors pieces{ints({0}), ints({1}), ints({2}), ints({3})};
  expect_ints(hosted::broadcast(crossed(), pieces, 0), {{0}, {3}, {0}, {3}});
  expect_ints(hosted::broadcast(crossed(), pieces, 1), {{2}, {1}, {2}, {1}});
  expect_ints(hosted::permute({{{0, 1, 2}}, nullptr, 0}, at::TensorList(pieces.data(), 3),
                              Lengths{1, 2, 0}),
              {{2}, {0}, {1}});
}

TEST(Hosted, ResultsHaveMemoryOfTheirOwn) {
  const HostedGroups pair{{{0, 1}}, nullptr, 0};
  const Tensors pieces{ints({1, 2}), ints({3, 4})};
  const Lengths equal{1, 1};
  const Lengths stay{0, 1};
  const std::vector<Tensors> results{
      hosted::all_gather(pair, pieces, 0),
      hosted::all_reduce(pair, pieces, Placement::partial()),
      hosted::reduce_scatter(pair, pieces, 0, Placement::partial(), for_all(equal)),
      hosted::all_to_all(pair, pieces, 0, 0, for_all(equal)),
      hosted::broadcast(pair, pieces, 0),
      hosted::permute(pair, pieces, stay)};
  for (const Tensors& result : results) {
    const at::Tensor other = result[1].clone();
    result[0].fill_(-1);
    EXPECT_TRUE(at::equal(result[1], other));
    EXPECT_TRUE(result[1].is_contiguous());
  }
  expect_ints(pieces, {{1, 2}, {3, 4}});
}

}  // namespace
}  // namespace intarsia

#include "tensor/move/agreement.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::on_mesh;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }
at::Tensor longs(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }

/// The tensor with one other value.
at::Tensor changed(const at::Tensor& t, std::int64_t place) {
  at::Tensor out = t.clone();
  out.view(-1)[place] += 1;
  return out;
}

TEST(Agreement, ContentIsSizesDtypeAndValues) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_EQ(content_hash(x), content_hash(x.clone()));
  EXPECT_EQ(content_hash(x), content_hash(x.t().contiguous().t())) << "however it is stored";
  EXPECT_NE(content_hash(x), content_hash(changed(x, 5)));
  EXPECT_NE(content_hash(x), content_hash(x.view({3, 2})));
  EXPECT_NE(content_hash(at::zeros({2}, at::kInt)), content_hash(at::zeros({2}, at::kFloat)));
  EXPECT_NE(content_hash(at::zeros({0, 3})), content_hash(at::zeros({3, 0})));
}

TEST(Agreement, OfLargeTensorsASampleIsRead) {
  const at::Tensor exact = at::zeros({16384});  // 64 KiB
  EXPECT_NE(content_hash(exact), content_hash(changed(exact, 1)));
  const at::Tensor twice = at::zeros({32768});  // every other element
  EXPECT_EQ(content_hash(twice), content_hash(changed(twice, 1)));
  EXPECT_NE(content_hash(twice), content_hash(changed(twice, 2)));
  const at::Tensor rows = at::zeros({2, 16384});  // every other column
  EXPECT_EQ(content_hash(rows), content_hash(changed(rows, 16384 + 1)));
  EXPECT_NE(content_hash(rows), content_hash(changed(rows, 16384 + 2)));
}

TEST(Agreement, OfWhatHasNoMemoryToReadOnlySizesAndDtypeCount) {
  EXPECT_EQ(content_hash(at::empty({2}, at::kMeta)), content_hash(at::empty({2}, at::kMeta)));
  EXPECT_NE(content_hash(at::empty({2}, at::kMeta)), content_hash(at::empty({3}, at::kMeta)));
  const at::Tensor turning = at::zeros({2}, at::kComplexDouble);
  EXPECT_EQ(content_hash(turning.conj()), content_hash(changed(turning, 0).conj()));
}

TEST(Agreement, ValuesAreAllReadAndNaNsAndZerosAreAlike) {
  EXPECT_EQ(value_hash(doubles({0, kNaN, 2})), value_hash(doubles({-0.0, -kNaN, 2})));
  EXPECT_NE(value_hash(doubles({0, kNaN, 2})), value_hash(doubles({kNaN, 0, 2})));
  EXPECT_EQ(value_hash(doubles({0, kNaN}).to(at::kBFloat16)),
            value_hash(doubles({-0.0, -kNaN}).to(at::kBFloat16)));
  const at::Tensor large = at::zeros({32768});
  EXPECT_NE(value_hash(large), value_hash(changed(large, 1)));
  EXPECT_NE(value_hash(longs({1, 2})), value_hash(longs({1, 3})));
  EXPECT_NE(value_hash(at::zeros({2}, at::kInt)), value_hash(at::zeros({2}, at::kFloat)));
  const at::Tensor x = at::arange(6).view({2, 3});
  EXPECT_EQ(value_hash(x), value_hash(x.t().contiguous().t()));
  EXPECT_NE(value_hash(x), value_hash(x.view({3, 2})));
}

TEST(Agreement, ValuesOfViewsOfComplexNumbersAreTheirOwn) {
  const at::Tensor x = at::complex(doubles({1, 0}), doubles({2, -0.0}));
  EXPECT_EQ(value_hash(x.conj()), value_hash(x.conj().resolve_conj()));
  EXPECT_NE(value_hash(x.conj()), value_hash(x));
  EXPECT_EQ(value_hash(x), value_hash(at::complex(doubles({1, -0.0}), doubles({2, 0}))));
}

TEST(Agreement, AllAxesAreOneGroupInTheOrderOfCoordinates) {
  const Lockstep ranks("[a=2:1,b=2:2]");  // rank 1 is at (1,0), rank 2 at (0,1)
  const Comm comm = all_of(ranks.world(), ranks.mesh());
  ASSERT_EQ(comm.size(), 4);
  std::vector<std::int64_t> places;
  for (const Member& m : comm.members()) places.push_back(m.index);
  EXPECT_EQ(places, (std::vector<std::int64_t>{0, 2, 1, 3}));
}

TEST(Agreement, ExchangeGivesEverybodysValuesByPlace) {
  const Mesh mesh = Mesh::parse("[a=3]{2,0,1}");
  run_in_process(3, [&](World& world) {
    const auto rows =
        exchange(all_of(world, mesh), {world.rank(), 10 * world.rank()}, at::kCPU, {.op = "test"});
    ASSERT_EQ(rows.size(), 3U);
    EXPECT_TRUE(at::equal(rows[0], longs({2, 20})));
    EXPECT_TRUE(at::equal(rows[1], longs({0, 0})));
    EXPECT_TRUE(at::equal(rows[2], longs({1, 10})));
    EXPECT_EQ(world.ledger().entries()[0].op, "test");
  });
}

}  // namespace
}  // namespace intarsia

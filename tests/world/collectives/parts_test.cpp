#include "world/collectives/parts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/in_process.h"

namespace intarsia {
namespace {

at::Tensor ints(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }

const auto kHere = std::source_location::current();

TEST(Parts, BytesAreTheSameMemory) {
  const at::Tensor x = at::zeros({2, 3}, at::kShort);
  const at::Tensor bytes = as_bytes(x);
  EXPECT_EQ(bytes.sizes(), at::IntArrayRef({12}));
  EXPECT_EQ(bytes.scalar_type(), at::kByte);
  bytes[10].fill_(1);
  EXPECT_EQ(x[1][2].item<int>(), 1);
}

TEST(Parts, OneElementOrNoneMayHaveAnyStrides) {
  for (const std::int64_t length : {1, 0}) {
    const at::Tensor column = at::ones({length, 5}).select(1, 3);  // steps of 5
    ASSERT_TRUE(column.is_contiguous());
    EXPECT_EQ(as_bytes(column).sizes(), at::IntArrayRef({4 * length}));
  }
  EXPECT_EQ(as_bytes(at::ones({}, at::kComplexDouble)).numel(), 16);
}

TEST(Parts, OfTheFirstDimensionNeedNoCopy) {
  const at::Tensor x = at::arange(10).view({5, 2});
  const Parts parts = parts_along(x, 0, {1, 0, 4});
  EXPECT_EQ(parts.counts, (Counts{2, 0, 8}));
  EXPECT_TRUE(at::equal(parts.flat, at::arange(10)));
  EXPECT_EQ(parts.flat.data_ptr(), x.data_ptr());
}

TEST(Parts, OfAnotherDimensionAreStoredOneAfterTheOther) {
  const at::Tensor x = ints({0, 1, 2, 10, 11, 12}).view({2, 3});
  const Parts parts = parts_along(x, 1, {2, 0, 1});
  EXPECT_EQ(parts.counts, (Counts{4, 0, 2}));
  EXPECT_TRUE(at::equal(parts.flat, ints({0, 1, 10, 11, 2, 12})));
  EXPECT_EQ(parts_along(at::ones({0, 3}), 1, {2, 1}).counts, (Counts{0, 0}));
}

TEST(Parts, AreExchangedWhateverTheyHold) {
  run_in_process(2, [](World& world) {
    const Comm all = world.everyone();
    const bool first = world.rank() == 0;
    // Rank 0 keeps one and sends two; rank 1 sends none and keeps three.
    const Parts in{first ? ints({1, 2, 3}) : ints({4, 5, 6}), first ? Counts{1, 2} : Counts{0, 3}};
    const Parts out{first ? ints({0}) : at::zeros({5}, at::kLong),
                    first ? Counts{1, 0} : Counts{2, 3}};
    wait_for(exchange_parts(*CommAccess::wire(all), out, in, at::kLong, {{}, kHere}), "exchange");
    EXPECT_TRUE(at::equal(out.flat, first ? ints({1}) : ints({2, 3, 4, 5, 6})));
    const LedgerEntry entry = world.ledger().entries().at(0);
    EXPECT_EQ(entry.kind, CallKind::all_to_all);
    EXPECT_EQ(entry.dtype, at::kLong);
    EXPECT_EQ(entry.bytes, 24);
  });
}

TEST(Parts, OfPartialValuesAreCombinedWhereTheyArrive) {
  run_in_process(3, [](World& world) {
    const Comm all = world.everyone();
    const auto wire = CommAccess::wire(all);
    const auto scatter = [&](const at::Tensor& partial, const Placement& how) {
      const Call none;
      const ScatteredPartials s = scatter_partials(all, *wire, {partial, {1, 0, 2}}, how,
                                                   partial.scalar_type(), {none, kHere});
      EXPECT_EQ(s.buffers.size(), 2U);
      wait_for(s.works, "scatter");
      return s.combine();
    };
    const std::int64_t r = world.rank();
    const at::Tensor sums = scatter(ints({r, 10 * r, 100 * r}), Placement::partial());
    EXPECT_TRUE(at::equal(sums, r == 0 ? ints({3}) : r == 1 ? ints({}) : ints({30, 300})));
    const at::Tensor most = scatter(ints({r, -r, 7}), Placement::partial(Reduction::max));
    EXPECT_TRUE(at::equal(most, r == 0 ? ints({2}) : r == 1 ? ints({}) : ints({0, 7})));
    const at::Tensor halves = scatter(at::ones({3}, at::kHalf), Placement::partial());
    EXPECT_EQ(halves.scalar_type(), at::kFloat) << "as they are combined";
  });
}

}  // namespace
}  // namespace intarsia

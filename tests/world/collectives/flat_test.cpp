#include "world/collectives/flat.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"

namespace intarsia {
namespace {

using flat::Exchange;
using Tensors = std::vector<at::Tensor>;

const Where kHere = Where::current();

at::Tensor ints(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }
at::Tensor room(std::int64_t count) { return at::full({count}, -1, at::kLong); }

/// An exchange that gives what arrived.
Exchange between(Tensors in, Tensors out) {
  return {std::move(in), out, [out] { return out; }};
}

void expect_ints(const Tensors& got, const std::vector<std::vector<std::int64_t>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t m = 0; m < got.size(); ++m) {
    EXPECT_TRUE(at::equal(got[m], ints(want[m]))) << "member " << m << ": " << got[m];
  }
}

TEST(Flat, PlainValuesAreInMemoryRowMajorOutsideAutograd) {
  const at::Tensor row_major = at::arange(6.).view({2, 3});
  EXPECT_EQ(flat::plain(row_major).data_ptr(), row_major.data_ptr());
  const at::Tensor leaf = at::ones({2, 3}).set_requires_grad(true);
  const at::Tensor turned = flat::plain(leaf.t());
  EXPECT_TRUE(turned.is_contiguous());
  EXPECT_FALSE(turned.requires_grad());
  const at::Tensor z = at::complex(at::ones({2}), at::full({2}, 3.0F));
  const at::Tensor conjugated = flat::plain(z.conj());
  EXPECT_FALSE(conjugated.is_conj());
  EXPECT_TRUE(at::equal(at::view_as_real(conjugated).select(1, 1), at::full({2}, -3.0F)));
  const at::Tensor negated = flat::plain(at::imag(z.conj()));
  EXPECT_FALSE(negated.is_neg());
  EXPECT_TRUE(at::equal(negated, at::full({2}, -3.0F)));
  const at::Tensor zero = flat::plain(at::_efficientzerotensor({3}, at::kFloat));
  EXPECT_FALSE(zero._is_zerotensor());
  EXPECT_NE(zero.data_ptr(), nullptr);
}

TEST(Flat, WhoIsAloneGetsWhatItSends) {
  const auto world = World::connect(Rendezvous{});
  const Comm one = world->everyone();
  expect_ints(flat::all_gather(one, between({ints({1, 2})}, {room(2)}), {{}, kHere}).wait(),
              {{1, 2}});
  expect_ints(
      flat::all_to_all(one, between({ints({3})}, {room(1)}), {{1}}, {{1}}, {{}, kHere}).wait(),
      {{3}});
  EXPECT_EQ(world->ledger().totals().calls, 0U);
}

TEST(Flat, WhoIsOutsideDoesNothing) {
  const auto world = World::assemble({.hosted = {}, .size = 4});
  const auto no_results = []() -> Tensors { throw std::runtime_error("there are none"); };
  EXPECT_TRUE(
      flat::all_gather(world->everyone(), {{}, {}, no_results}, {{}, kHere}).wait().empty());
  EXPECT_TRUE(flat::all_to_all(world->everyone(), {{}, {}, no_results}, {}, {}, {{}, kHere})
                  .wait()
                  .empty());
}

TEST(Flat, GathersWithinTheGroupsHostedHere) {
  const Lockstep lockstep("[dp=2,tp=2]");
  World& world = lockstep.world();
  const Tensors in{ints({0, 1}), ints({10, 11}), ints({20, 21}), ints({30, 31})};
  const auto gather = [&](const char* axis) {
    return flat::all_gather(world.along(lockstep.mesh(), {axis}),
                            between(in, {room(4), room(4), room(4), room(4)}), {{}, kHere})
        .wait();
  };
  expect_ints(gather("tp"), {{0, 1, 10, 11}, {0, 1, 10, 11}, {20, 21, 30, 31}, {20, 21, 30, 31}});
  expect_ints(gather("dp"), {{0, 1, 20, 21}, {10, 11, 30, 31}, {0, 1, 20, 21}, {10, 11, 30, 31}});
  EXPECT_EQ(world.ledger().totals().calls, 2U);
  EXPECT_EQ(world.ledger().entries()[0].bytes, 64) << "of all members";
}

TEST(Flat, ExchangesPartsWithinTheGroupsHostedHere) {
  const Lockstep lockstep("[dp=3]");
  // Rank 0 sends nothing to itself, 2 to rank 1, 1 to rank 2; rank 1 all to rank 0; rank 2 nothing.
  const std::vector<Counts> sent{{0, 2, 1}, {2, 0, 0}, {0, 0, 0}};
  const std::vector<Counts> received{{0, 2, 0}, {2, 0, 0}, {1, 0, 0}};
  const Exchange exchange =
      between({ints({1, 2, 3}), ints({4, 5}), ints({})}, {room(2), room(2), room(1)});
  Pending done =
      flat::all_to_all(lockstep.world().everyone(), exchange, sent, received, {{}, kHere});
  EXPECT_TRUE(done.done());
  expect_ints(done.wait(), {{4, 5}, {1, 2}, {3}});
}

TEST(Flat, TheSameOverAWire) {
  run_in_process(3, [](World& world) {
    const Comm all = world.everyone();
    const auto r = static_cast<std::size_t>(world.rank());
    const auto value = static_cast<std::int64_t>(r);
    expect_ints(
        flat::all_gather(all, between({ints({value, 7})}, {room(6)}), {{.tensor = "w"}, kHere})
            .wait(),
        {{0, 7, 1, 7, 2, 7}});
    const std::vector<Counts> sent{{0, 2, 1}, {2, 0, 0}, {0, 0, 0}};
    const std::vector<Counts> received{{0, 2, 0}, {2, 0, 0}, {1, 0, 0}};
    const Tensors in{ints({1, 2, 3}), ints({4, 5}), ints({})};
    const Tensors out{room(2), room(2), room(1)};
    const std::vector<std::vector<std::int64_t>> want{{4, 5}, {1, 2}, {3}};
    expect_ints(
        flat::all_to_all(all, between({in[r]}, {out[r]}), {sent[r]}, {received[r]}, {{}, kHere})
            .wait(),
        {want[r]});
    const auto entries = world.ledger().entries();
    ASSERT_EQ(entries.size(), 2U);
    EXPECT_EQ(entries[0].tensor, "w");
    EXPECT_EQ(entries[0].bytes, 16);
    EXPECT_EQ(entries[1].dtype, at::kLong);
  });
}

TEST(Flat, SumsOfAllRanks) {
  run_in_process(3, [](World& world) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong}) {
      const at::Tensor buffer = at::full({2}, world.rank() + 1, type);
      const at::Tensor sum = flat::sum(world.everyone(), buffer, {{.tensor = "g"}, kHere}).tensor();
      EXPECT_TRUE(at::equal(sum, at::full({2}, 6, type))) << sum;
      EXPECT_EQ(world.ledger().entries().back().tensor, "g");
    }
  });
}

TEST(Flat, ScatteringIsLeftToBackendsThatDoItWell) {
  const auto scatters = [](const char* backend, const char* how, at::ScalarType type) {
    const auto world = simulate({.size = 2, .backend = backend});
    return flat::scatters_reduced(world->everyone(), Placement::parse(how), type);
  };
  EXPECT_FALSE(scatters("gloo", "P(sum)", at::kFloat));
  EXPECT_TRUE(scatters("nccl", "P(sum)", at::kFloat));
  EXPECT_TRUE(scatters("nccl", "P(avg)", at::kBFloat16));
  EXPECT_TRUE(scatters("shm", "P(sum)", at::kFloat));
  EXPECT_FALSE(scatters("shm", "P(max)", at::kFloat));
  EXPECT_FALSE(scatters("shm", "P(sum)", at::kComplexFloat));
  const Placement sum = Placement::partial();
  EXPECT_FALSE(flat::scatters_reduced(Lockstep("[a=2]").world().everyone(), sum, at::kFloat));
  EXPECT_FALSE(flat::scatters_reduced(World::connect(Rendezvous{})->everyone(), sum, at::kFloat));
}

}  // namespace
}  // namespace intarsia

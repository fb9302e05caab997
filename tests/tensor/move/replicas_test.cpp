#include "intarsia/replicas.h"

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

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }
at::Tensor longs(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }

TEST(Replicas, InOneProcessAreComparedElementByElement) {
  const Lockstep ranks("[a=2,b=2]");
  const auto tensor = [&](const char* layout, std::vector<at::Tensor> pieces,
                          std::vector<std::int64_t> shape) {
    return from_locals(pieces, Layout::parse(layout, ranks.mesh()), ranks.world(),
                       {.shape = shape});
  };
  const at::Tensor top = longs({1, 2, 3, 4}).view({2, 2});
  const at::Tensor row = longs({5, 6}).view({1, 2});
  assert_replicas(tensor("S(0),R", {top, top.clone(), row, row.clone()}, {3, 2}));
  expect_error<WorldError>(
      [&] {
        assert_replicas(tensor("S(0),R", {top, top, row, longs({5, 8}).view({1, 2})}, {3, 2}), "w");
      },
      {"[assert_replicas] 'w', i64[3@a, 2]",
       "rank 3 differs from rank 2 in 1 elements of their pieces, first at (0,1): 8 and 6"});
  assert_replicas(tensor("S(0),P(sum)", {top, top + 1, row, row + 1}, {3, 2}));
  const at::Tensor one = at::scalar_tensor(1, at::kLong);
  expect_error<WorldError>(
      [&] {
        assert_replicas(tensor("R,R", {one, one, one + 1, one}, {}));
      },
      {"rank 2 differs from rank 0 in 1 elements", "first at (): 2 and 1"});
  const at::Tensor nan = doubles({kNaN});
  assert_replicas(tensor("R,R", {nan, nan.clone(), nan.clone(), nan.clone()}, {1}));
}

TEST(Replicas, InManyProcessesAreComparedByTheirHashes) {
  const Mesh mesh = Mesh::parse("[a=2,b=2]+1");  // rank 0 is outside
  const Layout layout = Layout::parse("S(0),R", mesh);
  run_in_process(5, [&](World& world) {
    const auto tensor = [&](double value) {
      std::vector<at::Tensor> pieces;
      if (mesh.contains(world.rank())) pieces.push_back(doubles({value}));
      return from_locals(pieces, layout, world,
                         {.shape = std::vector<std::int64_t>{2}, .dtype = at::kDouble});
    };
    assert_replicas(tensor(world.rank() <= 2 ? 1 : kNaN));  // each shard has its own
    const at::Tensor wrong = tensor(world.rank() == 4 ? 7 : 1);
    if (world.rank() == 0) return assert_replicas(wrong);
    expect_error<WorldError>(
        [&] { assert_replicas(wrong, "w"); },
        {"'w'", "rank 4 differs from rank 3 in 1 elements", "first at (0): 7 and 1"});
  });
}

TEST(Replicas, TheOneThatDiffersFromMostIsNamed) {
  const Lockstep ranks("[a=3]");
  const at::Tensor one = doubles({1, 2});
  const at::Tensor bad = from_locals({doubles({1, 3}), one, one.clone()},
                                     Layout::parse("R", ranks.mesh()), ranks.world());
  expect_error<WorldError>([&] { assert_replicas(bad); },
                           {"rank 0 differs from rank 1 in 1 elements", "first at (1): 3 and 2"});
}

TEST(Replicas, ManyTensorsAreComparedInOneExchangeAndTheWrongOneIsNamed) {
  const Mesh mesh = Mesh::parse("[a=2,b=2]");
  run_in_process(4, [&](World& world) {
    const auto tensor = [&](const char* layout, double value, std::int64_t size) {
      return from_local(at::full({size}, value), Layout::parse(layout, mesh), world);
    };
    const auto model = [&](double last) {
      return NamedTensors{{"everywhere", tensor("R,R", 1, 3)},
                          {"sharded", tensor("S(0),S(0)", static_cast<double>(world.rank()), 2)},
                          {"partial", tensor("P(sum),R", static_cast<double>(world.rank() / 2), 2)},
                          {"rows", tensor("S(0),R", static_cast<double>(world.rank() / 2), 2)},
                          {"more rows", tensor("S(0),R", last, 2)}};
    };
    const NamedTensors right = model(4);
    const std::uint64_t before = world.ledger().totals().calls;
    assert_replicas(right);
    // Of three sets of axes: a and b, b of partial values, b of rows; the last two are one.
    EXPECT_EQ(world.ledger().totals().calls - before, 4U);
    const NamedTensors wrong = model(world.rank() == 3 ? 5 : 4);
    expect_error<WorldError>([&] { assert_replicas(wrong); },
                             {"'more rows'", "rank 3 differs from rank 2 in 2 elements of their"});
    assert_replicas(right);  // the group goes on
    assert_replicas(NamedTensors{});
  });
}

TEST(Replicas, ZerosOfBothSignsAndNaNsAreTheSame) {
  const Mesh mesh = Mesh::parse("[a=2]");
  run_in_process(2, [&](World& world) {
    const bool first = world.rank() == 0;
    const at::Tensor mine = doubles({first ? 0.0 : -0.0, first ? kNaN : -kNaN});
    assert_replicas(from_local(mine, Layout::parse("R", mesh), world));
  });
}

TEST(Replicas, PartsOfComplexNumbersAreCompared) {
  const Mesh mesh = Mesh::parse("[a=2]");
  run_in_process(2, [&](World& world) {
    const auto number = [&](double imaginary) {
      const at::Tensor value = at::complex(doubles({kNaN}), doubles({imaginary}));
      return from_local(value, Layout::parse("R", mesh), world);
    };
    assert_replicas(number(1));
    const at::Tensor wrong = number(static_cast<double>(world.rank()));
    expect_error<WorldError>([&] { assert_replicas(wrong); }, {"rank 1 differs from rank 0 in 1"});
  });
}

TEST(Replicas, PlainTensorsHaveNone) {
  expect_error<ValueError>([] { assert_replicas(at::ones({2})); },
                           {"[assert_replicas] takes distributed tensors, not f32[2] plain"});
}

}  // namespace
}  // namespace intarsia

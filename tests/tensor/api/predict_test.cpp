#include "intarsia/predict.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

using at::Tensor;

TEST(HeldBytes, CountMemoryThatIsSharedOnce) {
  const Tensor x = at::zeros({10});
  EXPECT_EQ(held_bytes({x}), 40);
  EXPECT_EQ(held_bytes({x, x, x.slice(0, 2, 4)}), 40);
  EXPECT_EQ(held_bytes({x.slice(0, 2, 4)}), 40) << "a view keeps all of it";
  EXPECT_EQ(held_bytes({x, at::zeros({3}, at::kHalf), Tensor(), at::zeros({0})}), 46);
  EXPECT_EQ(held_bytes({}), 0);
}

TEST(HeldBytes, OfADistributedTensorAreThoseOfItsPieces) {
  const Lockstep lockstep("[a=2]");
  const auto made = [&](const char* layout) {
    return zeros({5, 2}, Layout::parse(layout, lockstep.mesh()), lockstep.world());
  };
  EXPECT_EQ(held_bytes({made("S(0)")}), 5 * 2 * 4);
  EXPECT_EQ(held_bytes({made("R")}), 2 * 5 * 2 * 4) << "both ranks live here";
  const Tensor x = made("S(1)");
  EXPECT_EQ(held_bytes({x, x.t()}), 5 * 2 * 4);
}

TEST(Prediction, SaysWhatThePeakConsistsOf) {
  Prediction p;
  p.mesh = Mesh::parse("[dp=8,tp=2]");
  p.rank = 3;
  p.parameters = 1000;
  p.gradients = 500;
  p.optimizer = 2000;
  p.peak = 10 * 1024 + 3500;
  p.bill.entries.push_back({.op = "f", .tensor = "", .axis = "dp", .transition = "P->R"});
  p.bill.entries.back().count = 4;
  p.bill.entries.back().bytes = 3 * 1024 * 1024;
  EXPECT_EQ(p.activations(), 10 * 1024);
  EXPECT_EQ(p.to_string(),
            "rank 3 of [dp=8,tp=2]: parameters 1000 B, gradients 500 B, optimizer 2000 B, "
            "activations 10 KiB, peak 13.42 KiB; sends 3 MiB in 4 collectives");
}

TEST(Predict, CountsWhatARankKeeps) {
  const Mesh mesh = Mesh::parse("[a=4]");
  const auto program = [&](World& world) {
    const Layout rows = Layout::parse("S(0)", mesh);
    // Of 7 rows, ranks have 2, 2, 2 and 1.
    const Tensor w = zeros({7, 3}, rows, world).set_requires_grad(true);
    const Tensor unused = zeros({4}, rows, world).set_requires_grad(true);
    w.square().sum().backward();
    return KeptTensors{.parameters = {w, unused}, .optimizer = {zeros({7}, rows, world)}};
  };
  const Prediction first = predict({.mesh = mesh}, program);
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(first.mesh, mesh);
  EXPECT_EQ(first.parameters, 2 * 3 * 4 + 4);
  EXPECT_EQ(first.gradients, 2 * 3 * 4);
  EXPECT_EQ(first.optimizer, 2 * 4);
  EXPECT_GE(first.peak, first.parameters + first.gradients + first.optimizer);
  const Prediction last = predict({.mesh = mesh, .rank = 3}, program);
  EXPECT_EQ(last.parameters, 1 * 3 * 4 + 4);
  EXPECT_EQ(last.gradients, 1 * 3 * 4);
  EXPECT_EQ(last.optimizer, 1 * 4);
}

TEST(Predict, ThePeakIsTheMostAtAnyTime) {
  const Mesh mesh = Mesh::parse("[a=4]");
  const Tensor before = at::zeros({500});
  const Prediction p = predict({.mesh = mesh}, [&](World& world) {
    const Layout rows = Layout::parse("S(0)", mesh);
    const Tensor w = zeros({8}, rows, world);
    {
      const Tensor dropped = zeros({400}, rows, world);
      const Tensor plain = at::zeros({50});  // has memory, and counts like the rest
    }
    const Tensor less = zeros({40}, rows, world);
    return KeptTensors{.parameters = {w}};
  });
  EXPECT_EQ(p.parameters, 2 * 4);
  EXPECT_EQ(p.peak, 2 * 4 + 100 * 4 + 50 * 4);
  EXPECT_EQ(p.activations(), 100 * 4 + 50 * 4);
  EXPECT_EQ(p.gradients, 0);
}

TEST(Predict, BillsWhatTheRankSends) {
  const Mesh mesh = Mesh::parse("[a=4]");
  const Prediction p = predict({.mesh = mesh}, [&](World& world) {
    redistribute(zeros({8}, Layout::parse("S(0)", mesh), world), Layout::replicated(mesh));
    return KeptTensors{};
  });
  EXPECT_EQ(p.bill.transitions(), "1 S->R");
  EXPECT_EQ(p.bill.entries[0].tensor, "f32[8@a]");
}

TEST(Predict, TheWorldHasTheRanksOfTheMeshAndIsClosedAfterwards) {
  std::shared_ptr<World> kept;
  predict({.mesh = Mesh::parse("[a=2:3]+1"), .rank = 4}, [&](World& world) {
    EXPECT_TRUE(world.simulated());
    EXPECT_EQ(world.size(), 5);  // 1 and 4
    EXPECT_EQ(world.rank(), 4);
    kept = world.shared_from_this();
    return KeptTensors{};
  });
  EXPECT_TRUE(kept->closed());
  testing::expect_error<ValueError>([] { predict({.mesh = Mesh::parse("[a=2]"), .rank = 2}, {}); },
                                    {"rank 2 is not in a world of size 2"});
}

}  // namespace
}  // namespace intarsia

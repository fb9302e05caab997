// Build scopes: tensors that are born distributed, initialised alike in every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/build.h"
#include "intarsia/error.h"
#include "tensor/move/state.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::on_mesh;

using Named = std::vector<std::pair<std::string, Tensor>>;

/// What the constructor of a module does.
Named make_parameters() {
  const at::NoGradGuard no_grad;
  Tensor weight = at::empty({7, 5});
  weight.uniform_(-1, 1).mul_(0.5);
  Tensor bias = at::zeros({7});
  bias.normal_(1, 0.1);
  Tensor table = at::empty({6, 4});
  table.normal_();
  table.select(0, 2).fill_(0);  // reads: made at once
  Tensor steps = at::arange(4).to(at::kFloat) * 2;
  Tensor count = at::zeros({}, at::kLong);
  return {{"a.weight", weight.set_requires_grad(true)},
          {"a.bias", bias.set_requires_grad(true)},
          {"table", table},
          {"steps", steps},
          {"count", count},
          {"ones", at::ones({3}, at::kDouble)},
          {"filled", at::full({3}, 2)}};
}

TEST(Build, SameValuesInEveryLayout) {
  std::map<std::string, Tensor> want;
  const Mesh single = Mesh::parse("[dp=1,tp=1]");
  on_mesh(single, [&](World& world) {
    TensorState::of(world).draws().seed(3);
    BuildScope scope(world, single);
    const Named made = make_parameters();
    scope.finish(made, {});
    for (const auto& [name, t] : made) want[name] = full(t.detach());
  });
  EXPECT_EQ(want["table"].select(0, 2).abs().sum().item<float>(), 0);
  EXPECT_TRUE(at::equal(want["steps"], at::tensor({0.F, 2.F, 4.F, 6.F})));
  EXPECT_EQ(want["filled"].scalar_type(), at::kLong);
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    TensorState::of(world).draws().seed(3);
    BuildScope scope(world, mesh);
    const Named made = make_parameters();
    EXPECT_TRUE(made[0].second.is_leaf());
    EXPECT_EQ(made[0].second.device(), world.device());
    scope.finish(made, {{"a.*", "S(0),R"}, {"t*", "R,S(-1)"}});
    for (const auto& [name, t] : made) {
      EXPECT_TRUE(at::equal(full(t.detach()), want.at(name))) << name;
    }
    EXPECT_EQ(layout_of(made[0].second).placements_text(), "S(0),R");
    EXPECT_EQ(layout_of(made[2].second).placements_text(), "R,S(1)");
    EXPECT_TRUE(layout_of(made[4].second).is_replicated());
    EXPECT_TRUE(made[0].second.requires_grad());
    EXPECT_FALSE(has_layout(at::ones({2}))) << "the scope has ended";
  });
}

TEST(Build, Refusals) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  const Tensor outside = at::ones({2});
  {
    BuildScope scope(*world, mesh);
    expect_error<ValueError>([&] { BuildScope again(*world, mesh); }, {"[build]", "do not nest"});
    expect_error<ValueError>(
        [&] {
          scope.finish({{"w", outside}}, {});
        },
        {"[build]", "'w'", "f32[2] plain", "not made inside"});
  }
  BuildScope scope(*world, mesh);
  const Tensor w = at::zeros({3, 3});
  expect_error<ValueError>(
      [&] {
        scope.finish({{"net.w", w}}, {{"net.v", "S(0)"}});
      },
      {"[build]", "'net.v'", "net.w"});
}

}  // namespace
}  // namespace intarsia

// Random ops give the same values in every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <iostream>

#include "intarsia/communication.h"
#include "tensor/move/state.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::on_mesh;

using Draw = std::function<Tensor(const Layout&, World&)>;

std::vector<std::pair<std::string, Draw>> draws() {
  const std::vector<std::int64_t> sizes{7, 6};
  const auto in_place = [sizes](auto write) {
    return [=](const Layout& l, World& w) {
      Tensor t = zeros(sizes, l, w);
      write(t);
      return t;
    };
  };
  return {
      {"rand", [=](const Layout& l, World& w) { return rand(sizes, l, w); }},
      {"randn", [=](const Layout& l, World& w) { return randn(sizes, l, w); }},
      {"randint", [=](const Layout& l, World& w) { return randint(-5, 90, sizes, l, w); }},
      {"uniform_", in_place([](Tensor& t) { t.uniform_(-2, 3); })},
      {"normal_", in_place([](Tensor& t) { t.normal_(1, 2); })},
      {"bernoulli_", in_place([](Tensor& t) { t.bernoulli_(0.3); })},
      {"exponential_", in_place([](Tensor& t) { t.exponential_(2); })},
      {"random_", in_place([](Tensor& t) { t.random_(3, 50); })},
      {"cauchy_", in_place([](Tensor& t) { t.cauchy_(); })},
      {"geometric_", in_place([](Tensor& t) { t.geometric_(0.4); })},
      {"log_normal_", in_place([](Tensor& t) { t.log_normal_(); })},
      {"uniform_view", in_place([](Tensor& t) { t.select(1, 2).uniform_(); })},
      {"bernoulli",
       [=](const Layout& l, World& w) { return at::bernoulli(full_of(sizes, 0.5, l, w)); }},
      {"rand_like", [=](const Layout& l, World& w) { return at::rand_like(zeros(sizes, l, w)); }},
      {"dropout",
       [=](const Layout& l, World& w) { return at::dropout(ones(sizes, l, w), 0.4, true); }},
      {"native_dropout",
       [=](const Layout& l, World& w) {
         return std::get<0>(at::native_dropout(ones(sizes, l, w), 0.4, true));
       }},
      {"multinomial",
       [=](const Layout& l, World& w) { return at::multinomial(ones(sizes, l, w), 3); }},
      {"multinomial_replacement",
       [=](const Layout& l, World& w) { return at::multinomial(ones(sizes, l, w), 9, true); }},
      {"randperm",
       [=](const Layout& l, World& w) {
         return randperm(23, l.least_dims() > 1 ? Layout::replicated(l.mesh()) : l, w);
       }},
  };
}

std::vector<std::string> thirty_layouts() {
  std::vector<std::string> out;
  const std::vector<std::string> kinds{"R", "S(0)", "S(1)", "SS(0,2)", "SS(1,2)", "P(sum)"};
  for (const std::string& a : kinds) {
    for (const std::string& b : kinds) out.push_back(a + "," + b);
  }
  out.emplace_back("S(0),S(0) | 0:tp>dp");
  return out;
}

TEST(Random, EveryLayoutDrawsWhatOneRankDraws) {
  // One rank, alone.
  std::map<std::string, Tensor> want;
  const Mesh single = Mesh::parse("[dp=1,tp=1]");
  on_mesh(single, [&](World& world) {
    for (const auto& [name, draw] : draws()) {
      TensorState::of(world).draws().seed(42);
      want[name] = full(draw(Layout::replicated(single), world));
    }
  });
  int compared = 0;
  for (const char* text : {"[dp=2,tp=2]", "[dp=4,tp=1]"}) {
    const Mesh mesh = Mesh::parse(text);
    on_mesh(mesh, [&](World& world) {
      for (const std::string& layout : thirty_layouts()) {
        for (const auto& [name, draw] : draws()) {
          const bool integral = name == "randint";
          if (integral && layout.find('P') != std::string::npos) continue;
          TensorState::of(world).draws().seed(42);
          const Tensor got = full(draw(Layout::parse(layout, mesh), world));
          ASSERT_TRUE(at::equal(got, want.at(name)))
              << name << " in " << layout << got << want.at(name);
          if (world.rank() == 0) ++compared;
        }
      }
    });
  }
  EXPECT_GT(compared, 1000);
  if (!::testing::Test::HasFailure())
    std::cout << compared << " draws compared, all bit-identical\n";
}

TEST(Random, DrawsDifferAndFollowTheSeed) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Layout layout = Layout::parse("S(0)", mesh);
    TensorState::of(world).draws().seed(1);
    const Tensor a = full(rand({50}, layout, world));
    const Tensor b = full(rand({50}, layout, world));
    TensorState::of(world).draws().seed(1);
    const Tensor again = full(rand({50}, layout, world));
    EXPECT_FALSE(at::equal(a, b));
    EXPECT_TRUE(at::equal(a, again));
  });
}

}  // namespace
}  // namespace intarsia

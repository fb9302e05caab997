#include "pipeline/run/link.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/communication.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia::pipeline {
namespace {

at::Tensor fresh(std::size_t /*peer*/, std::int64_t bytes) { return at::empty({bytes}, at::kByte); }

/// Sends tensors that `make` makes on one mesh to another one, where `look` gets them.
void pass(const Mesh& from, const Mesh& to, const std::function<Tensors(World& world)>& make,
          const std::function<void(const Tensors& arrived)>& look, bool may_miss = false,
          bool announces = false) {
  const auto run = [&](World& world) {
    Link link(world, from, to, "test", may_miss);
    const auto hosts = [&](const Mesh& mesh) {
      return std::ranges::any_of(world.hosted(), [&](auto rank) { return mesh.contains(rank); });
    };
    const Tensors values = make(world);
    Boundary boundary = boundary_of("test", values, from, to);
    Tensors sent = values;
    if (may_miss) sent[0].reset();
    if (hosts(from)) link.send(sent, boundary, "values", announces);
    if (hosts(to)) {
      if (world.in_lockstep()) return look(link.take(0));
      if (announces) {
        const Boundary told = link.take_announcement("values");
        EXPECT_EQ(told, boundary);
        boundary = told;
      }
      look(link.wait(link.receive(boundary, "values", fresh)));
    }
    link.finish_sending();
  };
  const auto ranks = static_cast<int>(std::max(from.highest(), to.highest()) + 1);
  run_in_process(ranks, run);
  run(*lockstep_world(ranks));
}

at::Tensor values() { return at::arange(35, at::kFloat).view({7, 5}); }

TEST(Link, PiecesGoToThePartner) {
  const Mesh from = Mesh::parse("[dp=2]");
  const Mesh to = Mesh::parse("[dp=2]+2");
  for (const char* layout : {"S(0)", "S(1)", "R"}) {
    SCOPED_TRACE(layout);
    pass(
        from, to,
        [&](World& world) -> Tensors {
          return {distribute(values(), Layout::parse(layout, from), world),
                  distribute(values().t().to(at::kHalf), Layout::parse("S(0)", from), world)};
        },
        [&](const Tensors& arrived) {
          ASSERT_EQ(arrived.size(), 2U);
          EXPECT_EQ(layout_of(arrived[0]), Layout::parse(layout, to));
          EXPECT_TRUE(at::equal(full(arrived[0]), values()));
          EXPECT_TRUE(at::equal(full(arrived[1]), values().t().to(at::kHalf)));
        });
  }
}

TEST(Link, PartialValuesPassAsTheyAre) {
  const Mesh from = Mesh::parse("[tp=2]");
  const Mesh to = Mesh::parse("[tp=2]+2");
  pass(
      from, to,
      [&](World& world) -> Tensors {
        return {distribute(values(), Layout::parse("S(1)", from), world).sum(1)};
      },
      [&](const Tensors& arrived) {
        EXPECT_EQ(layout_of(arrived[0]), Layout::parse("P(sum)", to));
        EXPECT_TRUE(at::allclose(full(arrived[0]), values().sum(1)));
      });
}

TEST(Link, BetweenMeshesOfOtherSizesRanksGetWhatTheyNeed) {
  for (const auto& [from_text, to_text, layout] :
       {std::tuple{"[tp=2]", "[tp=3]+2", "S(0)"}, std::tuple{"[tp=3]", "[tp=1]+3", "S(0)"},
        std::tuple{"[dp=2]", "[tp=2]+2", "S(1)"}, std::tuple{"[tp=1]", "[tp=4]+1", "S(0)"},
        std::tuple{"[dp=2,tp=2]", "[tp=2]+4", "S(0),S(1)"}}) {
    SCOPED_TRACE(std::string(from_text) + " " + to_text);
    const Mesh from = Mesh::parse(from_text);
    const Mesh to = Mesh::parse(to_text);
    pass(
        from, to,
        [&](World& world) -> Tensors {
          const at::Tensor t = distribute(values(), Layout::parse(layout, from), world);
          return {t, at::full({2}, 3.0), at::Tensor(), t.sum(0)};
        },
        [&](const Tensors& arrived) {
          EXPECT_EQ(layout_of(arrived[0]), carried(Layout::parse(layout, from), to));
          EXPECT_TRUE(at::equal(full(arrived[0]), values()));
          EXPECT_TRUE(at::equal(arrived[1], at::full({2}, 3.0)));
          EXPECT_FALSE(arrived[2].defined());
          EXPECT_TRUE(at::allclose(full(arrived[3]), values().sum(0)));
        });
  }
}

TEST(Link, WhatMayMissIsMarked) {
  const Mesh from = Mesh::parse("[]");
  const Mesh to = Mesh::parse("[]+1");
  pass(
      from, to,
      [](World&) -> Tensors {
        return {values(), values() + 1};
      },
      [](const Tensors& arrived) {
        EXPECT_FALSE(arrived[0].defined());
        EXPECT_TRUE(at::equal(arrived[1], values() + 1));
      },
      /*may_miss=*/true);
}

TEST(Link, SizesMayBeAnnounced) {
  const Mesh from = Mesh::parse("[dp=2]");
  const Mesh to = Mesh::parse("[dp=2]+2");
  pass(
      from, to,
      [&](World& world) -> Tensors {
        return {distribute(values(), Layout::parse("S(0)", from), world), at::ones({0, 3})};
      },
      [](const Tensors& arrived) {
        EXPECT_TRUE(at::equal(full(arrived[0]), values()));
        EXPECT_EQ(arrived[1].sizes(), at::IntArrayRef({0, 3}));
      },
      /*may_miss=*/false, /*announces=*/true);
}

TEST(Link, WhatIsSentFirstArrivesFirst) {
  run_in_process(2, [](World& world) {
    Link link(world, Mesh::parse("[]"), Mesh::parse("[]+1"), "test", false);
    const Boundary boundary =
        boundary_of("test", {values()}, Mesh::parse("[]"), Mesh::parse("[]+1"));
    constexpr int kMany = 20;
    if (world.rank() == 0) {
      for (int i = 0; i < kMany; ++i) {
        at::Tensor t = values() * i;
        link.send({t}, boundary, "value " + std::to_string(i), false);
        t.zero_();  // was taken already
      }
      link.finish_sending();
      return;
    }
    std::vector<Arriving> coming;
    for (int i = 0; i < kMany; ++i) {
      coming.push_back(link.receive(boundary, "value " + std::to_string(i), fresh));
    }
    for (int i = kMany - 1; i >= 0; --i) {
      const Tensors got = link.wait(std::move(coming[static_cast<std::size_t>(i)]));
      EXPECT_TRUE(at::equal(got[0], values() * i));
    }
  });
}

TEST(Link, WhatItSendsIsInTheBill) {
  run_in_process(2, [](World& world) {
    Link link(world, Mesh::parse("[]"), Mesh::parse("[]+1"), "0>1", false);
    const Boundary boundary =
        boundary_of("test", {values()}, Mesh::parse("[]"), Mesh::parse("[]+1"));
    clear_bill(world);
    if (world.rank() == 0) {
      link.send({values()}, boundary, "values", false);
      link.finish_sending();
      const Bill sent = bill(world);
      ASSERT_EQ(sent.entries.size(), 1U);
      EXPECT_EQ(sent.entries[0].op, "pipeline");
      EXPECT_EQ(sent.bytes(), 192U);  // 140, filled up
      EXPECT_EQ(sent.calls(), 1U);
    } else {
      link.wait(link.receive(boundary, "values", fresh));
      EXPECT_EQ(bill(world).bytes(), 0U);
    }
  });
}

}  // namespace
}  // namespace intarsia::pipeline

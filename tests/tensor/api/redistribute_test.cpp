#include "intarsia/redistribute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>

#include "error_text.h"
#include "intarsia/boxes.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"
#include "layout/all_layouts.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// The terms of a partial tensor that differ on every rank and combine to `full`: whole numbers, so
/// that sums are exact. What is not partial is the same on all ranks of the group.
at::Tensor term(const at::Tensor& full, const Layout& layout, const Coordinate& at) {
  at::Tensor out = local_piece(full, layout, at).clone();
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (layout.placement(a) != Placement::partial()) continue;
    // Along the axis, noise that adds up to nothing: +1 to +n-1 on later ranks, the rest taken from
    // the first.
    const std::int64_t n = layout.mesh().size(a);
    const std::int64_t noise = at[a] == 0 ? -(n * (n - 1) / 2) : at[a];
    std::int64_t others = 1;  // nested partial axes: noise only where the others are at 0
    for (std::size_t b = 0; b < at.size(); ++b) {
      if (b != a && layout.placement(b).is_partial() && at[b] != 0) others = 0;
    }
    out = out + noise * others;
  }
  return out;
}

struct Tally {
  std::atomic<int> pairs = 0;
};

void check_pairs(World& world, const Mesh& mesh, const at::Tensor& full,
                 const std::vector<Layout>& from, const std::vector<Layout>& to, Tally& tally) {
  std::vector<Coordinate> here;
  for (const std::int64_t rank : world.hosted()) {
    if (const auto at = mesh.coordinate_of(rank)) here.push_back(*at);
  }
  const std::vector<std::int64_t> shape = full.sizes().vec();
  for (const Layout& source : from) {
    for (const Layout& target : to) {
      const std::int64_t size = full.element_size();
      const auto plan = world.plans().plan(source, target, shape, size);
      ASSERT_TRUE(plan);
      std::vector<at::Tensor> pieces;
      for (const Coordinate& at : here) pieces.push_back(term(full, source, at));
      auto moved = redistribute_pieces(world, pieces, plan);
      // What is partial afterwards is compared by its value.
      Layout open = target;
      for (std::size_t a = 0; a < mesh.axes(); ++a) {
        if (open.placement(a).is_partial()) open = open.with(a, Placement::replicate());
      }
      const auto reduce = world.plans().plan(target, open, shape, size);
      moved = redistribute_pieces(world, moved, reduce);
      ASSERT_EQ(moved.size(), here.size());
      for (std::size_t m = 0; m < here.size(); ++m) {
        const at::Tensor expected = local_piece(full, reduce->to, here[m]);
        ASSERT_EQ(moved[m].sizes(), expected.sizes()) << plan->to_string();
        ASSERT_TRUE(at::equal(moved[m], expected)) << plan->to_string() << "\n"
                                                   << moved[m] << expected;
      }
      ++tally.pairs;
    }
  }
}

TEST(Redistribute, AllPairsOfSmallLayouts) {
  const auto choices = testing::placements({"R", "S(0)", "S(1)", "SS(1,2)", "P(sum)"});
  Tally tally;
  for (const char* text : {"[a=2,b=2]", "[a=3,b=2]", "[a=3]+1"}) {
    const Mesh mesh = Mesh::parse(text);
    const auto layouts = testing::all_layouts(mesh, choices);
    run_in_process(static_cast<int>(mesh.highest()) + 1, [&](World& world) {
      for (const auto& shape : {std::vector<std::int64_t>{5, 7}, {4, 6}, {1, 3}}) {
        const at::Tensor full = at::arange(c10::multiply_integers(shape), at::kLong).reshape(shape);
        check_pairs(world, mesh, full, layouts, layouts, tally);
      }
    });
  }
  std::cout << tally.pairs << " redistributions compared\n";
}

TEST(Redistribute, AllPairsInLockstep) {
  const auto choices = testing::placements({"R", "S(0)", "S(1)", "SS(1,2)", "P(sum)"});
  Tally tally;
  for (const char* text : {"[a=3,b=2]", "[a=3:1,b=2:3]", "[a=4]+1", "[a=3]{2,0,1}"}) {
    const Lockstep lockstep(text);
    const auto layouts = testing::all_layouts(lockstep.mesh(), choices);
    for (const auto& shape : {std::vector<std::int64_t>{5, 7}, {1, 3}}) {
      const at::Tensor full = at::arange(c10::multiply_integers(shape), at::kLong).reshape(shape);
      check_pairs(lockstep.world(), lockstep.mesh(), full, layouts, layouts, tally);
    }
  }
  std::cout << tally.pairs << " redistributions compared\n";
}

TEST(Redistribute, ThreeAxesInEveryOrder) {
  const Mesh mesh = Mesh::parse("[a=2,b=2,c=2]");
  const auto from = testing::all_layouts(mesh, testing::placements({"S(0)", "P(sum)"}));
  const auto to = testing::all_layouts(mesh, testing::placements({"R", "S(0)", "S(1)"}));
  Tally tally;
  run_in_process(8, [&](World& world) {
    check_pairs(world, mesh, at::arange(77, at::kLong).reshape({11, 7}), from, to, tally);
  });
  std::cout << tally.pairs << " redistributions compared\n";
}

TEST(Redistribute, OtherReductionsAndDtypes) {
  const Mesh mesh = Mesh::parse("[a=3]");
  run_in_process(3, [&](World& world) {
    for (const char* kind : {"P(avg)", "P(min)", "P(max)", "P(prod)"}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor full = at::arange(1, 11, at::kFloat).to(type);
        const Layout partial = Layout::parse(kind, mesh);
        const std::vector<std::int64_t> shape{10};
        const std::int64_t size = full.element_size();
        const auto plan = world.plans().plan(Layout::replicated(mesh), partial, shape, size);
        const auto back = world.plans().plan(partial, Layout::parse("S(0)", mesh), shape, size);
        const auto made = redistribute_pieces(world, full, plan);
        const auto got = redistribute_pieces(world, made, back);
        const at::Tensor expected = local_piece(full, back->to, {world.rank()});
        EXPECT_TRUE(at::allclose(got[0].to(at::kFloat), expected.to(at::kFloat), 1e-6, 0))
            << kind << got[0];
        EXPECT_EQ(got[0].scalar_type(), type);
      }
    }
  });
}

TEST(Redistribute, CommunicatesOnceForEachStepThatSaysSo) {
  const Mesh mesh = Mesh::parse("[a=2,b=2]");
  run_in_process(4, [&](World& world) {
    const auto plan = world.plans().plan(Layout::parse("S(0),R", mesh),
                                         Layout::parse("R,S(1)", mesh), Coordinate{4, 6}, 8);
    const at::Tensor full = at::arange(24).reshape({4, 6});
    const auto at = *mesh.coordinate_of(world.rank());
    redistribute_pieces(world, local_piece(full, plan->from, at), plan, {.tensor = "x"});
    EXPECT_EQ(plan->collectives(), 1U);
    EXPECT_EQ(world.ledger().totals().calls, 1U);
    EXPECT_EQ(world.ledger().totals(CallKind::all_gather).bytes, 2U * 3U * 8U);
    EXPECT_EQ(world.ledger().entries()[0].tensor, "x");
  });
}

TEST(Redistribute, ManyTensorsShareTheirCollectives) {
  const Mesh mesh = Mesh::parse("[a=3]");
  run_in_process(3, [&](World& world) {
    std::vector<PiecesToMove> moves;
    std::vector<at::Tensor> expected;
    const Coordinate at = *mesh.coordinate_of(world.rank());
    for (std::int64_t i = 0; i < 20; ++i) {
      const at::Tensor full = at::arange((i + 1) * 6, at::kLong).reshape({i + 1, 6});
      const Layout from = Layout::parse(i % 3 == 2 ? "P(sum)" : "S(0)", mesh);
      const Layout to = Layout::parse(i % 2 == 0 ? "S(1)" : "R", mesh);
      const auto plan = world.plans().plan(from, to, full.sizes(), 8);
      moves.push_back({{local_piece(full, from, at)}, plan});
      expected.push_back(local_piece(full, to, at));
    }
    const auto moved = redistribute_pieces(world, moves);
    for (std::size_t i = 0; i < moved.size(); ++i) EXPECT_TRUE(at::equal(moved[i][0], expected[i]));
    EXPECT_LE(world.ledger().totals().calls, 3U);
  });
}

TEST(Redistribute, BuffersAreUsedAgain) {
  const Mesh mesh = Mesh::parse("[a=2]");
  run_in_process(2, [&](World& world) {
    const Layout from = Layout::parse("S(0)", mesh);
    const auto plan = world.plans().plan(from, Layout::parse("S(1)", mesh), Coordinate{64, 64}, 4);
    const at::Tensor full = at::arange(64 * 64, at::kFloat).reshape({64, 64});
    const at::Tensor piece = local_piece(full, from, *mesh.coordinate_of(world.rank()));
    redistribute_pieces(world, piece, plan);
    const MoveMemory first = move_memory(world);
    EXPECT_EQ(first.live, 0);
    EXPECT_GT(first.idle, 0);
    EXPECT_LE(first.high_water, plan->peak_bytes);
    for (int i = 0; i < 10; ++i) redistribute_pieces(world, piece, plan);
    EXPECT_EQ(move_memory(world).idle, first.idle);
    EXPECT_EQ(move_memory(world).high_water, first.high_water);
  });
}

// A column of one row, or of none, is contiguous with whatever stride it has.
TEST(Redistribute, PiecesOfOneElementOrNoneMayHaveAnyStride) {
  for (const int ranks : {2, 3}) {
    run_in_process(ranks, [&](World& world) {
      const Mesh mesh({{"a", ranks}});
      for (const std::int64_t rows : {1, 2, 3, 4}) {
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kComplexFloat}) {
          const at::Tensor whole = at::arange(rows * 5).reshape({rows, 5}).to(type);
          const at::Tensor column =
              distribute(whole, Layout::parse("S(0)", mesh), world).select(1, 1);
          EXPECT_TRUE(at::equal(full(column), whole.select(1, 1)));
          for (const char* to : {"R", "P(sum)", "SS(0,1)"}) {
            const at::Tensor moved = redistribute(column, Layout::parse(to, mesh));
            EXPECT_TRUE(at::equal(full(moved), whole.select(1, 1))) << rows << " rows to " << to;
          }
          const at::Tensor terms = at::ones({rows, 5}).to(type);
          const at::Tensor sum =
              from_local(terms, Layout::parse("P(sum)", mesh), world).select(1, 2);
          for (const char* to : {"R", "S(0)"}) {
            const at::Tensor moved = redistribute(sum, Layout::parse(to, mesh));
            EXPECT_TRUE(at::equal(full(moved), terms.select(1, 2) * ranks))
                << rows << " rows to " << to;
          }
        }
      }
    });
  }
}

TEST(Redistribute, RefusalsNameTheValues) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  const Layout cut = Layout::parse("S(0)", mesh);
  const auto plan = world->plans().plan(cut, Layout::parse("R", mesh), Coordinate{4}, 4);
  expect_error<ValueError>([&] { redistribute_pieces(*world, at::ones({3}), plan); },
                           {"rank 0", "(3)", "[a=1] S(0)", "(4)"});
  expect_error<ValueError>([&] { redistribute_pieces(*world, at::TensorList(), plan); },
                           {"hosts 1 ranks", "0 pieces"});
  expect_error<ValueError>([&] { (void)world->plans().plan(cut, cut, Coordinate{}, 4); },
                           {"dimension 0", "0 dimensions"});
}

}  // namespace
}  // namespace intarsia

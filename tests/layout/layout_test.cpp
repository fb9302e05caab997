#include "intarsia/layout.h"

#include <gtest/gtest.h>

#include <thread>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

const Mesh kMesh = Mesh::parse("[dp=2,tp=4]");
const Placement R = Placement::replicate();
const Placement S0 = Placement::shard(0);
const Placement S1 = Placement::shard(1);

TEST(Layout, EqualLayoutsAreTheSamePointer) {
  const Layout a(kMesh, {S0, R});
  const Layout b(Mesh::parse("[dp=2,tp=4]"), {S0, R});
  EXPECT_EQ(a.id(), b.id());
  EXPECT_NE(a.id(), Layout(kMesh, {R, S0}).id());
  EXPECT_NE(a.id(), Layout(Mesh::parse("[dp=2,tp=4]+8"), {S0, R}).id());
}

TEST(Layout, IsFreedWithItsLastHandle) {
  const std::size_t before = Layout::alive();
  {
    const Layout a(kMesh, {Placement::shard(7), R});
    const Layout copy = a;  // NOLINT(performance-unnecessary-copy-initialization)
    EXPECT_EQ(Layout::alive(), before + 1);
  }
  EXPECT_EQ(Layout::alive(), before);
}

TEST(Layout, MovedAndAssignedHandlesKeepTheValue) {
  Layout a(kMesh, {S0, R});
  Layout b = std::move(a);
  Layout c;
  c = b;
  b = Layout(kMesh, {R, R});
  EXPECT_EQ(c, Layout(kMesh, {S0, R}));
  EXPECT_EQ(b, Layout::replicated(kMesh));
}

TEST(Layout, NegativeDimsNeedTheNumberOfDims) {
  EXPECT_EQ(Layout(kMesh, {Placement::shard(-1), R}, {.dims = 3}),
            Layout(kMesh, {Placement::shard(2), R}));
  expect_error<ValueError>([] { Layout(kMesh, {Placement::shard(-1), R}); }, {"S(-1)", "dims"});
}

TEST(Layout, KeepsTheOrderInWhichAxesCut) {
  const Layout default_order(kMesh, {S0, S0});
  const Layout tp_first(kMesh, {S0, S0}, {.order = {{0, {"tp", "dp"}}}});
  EXPECT_NE(default_order, tp_first);
  EXPECT_NE(default_order.hash(), tp_first.hash());
  EXPECT_EQ(tp_first.axes_of(0), (AxisList{1, 0}));
  EXPECT_FALSE(tp_first.has_default_order());
  EXPECT_EQ(tp_first.to_string(), "[dp=2,tp=4] S(0),S(0) | 0:tp>dp");
  EXPECT_EQ(Layout(kMesh, {S0, S0}, {.order = {{0, {"dp", "tp"}}}}), default_order);
}

TEST(Layout, AxesOfSizeOneHaveNoPlaceInAnOrder) {
  const Mesh mesh = Mesh::parse("[a=2,b=1]");
  EXPECT_EQ(Layout(mesh, {S0, S0}, {.order = {{0, {"b", "a"}}}}), Layout(mesh, {S0, S0}));
}

TEST(Layout, TextParsesBack) {
  for (const char* text :
       {"[]", "[dp=2,tp=4] S(0),R", "[dp=2,tp=4] S(0),S(0) | 0:tp>dp", "[dp=2,tp=4]+8 P(sum),S(1)",
        "[tp=4:1,dp=2:4] R,R", "[x=4]{0,3,5,6} SS(1,4)",
        "[a=2,b=2,c=2,d=2] S(0),S(1),S(0),S(1) | 0:c>a, 1:d>b"}) {
    const Layout layout = Layout::parse(text);
    EXPECT_EQ(layout.to_string(), text);
    EXPECT_EQ(Layout::parse(layout.to_string()), layout);
  }
  EXPECT_EQ(Layout::parse("S(-1),R", kMesh, {.dims = 2}), Layout(kMesh, {S1, R}));
}

TEST(Layout, StridedAndOrderedAreTwoSpellings) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  const std::vector<Placement> strided{Placement::strided_shard(0, 2), S0};
  const Layout as_order(mesh, strided, {.strided = StridedMeans::order});
  const Layout as_data(mesh, strided);
  EXPECT_EQ(as_order.to_string(), "[dp=2,tp=2] S(0),S(0) | 0:tp>dp");
  EXPECT_EQ(as_data.to_string(), "[dp=2,tp=2] SS(0,2),S(0)");
  EXPECT_NE(as_order, as_data);
  EXPECT_EQ(as_order.strided_spelling(), strided);
  EXPECT_EQ(as_data.strided_spelling(), std::nullopt);
}

TEST(Layout, SplitFactorsThatSayNoOrderAreRefused) {
  const std::vector<Placement> odd{Placement::strided_shard(0, 3), S0};
  EXPECT_EQ(order_of_strided(kMesh, odd), std::nullopt);
  expect_error<ValueError>([&] { Layout(kMesh, odd, {.strided = StridedMeans::order}); },
                           {"SS(0,3),S(0)", "no order", "StridedMeans::data"});
}

TEST(Layout, WithChangesOneAxis) {
  const Layout tp_first(kMesh, {S0, S0}, {.order = {{0, {"tp", "dp"}}}});
  EXPECT_EQ(tp_first.with("tp", R), Layout(kMesh, {S0, R}));
  EXPECT_EQ(tp_first.with("dp", S1).with("dp", S0), tp_first);
  EXPECT_EQ(Layout(kMesh, {R, S0}).with("dp", S0), tp_first);
}

TEST(Layout, PartialKindsDoNotMix) {
  const Placement sum = Placement::parse("P(sum)");
  EXPECT_NO_THROW(Layout(kMesh, {sum, sum}));
  EXPECT_NO_THROW(Layout(kMesh, {sum, Placement::parse("P(avg)")}));
  expect_error<ValueError>(
      [&] {
        Layout(kMesh, {sum, Placement::parse("P(max)")});
      },
      {"P(max)", "'tp'", "P(sum)", "reduced first"});
  expect_error<ValueError>(
      [&] {
        Layout(kMesh, {Placement::parse("P(norm:2)"), Placement::parse("P(norm:3)")});
      },
      {"P(norm:3)", "P(norm:2)"});
  expect_error<ValueError>(
      [&] {
        (void)Layout(kMesh, {sum, R}).with("tp", Placement::parse("P(min)"));
      },
      {"P(min)"});
}

TEST(Layout, RefusalsNameTheValues) {
  expect_error<ValueError>([] { Layout(kMesh, {S0}); }, {"2 axes", "1 placements", "S(0)"});
  expect_error<ValueError>(
      [] {
        Layout(kMesh, {Placement::shard(3), R}, {.dims = 2});
      },
      {"dimension 3", "2 dimensions", "-2..1"});
  expect_error<ValueError>([] { Layout(kMesh, {Placement::shard(16), R}); }, {"S(16)", "16"});
  expect_error<ValueError>(
      [] {
        Layout(kMesh, {S0, S0}, {.order = {{0, {"tp"}}}});
      },
      {"dimension 0", "dp, tp"});
  expect_error<ValueError>(
      [] {
        Layout(kMesh, {S0, S0}, {.order = {{0, {"tp", "tp"}}}});
      },
      {"'tp'", "twice"});
  expect_error<ValueError>(
      [] {
        Layout(kMesh, {S0, S0}, {.order = {{0, {"tp", "dp"}}, {0, {"dp", "tp"}}}});
      },
      {"dimension 0", "given twice"});
  expect_error<ValueError>([] { (void)Layout::parse("[a=2,b=2] S(0),S(0) | 4294967296:b>a"); },
                           {"a dimension"});
  expect_error<ValueError>(
      [] {
        (void)Layout(kMesh, {S0, R}).with(std::size_t{5}, R);
      },
      {"no axis 5"});
  expect_error<ValueError>([] { (void)Layout::parse("S(0),R"); }, {"expected a mesh"});
}

TEST(Layout, ThreadsInternTheSameLayouts) {
  const std::size_t before = Layout::alive();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 5000; ++i) {
        const Layout a(kMesh, {Placement::strided_shard(0, i % 7 + 2), R});
        const Layout b = a.with("tp", S1).with("tp", R);
        ASSERT_EQ(a, b);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(Layout::alive(), before);
}

}  // namespace
}  // namespace intarsia

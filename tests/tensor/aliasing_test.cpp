// Views alias, writes in place keep the layout, and what cannot be written says so.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::expect_whole;
using testing::on_mesh;
using testing::some_layouts;
using testing::values;

struct Write {
  std::string name;
  std::function<void(Tensor&)> write;
};

std::vector<Write> writes() {
  return {
      {"add_", [](Tensor& t) { t.add_(1); }},
      {"mul_", [](Tensor& t) { t.mul_(3); }},
      {"relu_", [](Tensor& t) { t.relu_(); }},
      {"fill_", [](Tensor& t) { t.fill_(2); }},
      {"zero_", [](Tensor& t) { t.zero_(); }},
      {"copy_",
       [](Tensor& t) {
         t.copy_(values({6, 5}, 7));
       }},
      {"copy_row", [](Tensor& t) { t.copy_(values({5}, 7)); }},
      {"masked_fill_", [](Tensor& t) { t.masked_fill_(t.detach() > 0, -1); }},
      {"addcmul_",
       [](Tensor& t) {
         t.addcmul_(values({6, 5}, 8), values({6, 5}, 9));
       }},
      {"cumsum_", [](Tensor& t) { t.cumsum_(0); }},
      {"select", [](Tensor& t) { t.select(1, 0).add_(1); }},
      {"select_row", [](Tensor& t) { t.select(0, 5).mul_(2); }},
      {"slice", [](Tensor& t) { t.slice(0, 1, 4).relu_(); }},
      {"t", [](Tensor& t) { t.t().add_(1); }},
      {"t_select", [](Tensor& t) { t.t().select(0, 2).fill_(4); }},
      {"chunk", [](Tensor& t) { t.chunk(2, 0)[1].mul_(5); }},
      {"view", [](Tensor& t) { t.view({30}).add_(1); }},
      {"view_of_view",
       [](Tensor& t) {
         t.view({3, 2, 5}).select(1, 1).add_(1);
       }},
      {"index_put_",
       [](Tensor& t) {
         t.index_put_({at::tensor({1, 4}, at::kLong)}, at::ones({5}, at::kDouble));
       }},
      {"out", [](Tensor& t) { at::add_out(t, t, t); }},
      {"matmul_out",
       [](Tensor& t) {
         const Tensor w = values({5, 5}, 3);
         at::mm_out(t, t.clone(), w);
       }},
  };
}

TEST(Aliasing, WritesInPlaceKeepTheLayoutAndTheValues) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    for (const std::string& text : some_layouts()) {
      for (const Write& w : writes()) {
        const std::string what = w.name + " on " + text;
        const Layout layout = Layout::parse(text, mesh);
        Tensor plain = values({6, 5}, 1);
        Tensor ours = distribute(plain, layout, world);
        w.write(plain);
        try {
          w.write(ours);
        } catch (const std::exception& e) {
          FAIL() << what << ": " << e.what();
        }
        EXPECT_EQ(layout_of(ours).to_string(), layout.to_string()) << what;
        expect_whole(ours, plain, what);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(Aliasing, BackwardThroughWritesToViews) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    for (const std::string& text : some_layouts()) {
      for (const Write& w : writes()) {
        if (w.name.find("out") != std::string::npos || w.name == "index_put_") continue;
        const std::string what = w.name + " on " + text;
        const Layout layout = Layout::parse(text, mesh);
        const Tensor x = values({6, 5}, 1);
        const Tensor weight = values({6, 5}, 2);
        Tensor plain = x.clone().set_requires_grad(true);
        Tensor ours = distribute(x, layout, world).set_requires_grad(true);
        Tensor a = plain * 1;
        Tensor b = ours * 1;
        try {
          w.write(a);
        } catch (const c10::Error&) {
          continue;  // ATen refuses writes to one of several views, if a gradient is needed
        }
        try {
          w.write(b);
          (a * a * weight).sum().backward();
          (b * b * weight).sum().backward();
        } catch (const std::exception& e) {
          FAIL() << what << ": " << e.what();
        }
        expect_whole(b, a, what);
        ASSERT_TRUE(ours.grad().defined()) << what;
        expect_whole(ours.grad(), plain.grad(), what + ", gradient");
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(Aliasing, ViewsShareVersionAndMemory) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=1]");
  on_mesh(mesh, [&](World& world) {
    Tensor x = distribute(values({6, 5}, 1), Layout::parse("S(0),R", mesh), world);
    const Tensor v = x.t();
    EXPECT_TRUE(v.is_view());
    const auto before = x._version();
    v.add_(1);
    EXPECT_GT(x._version(), before);
    EXPECT_EQ(x._version(), v._version());
    expect_whole(x, values({6, 5}, 1) + 1, "x");
    EXPECT_TRUE(local(x).is_alias_of(local(v)));
    EXPECT_EQ(x.select(1, 2).storage_offset(), 2);
    EXPECT_EQ(v.strides(), (std::vector<std::int64_t>{1, 5}));
  });
}

TEST(Aliasing, AStaleViewIsRefused) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=1]");
  on_mesh(mesh, [&](World& world) {
    Tensor x = distribute(values({6, 5}, 1), Layout::parse("S(0),R", mesh), world);
    const Tensor moved = x.select(0, 4);  // needs a gather
    const Tensor alias = x.select(1, 2);
    x.add_(1);
    expect_whole(alias + 0, (values({6, 5}, 1) + 1).select(1, 2), "alias");
    expect_error<c10::ValueError>(
        [&] { moved + 1; }, {"aten::add.Scalar", "older than the last write", "f64[5]", "again"});
    const Tensor again = x.select(0, 4);
    again.mul_(2);
    expect_whole(again * 1, ((values({6, 5}, 1) + 1) * 2).select(0, 4), "again");
  });
}

TEST(Aliasing, PlainTensorsAreWrittenInFull) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor whole = values({6, 5}, 1);
    for (const std::string& layout : some_layouts()) {
      const Tensor x = distribute(whole, Layout::parse(layout, mesh), world);
      Tensor sum = values({6, 5}, 2);
      sum.add_(x);
      EXPECT_TRUE(at::allclose(sum, values({6, 5}, 2) + whole)) << layout;
      sum.t().copy_(x.t());
      EXPECT_TRUE(at::allclose(sum, whole)) << layout;
      Tensor out = at::empty({0}, at::kDouble);
      at::mm_out(out, x, x.t());
      EXPECT_TRUE(at::allclose(out, whole.mm(whole.t()))) << layout;
      EXPECT_FALSE(has_layout(sum) || has_layout(out)) << layout;
    }
  });
}

TEST(Aliasing, OnlyRanksOfTheMeshKnowWhatToWriteIntoPlainTensors) {
  run_in_process(3, [](World& world) {
    const Mesh mesh = Mesh::parse("[a=2]");  // ranks 0 and 1
    const Tensor x = distribute(values({4, 3}, 1), Layout::parse("S(0)", mesh), world);
    Tensor plain = values({4, 3}, 2);
    if (world.rank() < 2) {
      plain.add_(x);
      return;
    }
    expect_error<c10::ValueError>(
        [&] { plain.add_(x); },
        {"aten::add_.Tensor", "this process hosts no rank of", "on ranks of the mesh only"});
  });
}

TEST(Aliasing, SizesAndMemoryCannotBeChanged) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  Tensor x = distribute(values({4, 3}, 1), Layout::parse("S(0)", mesh), *world);
  expect_error<c10::ValueError>(
      [&] {
        x.resize_({2, 2});
      },
      {"aten::resize_", "other sizes or memory", "f64[4@a, 3]"});
  expect_error<c10::ValueError>([&] { x.set_(x.clone()); }, {"aten::set_", "f64[4@a, 3]"});
  Tensor small = distribute(values({2}, 1), Layout::parse("R", mesh), *world);
  expect_error<c10::ValueError>([&] { at::add_out(small, x, x); },
                                {"aten::add.out", "out= has sizes (2)", "(4,3)", "without out="});
  Tensor column = distribute(values({4, 1}, 1), Layout::parse("R", mesh), *world);
  expect_error<c10::ValueError>([&] { column.add_(x); },
                                {"aten::add_.Tensor", "change the sizes (4,1) to (4,3)"});
}

}  // namespace
}  // namespace intarsia

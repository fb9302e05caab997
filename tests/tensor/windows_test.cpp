// What ops send that read beyond the edges of pieces, and what they refuse.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::expect_whole;
using testing::on_mesh;
using testing::values;

std::uint64_t bytes_of(const Bill& bill, std::string_view transition, bool backward) {
  std::uint64_t bytes = 0;
  for (const BillEntry& e : bill.entries) {
    if (e.transition == transition && e.backward == backward) bytes += e.bytes;
  }
  return bytes;
}

bool has(const Bill& bill, std::string_view transition) {
  for (const BillEntry& e : bill.entries) {
    if (e.transition == transition) return true;
  }
  return false;
}

TEST(Windows, AConvolutionSendsOneRowToEachNeighbour) {
  const Mesh mesh = Mesh::parse("[a=4]");
  on_mesh(mesh, [&](World& world) {
    const Tensor image = values({3, 2, 8, 5}, 1);
    const Tensor weight = values({4, 2, 3, 3}, 2);
    Tensor x = distribute(image, Layout::parse("S(2)", mesh), world).requires_grad_(true);
    Tensor w = distribute(weight, Layout::parse("R", mesh), world).requires_grad_(true);
    const bool at_end = world.rank() == 0 || world.rank() == 3;
    const std::uint64_t row = 3 * 2 * 5 * 8;
    const std::uint64_t halo = (at_end ? 1 : 2) * row;

    const CommunicationScope scope(world, Communication::explicit_only);
    clear_bill(world);
    const Tensor y = at::conv2d(x, w, {}, 1, 1);
    EXPECT_EQ(layout_of(y), Layout::parse("S(2)", mesh));
    const Bill forward = bill(world);
    ASSERT_EQ(forward.entries.size(), 1U) << forward.to_string();
    EXPECT_EQ(forward.entries[0].op, "aten::convolution");
    EXPECT_EQ(forward.entries[0].tensor, "f64[3, 2, 8@a, 5]");
    EXPECT_EQ(forward.entries[0].axis, "a");
    EXPECT_EQ(forward.entries[0].transition, "halo");
    EXPECT_FALSE(forward.entries[0].implicit);
    EXPECT_EQ(forward.entries[0].count, 1U);
    EXPECT_EQ(forward.bytes(), halo);

    clear_bill(world);
    {
      const CommunicationScope free(world, Communication::automatic);
      y.sum().backward();
    }
    const Bill back = bill(world);
    EXPECT_FALSE(has(back, "S->R")) << back.to_string();
    EXPECT_FALSE(has(back, "S->S")) << back.to_string();
    // The rows of the input again, for the gradient of the weight; and gradients of those rows.
    EXPECT_EQ(bytes_of(back, "halo", true), 2 * halo) << back.to_string();

    Tensor plain_x = image.clone().requires_grad_(true);
    Tensor plain_w = weight.clone().requires_grad_(true);
    const Tensor plain = at::conv2d(plain_x, plain_w, {}, 1, 1);
    plain.sum().backward();
    expect_whole(y, plain, "convolution");
    expect_whole(x.grad(), plain_x.grad(), "the gradient of the input");
    expect_whole(w.grad(), plain_w.grad(), "the gradient of the weight");
  });
}

TEST(Windows, NothingIsSentWhereWindowsAreThePieces) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor image = values({1, 2, 8, 6}, 1);
    const Tensor weight = values({3, 2, 2, 2}, 2);
    const Tensor x = distribute(image, Layout::parse("S(2)", mesh), world);
    const std::uint64_t before = world.ledger().totals().calls;
    const Tensor y = at::conv2d(x, weight, {}, 2);
    const Tensor z = at::avg_pool2d(x, {4, 2});
    EXPECT_EQ(world.ledger().totals().calls, before);
    expect_whole(y, at::conv2d(image, weight, {}, 2), "convolution");
    expect_whole(z, at::avg_pool2d(image, {4, 2}), "pool");
  });
}

TEST(Windows, FollowTheOrderInWhichAxesCut) {
  const Mesh mesh = Mesh::parse("[a=2,b=3]");
  on_mesh(mesh, [&](World& world) {
    const Tensor image = values({1, 2, 13, 9}, 1);
    const Tensor weight = values({3, 2, 5, 3}, 2);
    const Tensor want = at::conv2d(image, weight, {}, 2, 1);
    for (const char* text : {"S(2),S(2)", "S(2),S(2) | 2:b>a", "S(3),S(2)", "S(2),S(3)"}) {
      const Layout layout = Layout::parse(text, mesh);
      const Tensor x = distribute(image, layout, world);
      const CommunicationScope scope(world, Communication::explicit_only);
      const Tensor y = at::conv2d(x, weight, {}, 2, 1);
      EXPECT_EQ(layout_of(y), layout);
      expect_whole(y, want, text);
      expect_whole(x.roll(4, 2), image.roll(4, 2), text);
      expect_whole(x.flip({2, 3}), image.flip({2, 3}), text);
    }
  });
}

TEST(Windows, ARollSendsWhatItMovesToOtherRanks) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = distribute(values({8, 3}, 1), Layout::parse("S(0)", mesh), world);
    clear_bill(world);
    x.roll(1, 0);
    EXPECT_EQ(bill(world).bytes(), 1U * 3U * 8U);
    clear_bill(world);
    x.roll(4, 0);
    EXPECT_EQ(bill(world).bytes(), 4U * 3U * 8U);
    clear_bill(world);
    x.roll(8, 0);
    EXPECT_TRUE(bill(world).entries.empty());
  });
}

TEST(Windows, PlacesOutsideOfTheirWindowsAreRefused) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Layout layout = Layout::parse("S(2)", mesh);
    const Tensor x = distribute(values({1, 1, 4, 2}, 1), layout, world);
    const Tensor grad = distribute(values({1, 1, 2, 1}, 2), layout, world);
    // Each points into the piece of the other rank.
    const Tensor places =
        distribute(at::tensor({7, 0}, at::kLong).view({1, 1, 2, 1}), layout, world);
    expect_error<c10::IndexError>(
        [&] {
          at::max_pool2d_with_indices_backward(grad, x, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false,
                                               places);
        },
        {"aten::max_pool2d_with_indices_backward", "outside of the windows", "redistribute"});
  });
}

}  // namespace
}  // namespace intarsia

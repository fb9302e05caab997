// Ops that are composed here: ATen's ops on distributed tensors.
#include "tensor/formula/composed.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/lockstep.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::expect_whole;
using testing::values;
using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) {
  const Tensor all = has_layout(t) ? full(t.detach()) : t.detach();
  const Tensor flat = all.to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

struct Two {
  Lockstep lockstep{"[a=2]"};
  World& world = lockstep.world();
  Tensor in(const char* layout, const Tensor& full) const {
    return distribute(full, Layout::parse(layout, lockstep.mesh()), world);
  }
};

TEST(Composed, OpsAreKnownByNameWithoutOverload) {
  EXPECT_TRUE(is_composed({"aten::_native_multi_head_attention", ""}));
  EXPECT_TRUE(is_composed({"aten::_pack_padded_sequence", ""}));
  EXPECT_FALSE(is_composed({"aten::_native_multi_head_attention", "out"}));
  EXPECT_FALSE(is_composed({"aten::add", ""}));
  EXPECT_FALSE(is_composed({"aten::max_pool1d", ""})) << "ATen has no kernel for it either";
}

TEST(Composed, GradientsAreCheckedTogetherAndUnscaled) {
  const Two two;
  const Tensor a = two.in("S(0)", at::tensor({2.0f, 4.0f, 6.0f}));
  const Tensor b = two.in("S(0)", at::tensor({8.0f, 10.0f}));
  Tensor found = two.in("R", at::zeros({1}));
  const Tensor half = two.in("R", at::full({}, 0.5));
  const Budget budget(two.world);
  at::_amp_foreach_non_finite_check_and_unscale_({a, b}, found, half);
  budget.expect("1 P->R");
  EXPECT_EQ(numbers(a), (Numbers{1, 2, 3}));
  EXPECT_EQ(numbers(b), (Numbers{4, 5}));
  EXPECT_EQ(numbers(found), (Numbers{0}));
}

TEST(Composed, OneGradientThatIsNotFiniteIsEnough) {
  const Two two;
  const Tensor half = two.in("R", at::full({}, 0.5));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    const Tensor a = two.in("S(0)", at::tensor({2.0f, 4.0f}));
    const Tensor b = two.in("S(0)", at::tensor({8.0f, bad}));  // on one rank only
    Tensor found = two.in("R", at::zeros({1}));
    at::_amp_foreach_non_finite_check_and_unscale_({a, b}, found, half);
    EXPECT_EQ(numbers(found), (Numbers{1}));
    at::_amp_foreach_non_finite_check_and_unscale_({a}, found, half);
    EXPECT_EQ(numbers(found), (Numbers{1})) << "it stays found";
    EXPECT_EQ(numbers(a), (Numbers{0.5, 1}));
  }
}

/// The weights of one block with 4 features and 2 heads.
struct Block {
  Tensor qkv_weight = values({12, 4}, 1, at::kFloat);
  Tensor qkv_bias = values({12}, 2, at::kFloat);
  Tensor out_weight = values({4, 4}, 3, at::kFloat);
  Tensor out_bias = values({4}, 4, at::kFloat);

  std::tuple<Tensor, Tensor> attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const std::optional<Tensor>& mask, bool need_weights,
                                    bool average, std::optional<std::int64_t> type = {}) const {
    return at::_native_multi_head_attention(query, key, value, 4, 2, qkv_weight, qkv_bias,
                                            out_weight, out_bias, mask, need_weights, average,
                                            type);
  }
};

TEST(Composed, AttentionIsThatOfAten) {
  const Two two;
  const at::NoGradGuard guard;
  const Block block;
  const Tensor x = values({2, 3, 4}, 5, at::kFloat);
  for (const char* layout : {"S(0)", "S(1)", "S(2)"}) {
    for (const bool average : {false, true}) {
      const Tensor ours = two.in(layout, x);
      const auto [want, want_weights] = block.attend(x, x, x, {}, true, average);
      const auto [got, weights] = block.attend(ours, ours, ours, {}, true, average);
      expect_whole(got, want, layout, 1e-5);
      expect_whole(weights, want_weights, layout, 1e-5);
      expect_whole(std::get<0>(block.attend(ours, ours, ours, {}, false, average)), want, layout,
                   1e-5);
    }
  }
}

TEST(Composed, AttentionOfOneSequenceToAnother) {
  const Two two;
  const at::NoGradGuard guard;
  const Block block;
  const Tensor query = values({2, 3, 4}, 5, at::kFloat);
  const Tensor other = values({2, 3, 4}, 6, at::kFloat);
  const auto want = block.attend(query, other, other, {}, true, true);
  const auto got = block.attend(two.in("S(0)", query), two.in("S(0)", other), two.in("S(0)", other),
                                {}, true, true);
  expect_whole(std::get<0>(got), std::get<0>(want), "result", 1e-5);
  expect_whole(std::get<1>(got), std::get<1>(want), "weights", 1e-5);
}

TEST(Composed, MasksOfAttentionHideKeys) {
  const Two two;
  const at::NoGradGuard guard;
  const Block block;
  const Tensor x = two.in("S(0)", values({2, 3, 4}, 5, at::kFloat));
  const auto weights = [&](const Tensor& mask, std::int64_t type) {
    return std::get<1>(block.attend(x, x, x, mask, true, true, type));
  };
  // Key 2 is hidden from every query: once for all, and once for the second sequence only.
  const Tensor last = at::tensor({0, 0, 1}).to(at::kBool);
  const Tensor everywhere = full(weights(last.expand({3, 3}), 0));
  EXPECT_EQ(everywhere.select(2, 2).sum().item<double>(), 0);
  EXPECT_NEAR(everywhere.sum().item<double>(), 6, 1e-5);
  const Tensor second = at::stack({at::zeros_like(last), last});
  const Tensor somewhere = full(weights(second, 1));
  EXPECT_GT(somewhere.select(2, 2)[0].min().item<double>(), 0);
  EXPECT_EQ(somewhere.select(2, 2)[1].sum().item<double>(), 0);
}

TEST(Composed, EncoderLayersAreThoseOfAten) {
  const Two two;
  const at::NoGradGuard guard;
  const Block block;
  const Tensor x = values({2, 3, 4}, 5, at::kFloat);
  const Tensor scale = values({4}, 6, at::kFloat);
  const Tensor up = values({8, 4}, 7, at::kFloat);
  const Tensor down = values({4, 8}, 8, at::kFloat);
  for (const bool gelu : {false, true}) {
    for (const bool norm_first : {false, true}) {
      const auto layer = [&](const Tensor& src) {
        return at::_transformer_encoder_layer_fwd(src, 4, 2, block.qkv_weight, block.qkv_bias,
                                                  block.out_weight, block.out_bias, gelu,
                                                  norm_first, 1e-5, scale, scale + 1, scale + 2,
                                                  scale, up, at::ones({8}), down, at::ones({4}));
      };
      expect_whole(layer(two.in("S(0)", x)), layer(x), norm_first ? "norm first" : "norm last",
                   1e-4);
    }
  }
}

TEST(Composed, NestedTensorsAreRefused) {
  const Two two;
  const Tensor x = two.in("S(0)", at::ones({2, 3, 4}));
  expect_error<c10::NotImplementedError>(
      [&] {
        at::_nested_tensor_from_mask(x, at::ones({2, 3}).to(at::kBool));
      },
      {"[aten::_nested_tensor_from_mask]", "f32[2@a, 3, 4] on [a=2]; bool[2, 3] plain",
       "enable_nested_tensor=False"});
}

TEST(Composed, PoolsAreContiguousWhereAtensAre) {
  const Two two;
  const Tensor x = at::tensor({1.0, 5.0, 2.0, 4.0, 3.0, 6.0}).view({1, 1, 6});
  const Tensor got = at::max_pool1d(two.in("S(2)", x), {2}, {2});
  EXPECT_EQ(numbers(got), (Numbers{5, 4, 6}));
  EXPECT_TRUE(got.is_contiguous());
  const Tensor leaf = two.in("S(2)", x).set_requires_grad(true);
  at::max_pool1d(leaf, {2}, {2}).sum().backward();
  EXPECT_EQ(numbers(leaf.grad()), (Numbers{0, 1, 0, 1, 0, 1}));
}

TEST(Composed, LengthsOfPackedSequencesMayBeDistributed) {
  const Two two;
  const Tensor x = at::arange(6., at::kDouble).view({3, 2, 1});  // time, batch, features
  const Tensor lengths = at::tensor({3, 1}, at::kLong);
  const auto [data, sizes] =
      at::_pack_padded_sequence(two.in("S(2)", x), two.in("S(0)", lengths), false);
  EXPECT_EQ(numbers(data), (Numbers{0, 1, 2, 4}));  // the second sequence ends after one step
  EXPECT_TRUE(at::equal(sizes, at::tensor({2, 1, 1}, at::kLong)));
  const auto [padded, back] = at::_pad_packed_sequence(data, two.in("R", sizes), false, -1, 3);
  EXPECT_EQ(numbers(padded), (Numbers{0, 1, 2, -1, 4, -1}));
  EXPECT_TRUE(at::equal(back, lengths));
}

}  // namespace
}  // namespace intarsia

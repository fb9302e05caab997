// The formulas have no functions of their own to call: they are ATen's ops on distributed tensors.
#include "tensor/formula/autograd_formulas.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/lockstep.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::values;
using Numbers = std::vector<double>;

/// The numbers of a tensor, which may be distributed.
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
  Tensor integers(const char* layout, const std::vector<std::int64_t>& all) const {
    return in(layout, at::tensor(all, at::kLong));
  }
  Tensor leaf(const char* layout, const Tensor& full) const {
    return in(layout, full).set_requires_grad(true);
  }
};

/// The same call on a distributed and on a plain tensor, where it is ATen's own.
void expect_like_plain(const Tensor& x, const std::function<Tensor(const Tensor&)>& call,
                       const char* what) {
  const Tensor got = call(x);
  EXPECT_TRUE(has_layout(got)) << what;
  testing::expect_whole(got, call(full(x.detach())), what);
}

/// The same for the gradient of what it returns, where elements have different weights.
void expect_gradient_like_plain(const Two& two, const char* layout, const Tensor& value,
                                const std::function<Tensor(const Tensor&)>& call) {
  const auto gradient = [&](const Tensor& leaf) {
    const Tensor out = call(leaf);
    const Tensor weights = at::arange(1, out.numel() + 1, at::kDouble).view(out.sizes());
    (out * weights).sum().backward();
    return leaf.grad();
  };
  const Tensor want = gradient(value.clone().set_requires_grad(true));
  testing::expect_whole(gradient(two.leaf(layout, value)), want, layout);
}

TEST(AutogradFormulas, OneHotComparesWithEveryClass) {
  const Two two;
  const Tensor classes = two.integers("S(0)", {0, 2, 1});
  const Budget budget(two.world);
  const Tensor got = at::one_hot(classes, 3);
  EXPECT_EQ(numbers(locals(got)[1]), (Numbers{0, 1, 0}));
  budget.expect("");
  EXPECT_EQ(numbers(got), (Numbers{1, 0, 0, 0, 0, 1, 0, 1, 0}));
  EXPECT_EQ(at::one_hot(classes).sizes(), at::IntArrayRef({3, 3})) << "the largest tells";
  EXPECT_THROW(at::one_hot(two.in("S(0)", at::ones({2}))), c10::Error);
  EXPECT_THROW(at::one_hot(classes, 0), c10::Error);
  EXPECT_THROW(at::one_hot(two.integers("S(0)", {0, -1})), c10::Error);
  EXPECT_THROW(at::one_hot(two.integers("S(0)", {})), c10::Error);
  EXPECT_EQ(at::one_hot(two.integers("S(0)", {}), 3).sizes(), at::IntArrayRef({0, 3}));
}

TEST(AutogradFormulas, CountsAreAddedUpOfWhatEachRankHas) {
  const Two two;
  const Tensor x = two.integers("S(0)", {1, 3, 1});
  EXPECT_EQ(numbers(at::bincount(x)), (Numbers{0, 2, 0, 1}));
  EXPECT_EQ(numbers(at::bincount(x, {}, 6)), (Numbers{0, 2, 0, 1, 0, 0}));
  EXPECT_EQ(at::bincount(x).scalar_type(), at::kLong);
  const Tensor weights = two.in("S(0)", at::tensor({0.5, 2.0, 4.0}));
  EXPECT_EQ(numbers(at::bincount(x, weights)), (Numbers{0, 4.5, 0, 2}));
  EXPECT_EQ(at::bincount(x, weights.to(at::kFloat)).scalar_type(), at::kFloat);
  EXPECT_EQ(at::bincount(x, x).scalar_type(), at::kDouble);
  const Tensor none = two.integers("S(0)", {});
  EXPECT_EQ(numbers(at::bincount(none, {}, 2)), (Numbers{0, 0}));
  EXPECT_EQ(at::bincount(none, two.in("S(0)", at::ones({0})), 2).scalar_type(), at::kLong);
  expect_error<c10::Error>([&] { at::bincount(two.integers("S(0)", {1, -1})); }, {"non-negative"});
  expect_error<c10::Error>([&] { at::bincount(x, two.in("S(0)", at::ones({2}))); },
                           {"same length as input"});
}

TEST(AutogradFormulas, GradientsGoWhereValuesCameFrom) {
  const Two two;
  const Tensor x = at::tensor({1.0, 5.0, 2.0, 7.0, 3.0, 0.0}).view({2, 3});
  const Tensor most = two.leaf("S(1)", x);
  std::get<0>(most.max(1)).sum().backward();
  EXPECT_EQ(numbers(most.grad()), (Numbers{0, 1, 0, 1, 0, 0}));
  const Tensor running = two.leaf("S(1)", x);  // 1 5 5, 7 7 7
  std::get<0>(running.cummax(1)).sum().backward();
  EXPECT_EQ(numbers(running.grad()), (Numbers{1, 2, 0, 3, 0, 0}));
  const Tensor kept = two.leaf("S(0)", x);
  std::get<0>(kept.min(0, /*keepdim=*/true)).sum().backward();
  EXPECT_EQ(numbers(kept.grad()), (Numbers{1, 0, 0, 0, 1, 1}));
  const Tensor scalar = two.leaf("R", at::scalar_tensor(3.0));
  std::get<0>(scalar.max(0)).backward();
  EXPECT_EQ(numbers(scalar.grad()), (Numbers{1}));
  const Tensor matrix = two.leaf("S(0)", x);
  (matrix.trace() * 4).backward();
  EXPECT_EQ(numbers(matrix.grad()), (Numbers{4, 0, 0, 0, 4, 0}));
}

TEST(AutogradFormulas, PlacesToSplitMayBeDistributed) {
  const Two two;
  const Tensor x = two.in("S(0)", at::arange(5.));
  const auto parts = at::tensor_split(x, two.integers("S(0)", {1, 4}), 0);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(numbers(parts[0]), (Numbers{0}));
  EXPECT_EQ(numbers(parts[1]), (Numbers{1, 2, 3}));
  EXPECT_EQ(numbers(parts[2]), (Numbers{4}));
  const auto halves = at::tensor_split(x, at::scalar_tensor(2, at::kLong), 0);
  ASSERT_EQ(halves.size(), 2U);
  EXPECT_EQ(numbers(halves[0]), (Numbers{0, 1, 2}));
}

TEST(AutogradFormulas, LengthsOfCtcMayBeDistributed) {
  const Two two;
  const Tensor logs = values({6, 2, 4}, 1).log_softmax(2);
  const Tensor targets = at::tensor({1, 2, 3, 1}, at::kLong).view({2, 2});
  const Tensor lengths = at::tensor({6, 5}, at::kLong);
  const Tensor counts = at::tensor({2, 1}, at::kLong);
  const Tensor want = at::ctc_loss(logs, targets, lengths, counts);
  const Tensor got = at::ctc_loss(two.in("S(1)", logs), two.in("S(0)", targets),
                                  two.in("S(0)", lengths), two.in("R", counts));
  testing::expect_whole(got, want, "ctc_loss");
}

TEST(AutogradFormulas, RmsNormSendsANumberForEachRow) {
  const Two two;
  const Tensor x = two.leaf("S(1)", at::tensor({1.0, 7.0, 3.0, 4.0}).view({2, 2}));
  const Tensor y = at::rms_norm(x, {2}, {}, 0.0);  // means of squares: 25, 12.5
  EXPECT_NEAR(numbers(y)[1], 7 / 5.0, 1e-12);
  EXPECT_NEAR(numbers(y)[2], 3 / std::sqrt(12.5), 1e-12);
  const Bill sent = bill(two.world);
  ASSERT_GE(sent.entries.size(), 1U);
  EXPECT_EQ(sent.entries[0].tensor, "f64[2, 1] P(norm:2)@a") << sent.to_string();
}

TEST(AutogradFormulas, RmsNormHasTheGradientOfAten) {
  const Two two;
  const Tensor weight = values({2, 3}, 2);
  for (const char* layout : {"S(0)", "S(2)", "SS(2,2)", "R"}) {
    expect_gradient_like_plain(two, layout, values({4, 2, 3}, 1), [&](const Tensor& x) {
      return at::rms_norm(x, {2, 3}, weight, 1e-3);
    });
  }
  EXPECT_EQ(at::rms_norm(two.in("S(0)", at::ones({4, 2}, at::kHalf)), {2}).scalar_type(),
            at::kHalf);
}

TEST(AutogradFormulas, RmsNormRefusesSizesThatDoNotFit) {
  const Two two;
  const Tensor x = two.in("S(0)", at::ones({4, 3}));
  expect_error<c10::Error>([&] { at::rms_norm(x, {4}); },
                           {"sizes [4, 3] does not end in normalized_shape [4]"});
  expect_error<c10::Error>([&] { at::rms_norm(x, {2, 4, 3}); }, {"does not end in"});
  expect_error<c10::Error>([&] { at::rms_norm(x, {3}, at::ones({4})); },
                           {"weight has sizes [4] instead of [3]"});
}

TEST(AutogradFormulas, RotationsAreNoViews) {
  const Two two;
  const Tensor x = two.in("S(0)", at::arange(6.).view({2, 3}));
  EXPECT_EQ(numbers(at::rot90(x)), (Numbers{2, 5, 1, 4, 0, 3}));
  for (const std::int64_t k : {-1, 0, 1, 2, 3, 4}) {
    expect_like_plain(
        x,
        [&](const Tensor& t) {
          return at::rot90(t, k, {0, 1});
        },
        "rot90");
    EXPECT_FALSE(at::rot90(x, k, {0, 1}).is_view()) << k;
  }
  at::rot90(x, 0, {0, 1}).zero_();
  EXPECT_EQ(numbers(x), (Numbers{0, 1, 2, 3, 4, 5}));
}

TEST(AutogradFormulas, DifferencesAndDistances) {
  const Two two;
  const Tensor x = two.in("S(0)", at::tensor({1.0, 2.0, 3.0}));
  const Tensor y = two.in("R", at::tensor({4.0, 2.0, -1.0}));
  EXPECT_EQ(numbers(at::rsub(x, y, 2)), (Numbers{2, -2, -7}));
  EXPECT_EQ(numbers(at::dist(x, y, 2)), (Numbers{5}));
  EXPECT_EQ(numbers(at::dist(x, y, 1)), (Numbers{7}));
  EXPECT_TRUE(at::allclose(x, x + 1e-9));
  EXPECT_FALSE(at::allclose(x, two.in("S(0)", at::tensor({1.0, 2.0, 3.1}))));
  EXPECT_TRUE(at::allclose(x, two.in("S(0)", at::tensor({1.0, 2.0, 3.1})), 0, 0.2));
  const Tensor nan = two.in("S(0)", at::full({3}, NAN));
  EXPECT_FALSE(at::allclose(nan, nan));
  EXPECT_TRUE(at::allclose(nan, nan, 0, 0, /*equal_nan=*/true));
}

TEST(AutogradFormulas, RanksOfMatricesByTheirTolerances) {
  const Two two;
  const Tensor x = two.in("R", at::diag(at::tensor({4.0, 1.0, -0.01, 0.0})));
  const auto rank = [](const Tensor& t) { return t.item<std::int64_t>(); };
  EXPECT_EQ(rank(at::linalg_matrix_rank(x)), 3);
  EXPECT_EQ(rank(at::linalg_matrix_rank(x, 0.5)), 2);
  EXPECT_EQ(rank(at::linalg_matrix_rank(x, 0.5, /*hermitian=*/true)), 2);
  EXPECT_EQ(rank(at::linalg_matrix_rank(x, std::nullopt, 0.5)), 1) << "above half of the largest";
  EXPECT_EQ(rank(at::linalg_matrix_rank(x, std::optional(0.1), std::optional(0.5))), 1)
      << "above both";
  EXPECT_EQ(rank(at::linalg_matrix_rank(x, at::scalar_tensor(2.0))), 1);
}

TEST(AutogradFormulas, ExponentialsOfMatricesHaveTheGradientOfAten) {
  const Two two;
  for (const char* layout : {"S(0)", "S(1)", "R"}) {
    expect_gradient_like_plain(two, layout, values({3, 2, 2}, 1),
                               [](const Tensor& x) { return at::linalg_matrix_exp(x); });
  }
}

TEST(AutogradFormulas, LossesAreWrittenWhereAsked) {
  const Two two;
  const Tensor p = two.in("S(0)", at::tensor({0.5, 0.25}));
  const Tensor y = two.in("S(0)", at::tensor({1.0, 0.0}));
  Tensor out = two.in("R", at::zeros({}, at::kDouble));
  at::binary_cross_entropy_out(out, p, y);
  EXPECT_NEAR(numbers(out)[0], (std::log(2) + std::log(4 / 3.0)) / 2, 1e-12);
}

TEST(AutogradFormulas, CopiesOfViewsHaveMemoryOfTheirOwn) {
  const Two two;
  const Tensor x = two.in("S(0)", values({4, 1, 6}, 1));
  using Call = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<const char*, Call>> calls{
      {"alias", [](const Tensor& t) { return at::alias_copy(t); }},
      {"detach", [](const Tensor& t) { return at::detach_copy(t); }},
      {"diagonal", [](const Tensor& t) { return at::diagonal_copy(t, 1, 0, 2); }},
      {"expand",
       [](const Tensor& t) {
         return at::expand_copy(t, {4, 2, 6});
       }},
      {"narrow", [](const Tensor& t) { return at::narrow_copy(t, 0, 1, 2); }},
      {"permute",
       [](const Tensor& t) {
         return at::permute_copy(t, {2, 0, 1});
       }},
      {"select", [](const Tensor& t) { return at::select_copy(t, 2, 3); }},
      {"slice", [](const Tensor& t) { return at::slice_copy(t, 2, 1, 6, 2); }},
      {"split", [](const Tensor& t) { return at::split_copy(t, 4, 2)[1]; }},
      {"sizes",
       [](const Tensor& t) {
         return at::split_with_sizes_copy(t, {1, 5}, 2)[1];
       }},
      {"squeeze", [](const Tensor& t) { return at::squeeze_copy(t); }},
      {"squeeze.dim", [](const Tensor& t) { return at::squeeze_copy(t, 1); }},
      {"t", [](const Tensor& t) { return at::t_copy(t.select(1, 0)); }},
      {"transpose", [](const Tensor& t) { return at::transpose_copy(t, 0, 2); }},
      {"unbind", [](const Tensor& t) { return at::unbind_copy(t, 2)[5]; }},
      {"unfold", [](const Tensor& t) { return at::unfold_copy(t, 2, 2, 3); }},
      {"unsqueeze", [](const Tensor& t) { return at::unsqueeze_copy(t, 1); }},
      {"view",
       [](const Tensor& t) {
         return at::view_copy(t, {4, 3, 2});
       }},
      {"unsafe_split", [](const Tensor& t) { return at::unsafe_split(t, 4, 2)[1]; }},
      {"unsafe_sizes",
       [](const Tensor& t) {
         return at::unsafe_split_with_sizes(t, {1, 5}, 2)[1];
       }},
  };
  for (const auto& [name, call] : calls) {
    expect_like_plain(x, call, name);
    Tensor copy = call(x);
    EXPECT_TRUE(copy.is_contiguous()) << name;
    EXPECT_FALSE(copy.is_view()) << name;
    copy.zero_();
  }
  testing::expect_whole(x, values({4, 1, 6}, 1), "what was copied");
}

}  // namespace
}  // namespace intarsia

#include "tensor/move/bill.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// A book, and a plan of f32[5, 4] from S(0),P(sum) by way of S(0),R to R,R.
struct Books {
  Books() {
    const auto layout = [this](const char* text) { return Layout::parse(text, ranks.mesh()); };
    const Layout from = layout("S(0),P(sum)");
    const Layout half = layout("S(0),R");
    const Layout to = layout("R,R");
    spec = Spec(from, {5, 4}, at::kFloat);
    route =
        make_route(ranks.world(),
                   std::make_shared<Plan>(Plan{.from = from,
                                               .to = to,
                                               .shape = {5, 4},
                                               .element_size = 4,
                                               .steps = {{StepKind::all_reduce, {1}, from, half},
                                                         {StepKind::slice, {1}, half, half},
                                                         {StepKind::all_gather, {0}, half, to}}}));
  }

  /// As if each step had been one call of the backend.
  void charge(const Reason& reason) {
    book.announce(spec, *route, reason);
    const std::vector<LedgerTotals> sent{{1, 160}, {}, {1, 80}};
    book.charge(spec, *route, reason, sent);
  }

  Lockstep ranks{"[dp=2,tp=2]"};
  BillBook book;
  Spec spec;
  std::shared_ptr<const Route> route;
};

std::string transition(const char* before, const char* after, const AxisList& axes) {
  const Mesh mesh = Mesh::parse("[a=2,b=2]");
  return transition_text(
      {StepKind::all_to_all, axes, Layout::parse(before, mesh), Layout::parse(after, mesh)});
}

TEST(Bill, TransitionsNameWhatChangesAlongTheAxesOfAStep) {
  EXPECT_EQ(transition("S(0),R", "R,R", {0}), "S->R");
  EXPECT_EQ(transition("S(0),R", "S(1),R", {0}), "S->S");
  EXPECT_EQ(transition("P(sum),R", "R,R", {0}), "P->R");
  EXPECT_EQ(transition("P(max),R", "SS(0,2),R", {0}), "P->S");
  EXPECT_EQ(transition("S(0),P(sum)", "R,P(sum)", {0}), "S->R") << "b takes no part";
  EXPECT_EQ(transition("S(0),P(sum)", "R,S(0)", {0, 1}), "P->S");
}

TEST(Bill, EveryStepThatSendsIsAnEntry) {
  Books b;
  b.charge({.op = "aten::mm"});
  const auto entries = b.book.entries();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].op, "aten::mm");
  EXPECT_EQ(entries[0].tensor, b.spec.to_string());
  EXPECT_EQ(entries[0].axis, "tp");
  EXPECT_EQ(entries[0].transition, "P->R");
  EXPECT_EQ(entries[0].count, 1U);
  EXPECT_EQ(entries[0].bytes, 160U) << "what was sent, whatever the pieces are";
  EXPECT_EQ(entries[0].calls, 1U);
  EXPECT_TRUE(entries[0].implicit);
  EXPECT_FALSE(entries[0].backward);
  EXPECT_FALSE(entries[0].fallback);
  EXPECT_EQ(entries[1].bytes, 80U) << "of the step that sends, not of the slice before it";
  EXPECT_EQ(entries[1].axis, "dp");
  EXPECT_EQ(entries[1].transition, "S->R");
}

TEST(Bill, MovesOfOneKindAreCountedTogether) {
  Books b;
  b.charge({.op = "aten::mm"});
  b.charge({.op = "aten::mm"});
  EXPECT_EQ(b.book.entries().size(), 2U);
  EXPECT_EQ(b.book.entries()[0].count, 2U);
  EXPECT_EQ(b.book.entries()[0].bytes, 320U);
  EXPECT_EQ(b.book.entries()[0].calls, 2U);
  b.charge({.op = "aten::add"});
  b.charge({.op = "aten::mm", .implicit = false});
  b.charge({.op = "aten::mm", .fallback = true});
  {
    const ModuleScope scope("head");
    b.charge({.op = "aten::mm"});
  }
  EXPECT_EQ(b.book.entries().size(), 10U);
  EXPECT_EQ(b.book.entries()[8].module, "head");
  b.book.clear();
  EXPECT_TRUE(b.book.entries().empty());
  b.charge({.op = "aten::mm"});
  EXPECT_EQ(b.book.entries()[0].count, 1U);
}

TEST(Bill, WhatWentTogetherIsDividedByWeight) {
  const auto bytes = [](const LedgerTotals& together, const std::vector<std::uint64_t>& weights) {
    std::vector<std::uint64_t> out;
    std::uint64_t calls = 0;
    for (const LedgerTotals& share : divided(together, weights)) {
      out.push_back(share.bytes);
      calls += share.calls;
    }
    EXPECT_EQ(calls, weights.empty() ? 0U : together.calls);
    return out;
  };
  using Bytes = std::vector<std::uint64_t>;
  EXPECT_EQ(bytes({2, 100}, {1, 3}), (Bytes{25, 75}));
  EXPECT_EQ(bytes({1, 10}, {1, 1, 1}), (Bytes{3, 3, 4})) << "nothing is lost";
  EXPECT_EQ(bytes({1, 10}, {0, 0}), (Bytes{10, 0})) << "pieces without elements";
  EXPECT_EQ(bytes({1, 10}, {}), Bytes{});
  constexpr std::uint64_t kMany = std::uint64_t{1} << 60;
  EXPECT_EQ(bytes({1, kMany}, {kMany, kMany}), (Bytes{kMany / 2, kMany / 2}));
}

TEST(Bill, AnEntryIsTheSameWhateverItCounts) {
  const BillEntry one{.op = "o", .tensor = "t", .module = "m", .axis = "a", .transition = "S->R"};
  BillEntry other = one;
  other.count = 3;
  other.bytes = 4;
  EXPECT_TRUE(is_same_entry(one, other));
  for (std::string BillEntry::*text : {&BillEntry::op, &BillEntry::tensor, &BillEntry::module,
                                       &BillEntry::axis, &BillEntry::transition}) {
    other = one;
    other.*text = "x";
    EXPECT_FALSE(is_same_entry(one, other));
  }
  for (bool BillEntry::*flag : {&BillEntry::implicit, &BillEntry::backward, &BillEntry::fallback}) {
    other = one;
    other.*flag = !(one.*flag);
    EXPECT_FALSE(is_same_entry(one, other));
  }
}

TEST(Bill, HiddenMovesAreRefusedWhereTheModeSaysSo) {
  Books b;
  b.book.mode = Communication::explicit_only;
  expect_error<ValueError>(
      [&] { b.charge({.op = "aten::mm"}); },
      {"[aten::mm] moves " + b.spec.to_string() + " on [dp=2,tp=2] over tp (P->R, to run the op)",
       "redistribute(tensor, \"R,R\") before it", "mode explicit_only"});
  expect_error<ValueError>([&] { b.charge({.op = "aten::sort", .fallback = true}); },
                           {"[aten::sort]", "the op has no rule and runs on full tensors"});
  EXPECT_TRUE(b.book.entries().empty()) << "what is refused is not sent";
  b.charge({.op = "redistribute", .implicit = false});
  EXPECT_EQ(b.book.entries().size(), 2U);
  b.book.mode = Communication::warn;
  ::testing::internal::CaptureStderr();
  b.charge({.op = "aten::mm"});
  const std::string warned = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warned.find("[aten::mm] moves"), std::string::npos) << warned;
  EXPECT_EQ(b.book.entries().size(), 4U) << "it is sent";
}

TEST(Bill, TheOutermostFormulaCounts) {
  const Reason asked{.op = "aten::sum", .fallback = true};
  EXPECT_EQ(FormulaScope::outermost(asked).op, "aten::sum");
  EXPECT_TRUE(FormulaScope::outermost(asked).implicit);
  BillBook book;
  {
    const FormulaScope outer("aten::softmax");
    {
      const FormulaScope inner("aten::exp");
      EXPECT_EQ(FormulaScope::outermost(asked).op, "aten::softmax");
    }
    const Reason reason = FormulaScope::outermost(asked);
    EXPECT_EQ(reason.op, "aten::softmax");
    EXPECT_FALSE(reason.implicit);
    EXPECT_TRUE(reason.fallback);
    book.charge_own("aten::max", "t", "a", "P->R", {1, 8});
    std::thread([&] { EXPECT_EQ(FormulaScope::outermost(asked).op, "aten::sum"); }).join();
  }
  EXPECT_EQ(FormulaScope::outermost(asked).op, "aten::sum");
  book.charge_own("aten::max", "t", "a", "P->R", {1, 8});
  EXPECT_EQ(book.entries()[0].op, "aten::softmax");
  EXPECT_EQ(book.entries()[1].op, "aten::max");
}

TEST(Bill, ModulePathsNest) {
  EXPECT_EQ(module_path(), "");
  {
    const ModuleScope outer("encoder");
    {
      const ModuleScope inner("layer0");
      EXPECT_EQ(module_path(), "encoder.layer0");
    }
    EXPECT_EQ(module_path(), "encoder");
  }
  EXPECT_EQ(module_path(), "");
}

struct ChargesInBackward : torch::autograd::Function<ChargesInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            std::int64_t books) {
    ctx->saved_data["books"] = books;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    auto& b = *reinterpret_cast<Books*>(ctx->saved_data["books"].toInt());
    b.charge({.op = "aten::mm"});
    b.book.charge_own("halo", "t", "a", "S->S", {1, 1});
    b.book.charge_own("halo", "t", "a", "S->S", {1, 1}, false);
    return {grads[0], at::Tensor()};
  }
};

TEST(Bill, KnowsWhatABackwardSends) {
  Books b;
  const at::Tensor x = at::ones({2}).set_requires_grad(true);
  ChargesInBackward::apply(x, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&b)))
      .sum()
      .backward();
  const auto entries = b.book.entries();
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_TRUE(entries[0].backward);
  EXPECT_TRUE(entries[1].backward);
  EXPECT_TRUE(entries[2].backward);
  EXPECT_FALSE(entries[3].backward) << "the caller knows better";
  EXPECT_FALSE(entries[2].implicit);
}

TEST(Bill, After2048EntriesTheRestIsCountedByTransition) {
  BillBook book;
  for (int i = 0; i < 2048; ++i) {
    book.charge_own("op", "t" + std::to_string(i), "a", "S->R", {1, 1});
  }
  ASSERT_EQ(book.entries().size(), 2048U);
  EXPECT_EQ(book.entries().back().tensor, "t2047");
  const ModuleScope scope("head");
  book.charge_own("op", "new", "a", "S->R", {1, 10});
  book.charge_own("another", "newer", "a", "S->R", {2, 20});
  book.charge_own("op", "new", "a", "P->R", {1, 40});
  auto entries = book.entries();
  ASSERT_EQ(entries.size(), 2050U);
  EXPECT_EQ(entries[2048].op, "(others)");
  EXPECT_EQ(entries[2048].tensor, "");
  EXPECT_EQ(entries[2048].module, "");
  EXPECT_EQ(entries[2048].count, 2U);
  EXPECT_EQ(entries[2048].bytes, 30U);
  EXPECT_EQ(entries[2048].calls, 3U);
  EXPECT_EQ(entries[2049].transition, "P->R");
}

TEST(Bill, After2048EntriesThoseThatAreKnownGoOn) {
  BillBook book;
  for (int i = 0; i < 2050; ++i) book.charge_own("op", std::to_string(i), "a", "S->R", {1, 1});
  book.charge_own("op", "7", "a", "S->R", {1, 5});
  ASSERT_EQ(book.entries().size(), 2049U);
  EXPECT_EQ(book.entries()[7].count, 2U);
  EXPECT_EQ(book.entries()[7].bytes, 6U);
  EXPECT_EQ(book.entries()[2048].count, 2U);
}

}  // namespace
}  // namespace intarsia

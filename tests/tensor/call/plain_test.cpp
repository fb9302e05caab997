#include "tensor/call/plain.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"
#include "tensor/call/frame.h"
#include "tensor/move/agreement.h"
#include "tensor/move/state.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::on_mesh;
using torch::jit::Stack;

Tensor rows(World& world, const Mesh& mesh) {
  return zeros({4, 3}, Layout::parse("S(0)", mesh), world);
}

/// Notes the plain operand of `x + plain`.
void note_beside(const Tensor& x, const Tensor& plain) {
  static const OpInfo add(c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor"));
  Stack stack{x, plain, 1};
  const Frame f(add, stack);
  note_plain(f, 1);
}

/// Notes the plain first operand of an op, and says how many entries that made.
std::uint64_t noted(const char* op, const char* overload, Stack stack, std::size_t operand) {
  const OpInfo info(c10::Dispatcher::singleton().findSchemaOrThrow(op, overload));
  const Frame f(info, stack);
  const std::uint64_t before = f.state().plain_log.count();
  note_plain(f, operand);
  return f.state().plain_log.count() - before;
}

TEST(Plain, OperandsAreRecorded) {
  const Lockstep lockstep("[a=2]");
  const Tensor x = rows(lockstep.world(), lockstep.mesh());
  const Tensor plain = at::ones({3}, at::kDouble);
  EXPECT_EQ(plain_tensors(lockstep.world()), PlainTensors::recorded);
  note_beside(x, plain);
  const PlainLog& log = TensorState::of(lockstep.world()).plain_log;
  ASSERT_EQ(log.count(), 1U);
  EXPECT_EQ(log.entry(0).op, "aten::add.Tensor");
  EXPECT_EQ(log.entry(0).tensor, "f64[3] plain");
  EXPECT_EQ(log.entry(0).hash, content_hash(plain));
  Tensor number = at::ones({});
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  note_beside(x, number);
  EXPECT_EQ(log.count(), 1U) << "numbers in code are alike";
}

TEST(Plain, WhatIsOverwrittenMayDiffer) {
  const Lockstep lockstep("[a=2]");
  const Tensor x = rows(lockstep.world(), lockstep.mesh());
  const Tensor plain = at::ones({4, 3});
  EXPECT_EQ(noted("aten::copy_", "", {plain, x, false}, 0), 0U);
  EXPECT_EQ(noted("aten::copy_", "", {x, plain, false}, 1), 1U);
  EXPECT_EQ(noted("aten::add_", "Tensor", {plain, x, 1}, 0), 1U) << "it is read too";
  EXPECT_EQ(noted("aten::add", "out", {x, x, 1, plain}, 2), 0U);
}

TEST(Plain, AreRefusedWhereTheModeSaysSo) {
  const Lockstep lockstep("[a=2]");
  const Tensor x = rows(lockstep.world(), lockstep.mesh());
  set_plain_tensors(lockstep.world(), PlainTensors::refused);
  EXPECT_EQ(plain_tensors(lockstep.world()), PlainTensors::refused);
  expect_error<ValueError>(
      [&] { note_beside(x, at::zeros({3})); },
      {"[aten::add.Tensor]", "a plain tensor, f32[3] plain, is beside distributed ones",
       "distribute it, or allow plain tensors"});
  note_beside(x, at::ones({1}));
  note_beside(x, at::ones({0}));
}

TEST(Plain, ZerosThatAutogradFillsInAreNotRefused) {
  const Lockstep lockstep("[a=2]");
  const Tensor x = rows(lockstep.world(), lockstep.mesh());
  set_plain_tensors(lockstep.world(), PlainTensors::refused);
  const Tensor leaf = at::ones({2}).set_requires_grad(true);
  bool ran = false;
  leaf.register_hook([&](const Tensor&) {
    note_beside(x, at::zeros({3}));
    note_beside(x, at::_efficientzerotensor({3}));
    expect_error<ValueError>([&] { note_beside(x, at::tensor({0.0, 1.0})); }, {"f64[2] plain"});
    ran = true;
  });
  leaf.sum().backward();
  EXPECT_TRUE(ran);
}

TEST(Plain, NothingIsRecordedInASimulatedWorld) {
  const auto world = simulate({.size = 2});
  const Tensor x = rows(*world, Mesh::parse("[a=2]"));
  note_beside(x, at::ones({3}));
  EXPECT_EQ(TensorState::of(*world).plain_log.count(), 0U);
  set_plain_tensors(*world, PlainTensors::refused);
  EXPECT_THROW(note_beside(x, at::ones({3})), ValueError);
  world->close();
}

TEST(Plain, CheckedOnesAreComparedAtOnce) {
  const Mesh mesh = Mesh::parse("[a=3]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = rows(world, mesh);
    set_plain_tensors(world, PlainTensors::checked);
    note_beside(x, at::ones({3}));
    EXPECT_EQ(world.ledger().totals().calls, 1U);
    const Tensor differs = at::full({3}, world.rank() == 1 ? 2.0 : 1.0);
    expect_error<WorldError>([&] { note_beside(x, differs); },
                             {"[aten::add.Tensor]",
                              "the plain tensor f32[3] plain differs on "
                              "ranks 1 from that of rank 0"});
  });
}

TEST(Plain, ACheckNamesTheFirstThatDiffersAndBeginsAnew) {
  on_mesh(Mesh::parse("[a=3]"), [](World& world) {
    PlainLog& log = TensorState::of(world).plain_log;
    const auto mine = static_cast<std::uint64_t>(world.rank());
    log.add({"aten::first", "f32[1] plain", 5});
    log.add({"aten::second", "f32[2] plain", mine == 0 ? 6U : 7U});
    log.add({"aten::third", "f32[3] plain", mine});
    expect_error<WorldError>([&] { check_plain_tensors(world); },
                             {"[aten::second] the plain tensor f32[2] plain differs on ranks 1,2"});
    check_plain_tensors(world);
    log.add({"aten::first", "f32[1] plain", 5});
    check_plain_tensors(world);
    EXPECT_EQ(log.count(), 0U);
  });
}

TEST(Plain, RanksThatWereGivenMoreAreNamed) {
  on_mesh(Mesh::parse("[a=2]"), [](World& world) {
    PlainLog& log = TensorState::of(world).plain_log;
    log.add({"aten::first", "f32[1] plain", 5});
    if (world.rank() == 1) log.add({"aten::second", "f32[2] plain", 6});
    expect_error<WorldError>(
        [&] { check_plain_tensors(world); },
        {"ranks 1 were given another number of plain tensors than rank 0", "from 1 to 2",
         "all ranks must run the same ops",
         world.rank() == 1 ? "lack here is f32[2] plain of aten::second" : ""});
  });
}

TEST(Plain, ADifferenceThatIsNoLongerKnownIsStillFound) {
  on_mesh(Mesh::parse("[a=2]"), [](World& world) {
    PlainLog& log = TensorState::of(world).plain_log;
    log.add({"aten::first", "f32[1] plain", static_cast<std::uint64_t>(world.rank())});
    for (std::size_t i = 0; i < PlainLog::kEntries; ++i) log.add({"aten::add", "f32[]", 9});
    expect_error<WorldError>([&] { check_plain_tensors(world); },
                             {"[check_plain_tensors] ranks 1 were given other plain tensors",
                              "more than 256 calls ago"});
  });
}

TEST(Plain, OfSeveralThatAreStillKnownTheOldestIsNamed) {
  on_mesh(Mesh::parse("[a=2]"), [](World& world) {
    PlainLog& log = TensorState::of(world).plain_log;
    const auto mine = static_cast<std::uint64_t>(world.rank());
    for (std::uint64_t i = 0; i < 258; ++i) {  // the last 256 are known
      const bool differs = i == 0 || i == 5 || i == 256;
      log.add({"aten::add", "number " + std::to_string(i), differs ? mine : 9U});
    }
    expect_error<WorldError>([&] { check_plain_tensors(world); }, {"the plain tensor number 5 "});
  });
}

}  // namespace
}  // namespace intarsia

// What stages may be: with weights of others, sharded, random, with losses of their own, failing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/pipeline.h"
#include "intarsia/tensor.h"
#include "pipeline/run/chain.h"

namespace intarsia {
namespace {

using testing::expect_error;

const ScheduleKind kSplit = ScheduleKind::zb_h1;

/// Runs on the ranks of a mesh as threads, and in lockstep.
void everywhere(const Mesh& mesh,
                const std::function<void(World&, const std::vector<Mesh>&)>& body) {
  const std::vector<Mesh> places = pipeline_places(mesh, "pp");
  run_in_process(static_cast<int>(mesh.size()), [&](World& world) { body(world, places); });
  body(*lockstep_world(mesh.size()), places);
}

bool hosts(const World& world, const Mesh& mesh) {
  return std::ranges::any_of(world.hosted(), [&](auto rank) { return mesh.contains(rank); });
}

at::Tensor value(at::IntArrayRef sizes, double scale = 0.1) {
  std::int64_t count = 1;
  for (const std::int64_t s : sizes) count *= s;
  return (at::arange(count, at::kDouble).view(sizes) * 0.7).sin() * scale;
}

at::Tensor leaf(World& world, const Mesh& mesh, const at::Tensor& full) {
  return distribute(full, Layout::replicated(mesh), world).requires_grad_();
}

std::vector<StageTensors> rows(int microbatches, std::int64_t each = 2) {
  std::vector<StageTensors> out;
  for (int i = 0; i < microbatches; ++i) out.push_back({value({each, 4}, 1) + 0.1 * i});
  return out;
}

at::Tensor square(const StageTensors& out, const StageCall& /*call*/) {
  return out[0].square().mean();
}

/// Where a tensor lives here, it is this one.
void expect_here(const World& world, const at::Tensor& got, const at::Tensor& want,
                 const char* what) {
  if (!hosts(world, layout_of(got).mesh())) return;
  EXPECT_TRUE(at::allclose(full(got.detach()), want, 1e-12, 1e-12)) << what;
}

TEST(Stages, AWeightMayBelongToAnotherStage) {
  everywhere(Mesh::parse("[pp=2,dp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const at::Tensor table = value({4, 4}, 0.5);
    const at::Tensor middle = value({4, 4}, 0.3);
    const auto batches = rows(3);

    const at::Tensor plain = table.clone().requires_grad_();
    const at::Tensor plain_middle = middle.clone().requires_grad_();
    double loss = 0;
    for (const StageTensors& b : batches) {
      const at::Tensor y = at::mm(at::mm(at::mm(b[0], plain), plain_middle).tanh(), plain.t());
      const at::Tensor one = y.square().mean() / 3;
      one.backward();
      loss += one.item<double>();
    }

    for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, kSplit}) {
      const at::Tensor owner = leaf(world, places[0], table);
      const at::Tensor hidden = leaf(world, places[1], middle);
      const at::Tensor copy = leaf(world, places[1], at::zeros_like(table));
      const Layout by_rows = Layout::parse("S(0)", places[0]);
      Pipeline pipeline(world, places, kind,
                        {{.forward = [&](StageCall& call) -> StageTensors {
                            return {at::mm(distribute(call.batch[0], by_rows, world), owner)};
                          },
                          .parameters = {{"table", owner}}},
                         {.forward = [&](StageCall& call) -> StageTensors {
                            const at::Tensor h = at::mm(call.inputs[0], hidden).tanh();
                            return {at::mm(h, copy.t())};
                          },
                          .parameters = {{"middle", hidden}},
                          .shared = {{owner, copy}}}},
                        {.loss = square});
      for (int step = 1; step <= 2; ++step) {
        EXPECT_NEAR(pipeline.step(batches).loss, loss, 1e-12);
        expect_here(world, owner.grad(), plain.grad() * step, "owner");
        expect_here(world, hidden.grad(), plain_middle.grad() * step, "middle");
        EXPECT_FALSE(copy.grad().defined());
        expect_here(world, copy, table, "copy");
      }
    }
  });
}

TEST(Stages, ParametersMayBeFullySharded) {
  everywhere(Mesh::parse("[pp=2,dp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const std::vector<at::Tensor> values{value({5, 4}, 0.5), value({4, 5}, 0.4), value({3, 4}, 0.5),
                                         value({4, 3}, 0.6)};
    const auto batches = rows(4);
    std::vector<at::Tensor> plain;
    for (const at::Tensor& v : values) plain.push_back(v.clone().requires_grad_());
    for (const StageTensors& b : batches) {
      at::Tensor x = b[0];
      for (const at::Tensor& w : plain) x = at::linear(x, w).tanh();
      (x.square().mean() / 4).backward();
    }
    for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, kSplit, ScheduleKind::gpipe}) {
      for (const int most : {0, 1}) {
        std::vector<PipelineStage> stages;
        std::vector<std::vector<at::Tensor>> weights(2);
        for (std::size_t s = 0; s < 2; ++s) {
          std::vector<ParameterGroup> groups;
          for (std::size_t i = 0; i < 2; ++i) {
            weights[s].push_back(leaf(world, places[s], values[2 * s + i]));
            const std::string name = "w" + std::to_string(2 * s + i);
            groups.push_back({name, {{name, weights[s][i]}}});
          }
          PipelineStage stage;
          if (hosts(world, places[s])) {
            stage.sharding = fully_shard(std::move(groups), {.shard = {"dp"}});
          }
          stage.parameters = {{"a", weights[s][0]}, {"b", weights[s][1]}};
          stage.forward = [&, s](StageCall& call) -> StageTensors {
            at::Tensor x = s == 0
                               ? distribute(call.batch[0], Layout::parse("S(0)", places[0]), world)
                               : call.inputs[0];
            for (const at::Tensor& w : weights[s]) x = at::linear(x, w).tanh();
            return {x};
          };
          stages.push_back(stage);
        }
        Pipeline pipeline(world, places, kind, stages, {.loss = square, .most_gathered = most});
        for (int step = 1; step <= 2; ++step) {
          clear_bill(world);
          pipeline.step(batches);
          // One gather and one reduction for each group in a step, however many microbatches.
          std::uint64_t gathers = 0;
          std::uint64_t reductions = 0;
          for (const BillEntry& e : bill(world).entries) {
            if (e.op != "fully_shard") continue;
            (e.transition == "S->R" ? gathers : reductions) += e.count;
          }
          const std::uint64_t here = world.in_lockstep() ? 4 : 2;
          EXPECT_EQ(gathers, here);
          EXPECT_EQ(reductions, here);
          for (std::size_t s = 0; s < 2; ++s) {
            for (std::size_t i = 0; i < 2; ++i) {
              expect_here(world, weights[s][i].grad(), plain[2 * s + i].grad() * step, "weight");
            }
            if (stages[s].sharding) EXPECT_EQ(stages[s].sharding->gathered(), 0U);
          }
        }
        pipeline.evaluate(batches);
        pipeline.step(batches);
        expect_here(world, weights[0][0].grad(), plain[0].grad() * 3, "after an evaluation");
      }
    }
  });
}

TEST(Stages, RandomNumbersDoNotDependOnHowTheModelIsDivided) {
  std::vector<at::Tensor> seen;
  std::mutex mutex;
  for (const int count : {1, 2, 4}) {
    for (const bool again : {false, true}) {
      everywhere(Mesh({{"pp", count}}), [&](World& world, const std::vector<Mesh>& places) {
        constexpr int kLayers = 4;
        std::vector<PipelineStage> stages;
        std::vector<at::Tensor> weights;
        for (int l = 0; l < kLayers; ++l) {
          const auto place = static_cast<std::size_t>(l * count / kLayers);
          weights.push_back(leaf(world, places[place], value({4, 4}, 0.2 * (l + 1))));
        }
        for (int s = 0; s < count; ++s) {
          stages.push_back({.forward = [&, s](StageCall& call) -> StageTensors {
            at::Tensor x = s == 0 ? distribute(call.batch[0], Layout::replicated(places[0]), world)
                                  : call.inputs[0];
            for (int l = s * kLayers / count; l < (s + 1) * kLayers / count; ++l) {
              const auto part = call.part(l);
              x = at::dropout(at::mm(x, weights[static_cast<std::size_t>(l)]), 0.4, call.trains);
            }
            return {x};
          }});
          for (int l = s * kLayers / count; l < (s + 1) * kLayers / count; ++l) {
            stages.back().parameters.emplace_back(std::to_string(l),
                                                  weights[static_cast<std::size_t>(l)]);
          }
        }
        at::manual_seed(3);
        // Threads have generators of their own, which no seed reaches: they begin alike.
        Pipeline pipeline(world, places, ScheduleKind::one_f_one_b, stages,
                          {.loss = square, .recompute = again});
        const double first = pipeline.step(rows(4)).loss;
        const double second = pipeline.step(rows(4)).loss;
        EXPECT_NE(first, second);
        if (!world.in_lockstep()) return;
        const std::scoped_lock lock(mutex);
        at::Tensor all = at::tensor({first, second}, at::kDouble);
        for (const at::Tensor& w : weights) all = at::cat({all, full(w.grad()).flatten()});
        seen.push_back(all);
      });
    }
  }
  for (const at::Tensor& one : seen) EXPECT_TRUE(at::allclose(one, seen[0], 1e-12, 1e-12));
}

TEST(Stages, SeveralTensorsPassAndSomeAreNotThere) {
  everywhere(Mesh::parse("[pp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const at::Tensor w = leaf(world, places[0], value({4, 4}));
    const at::Tensor v = leaf(world, places[1], value({4, 4}));
    const at::Tensor plain_w = value({4, 4}).requires_grad_();
    const at::Tensor plain_v = value({4, 4}).requires_grad_();
    const auto batches = rows(3);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const at::Tensor h = at::mm(batches[i][0], plain_w);
      const at::Tensor y = i == 1 ? at::mm(batches[i][0], plain_v) : at::mm(h * 2, plain_v);
      (y.square().mean() / 3).backward();
    }
    Pipeline pipeline(world, places, kSplit,
                      {{.forward = [&](StageCall& call) -> StageTensors {
                          const at::Tensor x =
                              distribute(call.batch[0], Layout::replicated(places[0]), world);
                          const at::Tensor number = at::tensor({call.microbatch}, at::kLong);
                          return {at::mm(x, w), at::Tensor(), number, x};
                        },
                        .parameters = {{"w", w}}},
                       {.forward = [&](StageCall& call) -> StageTensors {
                          EXPECT_FALSE(call.inputs[1].defined());
                          EXPECT_EQ(call.inputs[2].item<std::int64_t>(), call.microbatch);
                          // Of one microbatch nothing comes back for the first.
                          if (call.microbatch == 1) return {at::mm(call.inputs[3], v)};
                          return {at::mm(call.inputs[0] * 2, v)};
                        },
                        .parameters = {{"v", v}}}},
                      {.loss = square});
    pipeline.step(batches);
    expect_here(world, w.grad(), plain_w.grad(), "w");
    expect_here(world, v.grad(), plain_v.grad(), "v");
  });
}

TEST(Stages, AGradientThatNobodyHasStaysUndefined) {
  everywhere(Mesh::parse("[pp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const at::Tensor used = leaf(world, places[0], value({4, 4}));
    const at::Tensor unused = leaf(world, places[0], value({4, 4}));
    const at::Tensor frozen = leaf(world, places[1], value({4, 4})).requires_grad_(false);
    Pipeline pipeline(
        world, places, ScheduleKind::one_f_one_b,
        {{.forward = [&](StageCall& call) -> StageTensors {
            return {at::mm(distribute(call.batch[0], Layout::replicated(places[0]), world), used)};
          },
          .parameters = {{"used", used}, {"unused", unused}}},
         {.forward = [&](StageCall& call) -> StageTensors {
            return {at::mm(call.inputs[0], frozen)};
          },
          .parameters = {{"frozen", frozen}}}},
        {.loss = square});
    pipeline.step(rows(2));
    EXPECT_TRUE(used.grad().defined());  // on ranks of the other place without pieces
    EXPECT_FALSE(unused.grad().defined());
    EXPECT_FALSE(frozen.grad().defined());
  });
}

TEST(Stages, StagesMayWriteToWhatTheyGet) {
  everywhere(Mesh::parse("[pp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const at::Tensor w = leaf(world, places[0], value({4, 4}));
    const at::Tensor plain = value({4, 4}).requires_grad_();
    const auto batches = rows(2);
    for (const StageTensors& b : batches) {
      (at::mm(b[0], plain).relu().square().mean() / 2).backward();
    }
    for (const bool again : {false, true}) {
      w.mutable_grad().reset();
      Pipeline pipeline(
          world, places, ScheduleKind::one_f_one_b,
          {{.forward = [&](StageCall& call) -> StageTensors {
              return {at::mm(distribute(call.batch[0], Layout::replicated(places[0]), world), w)};
            },
            .parameters = {{"w", w}}},
           {.forward = [&](StageCall& call) -> StageTensors { return {call.inputs[0].relu_()}; }}},
          {.loss = square, .recompute = again});
      pipeline.step(batches);
      expect_here(world, w.grad(), plain.grad(), "w");
    }
  });
}

TEST(Stages, AnyStageMayHaveALoss) {
  everywhere(Mesh::parse("[pp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const at::Tensor w = leaf(world, places[0], value({4, 4}));
    const at::Tensor plain = value({4, 4}).requires_grad_();
    const auto batches = rows(3);
    double loss = 0;
    for (const StageTensors& b : batches) {
      const at::Tensor h = at::mm(b[0], plain);
      const at::Tensor one = (h.square().mean() + h.abs().sum() * 0.01) / 3;
      one.backward();
      loss += one.item<double>();
    }
    Pipeline pipeline(world, places, kSplit,
                      {{.forward = [&](StageCall& call) -> StageTensors {
                          const at::Tensor h = at::mm(
                              distribute(call.batch[0], Layout::replicated(places[0]), world), w);
                          call.add_loss(h.abs().sum() * 0.01);
                          return {h};
                        },
                        .parameters = {{"w", w}}},
                       {.forward = [&](StageCall& call) -> StageTensors { return call.inputs; }}},
                      {.loss = square});
    EXPECT_NEAR(pipeline.step(batches).loss, loss, 1e-12);
    expect_here(world, w.grad(), plain.grad(), "w");
  });
}

TEST(Stages, MicrobatchesCountByTheirWeights) {
  everywhere(Mesh::parse("[pp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const at::Tensor w = leaf(world, places[0], value({4, 4}));
    const std::vector<double> weights{3, 0, 1};
    const auto batches = rows(3);
    const at::Tensor plain = value({4, 4}).requires_grad_();
    double loss = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor one = at::mm(batches[i][0], plain).square().mean() * (weights[i] / 4);
      one.backward();
      loss += one.item<double>();
    }
    int asked = 0;
    Pipeline pipeline(
        world, places, ScheduleKind::one_f_one_b,
        {{.forward = [&](StageCall& call) -> StageTensors {
            return {at::mm(distribute(call.batch[0], Layout::replicated(places[0]), world), w)};
          },
          .parameters = {{"w", w}}},
         {.forward = [&](StageCall& call) -> StageTensors { return call.inputs; }}},
        {.loss =
             [&](const StageTensors& out, const StageCall& call) {
               const at::Tensor one = out[0].square().mean();
               return call.microbatch == 1 ? one * std::nan("") : one;  // which counts nothing
             },
         .weight =
             [&](const StageTensors&) { return weights[static_cast<std::size_t>(asked++ % 3)]; }});
    const PipelineResult result = pipeline.step(batches);
    EXPECT_NEAR(result.loss, loss, 1e-12);
    EXPECT_TRUE(std::isnan(result.losses[1]));
    expect_here(world, w.grad(), plain.grad(), "w");
  });
}

TEST(Stages, AnEvaluationGivesWhatTheLastStageGave) {
  everywhere(Mesh::parse("[pp=2]"), [](World& world, const std::vector<Mesh>& places) {
    const at::Tensor w = leaf(world, places[0], value({4, 4}));
    Pipeline pipeline(
        world, places, kSplit,
        {{.forward = [&](StageCall& call) -> StageTensors {
            EXPECT_FALSE(call.trains);
            return {at::mm(distribute(call.batch[0], Layout::replicated(places[0]), world), w)};
          },
          .parameters = {{"w", w}}},
         {.forward = [&](StageCall& call) -> StageTensors { return {call.inputs[0].relu()}; }}},
        {});
    const auto batches = rows(3);
    const PipelineResult result = pipeline.evaluate(batches);
    EXPECT_EQ(result.outputs.size(), hosts(world, places[1]) ? 3U : 0U);
    for (std::size_t i = 0; i < result.outputs.size(); ++i) {
      EXPECT_FALSE(result.outputs[i][0].requires_grad());
      expect_here(world, result.outputs[i][0], at::mm(batches[i][0], value({4, 4})).relu(),
                  "output");
    }
    expect_error<ValueError>([&] { pipeline.step(batches); }, {"a step needs a loss"});
  });
}

TEST(Stages, PlacesMayHaveOtherSizes) {
  run_in_process(3, [](World& world) {
    const std::vector<Mesh> places{Mesh::parse("[tp=2]"), Mesh::parse("[tp=1]+2")};
    const at::Tensor w =
        distribute(value({4, 4}), Layout::parse("S(1)", places[0]), world).requires_grad_();
    const at::Tensor v = leaf(world, places[1], value({4, 4}, 0.4));
    const at::Tensor plain_w = value({4, 4}).requires_grad_();
    const at::Tensor plain_v = value({4, 4}, 0.4).requires_grad_();
    const auto batches = rows(4);
    double loss = 0;
    for (const StageTensors& b : batches) {
      const at::Tensor one = at::mm(at::mm(b[0], plain_w).tanh(), plain_v).square().mean() / 4;
      one.backward();
      loss += one.item<double>();
    }
    Pipeline pipeline(
        world, places, kSplit,
        {{.forward = [&](StageCall& call) -> StageTensors {
            return {
                at::mm(distribute(call.batch[0], Layout::parse("R", places[0]), world), w).tanh()};
          },
          .parameters = {{"w", w}}},
         {.forward = [&](StageCall& call) -> StageTensors { return {at::mm(call.inputs[0], v)}; },
          .parameters = {{"v", v}}}},
        {.loss = square});
    for (int step = 1; step <= 2; ++step) {
      EXPECT_NEAR(pipeline.step(batches).loss, loss, 1e-12);
      expect_here(world, w.grad(), plain_w.grad() * step, "w");
      expect_here(world, v.grad(), plain_v.grad() * step, "v");
    }
  });
}

// ---- mistakes
// ------------------------------------------------------------------------------------

/// Two stages without weights.
std::vector<PipelineStage> two(const std::function<void(StageCall&)>& first = {},
                               const std::function<void(StageCall&)>& second = {}) {
  return {{.forward = [first](StageCall& call) -> StageTensors {
            if (first) first(call);
            return {call.batch[0].clone().requires_grad_(call.trains)};
          }},
          {.forward = [second](StageCall& call) -> StageTensors {
            if (second) second(call);
            return {call.inputs[0] * 2};
          }}};
}

TEST(Stages, RanksThatAreAtOtherPlacesAreNamed) {
  run_in_process(2, [](World& world) {
    Pipeline pipeline(world, pipeline_places(Mesh::parse("[pp=2]"), "pp"),
                      ScheduleKind::one_f_one_b, two(), {.loss = square});
    expect_error<ValueError>(
        [&] {
          if (world.rank() == 0) {
            pipeline.step(rows(2));
          } else {
            pipeline.evaluate(rows(2));
          }
        },
        {"[Pipeline] ranks are not at the same place", "evaluate #0 with 2 microbatches",
         "step #0 with 2 microbatches"});
    pipeline.step(rows(2));  // nothing was begun
  });
}

TEST(Stages, AStageThatThrowsEndsTheStepOnAllRanks) {
  run_in_process(
      3,
      [](World& world) {
        const auto places = pipeline_places(Mesh::parse("[pp=3]"), "pp");
        auto stages = two({}, [](StageCall& call) {
          if (call.microbatch == 1) throw std::runtime_error("a bad row");
        });
        stages.push_back({.forward = [](StageCall& call) -> StageTensors { return call.inputs; }});
        Pipeline pipeline(world, places, ScheduleKind::one_f_one_b, stages, {.loss = square});
        EXPECT_THROW(pipeline.step(rows(4)), std::exception);
        expect_error<WorldError>([&] { pipeline.step(rows(4)); },
                                 {"an earlier step failed", "make a new pipeline on all of them"});
      },
      {.timeout = std::chrono::seconds(5)});
}

TEST(Stages, SizesThatDependOnValuesAreToBeAnnounced) {
  const auto run = [](World& world, bool sizes_vary) {
    int calls = 0;
    auto stages = two();
    stages[0].forward = [&](StageCall& call) -> StageTensors {
      ++calls;
      return {call.batch[0].narrow(0, 0, calls > 2 ? 1 : 2).clone().requires_grad_()};
    };
    Pipeline pipeline(world, pipeline_places(Mesh::parse("[pp=2]"), "pp"),
                      ScheduleKind::one_f_one_b, stages,
                      {.loss = square, .sizes_vary = sizes_vary});
    pipeline.step(rows(2));
    pipeline.step(rows(2));
  };
  run_in_process(2, [&](World& world) { run(world, true); });
  const auto world = lockstep_world(2);
  expect_error<ValueError>([&] { run(*world, false); },
                           {"stage 0 gives (trains plain f64[1, 4]) for microbatch 0",
                            "where it gave (trains plain f64[2, 4])", "sizes_vary"});
}

TEST(Stages, WhatDoesNotFitIsRefused) {
  const auto world = lockstep_world(2);
  const auto places = pipeline_places(Mesh::parse("[pp=2]"), "pp");
  const auto made = [&](std::vector<Mesh> where, ScheduleKind kind,
                        std::vector<PipelineStage> stages,
                        PipelineOptions options = {.loss = square}) {
    Pipeline pipeline(*world, std::move(where), kind, std::move(stages), std::move(options));
    pipeline.step(rows(2));
  };
  const auto one = ScheduleKind::one_f_one_b;
  expect_error<ValueError>(
      [&] {
        made({places[0], places[0]}, one, two());
      },
      {"rank 0 is in two places"});
  expect_error<ValueError>([&] { made({}, one, two()); }, {"there are 0 places and 2 stages"});
  expect_error<ValueError>([&] { made({places[0]}, one, two()); },
                           {"1f1b has 1 stage on each rank, not 2"});
  auto three = two();
  three.push_back(three.back());
  expect_error<ValueError>([&] { made(places, one, three); },
                           {"1f1b has equally many stages on each of 2 places, and 3 were given"});
  expect_error<ValueError>(
      [&] {
        made(places, one, two(),
             {.loss = [](const StageTensors& out, const StageCall&) { return out[0]; }});
      },
      {"the loss of a microbatch is f64[2, 4] plain; return a scalar"});
  expect_error<ValueError>(
      [&] {
        made(places, one, two(),
             {.loss = square, .weight = [](const StageTensors&) { return -1.; }});
      },
      {"microbatch 0 counts -1; a weight is 0 or more"});
  auto missing = two();
  missing[1].forward = {};
  expect_error<ValueError>([&] { made(places, one, missing); }, {"stage 1 is on this rank"});
  auto shared = two();
  shared[1].shared = {{at::ones({2}), at::ones({2})}};
  expect_error<ValueError>([&] { made(places, one, shared); },
                           {"is no parameter of another stage"});
  const Schedule short_one = make_schedule(one, {.ranks = 2, .microbatches = 3});
  Pipeline pipeline(*world, places, short_one, two(), {.loss = square});
  expect_error<ValueError>([&] { pipeline.step(rows(2)); },
                           {"the schedule 1f1b is for 3 microbatches, and 2 were given"});
  expect_error<ValueError>([&] { pipeline.step({}); }, {"at least one microbatch"});
  pipeline.step(rows(3));
}

}  // namespace
}  // namespace intarsia

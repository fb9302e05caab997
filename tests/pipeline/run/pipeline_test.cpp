#include "intarsia/pipeline.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "error_text.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "pipeline/run/chain.h"

namespace intarsia {
namespace {

using testing::chain_batches;
using testing::ChainReference;
using testing::ChainStage;
using testing::ChainValues;

/// How a chain is divided and run.
struct Setup {
  std::string mesh = "[pp=2]";
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int chunks = 1;
  int layers = 4;
  std::vector<std::int64_t> rows = {4, 4, 4, 4};
  std::string layout = {};  // of weights, in a stage
  std::string batch = {};   // of inputs and targets
  bool recompute = false;
  bool sizes_vary = false;
  int steps = 2;
};

/// Runs it on the ranks of this process, and compares with plain tensors.
void run_chain(World& world, const Setup& setup) {
  const Mesh mesh = Mesh::parse(setup.mesh);
  const std::vector<Mesh> places = pipeline_places(mesh, "pp");
  const int ranks = static_cast<int>(places.size());
  const Schedule schedule =
      make_schedule(setup.kind, {.ranks = ranks,
                                 .microbatches = static_cast<int>(setup.rows.size()),
                                 .chunks = setup.chunks});
  const ChainValues values(setup.layers);
  const auto batches = chain_batches(setup.rows);
  const ChainReference expected(values, batches);
  std::vector<ChainStage> parts;
  std::vector<PipelineStage> stages;
  const int count = schedule.stages();
  std::vector<int> firsts;
  for (int s = 0; s <= count; ++s) firsts.push_back(s * setup.layers / count);
  for (int s = 0; s < count; ++s) {
    const auto k = static_cast<std::size_t>(s);
    const Mesh& place = places[static_cast<std::size_t>(schedule.rank_of_stage[k])];
    parts.emplace_back(values, firsts[k], firsts[k + 1], place, world, setup.layout);
  }
  const auto laid_out = [&](const at::Tensor& t, const Mesh& place) {
    return setup.batch.empty() ? t : distribute(t, Layout::parse(setup.batch, place), world);
  };
  for (int s = 0; s < count; ++s) {
    const auto k = static_cast<std::size_t>(s);
    const Mesh& place = places[static_cast<std::size_t>(schedule.rank_of_stage[k])];
    stages.push_back({.forward = [&, k, place](StageCall& call) -> StageTensors {
                        const at::Tensor x =
                            k == 0 ? laid_out(call.batch[0], place) : call.inputs.at(0);
                        return {parts[k].run(x)};
                      },
                      .parameters = parts[k].parameters(firsts[k])});
  }
  const Mesh& last = places[static_cast<std::size_t>(schedule.rank_of_stage.back())];
  Pipeline pipeline(world, places, setup.kind, stages,
                    {.loss =
                         [&](const StageTensors& out, const StageCall& call) {
                           return at::mse_loss(out[0], laid_out(call.batch[1], last));
                         },
                     .recompute = setup.recompute,
                     .sizes_vary = setup.sizes_vary});
  for (int step = 0; step < setup.steps; ++step) {
    for (const ChainStage& part : parts) {
      for (at::Tensor t : part.weights) t.mutable_grad().reset();
      for (at::Tensor t : part.biases) t.mutable_grad().reset();
    }
    const PipelineResult result = pipeline.step(batches);
    EXPECT_NEAR(result.loss, expected.loss, 1e-12);
    ASSERT_EQ(result.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      if (setup.rows[i] > 0) EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-12);
    }
    for (int s = 0; s < count; ++s) {
      const auto k = static_cast<std::size_t>(s);
      for (int l = firsts[k]; l < firsts[k + 1]; ++l) {
        const at::Tensor& w = parts[k].weights[static_cast<std::size_t>(l - firsts[k])];
        ASSERT_TRUE(w.grad().defined()) << "layer " << l << " in step " << step;
        EXPECT_EQ(layout_of(w.grad()), layout_of(w));
        if (locals(w.detach()).empty()) continue;  // of another place
        const at::Tensor& b = parts[k].biases[static_cast<std::size_t>(l - firsts[k])];
        const auto i = static_cast<std::size_t>(l);
        EXPECT_LT((full(w.grad()) - expected.weights[i]).abs().max().item<double>(), 1e-12)
            << "weight of layer " << l;
        EXPECT_LT((full(b.grad()) - expected.biases[i]).abs().max().item<double>(), 1e-12)
            << "bias of layer " << l;
      }
    }
  }
}

void run_everywhere(const Setup& setup) {
  const int ranks = static_cast<int>(Mesh::parse(setup.mesh).size());
  run_in_process(ranks, [&](World& world) { run_chain(world, setup); });
  const auto world = lockstep_world(ranks);
  run_chain(*world, setup);
}

TEST(Pipeline, OneForwardOneBackwardIsAsWithoutAPipeline) { run_everywhere({}); }

TEST(Pipeline, EveryKindOfScheduleIsAsWithoutAPipeline) {
  for (const ScheduleKind kind : schedule_kinds()) {
    const bool v = kind == ScheduleKind::zb_v || kind == ScheduleKind::v_half ||
                   kind == ScheduleKind::dual_pipe_v;
    const int chunks =
        v || kind == ScheduleKind::interleaved || kind == ScheduleKind::looped_bfs ? 2 : 1;
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(std::string(to_text(kind)) + " on " + std::to_string(ranks));
      run_everywhere({.mesh = "[pp=" + std::to_string(ranks) + "]",
                      .kind = kind,
                      .chunks = chunks,
                      .layers = 8,
                      .rows = {3, 2, 4, 1, 3, 3}});
    }
  }
}

TEST(Pipeline, OtherAxesStandBesideIt) {
  // Rows over dp, weights over tp; partial sums pass from stage to stage as they are.
  for (const char* layout : {"S(1),R", "S(0),R", "R,R"}) {
    SCOPED_TRACE(layout);
    run_everywhere({.mesh = "[tp=2,pp=2,dp=1]", .layout = layout, .batch = "R,S(0)"});
    run_everywhere({.mesh = "[pp=2,tp=2,dp=1]",
                    .kind = ScheduleKind::zb_v,
                    .chunks = 2,
                    .layout = layout,
                    .batch = "R,S(0)"});
  }
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
    run_everywhere({.mesh = "[dp=2,pp=2]", .kind = kind, .batch = "S(0)"});
    run_everywhere({.mesh = "[pp=2,dp=2]", .kind = kind, .rows = {5, 3, 1}, .batch = "S(0)"});
  }
}

TEST(Pipeline, MicrobatchesMayBeUnevenOrEmpty) {
  run_everywhere({.rows = {5, 0, 2, 1}});
  run_everywhere({.kind = ScheduleKind::zb_h1, .rows = {0, 3}});
  run_everywhere({.kind = ScheduleKind::gpipe, .rows = {7}});
}

TEST(Pipeline, ForwardsMayBeComputedAgain) {
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zb_v}) {
    const int chunks = kind == ScheduleKind::zb_v ? 2 : 1;
    run_everywhere({.kind = kind, .chunks = chunks, .recompute = true});
    run_everywhere({.mesh = "[pp=2,dp=2]",
                    .kind = kind,
                    .chunks = chunks,
                    .batch = "S(0)",
                    .recompute = true});
  }
}

TEST(Pipeline, SizesMayBeSentWithEachTensor) {
  run_everywhere({.sizes_vary = true});
  run_everywhere({.kind = ScheduleKind::zb_v, .chunks = 2, .rows = {1, 2, 3}, .sizes_vary = true});
}

}  // namespace
}  // namespace intarsia

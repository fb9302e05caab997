// Plans of tensor parallelism: the layouts that they give, what they refuse, what they place.
#include "intarsia/tensor_parallel.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/fully_shard.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::expect_whole;
using testing::on_mesh;
using testing::values;

const Mesh kMesh = Mesh::parse("[dp=2,tp=2]");

struct Names {
  std::vector<std::string> modules;
  std::vector<NamedShape> tensors;

  void add(const std::string& module, const std::vector<std::int64_t>& weight) {
    modules.push_back(module);
    tensors.emplace_back(module + ".weight", weight);
  }
};

Names meta_names() {
  Names n;
  n.add("embed", {10, 8});
  n.modules.insert(n.modules.end(), {"layers", "layers.0", "layers.0.attention"});
  for (const char* name : {"wq", "wk", "wv", "wo"})
    n.add(std::string("layers.0.attention.") + name, {8, 8});
  n.modules.emplace_back("layers.0.feed_forward");
  n.add("layers.0.feed_forward.w1", {12, 8});
  n.add("layers.0.feed_forward.w2", {8, 12});
  n.add("layers.0.feed_forward.w3", {12, 8});
  n.add("layers.0.attention_norm", {8});
  n.add("norm", {8});
  n.add("head", {10, 8});
  return n;
}

Names hugging_face_names() {
  Names n;
  n.add("model.embed_tokens", {10, 8});
  n.modules.insert(n.modules.end(), {"model", "model.layers.0.self_attn", "model.layers.0.mlp"});
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    n.add(std::string("model.layers.0.self_attn.") + name, {8, 8});
  n.tensors.emplace_back("model.layers.0.self_attn.q_proj.bias", std::vector<std::int64_t>{8});
  for (const char* name : {"gate_proj", "up_proj", "down_proj"})
    n.add(std::string("model.layers.0.mlp.") + name, {8, 8});
  n.add("model.layers.0.input_layernorm", {8});
  n.add("model.norm", {8});
  n.add("lm_head", {10, 8});
  return n;
}

std::map<std::string, std::string> expand(const TensorParallelPlan& plan, const Names& names) {
  const LayoutPatterns made = layouts(plan, kMesh, names.modules, names.tensors);
  return {made.begin(), made.end()};
}

TEST(TensorParallel, LlamaByMetasNames) {
  for (const bool sequence_parallel : {false, true}) {
    const auto made = expand(llama_plan({.sequence_parallel = sequence_parallel}), meta_names());
    const std::map<std::string, std::string> want{{"embed.weight", "R,S(0)"},
                                                  {"layers.0.attention.wq.weight", "R,S(0)"},
                                                  {"layers.0.attention.wk.weight", "R,S(0)"},
                                                  {"layers.0.attention.wv.weight", "R,S(0)"},
                                                  {"layers.0.attention.wo.weight", "R,S(1)"},
                                                  {"layers.0.feed_forward.w1.weight", "R,S(0)"},
                                                  {"layers.0.feed_forward.w2.weight", "R,S(1)"},
                                                  {"layers.0.feed_forward.w3.weight", "R,S(0)"},
                                                  {"head.weight", "R,S(0)"}};
    EXPECT_EQ(made, want);
  }
}

TEST(TensorParallel, LlamaByHuggingFacesNames) {
  const auto made = expand(llama_plan({.sequence_parallel = true}), hugging_face_names());
  EXPECT_EQ(made.size(), 10U);
  EXPECT_EQ(made.at("model.layers.0.self_attn.q_proj.bias"), "R,S(0)");
  EXPECT_EQ(made.at("model.layers.0.self_attn.o_proj.weight"), "R,S(1)");
  EXPECT_EQ(made.at("model.layers.0.mlp.down_proj.weight"), "R,S(1)");
  EXPECT_EQ(made.at("lm_head.weight"), "R,S(0)");
}

TEST(TensorParallel, LlamaWithExperts) {
  Names names = hugging_face_names();
  // One layer has experts as modules, one in single tensors; none has a plain network.
  const auto of_the_network = [](const auto& name) {
    return name.find(".mlp") != std::string::npos;
  };
  std::erase_if(names.modules, of_the_network);
  std::erase_if(names.tensors, [&](const NamedShape& t) { return of_the_network(t.first); });
  names.modules.insert(names.modules.end(), {"model.layers.0.mlp", "model.layers.0.mlp.experts"});
  names.tensors.push_back({"model.layers.0.mlp.experts.gate_up_proj", {4, 16, 8}});
  auto made = expand(llama_plan(), names);
  EXPECT_FALSE(made.contains("model.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_EQ(made.at("model.layers.0.self_attn.o_proj.weight"), "R,S(1)");
  names.add("model.layers.1.mlp.experts.0.down_proj", {8, 16});
  made = expand(llama_plan(), names);
  EXPECT_EQ(made.at("model.layers.1.mlp.experts.0.down_proj.weight"), "R,S(1)");
  // What makes it a Llama must be there.
  std::erase_if(names.modules, [](const auto& name) { return name.ends_with("o_proj"); });
  expect_error<ValueError>([&] { expand(llama_plan(), names); },
                           {"'*.wo|*.o_proj' fits no module"});
}

TEST(TensorParallel, PlacementsBetweenModules) {
  const Placement whole = Placement::replicate();
  const Placement cut = Placement::shard(1);
  const TensorParallelPlan plain = llama_plan();
  const TensorParallelPlan sequence = llama_plan({.sequence_parallel = true});
  EXPECT_EQ(wanted_output(plain, "layers.3.attention.wo"), whole);
  EXPECT_EQ(wanted_output(sequence, "layers.3.attention.wo"), cut);
  EXPECT_EQ(wanted_output(sequence, "wo"), cut);  // the end of the name will do
  EXPECT_EQ(wanted_output(sequence, "o"), std::nullopt);
  EXPECT_EQ(wanted_input(plain, "norm"), std::nullopt);
  EXPECT_EQ(wanted_input(sequence, "norm"), cut);
  EXPECT_EQ(wanted_input(sequence, "attention"), whole);
  EXPECT_EQ(wanted_output(plain, "head"), std::nullopt);
  EXPECT_EQ(wanted_output(llama_plan({.loss_parallel = false}), "head"), whole);
}

TEST(TensorParallel, TheFirstEntryThatSaysSomethingDecides) {
  Names names;
  names.add("a", {8, 8});
  names.add("b", {8, 8});
  const TensorParallelPlan plan{
      "dp", {{"a", prepare_input(Placement::shard(0))}, {"a", row()}, {"*", column()}}};
  const std::map<std::string, std::string> want{{"a.weight", "S(1),R"}, {"b.weight", "S(0),R"}};
  EXPECT_EQ(expand(plan, names), want);
  EXPECT_TRUE(expand({}, names).empty());
}

TEST(TensorParallel, RefusesWhatDoesNotFit) {
  const auto refuses = [](const TensorParallelPlan& plan, std::initializer_list<std::string> text) {
    expect_error<ValueError>([&] { expand(plan, meta_names()); }, text);
  };
  refuses({"tp", {{"layers.*.attention.w_q", column()}}},
          {"[tensor_parallel] 'layers.*.attention.w_q' fits no module; near names are "
           "layers.*.attention.wq"});
  refuses({"model", {{"head", column()}}},
          {"the plan is for an axis model, which [dp=2,tp=2] does not have"});
  refuses(llama_plan({.heads = 8, .key_value_heads = 1}),
          {"'*.wk|*.wv|*.k_proj|*.v_proj' has 1 heads, which the 2 ranks of tp in [dp=2,tp=2] do "
           "not share evenly; choose an axis whose size divides 1"});
  refuses(llama_plan({.heads = 6}), {"dimension 0 of 'layers.0.attention.wq.weight' has length 8, "
                                     "which is no multiple of the 6 heads"});
  refuses({"tp", {{"*.attention", column()}}},
          {"'*.attention' lays out 'weight', but no module that it fits has one"});
  refuses({"tp", {{"norm", row()}}},
          {"'norm' is to shard dimension 1 of 'norm.weight', which has 1"});
}

TEST(TensorParallel, PlacesAlongOneAxisOnly) {
  on_mesh(kMesh, [&](World& world) {
    const Tensor x = distribute(values({4, 6}, 1), Layout::parse("S(0),R", kMesh), world);
    const Tensor cut = placed(x, "tp", Placement::shard(-1));
    EXPECT_EQ(layout_of(cut).placements_text(), "S(0),S(1)");
    expect_whole(cut, values({4, 6}, 1), "cut");
    EXPECT_TRUE(placed(x, "other", Placement::shard(0)).is_same(x));
    const Tensor plain = values({4, 6}, 1);
    EXPECT_TRUE(placed(plain, "tp", Placement::shard(0)).is_same(plain));
    EXPECT_TRUE(placed_input(x, llama_plan(), "elsewhere").is_same(x));
  });
}

TEST(TensorParallel, SumsAGradientWhereATensorIsPlacedAsItLies) {
  on_mesh(kMesh, [&](World& world) {
    const auto on = [&](const Tensor& t, const char* text) {
      return distribute(t, Layout::parse(text, kMesh), world);
    };
    Tensor x = on(values({4, 6}, 1), "S(0),R").set_requires_grad(true);
    const Tensor a = on(values({6, 6}, 2), "R,S(1)");
    const Tensor b = on(values({6, 6}, 3), "R,S(1)");
    const Tensor y = placed(x * 2, "tp", Placement::replicate());
    const Budget budget(world);
    (y.mm(a).sum() + y.mm(b).sum()).backward();
    budget.expect("1 P->R");  // of both products together
    Tensor plain = values({4, 6}, 1).set_requires_grad(true);
    ((plain * 2).mm(values({6, 6}, 2)).sum() + (plain * 2).mm(values({6, 6}, 3)).sum()).backward();
    expect_whole(x.grad(), plain.grad(), "gradient");
  });
}

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    up = register_module("up", torch::nn::Linear(6, 8));
    down = register_module("down", torch::nn::Linear(8, 6));
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Mlp);

TEST(TensorParallel, BuildsModulesByAPlan) {
  on_mesh(kMesh, [&](World& world) {
    const TensorParallelPlan plan{"tp", {{"up", column()}, {"down", row()}}};
    const Mlp mlp = build(world, kMesh, plan, [] { return Mlp(); });
    EXPECT_EQ(layout_of(mlp->up->weight).placements_text(), "R,S(0)");
    EXPECT_EQ(layout_of(mlp->up->bias).placements_text(), "R,S(0)");
    EXPECT_EQ(layout_of(mlp->down->weight).placements_text(), "R,S(1)");
    EXPECT_EQ(layout_of(mlp->down->bias).placements_text(), "R,R");
    expect_error<ValueError>(
        [&] {
          const TensorParallelPlan wrong{"tp", {{"upp", column()}}};
          build(world, kMesh, wrong, [] { return Mlp(); });
        },
        {"'upp' fits no module; near names are up, down"});
  });
}

/// What `build` and `build_sharded` are given and give, as it is written down: braces with any
/// number of entries, modules, pointers to modules, and holders.
TEST(TensorParallel, BuildIsWrittenInEveryForm) {
  on_mesh(kMesh, [&](World& world) {
    const auto value = [] { return MlpImpl(); };
    const auto pointer = [] { return std::make_shared<MlpImpl>(); };
    const auto holder = [] { return Mlp(); };
    const auto expect = [](const MlpImpl& mlp, const char* up, const char* down) {
      EXPECT_EQ(layout_of(mlp.up->weight).placements_text(), up);
      EXPECT_EQ(layout_of(mlp.down->weight).placements_text(), down);
    };
    expect(build(world, kMesh, {}, value), "R,R", "R,R");
    expect(build(world, kMesh, {{"up.*", "R,S(0)"}}, value), "R,S(0)", "R,R");
    expect(*build(world, kMesh, {{"up.*", "R,S(0)"}}, pointer), "R,S(0)", "R,R");
    expect(*build(world, kMesh, {{"up.*", "R,S(0)"}, {"down.weight", "R,S(1)"}}, holder), "R,S(0)",
           "R,S(1)");
    expect(*build(world, kMesh,
                  {{"up.*", "R,S(0)"}, {"down.weight", "R,S(1)"}, {"down.bias", "R,R"}}, pointer),
           "R,S(0)", "R,S(1)");
    const LayoutPatterns patterns{{"up.*", "R,S(0)"}};
    expect(*build(world, kMesh, patterns, holder), "R,S(0)", "R,R");
    const TensorParallelPlan plan{"tp", {{"up", column()}, {"down", row()}}};
    expect(build(world, kMesh, plan, value), "R,S(0)", "R,S(1)");
    expect(*build(world, kMesh, plan, pointer), "R,S(0)", "R,S(1)");

    const FullyShardOptions dp{.shard = {"dp"}};
    expect(*build_sharded(world, kMesh, {}, dp, value), "S(0),R", "S(0),R");
    expect(*build_sharded(world, kMesh, {}, {.shard = {"dp"}}, pointer), "S(0),R", "S(0),R");
    expect(*build_sharded(world, kMesh, {{"up.weight", "R,S(1)"}}, dp, holder), "S(0),S(1)",
           "S(0),R");
    expect(*build_sharded(world, kMesh, {{"up.weight", "R,S(1)"}, {"down.weight", "R,S(1)"}}, dp,
                          holder),
           "S(0),S(1)", "S(0),S(1)");
    expect(*build_sharded(world, kMesh, plan, dp, value, {"up", "down"}), "S(0),S(0) | 0:tp>dp",
           "S(0),S(1)");
    const auto by_module = [&](const auto& made) { return layouts_of(plan, kMesh, made); };
    expect(*build_sharded(world, kMesh, by_module, dp, pointer), "S(0),S(0) | 0:tp>dp",
           "S(0),S(1)");
  });
}

}  // namespace
}  // namespace intarsia

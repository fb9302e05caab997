#include "intarsia/fully_shard.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using testing::expect_whole;
using testing::values;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t dim)
      : up(register_module("up", torch::nn::Linear(dim, 2 * dim))),
        down(register_module("down", torch::nn::Linear(2 * dim, dim))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(up(x).tanh()); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

/// Lengths that 2 and 3 do not divide.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : embed(register_module("embed", torch::nn::Embedding(7, 5))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(5, 7))) {
    for (int i = 0; i < 3; ++i) blocks->push_back(Block(5));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& tokens, const std::vector<std::size_t>& used = {0, 1, 2}) {
    at::Tensor x = embed(tokens);
    for (const std::size_t i : used) x = blocks->at<BlockImpl>(i).forward(x);
    return head(x);
  }
  torch::nn::Embedding embed;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

/// A plain module with the values of a distributed one. COLLECTIVE: all ranks.
Net plain_twin(Net& net) {
  Net twin;
  const at::NoGradGuard no_grad;
  const auto theirs = twin->named_parameters();
  for (const auto& item : net->named_parameters()) {
    theirs.find(item.key())->copy_(full(item.value().detach()));
  }
  return twin;
}

at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.reshape({-1, 7}), targets.reshape({-1}));
}

at::Tensor tokens_of(int step) {
  return at::arange(12 * 3).mul(step + 3).add(step).remainder(7).reshape({12, 3});
}

void expect_twins(Net& net, Net& twin) {
  const auto theirs = twin->named_parameters();
  for (const auto& item : net->named_parameters()) {
    const at::Tensor& plain = *theirs.find(item.key());
    expect_whole(item.value().detach(), plain.detach(), item.key(), 1e-12);
    ASSERT_EQ(item.value().grad().defined(), plain.grad().defined()) << item.key();
    if (!plain.grad().defined()) continue;
    EXPECT_EQ(layout_of(item.value().grad()), layout_of(item.value()));
    expect_whole(item.value().grad(), plain.grad(), item.key(), 1e-12);
  }
}

Sharded<Net> sharded(World& world, const Mesh& mesh, const FullyShardOptions& options) {
  return build_sharded(world, mesh, LayoutPatterns{}, options, [] { return Net(); });
}

void train_beside_plain(World& world, const std::string& text, const FullyShardOptions& options,
                        const std::string& batch) {
  const Mesh mesh = Mesh::parse(text);
  Sharded<Net> net = sharded(world, mesh, options);
  Net twin = plain_twin(net.module);
  torch::optim::SGD ours(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD theirs(twin->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = tokens_of(step);
    const at::Tensor y = tokens_of(step + 9);
    const Layout lies = Layout::parse(batch, mesh);
    ours.zero_grad();
    theirs.zero_grad();
    mean_loss(net->forward(distribute(x, lies, world)), distribute(y, lies, world)).backward();
    mean_loss(twin->forward(x), y).backward();
    expect_twins(net.module, twin);
    ours.step();
    theirs.step();
  }
  EXPECT_EQ(net.sharding->gathered(), 0U);
  EXPECT_LE(net.sharding->most_gathered(), 2U);
  for (const GroupReport& g : net.sharding->groups()) EXPECT_EQ(g.reductions, 4U) << g.name;
}

TEST(FullyShard, TrainsAsOneDevice) {
  run_in_process(2, [](World& w) { train_beside_plain(w, "[dp=2]", {.shard = {"dp"}}, "S(0)"); });
  run_in_process(3, [](World& w) { train_beside_plain(w, "[dp=3]", {.shard = {"dp"}}, "S(0)"); });
  run_in_process(4, [](World& w) {
    train_beside_plain(w, "[rep=2,dp=2]", {.shard = {"dp"}, .replicate = {"rep"}}, "S(0),S(0)");
  });
  const auto world = lockstep_world(2);
  train_beside_plain(*world, "[dp=2]", {.shard = {"dp"}}, "S(0)");
}

TEST(FullyShard, PiecesAreBornSmallAndAlikeOnEveryMesh) {
  std::vector<at::Tensor> first;
  for (const int ranks : {1, 2, 4}) {
    const auto world = lockstep_world(ranks);
    at::manual_seed(5);
    const Mesh mesh = Mesh::parse("[dp=" + std::to_string(ranks) + "]");
    Sharded<Net> net = sharded(*world, mesh, {.shard = {"dp"}});
    std::size_t i = 0;
    for (const at::Tensor& p : net->parameters()) {
      EXPECT_TRUE(layout_of(p).placement(0).is_shard());
      const at::Tensor whole = full(p.detach());
      if (ranks == 1) {
        first.push_back(whole);
      } else {
        EXPECT_TRUE(whole.equal(first[i])) << i;
      }
      ++i;
    }
    world->close();
  }
}

TEST(FullyShard, RanksMaySkipBlocks) {
  run_in_process(2, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=2]");
    Sharded<Net> net = sharded(world, mesh, {.shard = {"dp"}});
    Net twin = plain_twin(net.module);
    for (int step = 0; step < 6; ++step) {
      const auto used = [&](std::int64_t rank) {
        return rank == 1 && step % 2 == 1 ? std::vector<std::size_t>{0}
                                          : std::vector<std::size_t>{0, 1};
      };
      net->zero_grad();
      twin->zero_grad();
      const at::Tensor x = tokens_of(step);
      const at::Tensor y = tokens_of(step + 9);
      const auto mine = [&](const at::Tensor& t) {
        return from_local(t.chunk(2)[static_cast<std::size_t>(world.rank())].contiguous(),
                          Layout::parse("S(0)", mesh), world);
      };
      mean_loss(net->forward(mine(x), used(world.rank())), mine(y)).backward();
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (std::size_t r = 0; r < 2; ++r) {
        const auto rank = static_cast<std::int64_t>(r);
        loss = loss + mean_loss(twin->forward(x.chunk(2)[r], used(rank)), y.chunk(2)[r]) / 2;
      }
      loss.backward();
      expect_twins(net.module, twin);
      // No rank uses the third block: from the second step on it is not even reduced.
      EXPECT_EQ(net.sharding->groups()[3].reductions, 1U);
    }
  });
}

TEST(FullyShard, GradientsAreRightWithoutTheHandle) {
  run_in_process(2, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=2]");
    Sharded<Net> net = sharded(world, mesh, {.shard = {"dp"}});
    Net twin = plain_twin(net.module);
    net.sharding.reset();
    const Layout lies = Layout::parse("S(0)", mesh);
    mean_loss(net->forward(distribute(tokens_of(0), lies, world)),
              distribute(tokens_of(9), lies, world))
        .backward();
    mean_loss(twin->forward(tokens_of(0)), tokens_of(9)).backward();
    expect_twins(net.module, twin);
  });
}

TEST(FullyShard, UnsynchronisedGradientsAddUp) {
  run_in_process(2, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=2]");
    const Layout lies = Layout::parse("S(0)", mesh);
    Sharded<Net> net = sharded(world, mesh, {.shard = {"dp"}});
    Net twin = plain_twin(net.module);
    const auto backward = [&](int step) {
      mean_loss(net->forward(distribute(tokens_of(step), lies, world)),
                distribute(tokens_of(step + 9), lies, world))
          .backward();
      mean_loss(twin->forward(tokens_of(step)), tokens_of(step + 9)).backward();
    };
    {
      const FullyShard::NoSync apart(*net.sharding);
      backward(0);
      backward(1);
      for (const at::Tensor& p : net->parameters())
        EXPECT_FALSE(full(p.grad()).any().item<bool>());  // zeros until they are reduced
    }
    backward(2);
    expect_twins(net.module, twin);
    backward(3);
    expect_twins(net.module, twin);
  });
}

// ---- errors ------------------------------------------------------------------------------------

/// Throws in backward.
struct Throws : torch::autograd::Function<Throws> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("of the user");
  }
};

/// A step whose backward throws before it gets to the first blocks.
void fail_backward(Net& net, const at::Tensor& x, const at::Tensor& y, std::size_t before) {
  at::Tensor h = net->embed(x);
  for (std::size_t i = 0; i < 3; ++i) {
    if (i == before) h = Throws::apply(h);
    h = net->blocks->at<BlockImpl>(i).forward(h);
  }
  if (before == 3) h = Throws::apply(h);
  const at::Tensor loss = mean_loss(net->head(h), y);
  testing::expect_error<std::runtime_error>([&] { loss.backward(); }, {"of the user"});
}

/// Fails in the first step and later, with some groups reduced and with none.
void train_on_after_failures(World& world, const Mesh& mesh, const FullyShardOptions& options) {
  Sharded<Net> net = sharded(world, mesh, options);
  Net twin = plain_twin(net.module);
  const std::string batch = mesh.axes() == 1 ? "S(0)" : "S(0),S(0)";
  torch::optim::SGD ours(net->parameters(), 0.1);
  torch::optim::SGD theirs(twin->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    const Layout lies = Layout::parse(batch, mesh);
    const at::Tensor x = distribute(tokens_of(step), lies, world);
    const at::Tensor y = distribute(tokens_of(step + 9), lies, world);
    ours.zero_grad();
    theirs.zero_grad();
    if (step != 1) fail_backward(net.module, x, y, static_cast<std::size_t>(step == 4 ? 3 : step));
    mean_loss(net->forward(x), y).backward();
    mean_loss(twin->forward(tokens_of(step)), tokens_of(step + 9)).backward();
    expect_twins(net.module, twin);
    ours.step();
    theirs.step();
  }
  EXPECT_LE(net.sharding->most_gathered(), 2U);
}

TEST(FullyShard, TrainsOnAfterABackwardThatThrew) {
  const auto alone = lockstep_world(2);
  train_on_after_failures(*alone, Mesh::parse("[dp=2]"), {.shard = {"dp"}});
  for (const std::string text : {"[dp=1]", "[dp=2]", "[dp=3]"}) {
    testing::on_mesh(Mesh::parse(text), [&](World& world) {
      train_on_after_failures(world, Mesh::parse(text), {.shard = {"dp"}});
    });
  }
  const Mesh hybrid = Mesh::parse("[rep=2,dp=2]");
  testing::on_mesh(hybrid, [&](World& world) {
    train_on_after_failures(world, hybrid, {.shard = {"dp"}, .replicate = {"rep"}});
  });
}

TEST(FullyShard, ARankThatFailedAloneIsNamed) {
  run_in_process(2,
                 [](World& world) {
                   const Mesh mesh = Mesh::parse("[dp=2]");
                   const Layout lies = Layout::parse("S(0)", mesh);
                   Sharded<Net> net = sharded(world, mesh, {.shard = {"dp"}});
                   const at::Tensor x = distribute(tokens_of(0), lies, world);
                   const at::Tensor y = distribute(tokens_of(9), lies, world);
                   mean_loss(net->forward(x), y).backward();
                   if (world.rank() == 0) {
                     const at::Tensor loss = mean_loss(net->forward(x), y);
                     testing::expect_error<c10::Error>([&] { loss.backward(); },
                                                       {"did not finish"});
                     return;
                   }
                   fail_backward(net.module, x, y, 1);
                   for (int again = 0; again < 2; ++again) {
                     testing::expect_error<c10::DistError>(
                         [&] { net->forward(x); },
                         {"[backward] that of rank 1 ended with an error, but rank 0 did not come",
                          "begin anew"});
                   }
                 },
                 {.timeout = std::chrono::milliseconds(500)});
}

TEST(FullyShard, RanksThatFailedAtDifferentPlacesAreNamed) {
  run_in_process(
      2,
      [](World& world) {
        const Mesh mesh = Mesh::parse("[dp=2]");
        Sharded<Net> net = sharded(world, mesh, {.shard = {"dp"}});
        // What lies between the parameters is local: only gathers and reductions are exchanged.
        const auto mine = [&](const at::Tensor& t) {
          return from_local(t.chunk(2)[static_cast<std::size_t>(world.rank())].contiguous(),
                            Layout::parse("S(0)", mesh), world);
        };
        const at::Tensor x = mine(tokens_of(0));
        const at::Tensor y = mine(tokens_of(9));
        mean_loss(net->forward(x), y).backward();
        fail_backward(net.module, x, y, world.rank() == 0 ? 3 : 2);
        testing::expect_error<c10::DistError>(
            [&] { net->forward(x); }, {"ended with an error at different places", "begin anew"});
      },
      {.timeout = std::chrono::milliseconds(1000)});
}

// ---- what stays --------------------------------------------------------------------------------

using Watched = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;

/// The memory of a model's pieces.
Watched memory_of(Net& net) {
  Watched out;
  for (const at::Tensor& p : net->parameters()) {
    for (const at::Tensor& piece : locals(p.detach())) {
      out.push_back(piece.storage().getWeakStorageImpl());
    }
  }
  return out;
}

void expect_gone(const Watched& memory, const std::string& when) {
  for (const auto& storage : memory) EXPECT_TRUE(storage.expired()) << when;
}

TEST(FullyShard, DroppedModelsAreFreed) {
  const Mesh mesh = Mesh::parse("[dp=2]");
  const auto drop = [&](World& world, const std::string& when, bool closes) {
    Watched memory;
    {
      Sharded<Net> net = sharded(world, mesh, {.shard = {"dp"}});
      memory = memory_of(net.module);
      const Layout lies = Layout::parse("S(0)", mesh);
      const at::Tensor x = distribute(tokens_of(0), lies, world);
      const at::Tensor y = distribute(tokens_of(9), lies, world);
      if (when != "unused") mean_loss(net->forward(x), y).backward();
      if (when == "after an error") fail_backward(net.module, x, y, 1);
      if (when == "in between") mean_loss(net->forward(x), y);
      if (when == "without its handle") net.sharding.reset();
      if (closes) world.close();
    }
    expect_gone(memory, when);
  };
  for (const std::string when :
       {"unused", "trained", "after an error", "in between", "without its handle"}) {
    for (const bool closes : {false, true}) {
      const auto world = lockstep_world(2);
      drop(*world, when, closes);
      run_in_process(2, [&](World& each) { drop(each, when, closes); });
    }
  }
}

TEST(FullyShard, TiedParametersBelongToTheFirstGroup) {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      const at::Tensor weight = register_parameter("in", at::ones({6, 4}, at::kDouble));
      register_parameter("out", weight);
    }
  };
  const auto world = lockstep_world(2);
  auto net = build_sharded(*world, Mesh::parse("[dp=2]"), LayoutPatterns{}, {.shard = {"dp"}},
                           [] { return std::make_shared<TiedImpl>(); });
  const auto parameters = net->parameters();
  ASSERT_EQ(parameters.size(), 2U);
  const at::Tensor x =
      distribute(at::ones({2, 4}, at::kDouble), Layout::parse("[dp=2] S(0)"), *world);
  x.mm(parameters[0].t()).mm(parameters[1]).sum().backward();
  expect_whole(parameters[1].grad(), at::full({6, 4}, 2.0 * 4 + 8, at::kDouble), "tied");
  EXPECT_EQ(net.sharding->groups().size(), 1U);
}

TEST(FullyShard, GroupsFollowBlocks) {
  Net net;
  const auto names = [](const std::vector<ParameterGroup>& groups) {
    std::vector<std::string> out;
    for (const ParameterGroup& g : groups) out.push_back(g.name);
    return out;
  };
  EXPECT_EQ(names(parameter_groups(*net)),
            (std::vector<std::string>{"embed.weight", "blocks.0", "blocks.1", "blocks.2",
                                      "head.weight"}));
  EXPECT_EQ(names(parameter_groups(*net, {"blocks.1"})),
            (std::vector<std::string>{"embed.weight", "blocks.1", "blocks.2.up.weight"}));
  testing::expect_error<ValueError>([&] { parameter_groups(*net, {"layers.*"}); },
                                    {"layers.*", "blocks.0"});
}

TEST(FullyShard, RefusesWhatCannotBe) {
  const auto world = lockstep_world(2);
  const Mesh mesh = Mesh::parse("[dp=2]");
  Net plain;
  testing::expect_error<ValueError>(
      [&] { fully_shard(parameter_groups(*plain), {.shard = {"dp"}}); },
      {"embed.weight", "build_sharded"});
  Sharded<Net> net = sharded(*world, mesh, {.shard = {"dp"}});
  testing::expect_error<ValueError>([&] { fully_shard(parameter_groups(*net), {.shard = {"dp"}}); },
                                    {"shard"});
  testing::expect_error<ValueError>([&] { sharded(*world, mesh, {}); }, {"`shard`"});
}

TEST(FullyShard, ChangesNothingWhereItRefuses) {
  const auto world = lockstep_world(2);
  const Mesh mesh = Mesh::parse("[dp=2]");
  Net net = build(*world, mesh, LayoutPatterns{}, [] { return Net(); });
  auto groups = parameter_groups(*net);
  groups.back().parameters.back().use = Layout::parse("[dp=2] S(0)");
  testing::expect_error<ValueError>([&] { fully_shard(groups, {.shard = {"dp"}}); },
                                    {"'head.bias' is used in layout [dp=2] S(0)"});
  testing::expect_error<ValueError>(
      [&] {
        fully_shard(parameter_groups(*net), {.shard = {"dp"}, .dims = {{"head.bias", 1}}});
      },
      {"'head.bias' has 1 dimensions"});
  for (const at::Tensor& p : net->parameters()) {
    EXPECT_EQ(layout_of(p), Layout::replicated(mesh));
  }
  EXPECT_NE(fully_shard(parameter_groups(*net), {.shard = {"dp"}}), nullptr);
}

}  // namespace
}  // namespace intarsia

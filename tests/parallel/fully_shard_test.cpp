#include "intarsia/fully_shard.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "error_text.h"
#include "intarsia/communication.h"
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
      for (const at::Tensor& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
    }
    backward(2);
    expect_twins(net.module, twin);
    backward(3);
    expect_twins(net.module, twin);
  });
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

}  // namespace
}  // namespace intarsia

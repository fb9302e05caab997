// Trains a Llama on text that it makes itself, on any mesh.
//
//   llama --steps 20
//   ./launch -n 4 -- build/llama --mode fsdp+tp --mesh "[dp=2,tp=2]" --steps 20
//
// The model is in model.h. `make_model` lays out its parameters, `place` the batch.
#include <intarsia/attention.h>
#include <intarsia/checkpoint_manager.h>
#include <intarsia/communication.h>
#include <intarsia/fully_shard.h>
#include <intarsia/lockstep.h>
#include <intarsia/replicate.h>
#include <intarsia/state_dict.h>
#include <intarsia/tensor.h>
#include <intarsia/tensor_parallel.h>
#include <intarsia/training_state.h>
#include <sys/resource.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>

#include "model.h"
#include "text.h"

namespace llama {
namespace {

using intarsia::Layout;
using intarsia::Mesh;
using intarsia::Placement;
using intarsia::World;

struct Options {
  std::string config = "debug";
  std::string mode = "dp";
  std::string mesh;
  std::int64_t steps = 20;
  std::int64_t batch = 8;
  std::int64_t seq = 64;
  std::uint64_t seed = 0;
  double lr = 1e-3;
  double epsilon = 1e-8;
  double dropout = 0;
  std::string attention = "sdpa";
  bool packed = false;
  std::int64_t key_value_heads = 0;
  std::int64_t chunks = 1;
  std::string dtype = "float32";
  std::string dump;
  std::string dump_initial;
  std::string save;
  std::int64_t every = 100;
  bool resume = false;
  bool bill = false;
  bool lockstep = false;
};

// ---- how it is distributed ----------------------------------------------------------------------

/// The mesh for a mode on so many ranks, where none is given.
Mesh default_mesh(const std::string& mode, std::int64_t ranks) {
  const std::int64_t two = ranks % 2 == 0 ? 2 : 1;
  if (mode == "plain") return Mesh({{"dp", 1}});
  if (mode == "cp") return Mesh({{"cp", ranks}});
  if (mode == "hsdp") return Mesh({{"copy", two}, {"dp", ranks / two}});
  if (mode == "fsdp+tp") return Mesh({{"dp", ranks / two}, {"tp", two}});
  if (mode == "fsdp+cp") return Mesh({{"dp", ranks / two}, {"cp", two}});
  if (mode == "tp+cp") return Mesh({{"cp", ranks / two}, {"tp", two}});
  return Mesh({{mode.starts_with("tp") ? "tp" : "dp", ranks}});
}

/// A model, and what moves its parameters and gradients, if something does.
struct Trained {
  Llama model{nullptr};
  std::shared_ptr<intarsia::FullyShard> sharding;
  std::shared_ptr<intarsia::Replica> replica;
};

/// The same values in plain tensors.
Llama plain(const Llama& model, const Config& config) {
  Llama made(config);
  const torch::NoGradGuard no_grad;
  auto to = made->named_parameters();
  for (const auto& item : model->named_parameters())
    to[item.key()].copy_(intarsia::full(item.value().detach()));
  return made;
}

/// The model with the same initial values, bit for bit, in every mode and on every mesh.
Trained make_model(World& world, const Mesh& mesh, Config config, const Options& o) {
  if (o.mode.find("tp") != std::string::npos) {
    config.plan = intarsia::llama_plan({.sequence_parallel = o.mode == "tp+sp",
                                        .heads = config.heads,
                                        .key_value_heads = config.key_value_heads,
                                        .overlap = {.chunks = o.chunks}});
  }
  torch::manual_seed(o.seed);
  const auto make = [&] { return Llama(config); };
  if (o.mode.starts_with("fsdp") || o.mode == "hsdp") {
    intarsia::FullyShardOptions options{.shard = {"dp"}};
    if (o.mode == "hsdp") options.replicate = {"copy"};
    if (o.mode == "fsdp+cp") options.shard = {"dp", "cp"};  // all ranks that see other tokens
    auto sharded = build_sharded(world, mesh, config.plan, options, make);
    return {.model = sharded.module, .sharding = sharded.sharding};
  }
  Llama model = build(world, mesh, config.plan, make);
  if (o.mode == "plain" || o.mode == "ddp") model = plain(model, config);
  if (o.mode != "ddp") return {.model = model};
  return {.model = model, .replica = intarsia::replicate(*model, world, mesh, "dp")};
}

/// Rows are sharded by every axis but tp, and positions by cp. A plain module gets the rows of its
/// rank.
at::Tensor place(const at::Tensor& rows, const Mesh& mesh, World& world, const Options& o) {
  if (o.mode == "plain") return rows;
  if (o.mode == "ddp") {
    return rows.tensor_split(world.size())[static_cast<std::size_t>(world.rank())];
  }
  Layout layout = Layout::replicated(mesh);
  for (const std::string& axis : mesh.names()) {
    if (axis != "tp") layout = layout.with(axis, Placement::shard(axis == "cp" ? 1 : 0));
  }
  return intarsia::distribute(rows, layout, world);
}

/// Takes each row as three documents: the mask between them, and no target across their ends.
intarsia::AttentionMask pack(Batch& batch) {
  const std::int64_t length = batch.tokens.size(1);
  const std::vector<std::int64_t> starts{0, length * 3 / 8, length * 5 / 8};
  for (const std::int64_t start : {starts[1], starts[2]})
    batch.targets.select(1, start - 1).fill_(-100);
  return intarsia::AttentionMask::causal().documents(starts);
}

// ---- the program --------------------------------------------------------------------------------

at::Tensor full_value(const at::Tensor& t) {
  return intarsia::has_layout(t) ? intarsia::full(t.detach()) : t.detach();
}

/// All parameters and gradients, as full tensors, in pairs for Python: `dict(torch.load(path))`.
/// COLLECTIVE: all ranks.
void dump(const Llama& model, const std::string& path, bool write) {
  std::vector<c10::IValue> state;
  const auto add = [&](const std::string& name, const at::Tensor& t) {
    state.emplace_back(c10::ivalue::Tuple::create({name, full_value(t).clone()}));
  };
  for (const auto& item : model->named_parameters()) {
    add(item.key(), item.value());
    if (item.value().grad().defined()) add(item.key() + ".grad", item.value().grad());
  }
  if (!write) return;
  const std::vector<char> bytes = torch::pickle_save(c10::ivalue::Tuple::create(std::move(state)));
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot write " + path);
}

/// What was sent, by direction and axis: `forward tp: 9 P->R; backward tp: 8 P->R`.
std::string bill_text(const World& world) {
  std::map<std::pair<bool, std::string>, std::map<std::string, std::uint64_t>> sums;
  for (const intarsia::BillEntry& e : intarsia::bill(world).entries)
    sums[{e.backward, e.axis}][e.transition] += e.count;
  std::string text;
  for (const auto& [where, counts] : sums) {
    text += (text.empty() ? "" : "; ") + std::string(where.first ? "backward " : "forward ") +
            where.second + ":";
    const char* separator = " ";
    for (const auto& [transition, count] : counts) {
      text += separator + std::to_string(count) + " " + transition;
      separator = ", ";
    }
  }
  return text.empty() ? "nothing" : text;
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void train(World& world, const Mesh& mesh, const Options& o) {
  static const std::map<std::string, at::ScalarType> dtypes{
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}};
  torch::set_default_dtype(c10::scalarTypeToTypeMeta(dtypes.at(o.dtype)));
  Config config = config_named(o.config);
  config.dropout = o.dropout;
  config.attention = o.attention;
  config.positions = o.seq;
  if (o.key_value_heads != 0) config.key_value_heads = o.key_value_heads;
  const bool speaks = world.in_lockstep() || world.rank() == 0;

  const Trained trained = make_model(world, mesh, config, o);
  Llama model = trained.model;
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(o.lr).eps(o.epsilon).weight_decay(0.01));
  if (speaks) {
    double count = 0;
    for (const at::Tensor& p : model->parameters()) count += static_cast<double>(p.numel());
    std::printf("%s: %.1f M parameters, %s on %s\n", o.config.c_str(), count / 1e6, o.mode.c_str(),
                mesh.to_string().c_str());
  }
  if (!o.dump_initial.empty()) dump(model, o.dump_initial, speaks);
  std::string sent;
  std::optional<intarsia::CheckpointManager> checkpoints;
  if (!o.save.empty()) {
    checkpoints.emplace(world.shared_from_this(), o.save,
                        intarsia::CheckpointManagerOptions{.every = o.every});
  }
  // All that goes on from step to step, by the names of llama.py, which can go on with it too.
  intarsia::TrainingState state;
  state.add("model", model).add("optimizer", optimizer);
  state.add("rng", at::globalContext().defaultGenerator(at::kCPU));
  state.leave_out("*.rotary.*");  // computed, not trained
  const std::int64_t first =
      o.resume ? intarsia::resume_checkpoint(world, o.save, state).value_or(0) : 0;
  for (std::int64_t step = first; step < o.steps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    Batch batch = make_batch(step, o.batch, o.seq, o.seed);
    std::optional<intarsia::AttentionScope> scope;
    if (o.packed) scope.emplace(pack(batch));
    const at::Tensor tokens = place(batch.tokens, mesh, world, o);
    const at::Tensor targets = place(batch.targets, mesh, world, o);
    optimizer.zero_grad();
    clear_bill(world);
    const at::Tensor loss = model->loss(tokens, targets);
    loss.backward();
    sent = bill_text(world);
    optimizer.step();
    if (checkpoints && checkpoints->due(step + 1)) {
      checkpoints->save(step + 1, state.tensors(), state.values());
    }
    const double value = full_value(loss).item<double>();
    if (!speaks) continue;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::printf("step %ld/%ld  loss %.4f  %.0f tokens/s  %.0f MiB\n", static_cast<long>(step + 1),
                static_cast<long>(o.steps), value,
                static_cast<double>(o.batch * o.seq) / took.count(), peak_mebibytes());
    std::fflush(stdout);
  }
  if (checkpoints) checkpoints->wait();
  if (speaks && o.bill && o.steps > 0) std::printf("bill %s\n", sent.c_str());
  if (!o.dump.empty()) dump(model, o.dump, speaks);
}

void run(const Options& o) {
  const auto world =
      o.lockstep ? intarsia::lockstep_world(Mesh::parse(o.mesh).size()) : World::connect();
  const Mesh mesh = o.mesh.empty() ? default_mesh(o.mode, world->size()) : Mesh::parse(o.mesh);
  if (mesh.size() != (o.mode == "plain" ? 1 : world->size())) {
    throw std::runtime_error("the mesh " + mesh.to_string() + " has " +
                             std::to_string(mesh.size()) + " ranks, but " +
                             std::to_string(world->size()) + " processes run");
  }
  if (o.packed && (o.mode == "plain" || o.mode == "ddp")) {
    throw std::runtime_error("--packed is for distributed tensors, which --mode " + o.mode +
                             " has none of; take dp");
  }
  train(*world, mesh, o);
  world->close();
}

}  // namespace
}  // namespace llama

int main(int count, char** arguments) {
  llama::Options o;
  CLI::App app("Trains a Llama on text that it makes itself, on any mesh.");
  app.option_defaults()->always_capture_default();
  app.add_option("--config", o.config)->check(CLI::IsMember({"debug", "8B", "70B", "405B"}));
  app.add_option("--mode", o.mode)
      ->check(CLI::IsMember({"plain", "ddp", "dp", "fsdp", "hsdp", "tp", "tp+sp", "cp", "fsdp+tp",
                             "fsdp+cp", "tp+cp"}));
  app.add_option("--mesh", o.mesh, "such as \"[dp=2,tp=2]\"; by default one for mode and ranks");
  app.add_option("--steps", o.steps);
  app.add_option("--batch", o.batch, "rows of the global batch");
  app.add_option("--seq", o.seq, "positions of each row");
  app.add_option("--seed", o.seed);
  app.add_option("--lr", o.lr);
  app.add_option("--epsilon", o.epsilon, "of AdamW: gradients well below it move little");
  app.add_option("--dropout", o.dropout);
  app.add_option("--attention", o.attention)->check(CLI::IsMember({"sdpa", "math"}));
  app.add_flag("--packed", o.packed, "each row holds three documents; not in modes plain and ddp");
  app.add_option(
      "--chunks", o.chunks,
      "in which sequences are sent while linear layers compute, in mode tp+sp; 0: what is "
      "fastest");
  app.add_option("--key-value-heads", o.key_value_heads, "instead of the configuration's");
  app.add_option("--dtype", o.dtype)->check(CLI::IsMember({"float32", "float64", "bfloat16"}));
  app.add_option("--dump", o.dump, "FILE for parameters and gradients after the last step");
  app.add_option("--dump-initial", o.dump_initial, "FILE for parameters before the first step");
  CLI::Option* save = app.add_option("--save", o.save, "FOLDER for checkpoints");
  app.add_option("--every", o.every, "steps between checkpoints")->needs(save);
  app.add_flag("--resume", o.resume, "go on from the newest one, if there is one")->needs(save);
  app.add_flag("--bill", o.bill, "what the last step sent");
  app.add_flag("--lockstep", o.lockstep, "all ranks of the mesh in this process");
  CLI11_PARSE(app, count, arguments);
  try {
    llama::run(o);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

// Runs plans and compares what every rank holds, element by element, with what it should.
//
//   plans_program pairs   [--all] [--sample N] [--seed S]   plans between all layouts, or N random
//   pairs plans_program peak    [--plans N] [--seed S]            memory against the plan's bound
//   plans_program between [--seed S]                        from one mesh to another
//   plans_program async   [--times N]                       moves that overlap with computing
//
// One process among those that a launcher started; with --lockstep or --in-process N in one
// process.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <iostream>
#include <random>

#include "intarsia/between.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/plan.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "layout/all_layouts.h"

namespace intarsia::testing {
namespace {

using Sizes = std::vector<std::int64_t>;
using Tensors = std::vector<at::Tensor>;

struct Options {
  std::string what;
  bool all = false;
  bool lockstep = false;
  int in_process = 0;
  int sample = 2000;
  int plans = 1000;
  int times = 200;
  std::uint64_t seed = 1;
};

struct Count {
  std::int64_t done = 0;
  std::int64_t wrong = 0;
};

void report(World& world, const std::string& text) {
  const std::string line = (world.in_lockstep() ? std::string("lockstep")
                                                : "rank " + std::to_string(world.rank()) + " of " +
                                                      std::to_string(world.size())) +
                           ": " + text + "\n";
  std::fputs(line.c_str(), stdout);  // one call, so that ranks do not mix
  std::fflush(stdout);
}

std::vector<Coordinate> here(World& world, const Mesh& mesh) {
  std::vector<Coordinate> out;
  for (const std::int64_t rank : world.hosted()) {
    if (const auto at = mesh.coordinate_of(rank)) out.push_back(*at);
  }
  return out;
}

at::Tensor values(const Sizes& shape, at::ScalarType type) {
  const std::int64_t n = c10::multiply_integers(shape);
  at::Tensor flat = at::arange(n, at::kLong).add(1);
  if (type == at::kBool) return flat.remainder(3).eq(0).view(shape);
  if (c10::isComplexType(type))
    return at::complex(flat.to(at::kDouble), flat.neg().to(at::kDouble)).to(type).view(shape);
  if (type == at::kChar) flat = flat.remainder(100);
  return flat.to(type).view(shape);
}

/// Terms that differ between ranks and add up to the piece: whole numbers, so that sums are exact.
at::Tensor term(const at::Tensor& full, const Layout& layout, const Coordinate& at) {
  at::Tensor out = local_piece(full, layout, at).clone();
  std::int64_t place = 0;
  std::int64_t count = 1;
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (!layout.placement(a).is_partial()) continue;
    place = place * layout.mesh().size(a) + at[a];
    count *= layout.mesh().size(a);
  }
  if (count == 1 || out.scalar_type() == at::kBool || out.scalar_type() == at::kChar) return out;
  return out.add(place == 0 ? -(count * (count - 1) / 2) : place);
}

Layout without_terms(Layout layout) {
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_partial()) layout = layout.with(a, Placement::replicate());
  }
  return layout;
}

/// Moves a tensor and compares; terms by their sum.
bool moves_right(World& world, const std::shared_ptr<const Plan>& plan, const at::Tensor& full,
                 std::string& why) {
  const Mesh& mesh = plan->from.mesh();
  const auto at = here(world, mesh);
  Tensors pieces;
  for (const Coordinate& c : at) pieces.push_back(term(full, plan->from, c));
  Tensors moved = redistribute_pieces(world, pieces, plan);
  const Layout open = without_terms(plan->to);
  if (open != plan->to) {
    moved = redistribute_pieces(
        world, moved, world.plans().plan(plan->to, open, plan->shape, plan->element_size));
  }
  bool right = moved.size() == at.size();
  for (std::size_t m = 0; right && m < at.size(); ++m) {
    right = at::equal(moved[m], local_piece(full, open, at[m]));
  }
  if (!right) why = plan->to_string();
  return right;
}

struct Case {
  const char* mesh;
  Sizes shape;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* mesh :
       {"[a=2]", "[a=3]", "[a=4,b=2]", "[a=2,b=3]", "[a=2,b=2,c=2]", "[a=2,b=3,c=2]"}) {
    for (const Sizes& shape : {Sizes{8, 12}, {5, 7}, {4, 6, 8}, {5, 1, 7}})
      out.push_back({mesh, shape});
  }
  return out;
}

std::vector<Layout> layouts_of(const Mesh& mesh, std::size_t dims) {
  std::vector<const char*> texts{"R", "S(0)", "S(1)", "P(sum)", "SS(0,2)", "SS(1,3)"};
  if (dims > 2) texts.push_back("S(2)");
  std::vector<Placement> choices;
  for (const char* t : texts) choices.push_back(Placement::parse(t));
  return all_layouts(mesh, choices);
}

constexpr std::array kTypes{at::kFloat, at::kComplexFloat, at::kBool,
                            at::kLong,  at::kChar,         at::kBFloat16};

bool has_terms(const Layout& layout) { return layout.has_partial(); }

void check_pair(World& world, const Layout& from, const Layout& to, const Sizes& shape,
                at::ScalarType type, Count& count) {
  const bool terms = has_terms(from) || has_terms(to);
  if (terms && (type == at::kBool || type == at::kChar || type == at::kBFloat16)) type = at::kLong;
  const at::Tensor full = values(shape, type);
  const auto plan = world.plans().plan(from, to, shape, full.element_size());
  std::string why;
  ++count.done;
  if (plan && moves_right(world, plan, full, why)) return;
  if (count.wrong++ < 3) report(world, "wrong: " + std::string(c10::toString(type)) + " " + why);
}

/// Every pair of layouts of one mesh that fits into the world.
void all_pairs(World& world, const Mesh& mesh, const Sizes& shape, Count& count) {
  const auto layouts = layouts_of(mesh, shape.size());
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) check_pair(world, from, to, shape, at::kLong, count);
  }
}

Count pairs(World& world, const Options& options) {
  Count count;
  std::mt19937_64 random(options.seed);  // the same on all ranks
  std::vector<Case> fit;
  for (const Case& c : cases()) {
    if (Mesh::parse(c.mesh).size() <= world.size()) fit.push_back(c);
  }
  if (options.all) {
    for (const Case& c : fit) all_pairs(world, Mesh::parse(c.mesh), c.shape, count);
    return count;
  }
  std::vector<std::vector<Layout>> layouts;
  for (const Case& c : fit) layouts.push_back(layouts_of(Mesh::parse(c.mesh), c.shape.size()));
  for (int i = 0; i < options.sample; ++i) {
    const std::size_t c = random() % fit.size();
    const auto& list = layouts[c];
    const Layout& from = list[random() % list.size()];
    const Layout& to = list[random() % list.size()];
    check_pair(world, from, to, fit[c].shape, kTypes[random() % kTypes.size()], count);
  }
  return count;
}

/// Lockstep worlds are as large as their mesh, so there each case has its own; one of one rank more
/// has a rank outside.
Count pairs_in_lockstep(const Options& options) {
  Count count;
  std::mt19937_64 random(options.seed);
  for (const Case& c : cases()) {
    const Mesh mesh = Mesh::parse(c.mesh);
    const Lockstep lockstep(Mesh({{"all", mesh.size() + 1}}).to_string());
    World& world = lockstep.world();
    if (options.all) {
      all_pairs(world, mesh, c.shape, count);
      continue;
    }
    const auto list = layouts_of(mesh, c.shape.size());
    for (int i = 0; i < options.sample / static_cast<int>(cases().size()) + 1; ++i) {
      const Layout& from = list[random() % list.size()];
      const Layout& to = list[random() % list.size()];
      check_pair(world, from, to, c.shape, kTypes[random() % kTypes.size()], count);
    }
  }
  return count;
}

/// Random plans, half of them with a bound below what the best plan would take.
Count peak(World& world, const Options& options) {
  Count count;
  std::mt19937_64 random(options.seed);
  std::int64_t bounded = 0;
  std::int64_t refused = 0;
  double nearest = 0;
  const std::vector<const char*> meshes{"[a=2]", "[a=4]", "[a=2,b=2]"};
  for (int i = 0; i < options.plans; ++i) {
    const Mesh mesh = Mesh::parse(meshes[random() % meshes.size()]);
    Sizes shape;
    for (std::size_t d = 0; d < 2 + random() % 2; ++d) shape.push_back(1 + random() % 40);
    const auto list = layouts_of(mesh, shape.size());
    const Layout& from = list[random() % list.size()];
    const Layout& to = list[random() % list.size()];
    const bool with_bound = random() % 2 == 0;
    const double part = 0.5 + 0.5 * static_cast<double>(random() % 100) / 100;
    if (mesh.size() > world.size()) continue;
    auto plan = world.plans().plan(from, to, shape, 4);
    if (with_bound) {
      const auto bound = static_cast<std::int64_t>(part * static_cast<double>(plan->peak_bytes));
      try {
        plan = world.plans().plan(from, to, shape, 4, bound);
        ++bounded;
        if (plan->peak_bytes > bound) {
          ++count.wrong;
          report(world, "above its bound: " + plan->to_string());
        }
      } catch (const ValueError&) {
        ++refused;
        continue;
      }
    }
    const at::Tensor full = values(shape, at::kFloat);
    const auto at = here(world, mesh);
    Tensors pieces;
    for (const Coordinate& c : at) pieces.push_back(term(full, plan->from, c));
    reset_move_memory(world);
    const std::int64_t before = move_memory(world).live;
    const Tensors moved = redistribute_pieces(world, pieces, plan);
    const std::int64_t held = move_memory(world).high_water - before;
    ++count.done;
    nearest =
        std::max(nearest, static_cast<double>(held) /
                              static_cast<double>(std::max<std::int64_t>(1, plan->peak_bytes)));
    bool right = held <= plan->peak_bytes && move_memory(world).live == before;
    std::string why;
    right = moves_right(world, plan, full, why) && right;  // all ranks take part
    if (right) continue;
    ++count.wrong;
    report(world, "held " + std::to_string(held) + " of " + std::to_string(plan->peak_bytes) +
                      ": " + plan->to_string());
  }
  report(world, std::to_string(bounded) + " plans under a bound, " + std::to_string(refused) +
                    " bounds refused; at most " + std::to_string(nearest) +
                    " of what the plan says");
  return count;
}

Count between(World& world, const Options& options) {
  Count count;
  std::mt19937_64 random(options.seed);
  const std::array<std::pair<const char*, const char*>, 6> meshes{{{"[a=4]", "[b=3]+1"},
                                                                   {"[a=2]", "[b=4]"},
                                                                   {"[a=2,c=2]", "[b=3]{3,0,2}"},
                                                                   {"[a=3]", "[b=2]+2"},
                                                                   {"[a=2]", "[b=2,c=2]"},
                                                                   {"[a=2]", "[b=2]+2"}}};
  for (int i = 0; i < 120; ++i) {
    const auto& [old_text, new_text] = meshes[static_cast<std::size_t>(i) % meshes.size()];
    const Mesh old_mesh = Mesh::parse(old_text);
    const Mesh new_mesh = Mesh::parse(new_text);
    const Sizes shape{1 + static_cast<std::int64_t>(random() % 11),
                      1 + static_cast<std::int64_t>(random() % 9)};
    const auto froms = layouts_of(old_mesh, 2);
    const auto tos = layouts_of(new_mesh, 2);
    const Layout from = froms[random() % froms.size()];
    Layout to = tos[random() % tos.size()];
    const at::Tensor full = values(shape, at::kLong);
    if (i % 3 == 2 && !from.has_partial() && !to.has_partial()) {
      // Ranks in the order in which the least is sent: never more than before.
      const Layout better(relabelled(from, to, shape), to.placements());
      if (to.has_default_order()) {
        const auto less = traffic_between(from, better, shape, 8).missing_by_all;
        if (less > traffic_between(from, to, shape, 8).missing_by_all) ++count.wrong;
        to = better;
      }
    }
    const at::Tensor tensor = distribute(full, from, world);
    const auto bytes_before = world.ledger().totals(CallKind::all_to_all).bytes;
    const at::Tensor moved = redistribute_between(tensor, to);
    // What the exchange sent, by the ledger: parts for others.
    const auto sent = world.ledger().totals(CallKind::all_to_all).bytes - bytes_before;
    ++count.done;
    const Layout open = without_terms(to);
    const at::Tensor reduced = redistribute(moved, open);
    const Tensors got = locals(reduced);
    const auto at = here(world, to.mesh());
    bool right = got.size() == at.size();
    for (std::size_t m = 0; right && m < at.size(); ++m) {
      right = at::equal(got[m], local_piece(full, open, at[m]));
    }
    if (!from.has_partial() && !to.has_partial()) {
      const at::Tensor all = at::full({1}, static_cast<std::int64_t>(sent), at::kLong);
      const auto sum =
          all_reduce(world.everyone(), Tensors(world.hosted().size(), all), Placement::partial())
              .wait();
      const std::int64_t total = sum[0].item<std::int64_t>();
      right = right && total == traffic_between(from, to, shape, 8).missing_by_all;
    }
    if (right) continue;
    ++count.wrong;
    report(world, "wrong: " + from.to_string() + " -> " + to.to_string());
  }
  return count;
}

/// Moves under way while ranks compute; waited for in different orders.
Count overlapping(World& world, const Options& options) {
  Count count;
  const Mesh mesh = Mesh({{"a", world.size()}});
  const Sizes shape{64, 48};
  const at::Tensor full = at::arange(64 * 48, at::kFloat).view(shape);
  const std::array<const char*, 4> to{"R", "S(1)", "R", "S(0)"};
  const std::array<const char*, 4> from{"S(0)", "S(0)", "P(sum)", "P(sum)"};
  for (int i = 0; i < options.times; ++i) {
    std::vector<MovingTensor> moving;
    Tensors sources;
    for (std::size_t k = 0; k < to.size(); ++k) {
      sources.push_back(distribute(full.add(i), Layout::parse(from[k], mesh), world));
      moving.push_back(start_redistribute(sources.back(), Layout::parse(to[k], mesh)));
    }
    // Ranks take different times, so that some are ahead.
    at::Tensor work = at::ones({64, 64});
    for (std::int64_t n = 0; n < 1 + (world.rank() + i) % 4; ++n) work = at::mm(work, work).div(64);
    for (std::size_t k = 0; k < to.size(); ++k) {
      const std::size_t which = (world.rank() + i) % 2 == 0 ? k : to.size() - 1 - k;
      const at::Tensor moved = moving[which].wait();
      const Coordinate at = *mesh.coordinate_of(world.rank());
      const Layout layout = Layout::parse(to[which], mesh);
      ++count.done;
      if (!at::equal(locals(moved)[0], local_piece(full.add(i), layout, at))) ++count.wrong;
    }
    if (work[0][0].item<float>() != 1) ++count.wrong;
    // The same tensors in one exchange for all.
    std::vector<Layout> layouts;
    for (const char* text : to) layouts.push_back(Layout::parse(text, mesh));
    const Tensors together = redistribute_together(sources, layouts);
    for (std::size_t k = 0; k < to.size(); ++k) {
      ++count.done;
      const Coordinate at = *mesh.coordinate_of(world.rank());
      if (!at::equal(locals(together[k])[0], local_piece(full.add(i), layouts[k], at)))
        ++count.wrong;
    }
  }
  return count;
}

bool run(World& world, const Options& options) {
  at::set_num_threads(1);
  const Count count = options.what == "pairs"     ? pairs(world, options)
                      : options.what == "peak"    ? peak(world, options)
                      : options.what == "between" ? between(world, options)
                                                  : overlapping(world, options);
  report(world,
         std::to_string(count.done) + " compared, " + std::to_string(count.wrong) + " wrong");
  return count.wrong == 0 && count.done > 0;
}

int main_of(int argc, char** argv) {
  Options options;
  CLI::App app("Runs plans and compares what every rank holds with what it should");
  app.add_option("what", options.what)
      ->required()
      ->check(CLI::IsMember({"pairs", "peak", "between", "async"}));
  app.add_flag("--all", options.all);
  app.add_flag("--lockstep", options.lockstep);
  app.add_option("--in-process", options.in_process);
  app.add_option("--sample", options.sample);
  app.add_option("--plans", options.plans);
  app.add_option("--times", options.times);
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  if (options.lockstep) {
    const Count count = pairs_in_lockstep(options);
    std::cout << "lockstep, seed " << options.seed << ": " << count.done << " compared, "
              << count.wrong << " wrong\n";
    return count.wrong == 0 ? 0 : 1;
  }
  std::atomic<bool> right = true;
  if (options.in_process > 0) {
    run_in_process(options.in_process, [&](World& world) {
      if (!run(world, options)) right = false;
    });
    return right ? 0 : 1;
  }
  const auto world = World::connect();
  return run(*world, options) ? 0 : 1;
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) { return intarsia::testing::main_of(argc, argv); }

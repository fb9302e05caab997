#include "intarsia/optim.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/lockstep.h"
#include "intarsia/redistribute.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using testing::expect_whole;
using testing::values;
using Tensors = std::vector<at::Tensor>;

const double kInfinity = std::numeric_limits<double>::infinity();

template <class E>
void expect_error(const std::function<void()>& call, const std::string& part) {
  testing::expect_error<E>(call, {part});
}

/// Runs `body` in lockstep, and on ranks as threads. In this order: where several threads take the
/// first norms of a process, those of one are now and then off in the 12th digit. Plain ATen alone
/// does so with sines (seen once in 150 processes under load), which are MKL's as roots are.
void in_both_worlds(int ranks, const std::function<void(World&)>& body) {
  const auto world = lockstep_world(ranks);
  body(*world);
  world->close();
  run_in_process(ranks, body, {.timeout = std::chrono::seconds(30)});
}

/// A parameter in a layout, and the same one plain; both with the same gradient.
struct Pair {
  at::Tensor ours;
  at::Tensor plain;
};

at::Tensor with_grad(at::Tensor value, const at::Tensor& grad) {
  value.set_requires_grad(true);
  value.mutable_grad() = grad;
  return value;
}

/// A gradient in the given layout, which an empty text makes plain.
Pair pair_of(World& world, std::vector<std::int64_t> sizes, const std::string& layout,
             std::uint64_t seed, at::ScalarType dtype = at::kDouble) {
  const at::Tensor value = values(sizes, seed, dtype);
  const at::Tensor grad = values(sizes, seed + 1000, dtype);
  const at::Tensor plain = with_grad(value.clone(), grad.clone());
  if (layout.empty()) return {with_grad(value.clone(), grad.clone()), plain};
  const Layout l = Layout::parse(layout);
  return {with_grad(distribute(value, l, world), distribute(grad, l, world)), plain};
}

Tensors ours_of(const std::vector<Pair>& pairs) {
  Tensors out;
  for (const Pair& p : pairs) out.push_back(p.ours);
  return out;
}

/// The norm of all gradients of the plain twins, in f64.
double norm_of(const std::vector<Pair>& pairs, double order) {
  Tensors flat;
  for (const Pair& p : pairs) flat.push_back(p.plain.grad().to(at::kDouble).reshape(-1));
  return at::linalg_vector_norm(at::cat(flat), order).item<double>();
}

std::uint64_t reductions(World& world) {
  std::uint64_t n = 0;
  for (const BillEntry& e : bill(world).entries) {
    if (e.op == "clip_grad_norm_") n += e.count;
  }
  return n;
}

void expect_clipped(World& world, const std::vector<Pair>& pairs, double order,
                    std::uint64_t expected_reductions) {
  const double want = norm_of(pairs, order);
  clear_bill(world);
  const double limit = want / 2;
  const at::Tensor got = clip_grad_norm_(ours_of(pairs), limit, {.norm_type = order});
  ASSERT_FALSE(has_layout(got));
  ASSERT_NEAR(got.item<double>(), want, 1e-12 * want) << "order " << order;
  ASSERT_EQ(reductions(world), expected_reductions) << bill(world).to_string();
  for (const Pair& p : pairs) {
    // Who is outside the mesh has no piece to compare.
    if (has_layout(p.ours) && locals(p.ours.grad()).empty()) continue;
    expect_whole(p.ours.grad(), p.plain.grad() * (limit / (want + 1e-6)), describe(p.ours), 1e-12);
  }
}

// ---- norms -----------------------------------------------------------------------------------

TEST(ClipGradNorm, CountsEachElementOnceOnThreeAxisSetsWithOneReduction) {
  in_both_worlds(4, [](World& world) {
    for (const double order : {2.0, 1.0, 3.0, kInfinity}) {
      expect_clipped(world,
                     {pair_of(world, {7, 3}, "[dp=2,tp=2] S(0),R", 1),
                      pair_of(world, {5, 6}, "[dp=2,tp=2] R,S(1)", 2),
                      pair_of(world, {9}, "[dp=2,tp=2] S(0),S(0)", 3),
                      pair_of(world, {4, 4}, "[dp=2,tp=2] R,R", 4), pair_of(world, {3}, "", 5)},
                     order, 1);
    }
  });
}

TEST(ClipGradNorm, NeedsNoReductionWhereNothingIsCut) {
  in_both_worlds(3, [](World& world) {
    expect_clipped(world, {pair_of(world, {5}, "[tp=3] R", 1), pair_of(world, {2}, "", 2)}, 2, 0);
    expect_clipped(world, {pair_of(world, {5}, "", 1)}, 2, 0);
  });
}

TEST(ClipGradNorm, TakesEmptyPieces) {
  in_both_worlds(3, [](World& world) {
    for (const double order : {2.0, kInfinity}) {
      expect_clipped(
          world, {pair_of(world, {1, 4}, "[tp=3] S(0)", 1), pair_of(world, {2}, "[tp=3] S(0)", 2)},
          order, 1);
    }
    const Pair empty = pair_of(world, {0, 4}, "[tp=3] S(0)", 1);
    EXPECT_EQ(clip_grad_norm_({empty.ours}, 1).item<double>(), 0);
  });
}

TEST(ClipGradNorm, TakesSeveralMeshesOfAWorld) {
  in_both_worlds(4, [](World& world) {
    for (const double order : {2.0, kInfinity}) {
      // All ranks; two pairs of ranks with an expert each, replicated and cut; one rank only.
      expect_clipped(world,
                     {pair_of(world, {7, 3}, "[dp=2,tp=2] S(0),S(1)", 1),
                      pair_of(world, {6}, "[dp=4] R", 2), pair_of(world, {5}, "[ep=2] S(0)", 3),
                      pair_of(world, {5}, "[ep=2]+2 R", 4), pair_of(world, {3}, "[ep=1]+3 R", 5)},
                     order, 1);
    }
    // Two meshes of the same ranks, where nothing is cut.
    expect_clipped(world,
                   {pair_of(world, {7}, "[dp=2,tp=2] R,R", 1), pair_of(world, {6}, "[dp=4] R", 2)},
                   2, 0);
  });
}

TEST(ClipGradNorm, RanksOutsideEveryMeshTakeNoPart) {
  run_in_process(3, [](World& world) {
    const Pair p = pair_of(world, {5, 2}, "[dp=2] S(0)", 1);
    const double norm = clip_grad_norm_({p.ours}, 1).item<double>();
    if (world.rank() < 2) {
      EXPECT_NEAR(norm, norm_of({p}, 2), 1e-12);
    } else {
      EXPECT_TRUE(std::isnan(norm));
      const Pair plain = pair_of(world, {2}, "", 1);
      expect_error<ValueError>(
          [&] {
            clip_grad_norm_({p.ours, plain.ours}, 1);
          },
          "no rank of this process is in [dp=2]");
    }
  });
}

TEST(ClipGradNorm, RefusesListsThatDifferBetweenRanks) {
  for (const double order : {2.0, kInfinity}) {
    run_in_process(4, [order](World& world) {
      // A mesh for each rank's own group, where the other group holds the same values.
      const std::string mesh = world.rank() < 2 ? "[tp=2]" : "[tp=2]+2";
      const Pair a = pair_of(world, {4, 4}, "[dp=2,tp=2] S(0),R", 1);
      const Pair b = pair_of(world, {4, 4}, mesh + " S(0)", 2);
      expect_error<ValueError>(
          [&] {
            clip_grad_norm_({a.ours, b.ours}, 1, {.norm_type = order});
          },
          "were given different tensors");
    });
  }
}

TEST(ClipGradNorm, SumsHalfPrecisionInSingle) {
  in_both_worlds(4, [](World& world) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const std::vector<Pair> pairs{pair_of(world, {300, 50}, "[dp=4] S(0)", 1, dtype),
                                    pair_of(world, {17}, "[dp=4] R", 2, dtype),
                                    pair_of(world, {12}, "[dp=4] S(0)", 3, at::kFloat)};
      const at::Tensor norm = clip_grad_norm_(ours_of(pairs), 1);
      EXPECT_EQ(norm.scalar_type(), at::kFloat);
      // In bf16 itself the sum would be off by percents. A float sum of 4,000 squares, in blocks.
      const double want = norm_of(pairs, 2);
      EXPECT_NEAR(norm.item<double>(), want, want * 64 * std::numeric_limits<float>::epsilon());
      EXPECT_EQ(pairs[0].ours.grad().scalar_type(), dtype);
    }
  });
}

TEST(ClipGradNorm, ReducesPartialGradientsFirst) {
  in_both_worlds(4, [](World& world) {
    expect_clipped(world,
                   {pair_of(world, {7, 3}, "[dp=2,tp=2] P(sum),S(0)", 1),
                    pair_of(world, {5}, "[dp=2,tp=2] P(avg),R", 2)},
                   2, 1);
  });
}

TEST(ClipGradNorm, LeavesSmallGradientsAndTakesNone) {
  in_both_worlds(2, [](World& world) {
    const Pair p = pair_of(world, {5}, "[dp=2] S(0)", 1);
    clip_grad_norm_({p.ours}, 1e6);
    EXPECT_TRUE(at::equal(full(p.ours.grad()), p.plain.grad()));
    EXPECT_EQ(get_grad_norm({}).item<double>(), 0);
    const at::Tensor without = distribute(values({3}, 1), Layout::parse("[dp=2] S(0)"), world);
    EXPECT_EQ(clip_grad_norm_({without}, 1).item<double>(), 0);
    EXPECT_NEAR(get_grad_norm({p.ours, without}).item<double>(), norm_of({p}, 2), 1e-12);
    EXPECT_NEAR(total_norm({p.ours.grad()}).item<double>(), norm_of({p}, 2), 1e-12);
  });
}

TEST(ClipGradNorm, RefusesWhatHasNoNorm) {
  in_both_worlds(2, [](World& world) {
    const Pair p = pair_of(world, {5}, "[dp=2] S(0)", 1);
    expect_error<ValueError>([&] { clip_grad_norm_({p.ours}, 1, {.norm_type = 0}); },
                             "[clip_grad_norm_] norm_type is 0");
    expect_error<ValueError>([&] { clip_grad_norm_({p.ours}, -1); }, "max_norm is -1");
    expect_error<ValueError>([&] { total_norm({at::ones({2}, at::kLong)}); },
                             "i64[2] plain has no norm");
    at::Tensor grad = p.ours.grad();
    grad.fill_(kInfinity);
    expect_error<ValueError>([&] { clip_grad_norm_({p.ours}, 1, {.error_if_nonfinite = true}); },
                             "the norm of order 2 over 1 tensors is");
    EXPECT_TRUE(std::isinf(get_grad_norm({p.ours}).item<double>()));
    grad.fill_(std::nan(""));
    for (const double order : {2.0, kInfinity}) {
      EXPECT_TRUE(std::isnan(get_grad_norm({p.ours}, {.norm_type = order}).item<double>()));
    }
  });
}

TEST(ClipGradNorm, WorksWhereHiddenMovesAreErrors) {
  in_both_worlds(2, [](World& world) {
    const Pair p = pair_of(world, {5}, "[dp=2] S(0)", 1);
    const CommunicationScope scope(world, Communication::explicit_only);
    set_plain_tensors(world, PlainTensors::refused);
    EXPECT_NEAR(clip_grad_norm_({p.ours}, 1).item<double>(), norm_of({p}, 2), 1e-12);
  });
}

// ---- states ----------------------------------------------------------------------------------

template <class Optimizer, class Options>
void expect_states_fit(World& world, const Options& options) {
  const Pair p = pair_of(world, {5, 3}, "[dp=2] S(0)", 1);
  Optimizer optimizer(Tensors{p.ours}, options);
  optimizer.step();
  ASSERT_EQ(optimizer.state().size(), 1);
  EXPECT_NO_THROW(check_optimizer(optimizer));
  at::Tensor parameter = p.ours;
  // The parameter is laid out anew under its optimizer.
  parameter.unsafeGetTensorImpl()->shallow_copy_from(
      redistribute(p.ours.detach(), Layout::parse("[dp=2] S(1)")).getIntrusivePtr());
  expect_error<ValueError>(
      [&] {
        check_optimizer(optimizer, {{"head.weight", parameter}});
      },
      "of parameter head.weight is f64[5@dp, 3] on [dp=2], but the parameter is "
      "f64[5, 3@dp] on [dp=2]; redistribute() the state to [dp=2] S(1)");
}

TEST(CheckOptimizer, FindsStatesOfTorchsOptimizersThatDoNotFit) {
  in_both_worlds(2, [](World& world) {
    namespace optim = torch::optim;
    expect_states_fit<optim::SGD>(world, optim::SGDOptions(0.1).momentum(0.9));
    expect_states_fit<optim::Adam>(world, optim::AdamOptions(0.1).amsgrad(true));
    expect_states_fit<optim::AdamW>(world, optim::AdamWOptions(0.1));
    expect_states_fit<optim::Adagrad>(world, optim::AdagradOptions(0.1));
    expect_states_fit<optim::RMSprop>(world,
                                      optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
    expect_states_fit<Muon>(world, MuonOptions(0.1));
  });
}

TEST(CheckOptimizer, SaysTheWayOut) {
  in_both_worlds(2, [](World& world) {
    const at::Tensor whole = values({4, 3}, 1);
    const at::Tensor cut = distribute(whole, Layout::parse("[dp=2] S(0)"), world);
    const at::Tensor on_one = distribute(whole, Layout::parse("[dp=1] R"), world);
    const auto check = [](const at::Tensor& of, const at::Tensor& state) {
      check_optimizer({{"w", "exp_avg", of, state}});
    };
    expect_error<ValueError>(
        [&] { check(cut, whole); },
        "[check_optimizer] the state exp_avg of parameter w is f64[4, 3] plain, but "
        "the parameter is f64[4@dp, 3] on [dp=2]; distribute() the state to [dp=2] S(0)");
    expect_error<ValueError>([&] { check(cut, on_one); }, "redistribute_between() the state to");
    expect_error<ValueError>([&] { check(whole, cut); },
                             "make the optimizer after the parameter was laid out");
    EXPECT_NO_THROW(check(cut, at::ones({})));
    EXPECT_NO_THROW(check(cut, at::ones({4})));
    EXPECT_NO_THROW(check(whole, whole));
    EXPECT_NO_THROW(check(cut, at::Tensor()));
  });
}

TEST(CheckOptimizer, FindsParametersThatAreNotTheModules) {
  in_both_worlds(2, [](World& world) {
    const at::Tensor before = values({4, 3}, 1).set_requires_grad(true);
    const at::Tensor after = distribute(before.detach(), Layout::parse("[dp=2] S(0)"), world);
    const at::Tensor other = values({2}, 2).set_requires_grad(true);
    torch::optim::SGD optimizer(Tensors{other, before}, 0.1);
    expect_error<ValueError>(
        [&] {
          check_optimizer(optimizer, {{"weight", after}, {"plain", other}});
        },
        "[check_optimizer] the optimizer's parameter 1 of group 0 (f64[4, 3] plain) is none of the "
        "module's, whose parameters are distributed: a step on it trains nothing; make the "
        "optimizer after the module was laid out");
    EXPECT_NO_THROW(check_optimizer(optimizer, {{"weight", other}}));  // of a plain module
    EXPECT_NO_THROW(check_optimizer(optimizer));
  });
}

// ---- torch's optimizers ----------------------------------------------------------------------

using Maker = std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>;

std::vector<std::pair<std::string, Maker>> optimizers() {
  namespace optim = torch::optim;
  const auto maker = [](auto options, auto type) -> Maker {
    using Type = typename decltype(type)::type;
    return [options](Tensors p) { return std::make_unique<Type>(std::move(p), options); };
  };
  return {{"SGD", maker(optim::SGDOptions(0.1).momentum(0.9), std::type_identity<optim::SGD>())},
          {"Adam", maker(optim::AdamOptions(0.1), std::type_identity<optim::Adam>())},
          {"AdamW", maker(optim::AdamWOptions(0.1), std::type_identity<optim::AdamW>())},
          {"Adagrad", maker(optim::AdagradOptions(0.1), std::type_identity<optim::Adagrad>())},
          {"RMSprop",
           maker(optim::RMSpropOptions(0.1).momentum(0.9), std::type_identity<optim::RMSprop>())},
          {"Muon",
           maker(MuonOptions(0.1).iteration({.dtype = at::kDouble}), std::type_identity<Muon>())}};
}

/// Ten steps in which gradients depend on the parameters, so that errors would grow.
void expect_steps_follow_plain(World& world, const std::string& name, const Maker& make,
                               const std::vector<std::string>& layouts) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    pairs.push_back(pair_of(world, {7 + n, 5}, layouts[i], 10 * i));
  }
  Tensors plain;
  for (const Pair& p : pairs) plain.push_back(p.plain);
  const auto ours = make(ours_of(pairs));
  const auto theirs = make(plain);
  for (int step = 0; step < 10; ++step) {
    for (const Pair& p : pairs) {
      const at::NoGradGuard no_grad;
      at::Tensor(p.ours).mutable_grad() = p.ours.grad() * 0.5 + at::sin(p.ours.detach());
      at::Tensor(p.plain).mutable_grad() = p.plain.grad() * 0.5 + at::sin(p.plain.detach());
    }
    ours->step();
    theirs->step();
  }
  for (const Pair& p : pairs) expect_whole(p.ours, p.plain, name + ' ' + describe(p.ours), 1e-11);
  check_optimizer(*ours);
}

TEST(Optimizers, FollowPlainOnesOnThreeMeshes) {
  for (const auto& [name, make] : optimizers()) {
    in_both_worlds(4, [&name = name, &make = make](World& world) {
      expect_steps_follow_plain(world, name, make, {"[dp=4] S(0)", "[dp=4] S(0)", "[dp=4] S(1)"});
      expect_steps_follow_plain(
          world, name, make,
          {"[dp=2,tp=2] S(0),S(1)", "[dp=2,tp=2] S(0),R", "[dp=2,tp=2] R,S(0)", "[dp=2,tp=2] R,R",
           "[dp=2,tp=2] S(0),S(0)", ""});
    });
    in_both_worlds(3, [&name = name, &make = make](World& world) {
      expect_steps_follow_plain(world, name, make, {"[tp=3] S(0)", "[tp=3] S(1)", "[tp=3] R"});
    });
  }
}

// ---- whole matrices --------------------------------------------------------------------------

TEST(BalancedOwners, GivesTheLongestFirstToWhoHasLeast) {
  const std::vector<std::int64_t> costs{1, 9, 3, 3, 3};
  EXPECT_EQ(balanced_owners(costs, 2), (std::vector<std::int64_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(balanced_owners(std::vector<std::int64_t>(), 3), std::vector<std::int64_t>());
  EXPECT_EQ(balanced_owners(std::vector<std::int64_t>{0, 0}, 1), (std::vector<std::int64_t>{0, 0}));
  expect_error<ValueError>([&] { balanced_owners(costs, 0); }, "0 ranks");
}

TEST(BalancedOwners, AreCloseToTheMean) {
  std::vector<std::int64_t> costs;
  for (std::int64_t i = 0; i < 97; ++i) costs.push_back(1 + (i * 7919) % 101);
  const auto owners = balanced_owners(costs, 8);
  std::vector<std::int64_t> load(8, 0);
  for (std::size_t i = 0; i < costs.size(); ++i)
    load[static_cast<std::size_t>(owners[i])] += costs[i];
  const auto total = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  // The last tasks are small, and fill the gaps.
  EXPECT_LE(*std::max_element(load.begin(), load.end()), total / 8 + 8);
}

TEST(BalancedOwners, StayInTheirMesh) {
  const std::vector<std::int64_t> costs{5, 5, 5, 1};
  const std::vector<Mesh> meshes{Mesh::parse("[a=2]+2"), Mesh::parse("[a=2]+2"),
                                 Mesh::parse("[a=4]"), Mesh::parse("[a=1]+3")};
  EXPECT_EQ(balanced_owners(costs, meshes), (std::vector<std::int64_t>{2, 3, 0, 3}));
  expect_error<ValueError>([&] { balanced_owners(costs, std::vector<Mesh>()); },
                           "4 costs and 0 meshes");
}

/// The calls of a backend that ops of this name made.
std::uint64_t calls_of(World& world, std::uint64_t before) {
  return world.ledger().totals().calls - before;
}

TEST(Orthogonalize, MakesMatricesOrthogonal) {
  const NewtonSchulz exact{
      .coefficients = {1.875, -1.25, 0.375}, .steps = 40, .dtype = at::kDouble};
  in_both_worlds(4, [&](World& world) {
    const Layout layout = Layout::parse("[dp=2,tp=2] S(0),S(1)");
    const at::Tensor wide = distribute(values({5, 9}, 1), layout, world);
    const at::Tensor tall = distribute(values({9, 4}, 2), layout, world);
    const Tensors out = orthogonalize({wide, tall}, exact);
    EXPECT_EQ(layout_of(out[0]), layout);
    const at::Tensor a = full(out[0]);
    const at::Tensor b = full(out[1]);
    EXPECT_TRUE(at::allclose(a.mm(a.t()), at::eye(5, at::kDouble), 1e-9, 1e-9));
    EXPECT_TRUE(at::allclose(b.t().mm(b), at::eye(4, at::kDouble), 1e-9, 1e-9));
  });
}

TEST(Orthogonalize, EqualsPlainInOneExchangeThereAndOneBack) {
  run_in_process(4, [](World& world) {
    const std::vector<std::string> layouts{"[dp=2,tp=2] S(0),S(1)",
                                           "[dp=2,tp=2] R,S(1)",
                                           "[dp=2,tp=2] R,R",
                                           "[dp=4] S(0)",
                                           "[dp=2]+1 S(1)",
                                           "[dp=1]+3 R",
                                           ""};
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Tensors ours;
      Tensors plain;
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        const auto n = static_cast<std::int64_t>(i);
        plain.push_back(values({3 + 2 * n, 8}, i, at::kFloat));
        ours.push_back(layouts[i].empty() ? plain[i]
                                          : distribute(plain[i], Layout::parse(layouts[i]), world));
      }
      ours.push_back(distribute(at::ones({0, 4}), Layout::parse("[dp=4] S(0)"), world));
      const std::uint64_t before = world.ledger().totals().calls;
      const Tensors got = orthogonalize(ours, {.dtype = dtype});
      EXPECT_EQ(calls_of(world, before), 2);
      const Tensors want = orthogonalize(plain, {.dtype = dtype});
      for (std::size_t i = 0; i < plain.size(); ++i) {
        if (layouts[i].empty() || layout_of(got[i]).mesh().contains(world.rank())) {
          // The same work on the same whole matrix.
          const at::Tensor whole = has_layout(got[i]) ? full(got[i]) : got[i];
          EXPECT_TRUE(at::equal(whole, want[i])) << layouts[i];
        }
        ASSERT_EQ(has_layout(got[i]), has_layout(ours[i]));
        if (has_layout(ours[i])) {
          EXPECT_EQ(layout_of(got[i]), layout_of(ours[i]));
        }
      }
    }
  });
}

TEST(Muon, FollowsPlainWithGroupsInTwoExchanges) {
  run_in_process(4, [](World& world) {
    const std::vector<Pair> pairs{pair_of(world, {9, 5}, "[dp=2,tp=2] S(0),S(1)", 1, at::kFloat),
                                  pair_of(world, {6, 7}, "[dp=2,tp=2] S(0),R", 2, at::kFloat)};
    const auto make = [](const at::Tensor& a, const at::Tensor& b) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(Tensors{a});
      groups.emplace_back(Tensors{b}, std::make_unique<MuonOptions>(
                                          MuonOptions(0.3).scale(MuonScale::match_rms_adamw)));
      return Muon(groups, MuonOptions(0.1).nesterov(false));
    };
    Muon ours = make(pairs[0].ours, pairs[1].ours);
    Muon theirs = make(pairs[0].plain, pairs[1].plain);
    const std::uint64_t before = world.ledger().totals().calls;
    ours.step();
    EXPECT_EQ(calls_of(world, before), 2);
    theirs.step();
    for (const Pair& p : pairs) expect_whole(p.ours, p.plain, describe(p.ours), 1e-6);
    ours.zero_grad();
    EXPECT_FALSE(pairs[0].ours.grad().defined());
    EXPECT_NO_THROW(ours.step());
  });
}

TEST(Muon, RefusesWhatIsNoMatrix) {
  in_both_worlds(2, [](World& world) {
    const Pair p = pair_of(world, {5}, "[dp=2] S(0)", 1);
    expect_error<ValueError>(
        [&] { Muon({p.ours}); },
        "[Muon] takes matrices of real numbers, not f64[5@dp] on [dp=2]; give other "
        "parameters to another optimizer");
    expect_error<ValueError>([&] { Muon(Tensors(), MuonOptions(-1)); }, "[Muon] lr is -1");
    expect_error<ValueError>(
        [&] {
          muon_step({{{p.ours}, {}, {}, MuonOptions()}});
        },
        "[muon_step] 1 parameters, 0 gradients and 0 momenta were given");
  });
}

// ---- between meshes, many at once ------------------------------------------------------------

TEST(RedistributeBetween, MovesManyTensorsOfADtypeInOneExchange) {
  run_in_process(4, [](World& world) {
    const std::vector<std::pair<std::string, std::string>> moves{
        {"[dp=4] S(0)", "[tp=2]+2 S(1)"},
        {"[tp=2] S(1)", "[x=1]+3 R"},
        {"[dp=2,tp=2] P(sum),S(0)", "[dp=4] S(1)"},
        {"[x=1]+2 R", "[dp=4] R"}};
    Tensors from;
    std::vector<Layout> to;
    for (std::size_t i = 0; i < moves.size(); ++i) {
      from.push_back(distribute(values({5, 6}, i), Layout::parse(moves[i].first), world));
      to.push_back(Layout::parse(moves[i].second));
    }
    const std::uint64_t reduction = 1;  // of the partial one
    const std::uint64_t before = world.ledger().totals().calls;
    const Tensors got = redistribute_between(from, to);
    EXPECT_EQ(calls_of(world, before), 1 + reduction);
    for (std::size_t i = 0; i < moves.size(); ++i) {
      EXPECT_EQ(layout_of(got[i]), to[i]);
      if (to[i].mesh().contains(world.rank()))
        expect_whole(got[i], values({5, 6}, i), moves[i].second);
    }
    EXPECT_TRUE(redistribute_between(Tensors(), {}).empty());
    expect_error<ValueError>([&] { redistribute_between(from, {to[0]}); },
                             "4 tensors and 1 layouts");
  });
}

}  // namespace
}  // namespace intarsia

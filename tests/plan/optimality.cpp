// Is every plan the cheapest? Compares make_plan with an exhaustive search over all layouts.
//
//     optimality [--all | --sample N] [--seed S] [--mesh TEXT] [--shape 8,12] [--topology NAME]
//                [--kind P(sum)] [--show N] [--show-cheaper] [--irregular]
//
// For each pair of layouts: no way through listed layouts costs less; every step costs what the
// reference says of it; and replayed on the real shape every rank finds what it holds after a step
// among what its group held before. Layouts are all of R, S(d), P(kind), in every order, also where
// ranks hold nothing, and those with data in blocks that a view can leave and that may stand on the
// way; with --irregular also blocks that no view leaves.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "intarsia/plan.h"
#include "layout/oracle.h"
#include "plan/exhaustive_search.h"

namespace intarsia::testing {
namespace {

constexpr double kTolerance = 1e-9;
constexpr std::size_t kMostElements = 256;
constexpr std::int64_t kElementSize = 4;
using Shape64 = std::vector<std::int64_t>;
using Elements = std::bitset<kMostElements>;

struct Options {
  std::int64_t sample = 2000;
  bool all = false;
  bool irregular = false;
  std::uint64_t seed = 0;
  std::string mesh;
  std::string shape;
  std::string topology;
  std::string kind;
  std::int64_t show = 10;  // differences of one kind and one case
  bool show_cheaper = false;
};

struct NamedTopology {
  std::string name;
  Topology topology;
};

/// Links that make different plans the cheapest; those of the mesh's last axis may be faster.
std::vector<NamedTopology> topologies(const Mesh& mesh) {
  const auto one_level = [](Link link, double copy) {
    Topology t;
    t.levels = {{"all", 0, link}};
    t.copy_bandwidth = copy;
    return t;
  };
  std::vector<NamedTopology> out{{"standard", Topology::standard()}};
  out.push_back({"bytes", one_level({0, 0, 1e9}, std::numeric_limits<double>::infinity())});
  out.push_back({"bytes and copies", one_level({0, 0, 1e9}, 4e9)});
  out.push_back({"latency", one_level({1e-3, 5e-3, 1e9}, 8e9)});
  if (mesh.axes() > 1) {
    Topology two = one_level({100 / 1e9, 50 / 1e9, 1e9}, 16e9);
    const std::int64_t last = mesh.size(mesh.axes() - 1);
    two.levels.insert(two.levels.begin(), {"node", last, {10 / 1e9, 20 / 1e9, 8e9}});
    out.push_back({"two levels", two});
    Topology relative = two;
    relative.all_gather = 0.8;
    relative.all_reduce = 0.7;
    relative.axes = {{{mesh.name(0), mesh.name(1)}, {100 / 1e9, 50 / 1e9, 3e9}}};
    out.push_back({"fused axes", relative});
  }
  return out;
}

/// All layouts of R, S(d) and the kind of terms, with every order of cuts.
std::vector<Layout> plain_layouts(const Mesh& mesh, std::size_t dims, const Placement& partial) {
  std::vector<Placement> choices{Placement::replicate(), partial};
  for (std::size_t d = 0; d < dims; ++d) choices.push_back(Placement::shard(static_cast<int>(d)));
  std::vector<Layout> out;
  std::unordered_map<const void*, bool> seen;
  std::vector<std::size_t> pick(mesh.axes(), 0);
  while (true) {
    std::vector<Placement> placements;
    for (const std::size_t p : pick) placements.push_back(choices[p]);
    std::vector<std::string> order = mesh.names();
    std::sort(order.begin(), order.end());
    do {
      LayoutOptions options;
      for (int d = 0; d < static_cast<int>(dims); ++d) {
        std::vector<std::string> cutting;
        for (const std::string& name : order) {
          if (placements[mesh.axis_index(name)].is_shard(d)) cutting.push_back(name);
        }
        if (cutting.size() > 1) options.order.emplace_back(d, cutting);
      }
      const Layout layout(mesh, placements, options);
      if (seen.emplace(layout.id(), true).second) out.push_back(layout);
    } while (std::next_permutation(order.begin(), order.end()));
    std::size_t a = 0;
    while (a < pick.size() && ++pick[a] == choices.size()) pick[a++] = 0;
    if (a == pick.size()) return out;
  }
}

/// What each rank holds of a tensor, by layout.
class Pieces {
 public:
  Pieces(const Mesh& mesh, Shape64 shape) : mesh_(mesh), shape_(std::move(shape)) {
    for_each_coordinate(mesh_, [&](const Coordinate& at) { ranks_.push_back(at); });
  }

  const std::vector<Coordinate>& ranks() const { return ranks_; }

  const std::vector<Elements>& of(const Layout& layout) {
    std::vector<Elements>& out = known_[layout.id()];
    if (!out.empty()) return out;
    keep_.push_back(layout);
    for (const Coordinate& at : ranks_) {
      Indices flat{0};
      for (std::size_t d = 0; d < shape_.size(); ++d) {
        Indices next;
        for (const std::int64_t outer : flat) {
          for (const std::int64_t i : naive_indices(layout, static_cast<int>(d), shape_[d], at)) {
            next.push_back(outer * shape_[d] + i);
          }
        }
        flat = next;
      }
      Elements held;
      for (const std::int64_t i : flat) held.set(static_cast<std::size_t>(i));
      out.push_back(held);
    }
    return out;
  }

 private:
  Mesh mesh_;
  Shape64 shape_;
  std::vector<Coordinate> ranks_;
  std::unordered_map<const void*, std::vector<Elements>> known_;
  std::vector<Layout> keep_;
};

std::uint32_t bit(std::size_t axis) { return std::uint32_t{1} << axis; }

std::uint32_t terms_of(const Layout& layout) {
  std::uint32_t out = 0;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_partial()) out |= bit(a);
  }
  return out;
}

/// Why a step cannot be done on the real shape, or nothing.
std::string replay(const Step& step, Pieces& pieces) {
  const std::vector<Elements>& before = pieces.of(step.before);
  const std::vector<Elements>& after = pieces.of(step.after);
  const std::vector<Coordinate>& ranks = pieces.ranks();
  const std::uint32_t reduced = terms_of(step.before) & ~terms_of(step.after);
  const std::uint32_t made = terms_of(step.after) & ~terms_of(step.before);
  std::uint32_t group = 0;
  // A term may be spread over the ranks along an axis that becomes terms.
  if (step.kind == StepKind::make_partial) group = made;
  for (const std::int8_t a : step.axes) {
    if (step.communicates()) group |= bit(static_cast<std::size_t>(a));
  }
  if (made != 0 && step.kind != StepKind::make_partial) return "makes terms on the way";
  if ((reduced & ~group) != 0) return "reduces terms of ranks that are not in the group";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    // Each term of the value must be found whole: among the ranks that hold parts of it.
    std::vector<Elements> found;
    std::vector<std::size_t> first;
    for (std::size_t q = 0; q < ranks.size(); ++q) {
      bool reachable = true;
      for (std::size_t a = 0; a < ranks[q].size(); ++a) {
        reachable = reachable && ((group & bit(a)) != 0 || ranks[q][a] == ranks[r][a]);
      }
      if (!reachable) continue;
      std::size_t t = 0;
      for (; t < first.size(); ++t) {
        bool same = true;
        for (std::size_t a = 0; a < ranks[q].size(); ++a) {
          same = same && ((reduced & bit(a)) == 0 || ranks[q][a] == ranks[first[t]][a]);
        }
        if (same) break;
      }
      if (t == first.size()) {
        first.push_back(q);
        found.emplace_back();
      }
      found[t] |= before[q];
    }
    for (const Elements& term : found) {
      if ((after[r] & ~term).any()) return "a rank does not find all of its new piece";
    }
  }
  return "";
}

/// One mesh, shape and kind of terms.
struct Case {
  std::string mesh;
  Shape64 shape;
  Placement partial;
};

std::string text_of(const Shape64& shape) {
  std::string out;
  for (const std::int64_t s : shape) out += (out.empty() ? "" : ",") + std::to_string(s);
  return out;
}

struct Count {
  std::int64_t pairs = 0;
  std::int64_t dearer = 0;
  std::int64_t cheaper = 0;
  std::int64_t priced_otherwise = 0;
  std::int64_t infeasible = 0;
  std::int64_t not_priced = 0;
  double worst = 1;
  std::map<std::string, std::int64_t> classes = {};  // of differences
  std::int64_t differences() const { return dearer + priced_otherwise + infeasible; }
};

/// `R and S`, or what else is among the placements of two layouts.
std::string class_of(const Layout& from, const Layout& to) {
  std::string out = "R and S";
  if (from.has_partial()) out += ", from terms";
  if (to.has_partial()) out += ", to terms";
  if (from.has_strided() || to.has_strided()) out += ", in blocks";
  return out;
}

/// Whether a view can leave blocks like these: flattening and splitting dimensions, each cut in
/// order, leaves every cut in a multiple of the blocks that the cuts before it are in.
bool a_view_leaves(const Layout& layout) {
  int dim = -1;
  std::int64_t blocks = 1;
  for (const std::int8_t axis : layout.sharding_axes()) {
    const Placement& p = layout.placement(static_cast<std::size_t>(axis));
    if (p.dim() != dim) blocks = 1;
    dim = p.dim();
    if (p.split() % blocks != 0) return false;
    blocks = p.split();
  }
  return true;
}

class Comparison {
 public:
  Comparison(const Case& c, const Options& options)
      : case_(c),
        options_(options),
        mesh_(Mesh::parse(c.mesh)),
        search_(mesh_, c.shape, kElementSize, c.partial),
        pieces_(mesh_, c.shape) {
    for (const Layout& layout : plain_layouts(mesh_, c.shape.size(), c.partial)) {
      if (search_.node(layout)) plain_.push_back(layout);
    }
    for (std::size_t n = 0; n < search_.count_on_the_way(); ++n) {
      const Layout layout = search_.layout(n);
      if (search_.has_blocks(n) && (options.irregular || a_view_leaves(layout))) {
        blocks_.push_back(layout);
      }
    }
  }

  const Mesh& mesh() const { return mesh_; }

  void run(const NamedTopology& topology, std::int64_t sample, std::mt19937_64& random,
           Count& total) {
    const Count before = total;
    topology_ = &topology;
    search_.use(topology.topology);
    const auto pick = [&](const std::vector<Layout>& from) -> const Layout& {
      return from[random() % from.size()];
    };
    const auto any = [&]() -> const Layout& {
      return !blocks_.empty() && random() % 4 == 0 ? pick(blocks_) : pick(plain_);
    };
    if (!options_.all) {
      constexpr std::int64_t kTargets = 10;  // for each layout to come from
      for (std::int64_t i = 0; i < sample; i += kTargets) {
        const Layout& from = any();
        for (std::int64_t j = 0; j < std::min(kTargets, sample - i); ++j)
          compare(from, any(), total);
      }
    } else {
      std::vector<Layout> ends = plain_;
      ends.insert(ends.end(), blocks_.begin(), blocks_.end());
      for (const Layout& from : ends) {
        for (const Layout& to : ends) compare(from, to, total);
      }
    }
    std::cout << case_.mesh << " (" << text_of(case_.shape) << ") " << case_.partial.to_string()
              << ", " << topology.name << ": " << total.pairs - before.pairs << " pairs, "
              << search_.count_on_the_way() << " layouts on the way, "
              << total.differences() - before.differences() << " differences";
    if (total.cheaper > before.cheaper) {
      std::cout << ", " << total.cheaper - before.cheaper << " cheaper through others";
    }
    std::cout << std::endl;
  }

 private:
  void compare(const Layout& from, const Layout& to, Count& count) {
    const auto x = search_.node(from);
    const auto y = search_.node(to);
    const PlanOptions options{kElementSize, &topology_->topology, std::nullopt};
    const auto plan = make_plan(from, to, case_.shape, options);
    ++count.pairs;
    if (!plan) {
      ++count.infeasible;
      std::cout << "  no plan: " << from.to_string() << " -> " << to.to_string() << '\n';
      return;
    }
    const std::int64_t before = count.priced_otherwise;
    check_steps(*plan, count);
    const double best = search_.seconds(*x, *y);
    if (plan->seconds > best * (1 + kTolerance) + 1e-18) {
      ++count.dearer;
      ++count.classes["dearer: " + class_of(from, to)];
      count.worst = std::max(count.worst, plan->seconds / best);
      show("dearer", *plan, *x, *y);
    } else if (plan->seconds < best * (1 - kTolerance) - 1e-18) {
      if (before != count.priced_otherwise) return;  // counted already
      ++count.cheaper;
      ++count.classes["cheaper: " + class_of(from, to)];
      if (options_.show_cheaper) show("cheaper", *plan, *x, *y);
    }
  }

  void check_steps(const Plan& plan, Count& count) {
    double seconds = 0;
    std::string wrong;
    Layout now = plan.from;
    for (const Step& step : plan.steps) {
      if (step.before != now) wrong = "steps do not follow each other";
      now = step.after;
      seconds += step.seconds;
      const std::string why = replay(step, pieces_);
      if (!why.empty()) wrong = why + ": " + step.to_string();
      check_price(plan, step, count);
    }
    if (now != plan.to) wrong = "ends elsewhere";
    if (std::abs(seconds - plan.seconds) > kTolerance * seconds) wrong = "seconds do not add up";
    if (wrong.empty()) return;
    ++count.infeasible;
    ++count.classes["wrong: " + class_of(plan.from, plan.to)];
    if (++shown_["wrong" + class_of(plan.from, plan.to)] <= options_.show) {
      std::cout << "  WRONG, " << wrong << "\n    (" << text_of(case_.shape) << ") "
                << topology_->name << ": " << plan.to_string() << '\n';
    }
  }

  void check_price(const Plan& plan, const Step& step, Count& count) {
    // Prices depend on the two layouts only.
    auto& known = prices_[topology_][{step.before.id(), step.after.id()}];
    if (known.first == nullptr) {
      const auto x = search_.node(step.before);
      const auto y = search_.node(step.after);
      if (!x || !y) {
        ++count.not_priced;
        return;
      }
      keep_.push_back(step.before);
      keep_.push_back(step.after);
      known = {this, search_.price(*x, *y)};
    }
    const StepPrice& price = known.second;
    if (std::abs(price.seconds - step.seconds) <= kTolerance * price.seconds + 1e-18) return;
    ++count.priced_otherwise;
    ++count.classes["priced otherwise: " + class_of(step.before, step.after)];
    if (++shown_["price" + class_of(step.before, step.after)] > options_.show) return;
    std::cout << "  PRICE of " << step.to_string() << ": " << step.seconds << ", reference "
              << price.seconds << " by " << to_text(price.kind) << " over " << price.group
              << "\n    (" << text_of(case_.shape) << ") " << topology_->name << ": "
              << plan.to_string() << '\n';
  }

  void show(const std::string& what, const Plan& plan, std::size_t x, std::size_t y) {
    if (++shown_[what + topology_->name + class_of(plan.from, plan.to)] > options_.show) return;
    std::cout << "  " << what << ": (" << text_of(case_.shape) << ") " << topology_->name << ": "
              << plan.to_string();
    for (const Step& s : plan.steps) std::cout << "\n      " << s.seconds << ' ' << to_text(s.kind);
    std::cout << "\n    " << plan.seconds << " seconds; reference " << search_.seconds(x, y);
    const auto path = search_.path(x, y);
    for (std::size_t i = 1; i < path.size(); ++i) {
      const StepPrice p = search_.price(path[i - 1], path[i]);
      std::cout << "\n      " << p.seconds << ' ' << to_text(p.kind) << " over " << p.group << ": "
                << search_.layout(path[i - 1]).placements_text() << " -> "
                << search_.layout(path[i]).placements_text();
    }
    std::cout << '\n';
  }

  Case case_;
  const Options& options_;
  Mesh mesh_;
  ExhaustiveSearch search_;
  Pieces pieces_;
  const NamedTopology* topology_ = nullptr;
  std::vector<Layout> plain_;
  std::vector<Layout> blocks_;
  std::vector<Layout> keep_;
  std::map<const void*,
           std::map<std::pair<const void*, const void*>, std::pair<const void*, StepPrice>>>
      prices_;
  std::map<std::string, std::int64_t> shown_;
};

std::vector<Case> cases(const Options& options) {
  std::vector<Case> out;
  std::vector<std::string> meshes{"[a=2]",     "[a=3]",         "[a=4,b=2]",
                                  "[a=2,b=3]", "[a=2,b=2,c=2]", "[a=2,b=3,c=2]"};
  if (!options.mesh.empty()) meshes = {options.mesh};
  std::vector<Shape64> shapes{{8, 12}, {5, 7}, {4, 6, 8}, {5, 1, 7}};
  if (!options.shape.empty()) {
    std::istringstream in(options.shape);
    shapes = {{}};
    for (std::string part; std::getline(in, part, ',');) shapes[0].push_back(std::stoll(part));
  }
  for (const std::string& mesh : meshes) {
    for (const Shape64& shape : shapes) {
      for (const char* kind : {"P(sum)", "P(avg)"}) {
        if (!options.kind.empty() && options.kind != kind) continue;
        out.push_back({mesh, shape, Placement::parse(kind)});
      }
    }
  }
  return out;
}

int run(const Options& options) {
  // P(avg) differs from P(sum) in that a cut cannot become a term: one topology is enough.
  const auto wanted = [&](const Case& c, const NamedTopology& t) {
    if (!options.topology.empty()) return options.topology == t.name;
    if (t.name == "fused axes") return false;  // by its name only
    return c.partial == Placement::partial() || t.name == "standard";
  };
  const std::vector<Case> all = cases(options);
  std::int64_t runs = 0;
  for (const Case& c : all) {
    for (const NamedTopology& t : topologies(Mesh::parse(c.mesh))) runs += wanted(c, t) ? 1 : 0;
  }
  std::cout << "seed " << options.seed << '\n';
  std::mt19937_64 random(options.seed);
  Count total;
  std::int64_t left = options.sample;
  for (const Case& c : all) {
    Comparison comparison(c, options);
    const auto links = topologies(comparison.mesh());
    for (const NamedTopology& t : links) {
      if (!wanted(c, t)) continue;
      const std::int64_t share = (left + runs - 1) / runs;
      --runs;
      left -= share;
      comparison.run(t, share, random, total);
    }
  }
  std::cout << total.dearer << " dearer than the cheapest way (worst " << std::setprecision(4)
            << total.worst << " times), " << total.priced_otherwise << " steps priced otherwise, "
            << total.infeasible << " wrong plans, " << total.cheaper
            << " cheaper through layouts that are not listed, " << total.not_priced
            << " steps not priced\n";
  for (const auto& [name, n] : total.classes) std::cout << n << ' ' << name << '\n';
  std::cout << total.differences() << " differences in " << total.pairs << " pairs of layouts\n";
  return total.differences() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) {
  intarsia::testing::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--all" || name == "--show-cheaper" || name == "--irregular") {
      (name == "--all"         ? options.all
       : name == "--irregular" ? options.irregular
                               : options.show_cheaper) = true;
      continue;
    }
    if (i + 1 == argc) {
      std::cerr << name << " needs a value\n";
      return 2;
    }
    const std::string value = argv[++i];
    if (name == "--sample") {
      options.sample = std::stoll(value);
    } else if (name == "--seed") {
      options.seed = std::stoull(value);
    } else if (name == "--mesh") {
      options.mesh = value;
    } else if (name == "--shape") {
      options.shape = value;
    } else if (name == "--topology") {
      options.topology = value;
    } else if (name == "--kind") {
      options.kind = value;
    } else if (name == "--show") {
      options.show = std::stoll(value);
    } else {
      std::cerr << "unknown option " << name << '\n';
      return 2;
    }
  }
  return intarsia::testing::run(options);
}

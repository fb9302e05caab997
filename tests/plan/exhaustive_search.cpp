#include "plan/exhaustive_search.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <stdexcept>

#include "layout/oracle.h"

namespace intarsia::testing {
namespace {

constexpr std::size_t kMostPositions = 1024;
using Positions = std::bitset<kMostPositions>;

std::uint32_t bit(std::size_t axis) { return std::uint32_t{1} << axis; }
bool has(std::uint32_t set, std::size_t axis) { return (set & bit(axis)) != 0; }

/// Whether two ranks stand alike along all axes but these.
bool same_but(const Coordinate& x, const Coordinate& y, std::uint32_t axes) {
  for (std::size_t a = 0; a < x.size(); ++a) {
    if (!has(axes, a) && x[a] != y[a]) return false;
  }
  return true;
}

/// Whether `parts`, one after the other, are the ascending list of positions in `whole`.
bool are_joined(const std::vector<Positions>& parts, const Positions& whole) {
  std::vector<std::size_t> joined;
  for (const Positions& part : parts) {
    for (std::size_t i = part._Find_first(); i < kMostPositions; i = part._Find_next(i)) {
      joined.push_back(i);
    }
  }
  return std::is_sorted(joined.begin(), joined.end()) && joined.size() == whole.count();
}

/// How long the chunks are that go to the parts in turn: where an axis alone cuts a dimension into
/// equal blocks, and each of these into equal chunks. 0 where it does not.
std::size_t chunk_of(const std::vector<Positions>& parts, std::size_t length) {
  const std::size_t n = parts.size();
  for (std::size_t chunk = 1; chunk * n <= length; ++chunk) {
    bool same = length % (chunk * n) == 0;
    for (std::size_t i = 0; i < length && same; ++i) same = parts[i / chunk % n][i];
    if (same) return chunk;
  }
  return 0;
}

/// Whether two cuts nest, as halves and sixths do, and halves and thirds do not: of the lengths of
/// their chunks and blocks each divides the next.
bool nest(std::size_t chunk_x, std::size_t n_x, std::size_t chunk_y, std::size_t n_y) {
  if (chunk_x == 0 || chunk_y == 0) return false;
  std::vector<std::size_t> lengths{chunk_x, chunk_x * n_x, chunk_y, chunk_y * n_y};
  std::sort(lengths.begin(), lengths.end());
  for (std::size_t i = 0; i + 1 < lengths.size(); ++i) {
    if (lengths[i + 1] % lengths[i] != 0) return false;
  }
  return true;
}

}  // namespace

/// How axes cut one dimension, and what positions of it each rank holds then.
struct ExhaustiveSearch::Cut {
  std::vector<std::pair<int, std::int64_t>> cuts;  // axes in their order, with numbers of blocks
  std::uint32_t axes = 0;
  bool fits = true;                      // in no more parts than there are elements
  std::vector<Positions> real;           // by rank
  std::vector<Positions> scaled;         // by rank, in a dimension so long that all cuts are even
  std::vector<std::size_t> chunks = {};  // by axis: their length, in that dimension
  bool regular = true;                   // all axes have chunks
};

/// What it takes to cut a dimension in another way.
struct ExhaustiveSearch::Change {
  std::uint32_t needs = 0;   // axes: some rank needs a position that is held elsewhere along them
  bool gathers = true;       // the new piece is what the ranks along these axes hold together
  bool rows = true;          // and all they hold, one after the other, is that piece
  std::vector<double> kept;  // by rank: share of the dimension that it holds before and after
  std::vector<double> sources;  // by rank: how many parts its new piece comes from
};

ExhaustiveSearch::ExhaustiveSearch(const Mesh& mesh, std::vector<std::int64_t> shape,
                                   std::int64_t element_size, Placement partial)
    : mesh_(mesh),
      shape_(std::move(shape)),
      bytes_(static_cast<double>(element_size)),
      partial_(partial) {
  for_each_coordinate(mesh_, [&](const Coordinate& at) { ranks_.push_back(at); });
  for (const std::int64_t length : shape_) {
    bytes_ *= static_cast<double>(length);
    // A dimension that was flattened from two is cut in as many blocks as the outer one is long; an
    // axis that cuts inside of others may stay alone.
    std::set<std::int64_t> splits{1};
    for (std::int64_t k = 2; k < length; ++k) {
      if (length % k == 0 && length <= 24) splits.insert(k);
    }
    if (length == 96) splits.insert(8);
    for (std::uint32_t some = 0; some < bit(mesh_.axes()); ++some) {
      if (some + 1 < bit(mesh_.axes())) splits.insert(static_cast<std::int64_t>(ranks_of(some)));
    }
    splits_.emplace_back(splits.begin(), splits.end());
    std::int64_t scaled = 1;
    for (const std::int64_t k : splits) scaled = std::lcm(scaled, k);
    scaled_.push_back(scaled * mesh_.size());
    if (scaled_.back() > static_cast<std::int64_t>(kMostPositions)) {
      throw std::logic_error("too many positions");
    }
  }
  cuts_.resize(shape_.size());
  cut_numbers_.resize(shape_.size());
  changes_.resize(shape_.size());
  list_cuts();
  std::vector<int> cuts;
  list_nodes(0, 0, cuts);
  on_the_way_ = nodes_.size();
  all_that_fit_.resize(on_the_way_);
  std::iota(all_that_fit_.begin(), all_that_fit_.end(), Node{0});
}

ExhaustiveSearch::~ExhaustiveSearch() = default;

double ExhaustiveSearch::ranks_of(std::uint32_t axes) const {
  double n = 1;
  for (std::size_t a = 0; a < mesh_.axes(); ++a) {
    if (has(axes, a)) n *= static_cast<double>(mesh_.size(a));
  }
  return n;
}

/// The number of a way to cut a dimension; two that leave every rank the same positions are one.
/// Negative where the positions cannot be told.
int ExhaustiveSearch::cut_of(std::size_t dim, const CutKey& key) {
  const auto known = cut_numbers_[dim].find(key);
  if (known != cut_numbers_[dim].end()) return known->second;
  auto cut = std::make_unique<Cut>();
  cut->cuts = key;
  std::int64_t before = 1;
  for (const auto& [axis, split] : key) {
    const std::int64_t n = mesh_.size(static_cast<std::size_t>(axis));
    if (scaled_[dim] % (before * split * n) != 0) return cut_numbers_[dim][key] = -1;
    cut->fits = cut->fits && before * split * n <= shape_[dim];
    cut->axes |= bit(static_cast<std::size_t>(axis));
    before *= n;
  }
  const auto held = [&](std::int64_t length, const Coordinate& at) {
    Indices list(static_cast<std::size_t>(length));
    std::iota(list.begin(), list.end(), 0);
    for (const auto& [axis, split] : key) {
      const auto a = static_cast<std::size_t>(axis);
      Indices next;
      for (const Indices& block : naive_chunk(list, split)) {
        const auto piece = naive_chunk(block, mesh_.size(a))[static_cast<std::size_t>(at[a])];
        next.insert(next.end(), piece.begin(), piece.end());
      }
      list = next;
    }
    Positions out;
    for (const std::int64_t i : list) out.set(static_cast<std::size_t>(i));
    return out;
  };
  for (const Coordinate& at : ranks_) {
    cut->real.push_back(held(shape_[dim], at));
    cut->scaled.push_back(held(scaled_[dim], at));
  }
  cut->chunks.resize(mesh_.axes());
  std::int64_t open = 1;
  for (const auto& [axis, split] : key) {
    const auto a = static_cast<std::size_t>(axis);
    std::vector<Positions> parts(static_cast<std::size_t>(mesh_.size(a)));
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      parts[static_cast<std::size_t>(ranks_[r][a])] |= cut->scaled[r];
    }
    cut->chunks[a] = chunk_of(parts, static_cast<std::size_t>(scaled_[dim]));
    // By each cut on its own, and by the order: blocks are counted in those that were there before.
    cut->regular = cut->regular && cut->chunks[a] != 0 && split % open == 0;
    open = split;
  }
  auto& all = cuts_[dim];
  const auto same = std::find_if(all.begin(), all.end(), [&](const auto& c) {
    return c->axes == cut->axes && c->scaled == cut->scaled && c->real == cut->real;
  });
  const int number = static_cast<int>(same - all.begin());
  if (same == all.end()) all.push_back(std::move(cut));
  return cut_numbers_[dim][key] = number;
}

/// Every order of every set of axes, in every number of blocks.
void ExhaustiveSearch::list_cuts() {
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    std::vector<CutKey> keys{{}};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (std::size_t a = 0; a < mesh_.axes(); ++a) {
        const CutKey key = keys[i];
        const bool there = std::any_of(key.begin(), key.end(), [&](const auto& cut) {
          return cut.first == static_cast<int>(a);
        });
        for (const std::int64_t split : splits_[d]) {
          if (there) break;
          CutKey longer = key;
          longer.emplace_back(static_cast<int>(a), split);
          std::int64_t before = 1;
          for (const auto& [axis, k] : key) before *= mesh_.size(static_cast<std::size_t>(axis));
          if (before * split * mesh_.size(a) <= shape_[d]) keys.push_back(longer);
        }
      }
    }
    // Plain cuts first, so that they stand for those that leave the same positions.
    const auto blocks = [](const CutKey& key) {
      std::int64_t n = 0;
      for (const auto& [axis, split] : key) n += split - 1;
      return n;
    };
    std::stable_sort(keys.begin(), keys.end(),
                     [&](const CutKey& x, const CutKey& y) { return blocks(x) < blocks(y); });
    for (const CutKey& key : keys) cut_of(d, key);
  }
}

void ExhaustiveSearch::list_nodes(std::size_t dim, std::uint32_t used, std::vector<int>& cuts) {
  if (dim < shape_.size()) {
    for (std::size_t c = 0; c < cuts_[dim].size(); ++c) {
      const Cut& cut = *cuts_[dim][c];
      if ((cut.axes & used) != 0 || !cut.fits) continue;
      cuts.push_back(static_cast<int>(c));
      list_nodes(dim + 1, used | cut.axes, cuts);
      cuts.pop_back();
    }
    return;
  }
  for (std::uint32_t terms = 0; terms < bit(mesh_.axes()); ++terms) {
    if ((terms & used) == 0) add(cuts, terms);
  }
}

ExhaustiveSearch::Node ExhaustiveSearch::add(const std::vector<int>& cuts, std::uint32_t terms) {
  const auto [at, is_new] = node_numbers_.try_emplace({cuts, terms}, nodes_.size());
  if (is_new) {
    NodeData node{cuts, terms, 1};
    for (std::size_t d = 0; d < cuts.size(); ++d) {
      node.share /= ranks_of(cuts_[d][static_cast<std::size_t>(cuts[d])]->axes);
    }
    nodes_.push_back(std::move(node));
  }
  return at->second;
}

std::optional<ExhaustiveSearch::Node> ExhaustiveSearch::node(const Layout& layout) {
  std::uint32_t terms = 0;
  for (std::size_t a = 0; a < mesh_.axes(); ++a) {
    if (!layout.placement(a).is_partial()) continue;
    if (layout.placement(a) != partial_) return std::nullopt;
    terms |= bit(a);
  }
  std::vector<int> cuts;
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    CutKey key;
    for (const std::int8_t a : layout.axes_of(static_cast<int>(d))) {
      key.emplace_back(a, layout.placement(static_cast<std::size_t>(a)).split());
    }
    cuts.push_back(cut_of(d, key));
    if (cuts.back() < 0) return std::nullopt;
  }
  return add(cuts, terms);
}

bool ExhaustiveSearch::has_blocks(Node node) const { return layout(node).has_strided(); }

Layout ExhaustiveSearch::layout(Node node) const {
  const NodeData& data = nodes_[node];
  std::vector<Placement> placements(mesh_.axes());
  LayoutOptions options;
  for (std::size_t a = 0; a < mesh_.axes(); ++a) {
    if (has(data.terms, a)) placements[a] = partial_;
  }
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    std::vector<std::string> order;
    for (const auto& [axis, split] : cuts_[d][static_cast<std::size_t>(data.cuts[d])]->cuts) {
      const auto a = static_cast<std::size_t>(axis);
      placements[a] = Placement::strided_shard(static_cast<int>(d), split);
      order.push_back(mesh_.name(a));
    }
    if (order.size() > 1) options.order.emplace_back(static_cast<int>(d), order);
  }
  return Layout(mesh_, placements, options);
}

const ExhaustiveSearch::Change& ExhaustiveSearch::change(std::size_t dim, int from, int to) {
  auto& all = changes_[dim];
  const auto x = static_cast<std::size_t>(from);
  const auto y = static_cast<std::size_t>(to);
  if (all.size() < cuts_[dim].size()) all.resize(cuts_[dim].size());
  if (all[x].size() < cuts_[dim].size()) all[x].resize(cuts_[dim].size());
  if (all[x][y]) return *all[x][y];
  auto out = std::make_unique<Change>();
  const Cut& old = *cuts_[dim][x];
  const Cut& now = *cuts_[dim][y];
  // What ranks hold that stand alike along one axis, whatever the others.
  const auto along = [&](const std::vector<Positions>& held, std::size_t r, std::uint32_t axes) {
    Positions all_held;
    for (std::size_t q = 0; q < ranks_.size(); ++q) {
      if (same_but(ranks_[q], ranks_[r], axes)) all_held |= held[q];
    }
    return all_held;
  };
  for (std::size_t a = 0; a < mesh_.axes(); ++a) {
    if (!has(old.axes, a)) continue;
    const std::uint32_t others = (bit(mesh_.axes()) - 1) & ~bit(a);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const bool elsewhere = (now.scaled[r] & ~along(old.scaled, r, others)).any() ||
                             (now.real[r] & ~along(old.real, r, others)).any();
      if (elsewhere) out->needs |= bit(a);
    }
  }
  // Old cuts that do not nest with one of the new.
  const auto n = [&](std::size_t axis) { return static_cast<std::size_t>(mesh_.size(axis)); };
  std::uint32_t apart = 0;
  for (std::size_t a = 0; a < mesh_.axes() && from != to; ++a) {
    for (std::size_t b = 0; b < mesh_.axes(); ++b) {
      if (!has(old.axes, a) || !has(now.axes, b)) continue;
      const bool both = old.regular && now.regular;
      if (!both || !nest(old.chunks[a], n(a), now.chunks[b], n(b))) apart |= bit(a);
    }
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    out->gathers = out->gathers && along(old.scaled, r, out->needs) == now.scaled[r] &&
                   along(old.real, r, out->needs) == now.real[r];
    double sources = 0;
    std::vector<Positions> parts;  // in the order of ranks
    for (std::size_t q = 0; q < ranks_.size(); ++q) {
      if (!same_but(ranks_[q], ranks_[r], out->needs)) continue;
      const bool sends = (along(old.scaled, q, apart) & now.scaled[r]).any();
      if (sends) ++sources;
      parts.push_back(old.scaled[q]);
    }
    out->rows = out->rows && dim == 0 && are_joined(parts, now.scaled[r]);
    out->sources.push_back(sources);
    out->kept.push_back(apart != 0 ? 0
                                   : static_cast<double>((old.scaled[r] & now.scaled[r]).count()) /
                                         static_cast<double>(scaled_[dim]));
  }
  all[x][y] = std::move(out);
  return *all[x][y];
}

void ExhaustiveSearch::use(const Topology& topology) {
  topology_ = &topology;
  links_.assign(bit(mesh_.axes()), nullptr);
  rows_.clear();
  known_.clear();
  source_.reset();
}

const Link& ExhaustiveSearch::link(std::uint32_t group) {
  if (links_[group] == nullptr) {
    AxisList axes;
    for (std::size_t a = 0; a < mesh_.axes(); ++a) {
      if (has(group, a)) axes.push_back(static_cast<std::int8_t>(a));
    }
    links_[group] = &topology_->link(mesh_, axes);
  }
  return *links_[group];
}

StepPrice ExhaustiveSearch::price(Node from, Node to) {
  const NodeData& x = nodes_[from];
  const NodeData& y = nodes_[to];
  std::uint32_t needs = 0;
  for (std::size_t d = 0; d < shape_.size(); ++d) needs |= change(d, x.cuts[d], y.cuts[d]).needs;
  if ((y.terms & ~x.terms) != 0) return price_of_new_terms(x, y, needs);
  const std::uint32_t reduced = x.terms & ~y.terms;
  const std::uint32_t group = reduced | needs;
  if (group != 0) return cheaper_of_collectives(x, y, group, reduced);
  const double after = bytes_ * y.share;
  return {StepKind::slice, 0, from == to ? 0 : after / topology_->copy_bandwidth};
}

/// A rank keeps what it holds of its new piece as a term, with what adds nothing around it. What it
/// does not hold must be held along axes that become terms, and the kind must allow it.
StepPrice ExhaustiveSearch::price_of_new_terms(const NodeData& x, const NodeData& y,
                                               std::uint32_t needs) const {
  const std::uint32_t made = y.terms & ~x.terms;
  const std::uint32_t reduced = x.terms & ~y.terms;
  const bool spreads =
      partial_.reduction() != Reduction::avg && partial_.reduction() != Reduction::norm;
  if (reduced != 0 || (needs & ~made) != 0 || (needs != 0 && !spreads)) return {};
  return {StepKind::make_partial, 0, bytes_ * y.share / topology_->copy_bandwidth};
}

StepPrice ExhaustiveSearch::cheaper_of_collectives(const NodeData& x, const NodeData& y,
                                                   std::uint32_t group, std::uint32_t reduced) {
  const Link& l = link(group);
  const double n = ranks_of(group);
  const double terms = ranks_of(reduced);
  const double before = bytes_ * x.share;
  const double after = bytes_ * y.share;
  const double copy = topology_->copy_bandwidth;

  std::vector<const Change*> changes;
  bool gathers = reduced == 0;
  bool rows = true;
  bool same = true;
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    changes.push_back(&change(d, x.cuts[d], y.cuts[d]));
    gathers = gathers && changes[d]->gathers;
    if (x.cuts[d] == y.cuts[d]) continue;
    same = false;
    rows = rows && changes[d]->rows;
  }
  double least_kept = 1;
  double most_sources = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    double kept = 1;
    double sources = terms;
    for (const Change* c : changes) {
      kept *= c->kept[r];
      sources *= c->sources[r];
    }
    least_kept = std::min(least_kept, kept);
    most_sources = std::max(most_sources, sources);
  }
  const double received = terms * after - bytes_ * least_kept;
  const StepKind kind = reduced != 0        ? StepKind::reduce_scatter
                        : most_sources == 1 ? StepKind::permute
                                            : StepKind::all_to_all;
  StepPrice best{kind, group,
                 l.overhead + std::max(1.0, most_sources - 1) * l.latency + received / l.bandwidth +
                     (terms > 1 ? 3 * terms * after : 2 * received) / copy};
  if (gathers) {
    const double seconds = l.overhead + (n - 1) * l.latency +
                           (after - before) * topology_->all_gather / l.bandwidth +
                           (rows ? 0 : after / copy);
    if (seconds <= best.seconds) best = {StepKind::all_gather, group, seconds};
  }
  if (same && reduced != 0) {
    const double seconds = l.overhead + 2 * (n - 1) * l.latency +
                           2 * before * (n - 1) / n * topology_->all_reduce / l.bandwidth +
                           before / copy;
    if (seconds <= best.seconds) best = {StepKind::all_reduce, group, seconds};
  }
  return best;
}

const std::vector<double>& ExhaustiveSearch::row(Node from) {
  if (rows_.size() < nodes_.size()) rows_.resize(nodes_.size());
  std::vector<double>& out = rows_[from];
  for (Node to = out.size(); to < nodes_.size(); ++to) out.push_back(price(from, to).seconds);
  return out;
}

bool ExhaustiveSearch::fits(Node node) const { return node < on_the_way_; }

/// The nodes that may stand on the way between two: terms only along axes that have them at an end.
std::vector<ExhaustiveSearch::Node> ExhaustiveSearch::allowed(Node from, Node to) const {
  const auto is_part_of = [](const Cut& part, const Cut& whole) {
    std::size_t found = 0;
    for (const auto& cut : whole.cuts) {
      if (found < part.cuts.size() && part.cuts[found] == cut) ++found;
    }
    return found == part.cuts.size();
  };
  const std::uint32_t terms = nodes_[from].terms | nodes_[to].terms;
  const auto may_stand = [&](Node n) { return (nodes_[n].terms & ~terms) == 0; };
  std::vector<Node> out;
  std::copy_if(all_that_fit_.begin(), all_that_fit_.end(), std::back_inserter(out), may_stand);
  for (Node n = on_the_way_; n < nodes_.size(); ++n) {
    bool all = may_stand(n);
    for (std::size_t d = 0; d < shape_.size() && all; ++d) {
      const auto cut = [&](Node node) -> const Cut& {
        return *cuts_[d][static_cast<std::size_t>(nodes_[node].cuts[d])];
      };
      all = cut(n).fits || is_part_of(cut(n), cut(from)) || is_part_of(cut(n), cut(to));
    }
    if (all) out.push_back(n);
  }
  return out;
}

/// Dijkstra's algorithm, over all nodes of `way`; ends at a target.
void ExhaustiveSearch::search(Node from, std::optional<Node> to, const std::vector<Node>& way) {
  distance_.assign(nodes_.size(), kNoWay);
  before_.assign(nodes_.size(), from);
  distance_[from] = 0;
  source_ = from;
  target_ = to;
  std::vector<Node> open = way;
  std::erase(open, from);
  Node now = from;
  while (true) {
    const std::vector<double>& prices = row(now);
    const auto relax = [&](Node next) {
      const double seconds = distance_[now] + prices[next];
      // Of ways that cost the same the one found first, which has no more steps.
      if (seconds < distance_[next] * (1 - 1e-13)) {
        distance_[next] = seconds;
        before_[next] = now;
      }
    };
    for (const Node next : open) relax(next);
    if (to) relax(*to);
    const auto nearest = std::min_element(
        open.begin(), open.end(), [&](Node x, Node y) { return distance_[x] < distance_[y]; });
    if (nearest == open.end() || distance_[*nearest] == kNoWay) return;
    now = *nearest;
    if (to && distance_[now] >= distance_[*to]) return;
    *nearest = open.back();
    open.pop_back();
  }
}

double ExhaustiveSearch::seconds(Node from, Node to) {
  const std::uint32_t terms = nodes_[from].terms | nodes_[to].terms;
  if (fits(from) && fits(to)) {
    if (source_ != from || target_) known_.clear();
    Known& known = known_[terms];
    if (known.distance.size() <= to) {
      std::vector<Node> way = allowed(from, to);
      std::erase_if(way, [&](Node n) { return !fits(n); });
      search(from, std::nullopt, way);
      known = {distance_, before_};
    } else if (terms_ != terms || source_ != from || target_) {
      distance_ = known.distance;
      before_ = known.before;
    }
    source_ = from;
    target_.reset();
    terms_ = terms;
  } else if (source_ != from || target_ != to) {
    search(from, to, allowed(from, to));
  }
  return distance_[to];
}

std::vector<ExhaustiveSearch::Node> ExhaustiveSearch::path(Node from, Node to) {
  seconds(from, to);
  std::vector<Node> out{to};
  while (out.back() != from) out.push_back(before_[out.back()]);
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace intarsia::testing

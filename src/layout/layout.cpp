#include "intarsia/layout.h"

#include <algorithm>

#include "base/hash.h"
#include "base/interner.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "layout/parse.h"

namespace intarsia {

struct Layout::Data {
  Mesh mesh;
  FixedVector<Placement, kMaxAxes> placements;
  AxisList sharding_axes;  // by dimension, then in the order in which they shard it

  friend bool operator==(const Data&, const Data&) = default;

  std::size_t hash() const {
    std::uint64_t h = mesh.hash();
    for (const Placement& p : placements) h = hash_mix(h, p.hash());
    for (const std::int8_t a : sharding_axes) h = hash_mix(h, static_cast<std::uint64_t>(a));
    return h;
  }
};

struct Layout::Table : Interner<Layout::Data> {};

namespace {

constexpr std::string_view kWhere = "Layout";

/// Axes of size 1 shard nothing, so their place in an order means nothing: orders that differ only
/// there become the same one.
AxisList canonical_order(const Mesh& mesh, const AxisList& order) {
  AxisList sharding;
  AxisList idle;
  for (const std::int8_t a : order) (mesh.size(a) > 1 ? sharding : idle).push_back(a);
  const bool ascending = std::is_sorted(sharding.begin(), sharding.end());
  for (const std::int8_t a : idle) sharding.push_back(a);
  std::sort(
      ascending ? sharding.begin() : sharding.end() - static_cast<std::ptrdiff_t>(idle.size()),
      sharding.end());
  return sharding;
}

AxisList axes_sharding(std::span<const Placement> placements, int dim) {
  AxisList out;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_shard(dim)) out.push_back(static_cast<std::int8_t>(a));
  }
  return out;
}

std::string axis_names(const Mesh& mesh, std::span<const std::int8_t> axes,
                       std::string_view separator) {
  std::vector<std::string> names;
  for (const std::int8_t a : axes) names.push_back(mesh.name(a));
  return join(names, separator);
}

std::size_t dims_sharded(std::span<const Placement> placements) {
  std::size_t dims = 0;
  for (const Placement& p : placements) {
    if (p.is_shard()) dims = std::max(dims, static_cast<std::size_t>(p.dim()) + 1);
  }
  return dims;
}

Placement normalized(const Placement& p, std::optional<std::size_t> dims) {
  if (!p.is_shard()) return p;
  if (dims) {
    return Placement::strided_shard(normalize_dim(kWhere, p.dim(), *dims), p.split());
  }
  if (p.dim() < 0) {
    fail<ValueError>(kWhere, p,
                     " counts from the last dimension, but the number of dimensions is "
                     "not known; set LayoutOptions::dims or use a dim of 0 or more");
  }
  if (p.dim() >= static_cast<int>(kMaxDims)) {
    fail<ValueError>(kWhere, p, " is beyond the ", kMaxDims, " dimensions that a tensor may have");
  }
  return p;
}

void check_partials(const Mesh& mesh, std::span<const Placement> placements) {
  const Placement* first = nullptr;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (!placements[a].is_partial()) continue;
    if (first != nullptr && !commute(*first, placements[a])) {
      fail<ValueError>(kWhere, placements[a], " on axis '", mesh.name(a), "' of ", mesh,
                       " cannot stand beside ", *first,
                       ": the result would depend on which is reduced first; reduce one of them "
                       "before, or use one kind");
    }
    first = &placements[a];
  }
}

AxisList given_order(const Mesh& mesh, int dim, const std::vector<std::string>& names,
                     const AxisList& sharding) {
  AxisList order;
  for (const std::string& name : names) {
    const auto axis = static_cast<std::int8_t>(mesh.axis_index(name));
    if (std::find(order.begin(), order.end(), axis) != order.end()) {
      fail<ValueError>(kWhere, "the order of dimension ", dim, " names axis '", name, "' twice");
    }
    order.push_back(axis);
  }
  AxisList sorted = order;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != sharding) {
    fail<ValueError>(kWhere, "the order ", join(names, ">"), " of dimension ", dim,
                     " must name the axes that shard it, each once: ",
                     sharding.empty() ? "none" : axis_names(mesh, sharding, ", "));
  }
  return order;
}

}  // namespace

std::optional<std::vector<std::pair<int, AxisList>>> order_of_strided(
    const Mesh& mesh, std::span<const Placement> placements) {
  std::vector<std::pair<int, AxisList>> out;
  for (int dim = 0; dim < static_cast<int>(dims_sharded(placements)); ++dim) {
    const AxisList sharding = axes_sharding(placements, dim);
    if (sharding.empty()) continue;
    // From the last axis to the first: an axis shards after those axes to its right whose
    // sizes multiply to its split factor. On [a=2,b=3], SS(0,3),S(0): b, then a goes behind b.
    AxisList order;
    for (std::size_t i = sharding.size(); i-- > 0;) {
      std::int64_t before = 1;
      std::size_t place = 0;
      while (before != placements[sharding[i]].split() && place < order.size()) {
        before *= mesh.size(order[place++]);
      }
      if (before != placements[sharding[i]].split()) return std::nullopt;
      order.insert(place, sharding[i]);
    }
    out.emplace_back(dim, canonical_order(mesh, order));
  }
  return out;
}

Layout::Table& Layout::table() {
  // Never destroyed: layouts may live in other static objects.
  static auto* table = new Table;
  return *table;
}

const Layout::Data& Layout::data() const { return static_cast<const Table::Node*>(node_)->value; }

Layout::Layout(Data data) {
  const std::size_t hash = data.hash();
  node_ = table().acquire(std::move(data), hash);
}

Layout::Layout() : Layout(Data{}) {}

Layout::Layout(const Layout& other) : node_(other.node_) {
  Table::add_use(static_cast<const Table::Node*>(node_));
}

Layout::Layout(Layout&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}

Layout& Layout::operator=(const Layout& other) {
  Layout copy(other);
  std::swap(node_, copy.node_);
  return *this;
}

Layout& Layout::operator=(Layout&& other) noexcept {
  std::swap(node_, other.node_);
  return *this;
}

Layout::~Layout() {
  if (node_ != nullptr) table().release(static_cast<const Table::Node*>(node_));
}

Layout::Layout(const Mesh& mesh, std::span<const Placement> placements,
               const LayoutOptions& options)
    : node_(nullptr) {
  if (placements.size() != mesh.axes()) {
    fail<ValueError>(kWhere, mesh, " has ", mesh.axes(), " axes, but ", placements.size(),
                     " placements were given (", join(placements), "); give one for each axis");
  }
  Data data{mesh.orphan(), {}, {}};
  for (const Placement& p : placements) data.placements.push_back(normalized(p, options.dims));
  check_partials(mesh, data.placements);

  std::vector<std::pair<int, AxisList>> orders;
  if (options.strided == StridedMeans::order) {
    auto decoded = order_of_strided(mesh, data.placements);
    if (!decoded) {
      fail<ValueError>(kWhere, "the split factors of ", join(data.placements), " on ", mesh,
                       " say no order of axes; if the data is in blocks, use StridedMeans::data");
    }
    orders = *std::move(decoded);
    for (Placement& p : data.placements) {
      if (p.is_strided()) p = Placement::shard(p.dim());
    }
  }
  for (const auto& [given_dim, names] : options.order) {
    const int dim = options.dims ? normalize_dim(kWhere, given_dim, *options.dims) : given_dim;
    const AxisList order = given_order(mesh, dim, names, axes_sharding(data.placements, dim));
    for (const auto& [other, ignored] : orders) {
      if (other == dim) {
        fail<ValueError>(kWhere, "the order of dimension ", dim, " was given twice");
      }
    }
    orders.emplace_back(dim, canonical_order(mesh, order));
  }
  for (int dim = 0; dim < static_cast<int>(dims_sharded(data.placements)); ++dim) {
    AxisList order = axes_sharding(data.placements, dim);
    for (const auto& [other, given] : orders) {
      if (other == dim) order = given;
    }
    for (const std::int8_t a : order) data.sharding_axes.push_back(a);
  }
  *this = Layout(std::move(data));
}

Layout::Layout(const Mesh& mesh, std::initializer_list<Placement> placements,
               const LayoutOptions& options)
    : Layout(mesh, std::span(placements.begin(), placements.size()), options) {}

Layout Layout::replicated(const Mesh& mesh) {
  return Layout(
      Data{mesh.orphan(), FixedVector<Placement, kMaxAxes>(mesh.axes(), Placement()), {}});
}

const Mesh& Layout::mesh() const { return data().mesh; }
std::span<const Placement> Layout::placements() const { return data().placements; }
std::span<const std::int8_t> Layout::sharding_axes() const { return data().sharding_axes; }
std::size_t Layout::hash() const { return static_cast<const Table::Node*>(node_)->hash; }
std::size_t Layout::alive() { return table().size(); }
std::size_t Layout::least_dims() const { return dims_sharded(placements()); }

AxisList Layout::axes_of(int dim) const {
  AxisList out;
  for (const std::int8_t a : sharding_axes()) {
    if (placement(a).dim() == dim) out.push_back(a);
  }
  return out;
}

bool Layout::has_default_order() const {
  const auto c = sharding_axes();
  for (std::size_t i = 1; i < c.size(); ++i) {
    if (c[i] < c[i - 1] && placement(c[i]).dim() == placement(c[i - 1]).dim()) return false;
  }
  return true;
}

bool Layout::is_replicated() const {
  return std::all_of(placements().begin(), placements().end(),
                     [](const Placement& p) { return p.is_replicate(); });
}

bool Layout::has_partial() const {
  return std::any_of(placements().begin(), placements().end(),
                     [](const Placement& p) { return p.is_partial(); });
}

bool Layout::has_strided() const {
  return std::any_of(placements().begin(), placements().end(),
                     [](const Placement& p) { return p.is_strided(); });
}

Layout Layout::with(std::size_t axis, const Placement& placement) const {
  if (axis >= mesh().axes())
    fail<ValueError>("Layout::with", "there is no axis ", axis, " in ", mesh());
  if (placement == this->placement(axis)) return *this;
  Data changed = data();
  const Placement p = normalized(placement, std::nullopt);
  changed.placements[axis] = p;
  check_partials(changed.mesh, changed.placements);
  AxisList sharding;
  for (int dim = 0; dim < static_cast<int>(dims_sharded(changed.placements)); ++dim) {
    AxisList order;
    for (const std::int8_t a : axes_of(dim)) {
      if (a != static_cast<std::int8_t>(axis)) order.push_back(a);
    }
    if (p.is_shard(dim)) order.push_back(static_cast<std::int8_t>(axis));
    for (const std::int8_t a : canonical_order(changed.mesh, order)) sharding.push_back(a);
  }
  changed.sharding_axes = sharding;
  return Layout(std::move(changed));
}

std::optional<std::vector<Placement>> Layout::strided_spelling() const {
  if (has_strided()) return std::nullopt;
  std::vector<Placement> out(placements().begin(), placements().end());
  const auto c = sharding_axes();
  for (std::size_t i = 0; i < c.size(); ++i) {
    const int dim = placement(c[i]).dim();
    std::int64_t split = 1;  // the sizes of the axes that shard before it but stand to its right
    for (std::size_t j = 0; j < i; ++j) {
      if (placement(c[j]).dim() == dim && c[j] > c[i]) split *= mesh().size(c[j]);
    }
    out[c[i]] = Placement::strided_shard(dim, split);
  }
  // Split factors cannot say every order: with sizes 2, 2 and 4, "after both" may equal "after
  // one".
  const auto decoded = order_of_strided(mesh(), out);
  if (!decoded) return std::nullopt;
  for (const auto& [dim, order] : *decoded) {
    if (order != axes_of(dim)) return std::nullopt;
  }
  return out;
}

std::string Layout::placements_text() const {
  std::string text = join(placements());
  if (has_default_order()) return text;
  std::string separator = " | ";
  for (int dim = 0; dim < static_cast<int>(least_dims()); ++dim) {
    const AxisList order = axes_of(dim);
    if (std::is_sorted(order.begin(), order.end())) continue;
    text += concat(std::exchange(separator, ", "), dim, ':', axis_names(mesh(), order, ">"));
  }
  return text;
}

std::string Layout::to_string() const {
  const std::string text = placements_text();
  return text.empty() ? mesh().to_string() : concat(mesh(), ' ', text);
}

Layout Layout::parse(std::string_view text) {
  const std::size_t bracket = text.find(']');
  if (bracket == std::string_view::npos) {
    fail<ValueError>("Layout::parse", "cannot read \"", text,
                     "\": expected a mesh first, as in \"[dp=2,tp=4] S(0),R\"");
  }
  std::size_t end = bracket + 1;  // a base rank or a table of ranks belongs to the mesh
  if (end < text.size() && text[end] == '{')
    end = std::min(text.find('}', end), text.size() - 1) + 1;
  while (end < text.size() && text[end] != ' ') ++end;
  return parse(text.substr(end), Mesh::parse(text.substr(0, end)));
}

Layout Layout::parse(std::string_view text, const Mesh& mesh, const LayoutOptions& options) {
  Cursor cursor("Layout::parse", text);
  std::vector<Placement> placements;
  if (!cursor.done()) {
    do {
      placements.push_back(parse_placement(cursor));
    } while (cursor.accept(","));
  }
  LayoutOptions all = options;
  if (cursor.accept("|")) {
    do {
      const std::int64_t dim = cursor.integer();
      if (dim < -static_cast<std::int64_t>(kMaxDims) ||
          dim >= static_cast<std::int64_t>(kMaxDims)) {
        cursor.fail_here("a dimension that a tensor may have before this");
      }
      cursor.expect(":");
      std::vector<std::string> names;
      do {
        names.push_back(cursor.name());
      } while (cursor.accept(">"));
      all.order.emplace_back(static_cast<int>(dim), std::move(names));
    } while (cursor.accept(","));
  }
  cursor.end();
  return Layout(mesh, placements, all);
}

}  // namespace intarsia

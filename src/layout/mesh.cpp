#include "intarsia/mesh.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/text.h"
#include "intarsia/error.h"
#include "layout/mesh_data.h"

namespace intarsia {

std::int64_t walk_size(const std::vector<Stride>& strides) {
  std::int64_t size = 1;
  for (const Stride& s : strides) {
    if (s.size < 1) return s.size;
    if (s.size > kMostRanks / size) return kMostRanks + 1;
    size *= s.size;
  }
  return size;
}

void check_axes(std::string_view where, const std::vector<Axis>& axes) {
  if (axes.size() > kMaxAxes) {
    fail<ValueError>(where, "a mesh has at most ", kMaxAxes, " axes, got ", axes.size(),
                     "; flatten some of them");
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (!is_name(axes[i].name)) {
      fail<ValueError>(where, "'", axes[i].name,
                       "' cannot name an axis; use letters, digits and '_', not a digit first");
    }
    if (axes[i].size < 1) {
      fail<ValueError>(where, "axis '", axes[i].name, "' has size ", axes[i].size,
                       "; a size is at least 1");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[i].name == axes[j].name) {
        fail<ValueError>(where, "two axes are named '", axes[i].name, "'; names must differ");
      }
    }
  }
}

std::int64_t checked_size(std::string_view where, const std::vector<Axis>& axes) {
  std::int64_t size = 1;
  for (const Axis& a : axes) {
    if (a.size > kMostRanks / size) fail<ValueError>(where, "the mesh has more than 2^40 ranks");
    size *= a.size;
  }
  return size;
}

std::vector<std::vector<Stride>> row_major(const std::vector<Axis>& axes) {
  std::vector<std::vector<Stride>> out(axes.size());
  std::int64_t step = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    if (axes[i].size > 1) out[i] = {{axes[i].size, step}};
    step *= axes[i].size;
  }
  return out;
}

namespace {

/// Drops strides of one element and joins neighbours that walk on: equal walks become equal lists.
std::vector<Stride> canonical(const std::vector<Stride>& strides) {
  std::vector<Stride> out;
  for (const Stride& s : strides) {
    if (s.size == 1) continue;
    if (!out.empty() && out.back().step == s.size * s.step) {
      out.back() = {out.back().size * s.size, s.step};
    } else {
      out.push_back(s);
    }
  }
  return out;
}

/// How far `index` walks: the digits of the index, times their steps.
std::int64_t walk(const std::vector<Stride>& strides, std::int64_t index) {
  std::int64_t distance = 0;
  for (auto s = strides.rbegin(); s != strides.rend(); ++s) {
    distance += index % s->size * s->step;
    index /= s->size;
  }
  return distance;
}

/// The strides of a walk given by its distances from the first element, or nothing when no strides
/// give it. [0,1,4,5] -> 2:4*2:1.
std::optional<std::vector<Stride>> strides_of(std::vector<std::int64_t> distances) {
  std::vector<Stride> inner_first;
  while (distances.size() > 1) {
    const std::int64_t step = distances[1];
    std::size_t run = 2;
    while (run < distances.size() && distances[run] == static_cast<std::int64_t>(run) * step) ++run;
    if (distances.size() % run != 0) return std::nullopt;
    std::vector<std::int64_t> outer;
    for (std::size_t i = 0; i < distances.size(); ++i) {
      const auto within = static_cast<std::int64_t>(i % run);
      if (within == 0) outer.push_back(distances[i]);
      if (distances[i] != outer.back() + within * step) return std::nullopt;
    }
    inner_first.push_back({static_cast<std::int64_t>(run), step});
    distances = std::move(outer);
  }
  return std::vector<Stride>(inner_first.rbegin(), inner_first.rend());
}

void check_strides(std::string_view where, const StridedAxis& axis) {
  for (const Stride& s : axis.strides) {
    const bool walks = s.size == 1 || (s.size > 1 && s.step != 0);
    const std::int64_t longest = s.size > 1 ? kMostRanks / (s.size - 1) : kMostRanks;
    if (walks && s.step >= -longest && s.step <= longest) continue;
    fail<ValueError>(where, "axis '", axis.name, "' has the stride ", s.size, ':', s.step,
                     "; a size is at least 1, a step is not 0, and no rank is beyond 2^40");
  }
}

}  // namespace

Mesh::Mesh() : Mesh(std::vector<Axis>{}) {}

Mesh::Mesh(const std::vector<Axis>& axes, std::int64_t base) {
  check_axes("Mesh", axes);
  checked_size("Mesh", axes);
  const auto strides = row_major(axes);
  std::vector<StridedAxis> strided;
  for (std::size_t i = 0; i < axes.size(); ++i) strided.push_back({axes[i].name, strides[i]});
  data_ = build("Mesh", strided, base).data_;
}

Mesh Mesh::strided(const std::vector<StridedAxis>& axes, std::int64_t base) {
  return build("Mesh::strided", axes, base);
}

Mesh Mesh::of_ranks(const std::vector<Axis>& axes, std::span<const std::int64_t> ranks) {
  return build("Mesh::of_ranks", axes, std::vector<std::int64_t>(ranks.begin(), ranks.end()));
}

Mesh Mesh::build(std::string_view where, std::vector<StridedAxis> axes, std::int64_t base) {
  if (base < 0 || base > kMostRanks) {
    fail<ValueError>(where, "the base rank ", base, " is not in 0..2^40");
  }
  auto data = std::make_shared<Data>();
  data->base = base;
  data->lowest = base;
  for (StridedAxis& axis : axes) {
    check_strides(where, axis);
    data->axes.push_back({std::move(axis.name), walk_size(axis.strides)});
  }
  check_axes(where, data->axes);
  data->size = checked_size(where, data->axes);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    data->strides.push_back(canonical(axes[i].strides));
    std::int64_t weight = 1;
    for (auto s = data->strides.back().rbegin(); s != data->strides.back().rend(); ++s) {
      data->digits.push_back({std::abs(s->step), s->size, i, weight, s->step < 0});
      if (s->step < 0) data->lowest += (s->size - 1) * s->step;
      weight *= s->size;
    }
  }
  if (data->lowest < 0) {
    fail<ValueError>(where, "the mesh would hold rank ", data->lowest, "; ranks start at 0");
  }
  std::sort(data->digits.begin(), data->digits.end(),
            [](const Data::Digit& a, const Data::Digit& b) { return a.step > b.step; });
  std::int64_t reach = 0;
  for (auto d = data->digits.rbegin(); d != data->digits.rend(); ++d) {
    if (d->step <= reach) {
      fail<ValueError>(where, "axis '", data->axes[d->axis].name, "' steps by ", d->step,
                       ", but shorter steps already reach ", reach,
                       " ranks; steps must nest, or list the ranks with Mesh::of_ranks");
    }
    reach += d->step * (d->size - 1);
  }
  data->highest = data->lowest + reach;
  data->hash = data->compute_hash();
  return Mesh(std::move(data));
}

Mesh Mesh::build(std::string_view where, const std::vector<Axis>& axes,
                 std::vector<std::int64_t> table) {
  check_axes(where, axes);
  const std::int64_t size = checked_size(where, axes);
  if (static_cast<std::int64_t>(table.size()) != size) {
    fail<ValueError>(where, "the axes have ", size, " places, but ", table.size(),
                     " ranks were given");
  }
  std::vector<std::int64_t> order(table.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&table](std::int64_t a, std::int64_t b) { return table[a] < table[b]; });
  if (table[order[0]] < 0) {
    fail<ValueError>(where, "rank ", table[order[0]], " was given; ranks start at 0");
  }
  if (table[order.back()] > kMostRanks) {
    fail<ValueError>(where, "rank ", table[order.back()], " was given; no rank is beyond 2^40");
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (table[order[i]] == table[order[i - 1]]) {
      fail<ValueError>(where, "rank ", table[order[i]], " was given twice");
    }
  }

  // Strides say it if each axis walks by strides and the walks of all axes add up to the table.
  const auto strides = row_major(axes);
  std::vector<StridedAxis> strided;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    std::vector<std::int64_t> distances;
    for (std::int64_t i = 0; i < axes[a].size; ++i) {
      distances.push_back(table[walk(strides[a], i)] - table[0]);
    }
    auto found = strides_of(std::move(distances));
    if (!found) break;
    strided.push_back({axes[a].name, *std::move(found)});
  }
  if (strided.size() == axes.size()) {
    bool adds_up = true;
    for (std::int64_t i = 0; i < size && adds_up; ++i) {
      std::int64_t rank = table[0];
      for (std::size_t a = axes.size(), rest = i; a-- > 0; rest /= axes[a].size) {
        rank += walk(strided[a].strides, static_cast<std::int64_t>(rest) % axes[a].size);
      }
      adds_up = rank == table[i];
    }
    std::vector<Stride> all;
    for (const StridedAxis& a : strided) all.insert(all.end(), a.strides.begin(), a.strides.end());
    std::sort(all.begin(), all.end(),
              [](const Stride& a, const Stride& b) { return std::abs(a.step) < std::abs(b.step); });
    std::int64_t reach = 0;
    for (const Stride& s : all) {
      adds_up = adds_up && (s.size == 1 || std::abs(s.step) > reach);
      reach += std::abs(s.step) * (s.size - 1);
    }
    if (adds_up) return build(where, std::move(strided), table[0]);
  }

  auto data = std::make_shared<Data>();
  data->base = table[0];
  data->lowest = table[order[0]];
  data->highest = table[order.back()];
  data->size = size;
  data->axes = axes;
  data->table = std::move(table);
  data->table_order = std::move(order);
  data->hash = data->compute_hash();
  return Mesh(std::move(data));
}

std::size_t Mesh::axes() const { return data_->axes.size(); }
std::int64_t Mesh::size() const { return data_->size; }
std::int64_t Mesh::size(std::size_t axis) const { return data_->axes[axis].size; }
const std::string& Mesh::name(std::size_t axis) const { return data_->axes[axis].name; }
std::int64_t Mesh::base() const { return data_->base; }
std::int64_t Mesh::highest() const { return data_->highest; }
bool Mesh::has_table() const { return !data_->table.empty(); }
std::size_t Mesh::hash() const { return data_->hash; }

bool operator==(const Mesh& a, const Mesh& b) { return a.data_ == b.data_ || *a.data_ == *b.data_; }

std::vector<std::string> Mesh::names() const {
  std::vector<std::string> out;
  for (const Axis& a : data_->axes) out.push_back(a.name);
  return out;
}

bool Mesh::has_axis(std::string_view name) const {
  return std::any_of(data_->axes.begin(), data_->axes.end(),
                     [name](const Axis& a) { return a.name == name; });
}

std::size_t Mesh::axis_index(std::string_view name) const {
  for (std::size_t i = 0; i < axes(); ++i) {
    if (data_->axes[i].name == name) return i;
  }
  fail<ValueError>("Mesh", "there is no axis '", name, "' in ", *this,
                   "; its axes are: ", axes() == 0 ? "none" : join(names(), ", "));
}

std::vector<std::size_t> Mesh::indices_of(std::string_view where,
                                          std::span<const std::string> names) const {
  std::vector<std::size_t> out;
  for (const std::string& name : names) {
    out.push_back(axis_index(name));
    if (std::count(out.begin(), out.end(), out.back()) > 1) {
      fail<ValueError>(where, "axis '", name, "' of ", *this, " was named twice");
    }
  }
  return out;
}

std::int64_t Mesh::rank_at(const Coordinate& at) const {
  const Data& d = *data_;
  if (at.size() != axes()) {
    fail<ValueError>("Mesh::rank_at", *this, " has ", axes(), " axes, the coordinate (", join(at),
                     ") has ", at.size());
  }
  std::int64_t rank = d.base;
  std::int64_t place = 0;
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (at[a] < 0 || at[a] >= d.axes[a].size) {
      fail<ValueError>("Mesh::rank_at", "index ", at[a], " is outside axis '", d.axes[a].name,
                       "' of ", *this);
    }
    place = place * d.axes[a].size + at[a];
    if (d.table.empty()) rank += walk(d.strides[a], at[a]);
  }
  return d.table.empty() ? rank : d.table[place];
}

std::optional<Coordinate> Mesh::coordinate_of(std::int64_t rank) const {
  const Data& d = *data_;
  Coordinate at(axes(), 0);
  if (!d.table.empty()) {
    const auto found =
        std::lower_bound(d.table_order.begin(), d.table_order.end(), rank,
                         [&d](std::int64_t place, std::int64_t r) { return d.table[place] < r; });
    if (found == d.table_order.end() || d.table[*found] != rank) return std::nullopt;
    std::int64_t place = *found;
    for (std::size_t a = axes(); a-- > 0; place /= d.axes[a].size) at[a] = place % d.axes[a].size;
    return at;
  }
  std::int64_t rest = rank - d.lowest;
  if (rest < 0) return std::nullopt;
  for (const Data::Digit& digit : d.digits) {
    const std::int64_t steps = rest / digit.step;
    if (steps >= digit.size) return std::nullopt;
    rest -= steps * digit.step;
    at[digit.axis] += (digit.backwards ? digit.size - 1 - steps : steps) * digit.weight;
  }
  if (rest != 0) return std::nullopt;
  return at;
}

std::optional<Mesh> Mesh::parent() const {
  if (!parent_) return std::nullopt;
  return Mesh(parent_);
}

Mesh Mesh::orphan() const { return Mesh(data_); }

Mesh Mesh::with_parent(const Mesh& parent) const {
  Mesh copy = *this;
  copy.parent_ = parent.data_;
  return copy;
}

}  // namespace intarsia

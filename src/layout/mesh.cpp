#include "intarsia/mesh.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {

struct Mesh::Data {
  /// One stride of one axis, ready for finding coordinates: steps positive and descending.
  struct Digit {
    std::int64_t step;
    std::int64_t size;
    std::size_t axis;
    std::int64_t weight;  // what one step adds to the axis's index
    bool backwards;
  };

  std::int64_t base = 0;
  std::int64_t lowest = 0;  // the smallest rank
  std::int64_t highest = 0;
  std::int64_t size = 1;
  std::vector<Axis> axes;
  std::vector<std::vector<Stride>> strides;  // per axis, canonical; empty when there is a table
  std::vector<Digit> digits;
  std::vector<std::int64_t> table;        // row-major, or empty
  std::vector<std::int64_t> table_order;  // positions in `table`, sorted by rank
  std::size_t hash = 0;

  bool operator==(const Data& other) const {
    const auto same_axis = [](const Axis& a, const Axis& b) {
      return a.name == b.name && a.size == b.size;
    };
    return hash == other.hash && base == other.base && strides == other.strides &&
           table == other.table &&
           std::equal(axes.begin(), axes.end(), other.axes.begin(), other.axes.end(), same_axis);
  }

  std::size_t compute_hash() const {
    std::uint64_t h = hash_mix(0, static_cast<std::uint64_t>(base));
    const auto mix = [&h](std::int64_t value) {
      h = hash_mix(h, static_cast<std::uint64_t>(value));
    };
    for (const Axis& a : axes) {
      h = hash_mix(h, hash_text(a.name));
      mix(a.size);
    }
    for (const auto& list : strides) {
      for (const Stride& s : list) {
        mix(s.size);
        mix(s.step);
      }
    }
    std::for_each(table.begin(), table.end(), mix);
    return h;
  }
};

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

constexpr std::int64_t kMostRanks = std::int64_t{1} << 40;

/// The number of elements of a walk; more than kMostRanks when it would be too many.
std::int64_t walk_size(const std::vector<Stride>& strides) {
  std::int64_t size = 1;
  for (const Stride& s : strides) {
    if (s.size > kMostRanks / size) return kMostRanks + 1;
    size *= s.size;
  }
  return size;
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

/// Cuts a list of strides into consecutive lists with the given sizes, splitting strides where
/// needed: 6:1 into sizes 2,3 gives 2:3 and 3:1. Nothing, when a cut falls inside a stride.
std::optional<std::vector<std::vector<Stride>>> regroup(const std::vector<Stride>& strides,
                                                        const std::vector<std::int64_t>& sizes) {
  std::vector<std::vector<Stride>> out;
  std::size_t next = 0;
  Stride rest{1, 0};
  for (std::int64_t need : sizes) {
    out.emplace_back();
    while (need > 1) {
      if (rest.size == 1) rest = strides[next++];
      const std::int64_t take = std::gcd(need, rest.size);
      if (take == 1 || (take != rest.size && take != need)) return std::nullopt;
      rest.size /= take;
      out.back().push_back({take, rest.step * rest.size});
      need /= take;
    }
  }
  return out;
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

void check_strides(std::string_view where, const StridedAxis& axis) {
  for (const Stride& s : axis.strides) {
    const bool walks = s.size == 1 || (s.size > 1 && s.step != 0);
    const std::int64_t longest = s.size > 1 ? kMostRanks / (s.size - 1) : kMostRanks;
    if (walks && s.step >= -longest && s.step <= longest) continue;
    fail<ValueError>(where, "axis '", axis.name, "' has the stride ", s.size, ':', s.step,
                     "; a size is at least 1, a step is not 0, and no rank is beyond 2^40");
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
      fail<ValueError>("Mesh::rank_at", "index ", at[a], " lies outside axis '", d.axes[a].name,
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

template <class Source>
Mesh Mesh::tabulate(std::string_view where, const std::vector<Axis>& axes,
                    const Source& source) const {
  std::vector<std::int64_t> table;
  Coordinate at(axes.size(), 0);
  for (std::int64_t left = checked_size(where, axes); left > 0; --left) {
    table.push_back(rank_at(source(at)));
    for (std::size_t a = axes.size(); a-- > 0;) {
      if (++at[a] < axes[a].size) break;
      at[a] = 0;
    }
  }
  return build(where, axes, std::move(table));
}

Mesh Mesh::slice(std::span<const std::string> names, std::int64_t member) const {
  const auto keep = indices_of("Mesh::slice", names);
  const auto at = coordinate_of(member);
  if (!at) {
    fail<ValueError>("Mesh::slice", "rank ", member, " is not in ", *this,
                     "; only a member can say which slice is meant");
  }
  Coordinate origin = *at;
  std::vector<StridedAxis> strided;
  std::vector<Axis> axes;
  for (const std::size_t a : keep) {
    origin[a] = 0;
    axes.push_back(axis(a));
    if (!has_table()) strided.push_back({name(a), data_->strides[a]});
  }
  if (!has_table()) return build("Mesh::slice", strided, rank_at(origin)).with_parent(*this);
  return tabulate("Mesh::slice", axes,
                  [&](const Coordinate& part) {
                    Coordinate whole = origin;
                    for (std::size_t i = 0; i < keep.size(); ++i) whole[keep[i]] = part[i];
                    return whole;
                  })
      .with_parent(*this);
}

Mesh Mesh::slice(std::initializer_list<std::string> names, std::int64_t member) const {
  return slice(std::span(names.begin(), names.size()), member);
}

Mesh Mesh::range(std::string_view name, std::int64_t begin, std::int64_t end) const {
  const std::size_t a = axis_index(name);
  if (begin < 0 || begin >= end || end > size(a)) {
    fail<ValueError>("Mesh::range", "[", begin, ",", end, ") is not a part of axis '", name,
                     "' of ", *this, "; 0 <= begin < end <= ", size(a));
  }
  if (!has_table() && data_->strides[a].size() <= 1) {
    std::vector<StridedAxis> strided;
    for (std::size_t i = 0; i < axes(); ++i) strided.push_back({this->name(i), data_->strides[i]});
    Coordinate origin(axes(), 0);
    origin[a] = begin;
    if (!strided[a].strides.empty()) strided[a].strides[0].size = end - begin;
    return build("Mesh::range", strided, rank_at(origin)).with_parent(*this);
  }
  std::vector<Axis> axes = data_->axes;
  axes[a].size = end - begin;
  return tabulate("Mesh::range", axes,
                  [a, begin](Coordinate at) {
                    at[a] += begin;
                    return at;
                  })
      .with_parent(*this);
}

Mesh Mesh::flatten(std::span<const std::string> names, std::string_view as) const {
  const auto merged = indices_of("Mesh::flatten", names);
  if (merged.empty()) fail<ValueError>("Mesh::flatten", "no axes of ", *this, " were named");
  std::vector<StridedAxis> strided;
  std::vector<Axis> axes;
  std::vector<std::size_t> source;  // the axes of this mesh in the order of their digits
  for (std::size_t i = 0; i < this->axes(); ++i) {
    const bool inside = std::find(merged.begin(), merged.end(), i) != merged.end();
    if (inside && i != *std::min_element(merged.begin(), merged.end())) continue;
    const std::vector<std::size_t> parts = inside ? merged : std::vector<std::size_t>{i};
    strided.push_back({inside ? std::string(as) : name(i), {}});
    axes.push_back({strided.back().name, 1});
    for (const std::size_t p : parts) {
      axes.back().size *= size(p);
      source.push_back(p);
      if (has_table()) continue;
      strided.back().strides.insert(strided.back().strides.end(), data_->strides[p].begin(),
                                    data_->strides[p].end());
    }
  }
  if (!has_table()) return build("Mesh::flatten", strided, base()).with_parent(*this);
  return tabulate("Mesh::flatten", axes,
                  [&](const Coordinate& at) {
                    std::int64_t place = 0;
                    for (std::size_t i = 0; i < axes.size(); ++i)
                      place = place * axes[i].size + at[i];
                    Coordinate whole(this->axes(), 0);
                    for (std::size_t i = source.size(); i-- > 0; place /= size(source[i])) {
                      whole[source[i]] = place % size(source[i]);
                    }
                    return whole;
                  })
      .with_parent(*this);
}

Mesh Mesh::flatten(std::initializer_list<std::string> names, std::string_view as) const {
  return flatten(std::span(names.begin(), names.size()), as);
}

Mesh Mesh::split(std::string_view name, const std::vector<Axis>& into) const {
  const std::size_t a = axis_index(name);
  std::vector<std::int64_t> sizes;
  sizes.reserve(into.size());
  for (const Axis& part : into) sizes.push_back(part.size);
  check_axes("Mesh::split", into);
  if (checked_size("Mesh::split", into) != size(a)) {
    fail<ValueError>("Mesh::split", "axis '", name, "' of ", *this, " has size ", size(a),
                     ", which is not the product of the sizes ", join(sizes, " x "));
  }
  std::vector<Axis> axes = data_->axes;
  axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(a));
  axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(a), into.begin(), into.end());
  const auto parts = has_table() ? std::nullopt : regroup(data_->strides[a], sizes);
  if (parts) {
    std::vector<StridedAxis> strided;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const bool inside = i >= a && i < a + into.size();
      const std::size_t old = i < a ? i : i - into.size() + 1;
      strided.push_back({axes[i].name, inside ? (*parts)[i - a] : data_->strides[old]});
    }
    return build("Mesh::split", strided, base()).with_parent(*this);
  }
  return tabulate("Mesh::split", axes,
                  [&](const Coordinate& at) {
                    Coordinate whole;
                    for (std::size_t i = 0; i < at.size(); ++i) {
                      if (i <= a || i >= a + into.size()) {
                        whole.push_back(at[i]);
                      } else {
                        whole.back() = whole.back() * axes[i].size + at[i];
                      }
                    }
                    return whole;
                  })
      .with_parent(*this);
}

Mesh Mesh::reorder(std::span<const std::string> names) const {
  if (names.size() != axes()) {
    fail<ValueError>("Mesh::reorder", *this, " has ", axes(), " axes, ", names.size(),
                     " were named; name each once, or use slice");
  }
  return slice(names, base());
}

Mesh Mesh::reorder(std::initializer_list<std::string> names) const {
  return reorder(std::span(names.begin(), names.size()));
}

Mesh Mesh::permute(std::string_view name, std::span<const std::int64_t> order) const {
  const std::size_t a = axis_index(name);
  std::vector<std::int64_t> sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<std::int64_t>(i)) sorted.clear();
  }
  if (static_cast<std::int64_t>(sorted.size()) != size(a)) {
    fail<ValueError>("Mesh::permute", "(", join(order), ") does not list 0..", size(a) - 1,
                     ", the places along axis '", name, "' of ", *this, ", each once");
  }
  return tabulate("Mesh::permute", data_->axes,
                  [a, order](Coordinate at) {
                    at[a] = order[at[a]];
                    return at;
                  })
      .with_parent(*this);
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

std::string Mesh::to_string() const {
  const bool plain = has_table() || data_->strides == row_major(data_->axes);
  std::vector<std::string> parts;
  for (std::size_t a = 0; a < axes(); ++a) {
    std::string part = concat(name(a), '=');
    if (plain || size(a) == 1) {
      part += concat(size(a));
    } else {
      std::vector<std::string> digits;
      for (const Stride& s : data_->strides[a]) digits.push_back(concat(s.size, ':', s.step));
      part += join(digits, "*");
    }
    parts.push_back(std::move(part));
  }
  std::string text = concat('[', join(parts), ']');
  if (has_table()) return concat(text, '{', join(data_->table), '}');
  return base() == 0 ? text : concat(text, '+', base());
}

Mesh Mesh::parse(std::string_view text) {
  Cursor cursor("Mesh::parse", text);
  std::vector<StridedAxis> strided;
  std::vector<Axis> axes;
  bool plain = true;
  bool sizes_only = false;
  cursor.expect("[");
  while (!cursor.accept("]")) {
    if (!axes.empty()) cursor.expect(",");
    strided.push_back({cursor.name(), {}});
    cursor.expect("=");
    do {
      Stride s{cursor.integer(), 1};
      if (cursor.accept(":")) {
        plain = false;
        s.step = cursor.integer();
      } else if (s.size != 1) {
        sizes_only = true;
      }
      if (sizes_only && !plain) cursor.fail_here("either a step for every axis or for none");
      strided.back().strides.push_back(s);
    } while (cursor.accept("*"));
    axes.push_back({strided.back().name, walk_size(strided.back().strides)});
  }
  if (cursor.accept("{")) {
    if (!plain) cursor.fail_here("sizes without steps before a table of ranks");
    std::vector<std::int64_t> ranks;
    do {
      ranks.push_back(cursor.integer());
    } while (cursor.accept(","));
    cursor.expect("}");
    cursor.end();
    return of_ranks(axes, ranks);
  }
  const std::int64_t base = cursor.accept("+") ? cursor.integer() : 0;
  cursor.end();
  return plain ? Mesh(axes, base) : Mesh::strided(strided, base);
}

}  // namespace intarsia

// Meshes made from meshes: slices, ranges, flattened, split, reordered and permuted ones.
#include <algorithm>
#include <numeric>

#include "base/order.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "layout/mesh_data.h"

namespace intarsia {
namespace {

/// Splits a list of strides into consecutive lists with the given sizes, and single strides where
/// needed: 6:1 into sizes 2,3 gives 2:3 and 3:1. Unset when a border falls inside a stride, as
/// with 3:4,2:1 into sizes 2,3.
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

}  // namespace

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
                    Coordinate full = origin;
                    for (std::size_t i = 0; i < keep.size(); ++i) full[keep[i]] = part[i];
                    return full;
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
                    Coordinate full(this->axes(), 0);
                    for (std::size_t i = source.size(); i-- > 0; place /= size(source[i])) {
                      full[source[i]] = place % size(source[i]);
                    }
                    return full;
                  })
      .with_parent(*this);
}

Mesh Mesh::flatten(std::initializer_list<std::string> names, std::string_view as) const {
  return flatten(std::span(names.begin(), names.size()), as);
}

Mesh Mesh::split(std::string_view name, const std::vector<Axis>& into) const {
  const std::size_t a = axis_index(name);
  if (into.empty()) {
    fail<ValueError>("Mesh::split", "axis '", name, "' of ", *this,
                     " cannot be split into no axes; slice drops an axis");
  }
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
                    Coordinate full;
                    for (std::size_t i = 0; i < at.size(); ++i) {
                      if (i <= a || i >= a + into.size()) {
                        full.push_back(at[i]);
                      } else {
                        full.back() = full.back() * axes[i].size + at[i];
                      }
                    }
                    return full;
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
  if (!is_order_of(order, size(a))) {
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

}  // namespace intarsia

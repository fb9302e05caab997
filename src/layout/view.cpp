// Which dimensions become which: the making of Views from the arguments of ATen's view functions.
#include "intarsia/view.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

std::int64_t product(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// `sizes` with a -1 replaced so that they multiply to `total`.
Shape inferred(std::string_view where, Shape sizes, std::int64_t total) {
  std::optional<std::size_t> open;
  std::int64_t known = 1;
  const Shape given = sizes;
  for (std::int64_t& size : sizes) {
    if (size == -1) size = 1;  // for the check only
  }
  check_shape(where, sizes);
  sizes = given;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == -1 && !open) {
      open = i;
    } else if (sizes[i] < 0) {
      fail<ValueError>(where, "the sizes (", join(given),
                       ") have more than one -1 or another negative");
    } else {
      known *= sizes[i];
    }
  }
  if (open && known > 0) sizes[*open] = total / known;
  if (product(sizes) != total || (open && known == 0)) {
    fail<ValueError>(where, "the sizes (", join(given), ") do not hold ", total, " elements");
  }
  return sizes;
}

}  // namespace

void View::add(const Group& group, std::span<const std::int64_t> sizes) {
  groups_.push_back(group);
  for (const std::int64_t s : sizes) {
    groups_.back().out.push_back(static_cast<std::int8_t>(output_.size()));
    output_.push_back(s);
  }
}

void View::regroup(std::initializer_list<int> in, std::initializer_list<std::int64_t> sizes) {
  Group group;
  for (const int d : in) group.in.push_back(static_cast<std::int8_t>(d));
  add(group, std::span(sizes.begin(), sizes.size()));
}

/// Splits the input dims [begin, end) and the output sizes into the smallest groups that hold the
/// same elements: (6,4,5) and (3,8,5) gives {6,4}->{3,8} and {5}->{5}.
void View::match(std::size_t begin, std::size_t end, std::span<const std::int64_t> sizes) {
  const bool no_elements = product(sizes) == 0;
  std::size_t i = begin;
  std::size_t o = 0;
  while (i < end || o < sizes.size()) {
    Group group;
    const std::size_t first_out = o;
    std::int64_t in = 1;
    std::int64_t out = 1;
    const auto take_in = [&] {
      group.in.push_back(static_cast<std::int8_t>(i));
      in *= input_[i++];
    };
    if (i < end) take_in();
    if (o < sizes.size()) out *= sizes[o++];
    // Without elements, products say nothing: what follows the first difference belongs together.
    const bool rest_together = no_elements && in != out;
    while (rest_together ? i < end || o < sizes.size() : in != out) {
      if (i < end && (rest_together || in < out)) {
        take_in();
      } else {
        out *= sizes[o++];
      }
    }
    add(group, sizes.subspan(first_out, o - first_out));
  }
}

View View::reshape(const Shape& shape, const Shape& sizes) {
  check_shape("reshape", shape);
  View v("reshape", shape);
  v.match(0, shape.size(), inferred("reshape", sizes, product(shape)));
  return v;
}

View View::flatten(const Shape& shape, std::int64_t first, std::int64_t last) {
  View v("flatten", shape);
  if (shape.empty()) {
    v.regroup({}, {1});
    return v;
  }
  const int a = normalize_dim("flatten", first, shape.size());
  const int b = normalize_dim("flatten", last, shape.size());
  if (a > b) fail<ValueError>("flatten", "dim ", first, " comes after dim ", last);
  Group group;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (d < a || d > b) {
      v.keep(d);
      continue;
    }
    group.in.push_back(static_cast<std::int8_t>(d));
    if (d < b) continue;
    const std::int64_t size = product(
        std::span<const std::int64_t>(shape).subspan(a, static_cast<std::size_t>(b - a) + 1));
    v.add(group, std::span(&size, 1));
  }
  return v;
}

View View::unflatten(const Shape& shape, std::int64_t dim, const Shape& sizes) {
  View v("unflatten", shape);
  const int at = normalize_dim("unflatten", dim, shape.size());
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (d != at) {
      v.keep(d);
      continue;
    }
    const auto i = static_cast<std::size_t>(d);
    v.match(i, i + 1, inferred("unflatten", sizes, shape[i]));
  }
  return v;
}

View View::permute(const Shape& shape, std::span<const std::int64_t> dims) {
  View v("permute", shape);
  FixedVector<bool, kMaxDims> seen(shape.size(), false);
  for (const std::int64_t d : dims) {
    const int in = normalize_dim("permute", d, shape.size());
    if (std::exchange(seen[static_cast<std::size_t>(in)], true)) {
      fail<ValueError>("permute", "the dims (", join(dims), ") name dim ", in, " twice");
    }
    v.keep(in);
  }
  if (dims.size() != shape.size()) {
    fail<ValueError>("permute", "the dims (", join(dims), ") do not name all ", shape.size(),
                     " dims of the tensor");
  }
  return v;
}

View View::transpose(const Shape& shape, std::int64_t a, std::int64_t b) {
  Shape dims;
  for (std::size_t d = 0; d < shape.size(); ++d) dims.push_back(static_cast<std::int64_t>(d));
  std::swap(dims[static_cast<std::size_t>(normalize_dim("transpose", a, shape.size()))],
            dims[static_cast<std::size_t>(normalize_dim("transpose", b, shape.size()))]);
  View v = permute(shape, dims);
  v.name_ = "transpose";
  return v;
}

View View::squeeze(const Shape& shape) {
  View v("squeeze", shape);
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (shape[static_cast<std::size_t>(d)] == 1) {
      v.regroup({d}, {});
    } else {
      v.keep(d);
    }
  }
  return v;
}

View View::squeeze(const Shape& shape, std::int64_t dim) {
  View v("squeeze", shape);
  const int at = normalize_dim("squeeze", dim, shape.size());
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (d == at && shape[static_cast<std::size_t>(d)] == 1) {
      v.regroup({d}, {});
    } else {
      v.keep(d);
    }
  }
  return v;
}

View View::unsqueeze(const Shape& shape, std::int64_t dim) {
  View v("unsqueeze", shape);
  const int at = normalize_dim("unsqueeze", dim, shape.size() + 1);
  for (int d = 0; d <= static_cast<int>(shape.size()); ++d) {
    if (d == at) v.regroup({}, {1});
    if (d < static_cast<int>(shape.size())) v.keep(d);
  }
  return v;
}

View View::expand(const Shape& shape, const Shape& sizes) {
  View v("expand", shape);
  if (sizes.size() < shape.size()) {
    fail<ValueError>("expand", "the sizes (", join(sizes), ") are fewer than the dims of (",
                     join(shape), ")");
  }
  const std::size_t added = sizes.size() - shape.size();
  for (std::size_t o = 0; o < sizes.size(); ++o) {
    Group group;
    const bool fresh = o < added;
    const std::int64_t size = sizes[o] == -1 && !fresh ? shape[o - added] : sizes[o];
    if (!fresh) group.in.push_back(static_cast<std::int8_t>(o - added));
    group.repeats = fresh || shape[o - added] != size;
    if (size < 0 || (!fresh && group.repeats && shape[o - added] != 1)) {
      fail<ValueError>("expand", "(", join(shape), ") cannot be expanded to (", join(sizes),
                       "): only dims of size 1 can grow");
    }
    v.add(group, std::span(&size, 1));
  }
  return v;
}

}  // namespace intarsia

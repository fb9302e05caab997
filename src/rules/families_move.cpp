// Families of ops that put elements elsewhere, or look them up.
#include <algorithm>
#include <cstdlib>

#include "rules/families.h"

namespace intarsia::rules {
namespace {

/// The two dimensions of a diagonal, among `dims`.
std::vector<std::size_t> diagonal_dims(const Question& q, std::size_t dims) {
  std::vector<std::size_t> out;
  for (const char* name : {"dim1", "dim2"}) {
    const std::int64_t dim = normalize_dim(q.schema().name(), q.integer(name), dims);
    out.push_back(static_cast<std::size_t>(dim));
  }
  return out;
}

/// Rows of dimensions of which one tensor has those in `also` besides: `wide` is their place there,
/// `narrow` that in the tensor without them.
template <typename Add>
void for_each_common(std::size_t dims, const std::vector<std::size_t>& also, Add add) {
  int narrow = 0;
  for (std::size_t wide = 0; wide < dims; ++wide) {
    if (!contains(also, wide)) add(static_cast<int>(wide), narrow++);
  }
}

}  // namespace

Rows repeat(const Question& q) {
  const auto repeats = q.arg("repeats")->toIntVector();
  const std::size_t added = repeats.size() - q.in(0).dims();
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (repeats[d + added] != 1) continue;
    rows.push_back(split({static_cast<int>(d)}, {static_cast<int>(d + added)}));
  }
  rows.push_back(linear(1, {0}));
  return rows;
}

Sizes repeat_sizes(const Question& q) {
  const auto repeats = q.arg("repeats")->toIntVector();
  Shape out = q.in(0).sizes;
  if (out.size() > repeats.size()) return {};  // ATen says what is wrong
  while (out.size() < repeats.size()) out.insert(0, 1);
  for (std::size_t d = 0; d < repeats.size(); ++d) out[d] *= repeats[d];
  return {out};
}

Rows diag_embed(const Question& q) {
  const std::size_t dims = q.in(0).dims() + 1;
  Rows rows;
  for_each_common(dims, diagonal_dims(q, dims),
                  [&](int out, int in) { rows.push_back(split({in}, {out})); });
  rows.push_back(linear(1, {0}));
  return rows;
}

Sizes diag_embed_sizes(const Question& q) {
  const Shape& x = q.in(0).sizes;
  if (x.empty()) return {};  // ATen says what is wrong
  const std::size_t dims = x.size() + 1;
  Shape out(dims, x.back() + std::abs(q.integer("offset")));
  for_each_common(dims, diagonal_dims(q, dims), [&](int to, int from) {
    out[static_cast<std::size_t>(to)] = x[static_cast<std::size_t>(from)];
  });
  return {out};
}

Rows diagonal_backward(const Question& q) {
  const std::size_t dims = q.arg("input_sizes")->toIntVector().size();
  Rows rows;
  for_each_common(dims, diagonal_dims(q, dims),
                  [&](int out, int in) { rows.push_back(split({in}, {out})); });
  rows.push_back(linear(1, {0}));
  return rows;
}

// self, src -> self with src in the place of a view
Rows view_scatter(const Question& q) {
  const std::size_t dims = q.in(0).dims();
  const bool selects = q.in(1).dims() + 1 == dims;
  const bool fits = selects || (q.arg("dim1") == nullptr && q.in(1).dims() == dims);
  if (dims == 0 || !fits) return {};
  Rows rows;
  if (q.arg("dim1") != nullptr) {
    for_each_common(dims, diagonal_dims(q, dims), [&](int self, int src) {
      rows.push_back(split({self, src}, {self}));
    });
  } else {
    const std::size_t dim = q.dim();
    for_each_common(dims, {dim}, [&](int self, int src) {
      rows.push_back(split({self, selects ? src : self}, {self}));
    });
  }
  rows.push_back(linear(2, {0, 1}));
  return rows;
}

Rows trace(const Question&) { return {linear(1, {0})}; }
Sizes one_number(const Question& q) { return Sizes(q.results(), Shape{}); }

// ---- lookups ---------------------------------------------------------------------------------

// sorted_sequence, self, sorter -> places
Rows searchsorted(const Question& q) {
  const auto values = q.operand("self");
  if (!values) return {};
  const Operand& sorted = q.in(0);
  const Operand& x = q.in(*values);
  const bool one_sequence = sorted.dims() <= 1;
  Rows rows;
  for (std::size_t d = 0; d < x.dims(); ++d) {
    const int at = static_cast<int>(d);
    const bool last = d + 1 == x.dims();
    std::vector<int> in(q.inputs(), one_sequence || last ? -1 : at);
    in[*values] = at;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!q.in(i).given) in[i] = -1;
    }
    rows.push_back(split(in, {at}));
  }
  return rows;
}

Sizes searchsorted_sizes(const Question& q) {
  const auto values = q.operand("self");
  return {values ? q.in(*values).sizes : Shape{}};
}

Rule lookup(std::string name, const std::string& operand, std::vector<std::size_t> linear_in) {
  Rule rule;
  rule.name = std::move(name);
  rule.rows = [operand, linear_in = std::move(linear_in)](const Question& q) {
    Rows rows;
    const auto at = q.operand(operand);
    for (int d = 0; at && d < static_cast<int>(q.in(*at).dims()); ++d) {
      std::vector<int> in(q.inputs(), -1);
      in[*at] = d;
      rows.push_back(split(in, {d}));
    }
    if (!linear_in.empty()) rows.push_back(linear(q.inputs(), linear_in));
    return rows;
  };
  rule.sizes = [operand](const Question& q) {
    const auto at = q.operand(operand);
    return Sizes{at ? q.in(*at).sizes : Shape{}};
  };
  return rule;
}

}  // namespace intarsia::rules

// Families of ops that join, select and move elements.
#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

std::vector<std::size_t> all_operands(const Question& q) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < q.inputs(); ++i) out.push_back(i);
  return out;
}

/// An old oddity of cat: empty tensors of one dimension are skipped.
bool is_skipped(const Operand& x) { return x.dims() == 1 && x.sizes[0] == 0; }

std::size_t first_real(const Question& q) {
  for (std::size_t i = 0; i < q.inputs(); ++i) {
    if (!is_skipped(q.in(i))) return i;
  }
  return 0;
}

std::size_t cat_dim(const Question& q) {
  const Operand& x = q.in(first_real(q));
  return static_cast<std::size_t>(
      normalize_dim(q.schema().name(), q.integer("dim"), std::max<std::size_t>(x.dims(), 1)));
}

}  // namespace

Rows cat(const Question& q) {
  Rows rows;
  const std::size_t dim = cat_dim(q);
  const Operand& model = q.in(first_real(q));
  for (std::size_t d = 0; d < model.dims(); ++d) {
    if (d == dim) continue;
    std::vector<int> in;
    for (const Operand& x : q.in()) in.push_back(is_skipped(x) ? -1 : static_cast<int>(d));
    rows.push_back(split(in, {static_cast<int>(d)}));
  }
  rows.push_back(linear(q.inputs(), all_operands(q)));
  return rows;
}

Sizes cat_sizes(const Question& q) {
  const std::size_t dim = cat_dim(q);
  Shape out = q.in(first_real(q)).sizes;
  if (out.empty()) fail<ValueError>(q.schema().name(), "tensors of no dimension cannot be joined");
  out[dim] = 0;
  for (const Operand& x : q.in()) {
    if (is_skipped(x)) continue;
    for (std::size_t d = 0; d < out.size(); ++d) {
      if (x.dims() != out.size() || (d != dim && x.sizes[d] != out[d])) {
        fail<ValueError>(q.schema().name(), "sizes (", join(x.sizes), ") do not fit along dim ",
                         dim, " to (", join(q.in(first_real(q)).sizes), ")");
      }
    }
    out[dim] += x.sizes[dim];
  }
  return {out};
}

Rows stack(const Question& q) {
  const auto dim = normalize_dim(q.schema().name(), q.integer("dim"), q.in(0).dims() + 1);
  Rows rows;
  for (int d = 0; d < static_cast<int>(q.in(0).dims()); ++d) {
    rows.push_back(split(std::vector<int>(q.inputs(), d), {d < dim ? d : d + 1}));
  }
  rows.push_back(linear(q.inputs(), all_operands(q)));
  return rows;
}

Sizes stack_sizes(const Question& q) {
  const auto dim = normalize_dim(q.schema().name(), q.integer("dim"), q.in(0).dims() + 1);
  for (const Operand& x : q.in()) {
    if (x.sizes != q.in(0).sizes) {
      fail<ValueError>(q.schema().name(), "sizes (", join(x.sizes), ") and (", join(q.in(0).sizes),
                       ") differ; stack takes equal ones");
    }
  }
  Shape out = q.in(0).sizes;
  out.insert(static_cast<std::size_t>(dim), static_cast<std::int64_t>(q.inputs()));
  return {out};
}

// self, index
Rows index_select(const Question& q) {
  if (q.in(0).dims() == 0) return {};
  const int dim = static_cast<int>(q.dim());
  Rows rows;
  for (int d = 0; d < static_cast<int>(q.in(0).dims()); ++d) {
    if (d != dim) rows.push_back(split({d, -1}, {d}));
  }
  if (q.in(1).dims() == 1) rows.push_back(split({-1, 0}, {dim}));
  rows.push_back(linear(2, {0}));
  return rows;
}

Sizes index_select_sizes(const Question& q) {
  Shape out = q.in(0).sizes;
  if (!out.empty()) out[q.dim()] = q.in(1).dims() == 0 ? 1 : q.in(1).sizes[0];
  return {out};
}

// self, index -> like index
Rows gather(const Question& q) {
  if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return {};
  const std::size_t dim = q.dim();
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const int at = static_cast<int>(d);
    if (d == dim) {
      rows.push_back(split({-1, at}, {at}));
    } else if (q.in(0).sizes[d] == q.in(1).sizes[d]) {
      rows.push_back(split({at, at}, {at}));
    }
  }
  rows.push_back(linear(2, {0}));
  return rows;
}

Sizes gather_sizes(const Question& q) { return {q.in(1).sizes}; }

// self, index, and for some overloads src
Rows scatter(const Question& q) {
  if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return {};
  const std::size_t dim = q.dim();
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const bool equal = std::all_of(q.in().begin(), q.in().end(), [&](const Operand& x) {
      return x.sizes[d] == q.in(0).sizes[d];
    });
    if (d == dim || !equal) continue;
    rows.push_back(split(std::vector<int>(q.inputs(), static_cast<int>(d)), {static_cast<int>(d)}));
  }
  return rows;
}

namespace {

/// Where the one index tensor of `x[:, i]` is; nothing when there are several, or it is a mask.
std::optional<std::size_t> only_index(const Question& q) {
  std::optional<std::size_t> found;
  for (std::size_t i = 1; i < q.inputs(); ++i) {
    if (!q.in(i).given) continue;
    const at::ScalarType dtype = q.in(i).dtype;
    if (found || dtype == at::kBool || dtype == at::kByte) return std::nullopt;
    found = i - 1;
  }
  return found;
}

}  // namespace

// self, indices...
Rows index(const Question& q) {
  const auto at = only_index(q);
  if (!at) return {};
  const auto dim = static_cast<int>(*at);
  const auto extra = static_cast<int>(q.in(*at + 1).dims());
  Rows rows;
  for (int d = 0; d < static_cast<int>(q.in(0).dims()); ++d) {
    if (d == dim) continue;
    std::vector<int> in(q.inputs(), -1);
    in[0] = d;
    rows.push_back(split(in, {d < dim ? d : d - 1 + extra}));
  }
  for (int d = 0; d < extra; ++d) {
    std::vector<int> in(q.inputs(), -1);
    in[*at + 1] = d;
    rows.push_back(split(in, {dim + d}));
  }
  rows.push_back(linear(q.inputs(), {0}));
  return rows;
}

/// Nothing where the sizes depend on values or on how several indices meet: the op then runs
/// replicated, and its result says them.
Sizes index_sizes(const Question& q) {
  const auto at = only_index(q);
  if (!at) return {};
  Shape out;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (d != *at) {
      out.push_back(q.in(0).sizes[d]);
    } else {
      for (const std::int64_t n : q.in(*at + 1).sizes) out.push_back(n);
    }
  }
  return {out};
}

Rows matrix_batch(const Question& q) {
  Rows rows;
  for (int d = 0; d < static_cast<int>(q.in(0).dims()) - 2; ++d) rows.push_back(split({d}, {d}));
  rows.push_back(linear(1, {0}));
  return rows;
}

Rows flip(const Question& q) {
  const auto dims = q.dims("dims");
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const bool moves = dims && std::find(dims->begin(), dims->end(), d) != dims->end();
    if (!moves) rows.push_back(split({static_cast<int>(d)}, {static_cast<int>(d)}));
  }
  rows.push_back(linear(1, {0}));
  return rows;
}

Rows pad(const Question& q) {
  const auto widths = q.arg("pad")->toIntVector();
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const std::size_t from_end = q.in(0).dims() - 1 - d;
    const bool padded = 2 * from_end < widths.size() &&
                        (widths[2 * from_end] != 0 || widths[2 * from_end + 1] != 0);
    if (!padded) rows.push_back(split({static_cast<int>(d)}, {static_cast<int>(d)}));
  }
  return rows;
}

Sizes pad_sizes(const Question& q) {
  const auto widths = q.arg("pad")->toIntVector();
  Shape out = q.in(0).sizes;
  for (std::size_t i = 0; i + 1 < widths.size(); i += 2) {
    out[out.size() - 1 - i / 2] += widths[i] + widths[i + 1];
  }
  return {out};
}

namespace {

std::size_t viewed_dim(const Question& q) {
  const auto sizes = q.arg("input_sizes")->toIntVector();
  return static_cast<std::size_t>(normalize_dim(q.schema().name(), q.integer("dim"), sizes.size()));
}

}  // namespace

Rows view_backward(const Question& q) {
  const std::size_t dim = viewed_dim(q);
  const std::size_t dims = q.arg("input_sizes")->toIntVector().size();
  const bool selects = q.in(0).dims() + 1 == dims;
  Rows rows;
  for (std::size_t d = 0; d < dims; ++d) {
    if (d == dim) continue;
    rows.push_back(
        split({static_cast<int>(selects && d > dim ? d - 1 : d)}, {static_cast<int>(d)}));
  }
  rows.push_back(linear(1, {0}));
  return rows;
}

Sizes view_backward_sizes(const Question& q) {
  const auto sizes = q.arg("input_sizes")->toIntVector();
  return {Shape(std::span<const std::int64_t>(sizes.data(), sizes.size()))};
}

}  // namespace intarsia::rules

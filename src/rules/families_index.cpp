// Families of ops that join, select and move elements.
#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

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

/// All operands partial; of any kind, where none is converted.
Row joined(const Question& q) {
  std::vector<std::size_t> all;
  bool alike = true;
  for (std::size_t i = 0; i < q.inputs(); ++i) {
    all.push_back(i);
    alike &= q.in(i).dtype == q.in(0).dtype;
  }
  return alike ? moved(q.inputs(), all) : linear(q.inputs(), all);
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
  rows.push_back(joined(q));
  // Pieces of tensors of one length, joined, are a piece of the result, sharded in blocks.
  const bool alike = std::all_of(q.in().begin(), q.in().end(), [&](const Operand& x) {
    return x.dims() == model.dims() && model.dims() > 0 && x.sizes[dim] == model.sizes[dim];
  });
  if (alike) {
    const auto at = static_cast<int>(dim);
    Row row = split(std::vector<int>(q.inputs(), at), {at});
    row.out[0] = Placement::strided_shard(at, static_cast<std::int64_t>(q.inputs()));
    row.contiguous = true;
    rows.push_back(std::move(row));
  }
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
  rows.push_back(joined(q));
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

namespace {

/// What looking up in a table gives on a rank that has some of its rows, where that is less than
/// the table: the others' rows are 0 there, or false.
void add_lookup(const Question& q, int dim, const Shape& result, Rows& rows) {
  if (element_count(result) > element_count(q.in(0).sizes)) return;
  const bool truth = q.in(0).dtype == at::kBool;
  std::vector<int> in(q.inputs(), -1);
  in[0] = dim;
  rows.push_back(split(in, {-1}, Placement::partial(truth ? Reduction::bit_or : Reduction::sum)));
}

}  // namespace

// self, index
Rows index_select(const Question& q) {
  if (q.in(0).dims() == 0) return {};
  const int dim = static_cast<int>(q.dim());
  Rows rows;
  for (int d = 0; d < static_cast<int>(q.in(0).dims()); ++d) {
    if (d != dim) rows.push_back(split({d, -1}, {d}));
  }
  if (q.in(1).dims() == 1) rows.push_back(split({-1, 0}, {dim}));
  add_lookup(q, dim, index_select_sizes(q)[0], rows);
  rows.push_back(moved(2, {0}));
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
      add_lookup(q, at, q.in(1).sizes, rows);
    } else if (q.in(0).sizes[d] == q.in(1).sizes[d]) {
      rows.push_back(split({at, at}, {at}));
    }
  }
  rows.push_back(moved(2, {0}));
  return rows;
}

Sizes gather_sizes(const Question& q) { return {q.in(1).sizes}; }

// self, index, and for some overloads src
Rows scatter(const Question& q) {
  if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return {};
  const std::size_t dim = q.dim();
  const std::string& name = q.schema().name();
  const bool adds = name.starts_with("aten::scatter_add");
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const int at = static_cast<int>(d);
    if (d == dim) {
      std::vector<int> in(q.inputs(), -1);
      in[0] = at;
      rows.push_back(split(in, {at}));  // LocalForm::rows_of_result
      // Each rank adds what it has to its own partial value.
      if (adds && q.in(1).sizes[d] == q.in(2).sizes[d]) {
        rows.push_back({{Placement::partial(), Placement::shard(at), Placement::shard(at)},
                        {Placement::partial()}});
      }
    } else {
      const bool equal = std::all_of(q.in().begin(), q.in().end(), [&](const Operand& x) {
        return x.sizes[d] == q.in(0).sizes[d];
      });
      if (equal) rows.push_back(split(std::vector<int>(q.inputs(), at), {at}));
    }
  }
  const bool replaces = name.starts_with("aten::scatter") && q.arg("reduce") == nullptr;
  if (q.inputs() == 3 && (adds || replaces)) rows.push_back(linear(3, {0, 2}));
  return rows;
}

// self, index, and for some ops source
Rows index_add(const Question& q) {
  if (q.in(0).dims() == 0 || q.in(1).dims() != 1) return {};
  const std::size_t dim = q.dim();
  const bool adds = q.schema().name().starts_with("aten::index_add");
  const bool has_source = q.inputs() == 3 && q.in(2).dims() == q.in(0).dims();
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const int at = static_cast<int>(d);
    std::vector<int> in(q.inputs(), -1);
    in[0] = at;
    if (has_source && d != dim) in[2] = at;
    rows.push_back(split(in, {at}));  // along `dim`: LocalForm::rows_of_result
  }
  if (adds && has_source) {
    rows.push_back(
        {{Placement::partial(), Placement::shard(0), Placement::shard(static_cast<int>(dim))},
         {Placement::partial()}});
  }
  const bool copies = q.schema().name().starts_with("aten::index_copy");
  if (adds || copies) rows.push_back(linear(3, {0, 2}));
  return rows;
}

namespace {

/// How the index tensors of `x[i, :, j]` meet.
struct Indexing {
  std::vector<std::size_t> dims;  ///< of self, that are indexed
  Shape common;                   ///< what the index tensors broadcast to
  std::size_t at = 0;             ///< where that is in the result
};

/// The operands that are indices come after self; unset where one is a mask.
std::optional<Indexing> indexing(const Question& q) {
  Indexing out;
  const std::size_t count = q.arg("indices")->toListRef().size();
  for (std::size_t i = 0; i < count; ++i) {
    const Operand& index = q.in(1 + i);
    if (!index.given) continue;
    if (index.dtype == at::kBool || index.dtype == at::kByte) return std::nullopt;
    out.dims.push_back(i);
    while (out.common.size() < index.dims()) out.common.insert(0, 1);
    const std::size_t missing = out.common.size() - index.dims();
    for (std::size_t d = 0; d < index.dims(); ++d) {
      if (index.sizes[d] != 1) out.common[missing + d] = index.sizes[d];
    }
  }
  if (out.dims.empty()) return std::nullopt;
  const bool adjacent = out.dims.back() - out.dims.front() + 1 == out.dims.size();
  out.at = adjacent ? out.dims.front() : 0;
  return out;
}

bool is_indexed(const Indexing& x, std::size_t d) {
  return std::find(x.dims.begin(), x.dims.end(), d) != x.dims.end();
}

/// Where a dimension of self that is not indexed is in the result.
int place_in_result(const Indexing& x, std::size_t d) {
  std::size_t before = 0;
  for (std::size_t i = 0; i < d; ++i) before += is_indexed(x, i) ? 0 : 1;
  return static_cast<int>(before < x.at ? before : before + x.common.size());
}

Shape indexed_sizes(const Question& q, const Indexing& x) {
  Shape kept;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (!is_indexed(x, d)) kept.push_back(q.in(0).sizes[d]);
  }
  Shape out;
  for (std::size_t d = 0; d < x.at; ++d) out.push_back(kept[d]);
  for (const std::int64_t n : x.common) out.push_back(n);
  for (std::size_t d = x.at; d < kept.size(); ++d) out.push_back(kept[d]);
  return out;
}

/// For each operand, the dimension that index `d` of the common sizes is; -1 where it repeats.
std::vector<int> dims_of_index(const Question& q, const Indexing& x, std::size_t d) {
  std::vector<int> in(q.inputs(), -1);
  for (const std::size_t dim : x.dims) {
    const Operand& index = q.in(1 + dim);
    const std::size_t missing = x.common.size() - index.dims();
    if (d >= missing && index.sizes[d - missing] != 1) in[1 + dim] = static_cast<int>(d - missing);
  }
  return in;
}

}  // namespace

// self, indices...
Rows index(const Question& q) {
  const auto x = indexing(q);
  if (!x) return {};
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (is_indexed(*x, d)) continue;
    std::vector<int> in(q.inputs(), -1);
    in[0] = static_cast<int>(d);
    rows.push_back(split(in, {place_in_result(*x, d)}));
  }
  for (std::size_t d = 0; d < x->common.size(); ++d) {
    if (x->common[d] == 1) continue;
    rows.push_back(split(dims_of_index(q, *x, d), {static_cast<int>(x->at + d)}));
  }
  if (x->dims.size() == 1) {
    add_lookup(q, static_cast<int>(x->dims[0]), indexed_sizes(q, *x), rows);
  }
  rows.push_back(moved(q.inputs(), {0}));
  return rows;
}

/// Empty where the sizes depend on values: the op then runs replicated, and its result says them.
Sizes index_sizes(const Question& q) {
  const auto x = indexing(q);
  if (!x) return {};
  return {indexed_sizes(q, *x)};
}

// self, indices..., values
Rows index_put(const Question& q) {
  const std::size_t values = q.inputs() - 1;
  const auto x = indexing(q);
  Rows rows;
  if (!x) {
    // A mask and one number: each element by itself.
    const Operand& mask = q.in(1);
    const bool one =
        q.inputs() == 3 && mask.given && mask.dtype == at::kBool && q.in(values).dims() == 0;
    for (std::size_t d = 0; one && d < q.in(0).dims(); ++d) {
      const int at = static_cast<int>(d);
      rows.push_back(split({at, d < mask.dims() ? at : -1, -1}, {at}));
    }
    return rows;
  }
  const Shape result = indexed_sizes(q, *x);
  // The dimension of the values that is `d` of what is written; -1 where they repeat.
  const auto in_values = [&](std::size_t d) {
    const std::size_t missing = result.size() - q.in(values).dims();
    return d >= missing && q.in(values).sizes[d - missing] != 1 ? static_cast<int>(d - missing)
                                                                : -1;
  };
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    std::vector<int> in(q.inputs(), -1);
    in[0] = static_cast<int>(d);
    if (is_indexed(*x, d)) {
      if (x->dims.size() == 1) rows.push_back(split(in, {in[0]}));  // LocalForm::rows_of_result
      continue;
    }
    in[values] = in_values(static_cast<std::size_t>(place_in_result(*x, d)));
    rows.push_back(split(in, {in[0]}));
  }
  rows.push_back(linear(q.inputs(), {0, values}));
  if (!q.flag("accumulate")) return rows;
  for (std::size_t d = 0; d < x->common.size(); ++d) {
    if (x->common[d] == 1) continue;
    std::vector<int> in = dims_of_index(q, *x, d);
    in[values] = in_values(x->at + d);
    Row row = split(in, {-1});
    row.in[0] = Placement::partial();
    rows.push_back(std::move(row));
  }
  return rows;
}

std::optional<std::size_t> table_dim(const Question& q) {
  if (q.arg("indices") != nullptr && q.arg("indices")->isList()) {
    const auto x = indexing(q);
    return x && x->dims.size() == 1 ? std::optional(x->dims[0]) : std::nullopt;
  }
  return q.arg("dim") != nullptr ? q.dim() : 0;
}

Rows matrix_batch(const Question& q) {
  Rows rows;
  for (int d = 0; d < static_cast<int>(q.in(0).dims()) - 2; ++d) rows.push_back(split({d}, {d}));
  rows.push_back(linear(1, {0}));
  return rows;
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
  return {shape_of(q.arg("input_sizes")->toIntVector())};
}

}  // namespace intarsia::rules

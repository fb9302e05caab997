#include "rules/families.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/op_traits.h"

namespace intarsia::rules {
namespace {

Placement at_dim(int dim, const Placement& otherwise = {}) {
  return dim >= 0 ? Placement::shard(dim) : otherwise;
}

/// Rows of an einsum of two or three operands: letters name indices.
Rows einsum(const std::vector<std::string_view>& in, std::string_view out) {
  std::string letters;
  for (const std::string_view operand : in) {
    for (const char c : operand) {
      if (letters.find(c) == std::string::npos) letters += c;
    }
  }
  Rows rows;
  const auto place = [](std::string_view text, char c) {
    const auto at = text.find(c);
    return at == std::string_view::npos ? -1 : static_cast<int>(at);
  };
  for (const char c : letters) {
    std::vector<int> dims;
    for (const std::string_view operand : in) dims.push_back(place(operand, c));
    rows.push_back(split(dims, {place(out, c)}));
  }
  for (std::size_t i = 0; i < in.size(); ++i) rows.push_back(linear(in.size(), {i}));
  return rows;
}

/// The same for an op that adds operand 0, broadcast, to the product.
Rows with_addend(const Question& q, const Rows& product, std::size_t out_dims) {
  const Operand& addend = q.in(0);
  Rows rows;
  for (const Row& row : product) {
    if (row.linear) continue;
    Row with;
    const Placement& out = row.out[0];
    Placement at = out;  // what is added to a partial product is partial
    if (out.is_shard()) {
      const int d = out.dim() - static_cast<int>(out_dims - addend.dims());
      const bool there = d >= 0 && addend.sizes[static_cast<std::size_t>(d)] != 1;
      at = there ? Placement::shard(d) : Placement();
    }
    with.in = {at, row.in[0], row.in[1]};
    with.out = row.out;
    rows.push_back(with);
  }
  rows.push_back(linear(3, {0, 1}));
  rows.push_back(linear(3, {0, 2}));
  return rows;
}

/// In which operands, jointly, a pointwise op is linear.
std::vector<std::vector<std::size_t>> linear_in(const Question& q) {
  const std::string name = base_name(q);
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const bool two = q.inputs() >= 2;
  if (name == "copy" && is_integral(q.in(0).dtype)) return {};  // it rounds each partial value
  if (is({"add", "sub", "complex"}) || name == "lerp" || name == "copy") {
    return two ? std::vector<std::vector<std::size_t>>{{0, 1}}
               : std::vector<std::vector<std::size_t>>{};
  }
  if (name == "mul") {
    return two ? std::vector<std::vector<std::size_t>>{{0}, {1}}
               : std::vector<std::vector<std::size_t>>{{0}};
  }
  if (name == "div") {
    const c10::IValue* rounding = q.arg("rounding_mode");
    if (rounding == nullptr || rounding->isNone()) return {{0}};
    return {};
  }
  if (is({"neg", "clone", "zero", "positive", "conj_physical", "_conj_physical", "deg2rad",
          "rad2deg", "ldexp"})) {
    return {{0}};
  }
  if (name == "masked_fill" && q.inputs() == 3) return {{0, 2}};
  if (name == "_to_copy") {
    const c10::IValue* dtype = q.arg("dtype");
    const bool exact = dtype == nullptr || dtype->isNone() || !is_integral(dtype->toScalarType());
    if (exact) return {{0}};
    return {};
  }
  if (name == "where") return {{1, 2}};
  if (name == "addcmul") return {{0, 1}, {0, 2}};
  if (name == "addcdiv") return {{0, 1}};
  if (name.ends_with("_backward")) return {{0}};
  return {};
}

/// The kinds of partial besides sums that pass through a pointwise op of one tensor, and what they
/// become. Only ops that are monotone on all numbers: a maximum of logarithms is not the logarithm
/// of the maximum where some partial value has none.
std::vector<std::pair<Reduction, Reduction>> monotone_in(const Question& q) {
  constexpr std::array<std::string_view, 22> kRising{
      "atan",        "asinh", "ceil",     "clamp_max", "clamp_min", "erf",   "exp", "exp2",
      "expm1",       "floor", "hardtanh", "relu",      "relu6",     "round", "sgn", "sigmoid",
      "hardsigmoid", "sign",  "sinh",     "tanh",      "trunc",     "clamp"};
  const std::string name = base_name(q);
  const bool real = at::isFloatingType(q.in(0).dtype);
  if (q.inputs() != 1 || !real) return {};
  if (name == "neg") return {{Reduction::max, Reduction::min}, {Reduction::min, Reduction::max}};
  if (std::find(kRising.begin(), kRising.end(), name) == kRising.end()) return {};
  return {{Reduction::max, Reduction::max}, {Reduction::min, Reduction::min}};
}

}  // namespace

bool contains(const std::vector<std::size_t>& values, std::size_t v) {
  return std::find(values.begin(), values.end(), v) != values.end();
}

bool given(const Question& q, std::size_t operand) {
  return operand < q.inputs() && q.in(operand).given;
}

std::int64_t element_count(const Shape& sizes, std::size_t first_dim) {
  std::int64_t n = 1;
  for (std::size_t d = first_dim; d < sizes.size(); ++d) n *= sizes[d];
  return n;
}

Shape shape_of(const std::vector<std::int64_t>& sizes) {
  return Shape(std::span<const std::int64_t>(sizes.data(), sizes.size()));
}

std::string base_name(const Question& q) { return std::string(base_of(q.schema().name())); }

bool is_backward(const Question& q) {
  return q.schema().name().find("_backward") != std::string::npos;
}

Row split(const std::vector<int>& in, const std::vector<int>& out, const Placement& missing) {
  Row row;
  for (const int d : in) row.in.push_back(at_dim(d));
  for (const int d : out) row.out.push_back(at_dim(d, missing));
  return row;
}

Row linear(std::size_t operands, const std::vector<std::size_t>& partial, std::size_t results) {
  Row row;
  row.linear = true;
  row.in.resize(operands);
  for (const std::size_t i : partial) row.in[i] = Placement::partial();
  row.out.assign(results, Placement::partial());
  return row;
}

Row moved(std::size_t operands, const std::vector<std::size_t>& partial, std::size_t results) {
  Row row = linear(operands, partial, results);
  row.any_kind = true;
  return row;
}

Row by_formula(Row row, double reduced_share) {
  row.formula = reduced_share;
  return row;
}

// ---- pointwise -------------------------------------------------------------------------------

Sizes broadcast_sizes(const Question& q) {
  Shape out;
  for (std::size_t i = 0; i < q.inputs(); ++i) {
    const Operand& x = q.in(i);
    if (!x.given) continue;
    while (out.size() < x.dims()) out.insert(0, 1);
    for (std::size_t d = 0; d < x.dims(); ++d) {
      std::int64_t& size = out[out.size() - x.dims() + d];
      if (x.sizes[d] == 1 || x.sizes[d] == size) continue;
      if (size != 1) {
        fail<ValueError>(q.schema().name(), "sizes (", join(x.sizes), ") and (", join(out),
                         ") do not broadcast");
      }
      size = x.sizes[d];
    }
  }
  return Sizes(std::max<std::size_t>(q.results(), 1), out);
}

Sizes sizes_of_first(const Question& q) { return Sizes(q.results(), q.in(0).sizes); }
Sizes second_sizes(const Question& q) { return Sizes(q.results(), q.in(1).sizes); }

Rows pointwise(const Question& q) {
  const Shape out = broadcast_sizes(q)[0];
  const std::size_t results = std::max<std::size_t>(q.results(), 1);
  Rows rows;
  for (std::size_t d = 0; d < out.size(); ++d) {
    if (out[d] == 1) continue;
    std::vector<int> in;
    for (std::size_t i = 0; i < q.inputs(); ++i) {
      const Operand& x = q.in(i);
      const std::size_t missing = out.size() - x.dims();
      const bool there = x.given && d >= missing && x.sizes[d - missing] != 1;
      in.push_back(there ? static_cast<int>(d - missing) : -1);
    }
    rows.push_back(split(in, std::vector<int>(results, static_cast<int>(d))));
  }
  const std::string name = base_name(q);
  const bool copies = name == "clone" || name == "positive";
  for (const auto& group : linear_in(q)) {
    rows.push_back(copies ? moved(1, group) : linear(q.inputs(), group, results));
  }
  for (const auto& [before, after] : monotone_in(q)) {
    rows.push_back({{Placement::partial(before)}, {Placement::partial(after)}});
  }
  return rows;
}

// ---- products --------------------------------------------------------------------------------

Rows mm(const Question&) { return einsum({"mk", "kn"}, "mn"); }
Rows bmm(const Question&) { return einsum({"bmk", "bkn"}, "bmn"); }
Rows mv(const Question&) { return einsum({"mk", "k"}, "m"); }
Rows dot(const Question&) { return einsum({"k", "k"}, ""); }
Rows addmm(const Question& q) { return with_addend(q, mm(q), 2); }
Rows baddbmm(const Question& q) { return with_addend(q, bmm(q), 3); }

/// ATen does not broadcast what is added where the matrix is empty, as it may be on some rank.
Rows addmv(const Question& q) {
  Rows rows = with_addend(q, mv(q), 1);
  const bool widens = q.in(0).sizes != Shape{q.in(1).sizes[0]};
  std::erase_if(rows, [&](const Row& row) { return widens && !row.linear; });
  return rows;
}

Rows addr(const Question& q) { return with_addend(q, einsum({"m", "n"}, "mn"), 2); }
Rows addbmm(const Question& q) { return with_addend(q, einsum({"bmk", "bkn"}, "mn"), 2); }

namespace {

/// The indices of a grouped product: T is the dimension that `offs` divides among the groups, of
/// which no piece may be taken; E are groups.
struct Grouped {
  std::string_view a, b, out;
};

std::optional<Grouped> grouped(const Question& q) {
  const std::size_t a = q.in(0).dims();
  const std::size_t b = q.in(1).dims();
  if (a == 2 && b == 3) return Grouped{"TK", "EKN", "TN"};
  if (a == 3 && b == 2) return Grouped{"EMK", "KT", "MT"};
  if (a == 2 && b == 2) return Grouped{"MT", "TN", "EMN"};
  if (a == 3 && b == 3) return Grouped{"GMK", "GKN", "GMN"};  // without offs
  return std::nullopt;
}

}  // namespace

// self, mat2, offs, bias
Rows grouped_mm(const Question& q) {
  const auto g = grouped(q);
  if (!g || q.in(3).given) return {};
  Rows rows = einsum({g->a, g->b}, g->out);
  const auto sharded_letter = [](const Placement& p, std::string_view letters) {
    return p.is_shard() ? letters[static_cast<std::size_t>(p.dim())] : ' ';
  };
  std::erase_if(rows, [&](const Row& row) {
    const char letter =
        row.in[0].is_shard() ? sharded_letter(row.in[0], g->a) : sharded_letter(row.in[1], g->b);
    return letter == 'T' || letter == 'E';
  });
  for (Row& row : rows) row.in.resize(4);
  return rows;
}

Sizes grouped_mm_sizes(const Question& q) {
  const auto g = grouped(q);
  if (!g) return {};
  std::map<char, std::int64_t> length;
  for (std::size_t d = 0; d < g->a.size(); ++d) length[g->a[d]] = q.in(0).sizes[d];
  for (std::size_t d = 0; d < g->b.size(); ++d) length[g->b[d]] = q.in(1).sizes[d];
  if (q.in(2).given) length.emplace('E', q.in(2).sizes[0]);
  Shape out;
  for (const char c : g->out) out.push_back(length[c]);
  return {out};
}

Sizes matmul_sizes(const Question& q) {
  const std::size_t first = q.inputs() - 2;  // one that is added may come before
  const Shape& a = q.in(first).sizes;
  const Shape& b = q.in(first + 1).sizes;
  const auto refuse = [&] {
    fail<ValueError>(q.schema().name(), "sizes (", join(a), ") and (", join(b),
                     ") cannot be multiplied");
  };
  if (a.size() < 1 || b.size() < 1 || b.size() > a.size() || a.size() > 3) refuse();
  const std::size_t contracted = b.size() == 1 ? 0 : b.size() - 2;
  if (a.back() != b[contracted] || (a.size() == 3 && (b.size() != 3 || a[0] != b[0]))) refuse();
  Shape out = a;
  out.erase(out.size() - 1);
  if (b.size() > 1) out.push_back(b.back());
  return {out};
}

Sizes addr_sizes(const Question& q) {
  if (q.in(1).dims() != 1 || q.in(2).dims() != 1) return {};  // ATen says what is wrong
  return {Shape{q.in(1).sizes[0], q.in(2).sizes[0]}};
}

Sizes addbmm_sizes(const Question& q) {
  if (q.in(1).dims() != 3 || q.in(2).dims() != 3) return {};
  return {Shape{q.in(1).sizes[1], q.in(2).sizes[2]}};
}

/// Vectors of three along `dim`, which counts in what the operands broadcast to.
Rows cross(const Question& q) {
  const std::size_t dims = broadcast_sizes(q)[0].size();
  const auto dim = static_cast<int>(normalize_dim(q.schema().name(), q.integer("dim", -1), dims));
  Rows rows = pointwise(q);
  std::erase_if(rows, [&](const Row& row) { return row.out[0] == Placement::shard(dim); });
  rows.push_back(linear(2, {0}));
  rows.push_back(linear(2, {1}));
  return rows;
}

// ---- reductions ------------------------------------------------------------------------------

bool reduces(const Reduced& dims, std::size_t d) { return !dims || contains(*dims, d); }

int after_reduction(const Question& q, const Reduced& dims, std::size_t d) {
  if (reduces(dims, d)) return -1;
  if (q.flag("keepdim")) return static_cast<int>(d);
  int place = 0;
  for (std::size_t i = 0; i < d; ++i) place += reduces(dims, i) ? 0 : 1;
  return place;
}

Rows reduction(const Question& q, const Placement& kind, bool is_linear) {
  Rows rows;
  const auto dims = q.dims();
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    rows.push_back(split({static_cast<int>(d)}, {after_reduction(q, dims, d)}, kind));
  }
  if (is_linear) rows.push_back(linear(1, {0}));
  return rows;
}

Rows sum(const Question& q) { return reduction(q, Placement::partial(), true); }
Rows sum_of_parts(const Question& q) { return reduction(q, Placement::partial(), false); }

/// Counts in bins add up where arguments say what the bins are.
Rows histc(const Question& q) {
  const auto bound = [&](const char* name) { return q.arg(name)->toScalar().toDouble(); };
  if (bound("min") == bound("max")) return {};
  return reduction(q, Placement::partial(), false);
}

Sizes histc_sizes(const Question& q) { return {Shape{q.integer("bins")}}; }

Rows extremum(const Question& q) {
  if (q.schema().overload_name() == "other") return pointwise(q);
  const bool is_max = q.schema().name().find("max") != std::string::npos;
  if (q.results() == 2) return arg_extremum(q);
  return reduction(q, Placement::partial(is_max ? Reduction::max : Reduction::min), false);
}

Rows logical(const Question& q) {
  const bool is_any = q.schema().name() == "aten::any";
  return reduction(q, Placement::partial(is_any ? Reduction::bit_or : Reduction::bit_and), false);
}

Rows product(const Question& q) {
  return reduction(q, Placement::partial(Reduction::product), false);
}

Rows reduce_unsharded(const Question& q) {
  Rows rows;
  const auto dims = q.dims();
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    const int place = after_reduction(q, dims, d);
    if (place >= 0) {
      rows.push_back(split({static_cast<int>(d)}, std::vector<int>(q.results(), place)));
    }
  }
  return rows;
}

Sizes reduced_sizes(const Question& q) {
  if (q.schema().overload_name() == "other") return broadcast_sizes(q);
  const auto dims = q.dims();
  Shape out;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (!reduces(dims, d)) {
      out.push_back(q.in(0).sizes[d]);
    } else if (q.flag("keepdim")) {
      out.push_back(1);
    }
  }
  return Sizes(q.results(), out);
}

Rows along(const Question& q) {
  Rows rows;
  const std::size_t dim = q.in(0).dims() == 0 ? 0 : q.dim();
  const std::string& name = q.schema().name();
  const bool backward = is_backward(q);
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (d == dim) continue;
    const int at = static_cast<int>(d);
    rows.push_back(split(std::vector<int>(q.inputs(), at), std::vector<int>(q.results(), at)));
  }
  if (backward || name == "aten::cumsum") rows.push_back(linear(q.inputs(), {0}));
  return rows;
}

double reduced_share(const Question& q, const Reduced& dims) {
  double reduced = 1;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (reduces(dims, d))
      reduced *= static_cast<double>(std::max<std::int64_t>(q.in(0).sizes[d], 1));
  }
  return 1 / reduced;
}

void add_reduced(const Question& q, const Reduced& dims, const std::vector<Placement>& out,
                 double share, Rows& rows) {
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (!reduces(dims, d)) continue;
    Row row = split(std::vector<int>(q.inputs(), static_cast<int>(d)), {});
    row.out = out;
    rows.push_back(by_formula(std::move(row), share));
  }
}

Rows scan(const Question& q) {
  Rows rows = along(q);
  if (q.in(0).dims() == 0) return rows;
  const auto d = static_cast<int>(q.dim());
  rows.push_back(split({d}, {d}));  // LocalForm::scan
  return rows;
}

Rows softmax(const Question& q) {
  Rows rows = along(q);
  if (q.in(0).dims() == 0) return rows;
  const std::vector<std::size_t> dims{q.dim()};
  const auto d = static_cast<int>(q.dim());
  const bool backward = q.inputs() == 2;
  rows.push_back(by_formula(split(std::vector<int>(q.inputs(), d), {d}),
                            (backward ? 1 : 2) * reduced_share(q, dims)));
  return rows;
}

Rows logsumexp(const Question& q) {
  Rows rows = reduce_unsharded(q);
  const auto dims = q.dims();
  add_reduced(q, dims, {Placement::replicate()}, 2 * reduced_share(q, dims), rows);
  return rows;
}

Sizes along_sizes(const Question& q) {
  Shape out = q.in(0).sizes;
  if (q.arg("k") != nullptr && !out.empty()) out[q.dim()] = q.integer("k");  // topk
  return Sizes(q.results(), out);
}

/// Losses of two tensors of one size, reduced over everything or not at all.
Rows loss_over_all(const Question& q) {
  const std::size_t first = q.in(0).dims() == 0 ? 1 : 0;  // backward: the gradient comes first
  const bool backward = is_backward(q);
  const bool reduced = q.integer("reduction", 1) != 0;
  Rows rows;
  const Shape& sizes = q.in(backward ? 1 : first).sizes;
  for (std::size_t i = backward ? 1 : 0; i < q.inputs(); ++i) {
    if (q.in(i).sizes != sizes) return {};  // broadcasting: leave it to the replicated form
  }
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const int at = static_cast<int>(d);
    std::vector<int> in(q.inputs(), at);
    if (backward && q.in(0).sizes != sizes) in[0] = -1;
    rows.push_back(split(in, {backward || !reduced ? at : -1}));
  }
  if (backward) rows.push_back(linear(q.inputs(), {0}));
  return rows;
}

Sizes loss_sizes(const Question& q) {
  if (is_backward(q)) return broadcast_sizes(q);
  return q.integer("reduction", 1) == 0 ? broadcast_sizes(q) : Sizes{Shape{}};
}

}  // namespace intarsia::rules

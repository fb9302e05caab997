// Families of ops that do the same to each of many matrices, vectors or images.
#include <algorithm>
#include <cctype>
#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

/// One operand or result of a formula.
struct Entry {
  std::string letters;
  bool batched = true;
  bool linear = false;
};

/// A formula such as `nn,nK+ -> nK`, read.
struct Formula {
  std::vector<Entry> in;
  std::vector<Entry> out;

  explicit Formula(std::string_view text) {
    const std::size_t arrow = text.find("->");
    in = entries(text.substr(0, arrow));
    out = entries(text.substr(arrow + 2));
  }

  static std::vector<Entry> entries(std::string_view text) {
    std::vector<Entry> out(1);
    for (const char c : text) {
      if (c == ',') {
        out.emplace_back();
      } else if (c == '!') {
        out.back().batched = false;
      } else if (c == '+') {
        out.back().linear = true;
      } else if (c != ' ') {
        out.back().letters += c;
      }
    }
    return out;
  }
};

/// The lengths of letters, and of the dimensions before them, in one call.
struct Lengths {
  std::map<char, std::int64_t> of;
  Shape batch;
};

std::size_t batch_dims(const Operand& x, const Entry& entry) {
  return x.dims() - entry.letters.size();
}

/// None where the operands' sizes are not those of the formula: ATen then says what is wrong.
std::optional<Lengths> lengths_in(const Question& q, const Formula& f) {
  Lengths out;
  for (std::size_t i = 0; i < f.in.size(); ++i) {
    const Operand& x = q.in(i);
    const Entry& entry = f.in[i];
    if (!x.given) continue;
    if (x.dims() < entry.letters.size()) return std::nullopt;
    const std::size_t before = batch_dims(x, entry);
    for (std::size_t k = 0; k < entry.letters.size(); ++k) {
      const std::int64_t size = x.sizes[before + k];
      if (out.of.emplace(entry.letters[k], size).first->second != size) return std::nullopt;
    }
    while (out.batch.size() < before) out.batch.insert(0, 1);
    for (std::size_t d = 0; d < before; ++d) {
      std::int64_t& size = out.batch[out.batch.size() - before + d];
      if (size == 1) size = x.sizes[d];
      if (x.sizes[d] != 1 && x.sizes[d] != size) return std::nullopt;
    }
  }
  // `k`, where no operand has it, is the shorter side of the matrix `mn`.
  if (out.of.contains('m') && out.of.contains('n')) {
    out.of.emplace('k', std::min(out.of['m'], out.of['n']));
  }
  return out;
}

Rows formula_rows(const Question& q, const Formula& f, const Lengths& lengths) {
  Rows rows;
  for (std::size_t d = 0; d < lengths.batch.size(); ++d) {
    if (lengths.batch[d] == 1) continue;
    std::vector<int> in;
    for (std::size_t i = 0; i < f.in.size(); ++i) {
      const Operand& x = q.in(i);
      const std::size_t before = x.given ? batch_dims(x, f.in[i]) : 0;
      const std::size_t missing = lengths.batch.size() - before;
      const bool there = d >= missing && x.sizes[d - missing] != 1;
      in.push_back(there ? static_cast<int>(d - missing) : -1);
    }
    std::vector<int> out;
    for (const Entry& entry : f.out) out.push_back(entry.batched ? static_cast<int>(d) : -1);
    rows.push_back(split(in, out, Placement::replicate()));
  }
  for (const auto& [letter, length] : lengths.of) {
    if (std::isupper(static_cast<unsigned char>(letter)) == 0) continue;
    const auto place = [&](const Entry& entry, std::size_t before) {
      const auto at = entry.letters.find(letter);
      return at == std::string::npos ? -1 : static_cast<int>(before + at);
    };
    std::vector<int> in;
    for (std::size_t i = 0; i < f.in.size(); ++i) {
      in.push_back(q.in(i).given ? place(f.in[i], batch_dims(q.in(i), f.in[i])) : -1);
    }
    std::vector<int> out;
    for (const Entry& entry : f.out) out.push_back(place(entry, lengths.batch.size()));
    rows.push_back(split(in, out));
  }
  std::vector<std::size_t> partial;
  for (std::size_t i = 0; i < f.in.size(); ++i) {
    if (f.in[i].linear) partial.push_back(i);
  }
  if (!partial.empty()) rows.push_back(linear(q.inputs(), partial, f.out.size()));
  return rows;
}

Sizes formula_sizes(const Formula& f, const Lengths& lengths) {
  Sizes out;
  for (const Entry& entry : f.out) {
    Shape sizes = entry.batched ? lengths.batch : Shape();
    for (const char c : entry.letters) {
      sizes.push_back(std::isdigit(static_cast<unsigned char>(c)) != 0 ? c - '0'
                                                                       : lengths.of.at(c));
    }
    out.push_back(sizes);
  }
  return out;
}

std::string_view text_of(const Question& q, std::string_view name) {
  const c10::IValue* value = q.arg(name);
  return value != nullptr && value->isString() ? std::string_view(value->toStringRef())
                                               : std::string_view();
}

}  // namespace

Rule batched(std::string name, const FormulaOf& formula, RuleOptions options) {
  const auto call = [formula, in_columns = !options.memory_order.empty()](const Question& q) {
    std::optional<std::pair<Formula, Lengths>> out;
    // Errors of an op that looks for them are everyone's.
    const std::string text = q.flag("check_errors") ? "" : formula(q);
    if (text.empty()) return out;
    const Formula f(text);
    const auto lengths = lengths_in(q, f);
    // `memory_order` says where columns are for one number of dimensions. Else the result says it.
    if (!lengths || (in_columns && lengths->batch.size() != 1)) return out;
    out.emplace(f, *lengths);
    return out;
  };
  Rule rule;
  rule.name = std::move(name);
  rule.rows = [call](const Question& q) {
    const auto c = call(q);
    return c ? formula_rows(q, c->first, c->second) : Rows();
  };
  rule.sizes = [call](const Question& q) {
    const auto c = call(q);
    return c ? formula_sizes(c->first, c->second) : Sizes();
  };
  rule.options = std::move(options);
  return rule;
}

Rule batched(std::string name, const std::string& formula, RuleOptions options) {
  return batched(
      std::move(name), [formula](const Question&) { return formula; }, std::move(options));
}

// ---- formulas that depend on arguments -------------------------------------------------------

std::string svd_formula(const Question& q) {
  if (!q.flag("compute_uv")) return "mn -> !0,k,!0";
  return q.flag("full_matrices") ? "mn -> mm,k,nn" : "mn -> mk,k,kn";
}

std::string qr_formula(const Question& q) {
  const std::string_view mode = text_of(q, "mode");
  if (mode == "r") return "mn -> !0,kn";
  return mode == "complete" ? "mn -> mm,mn" : "mn -> mk,kn";
}

std::string eigh_formula(const Question& q) {
  return q.flag("compute_v") ? "nn -> n,nn" : "nn -> n,!0";
}

std::string lu_formula(const Question& q) {
  return q.flag("pivot") ? "mn -> mm,mk,kn" : "mn -> !0,mk,kn";
}

std::string lu_unpack_formula(const Question& q) {
  std::string out = q.flag("unpack_pivots") ? "mn,k -> mm," : "mn,k -> !0,";
  return out + (q.flag("unpack_data") ? "mk,kn" : "!0,!0");
}

/// Of A X = B. The factors of A have its sizes, which B must not widen; X A = B has its result in
/// rows, and vectors B in columns.
std::string solve_formula(const Question& q) {
  const Shape& a = q.in(0).sizes;
  const Shape& b = q.in(1).sizes;
  if (!q.flag("left") || a.size() != 3 || b.size() < 2) return "";
  const bool matrices = b.size() == 3 && (b[0] == 1 || b[0] == a[0]);
  const bool one_matrix = b.size() == 2 && !std::equal(b.begin(), b.end(), a.begin());
  return matrices || one_matrix ? "nn,nk -> nk,nn,n," : "";
}

std::string lu_solve_formula(const Question& q) { return q.flag("left") ? "nn,n,nK+ -> nK" : ""; }

std::string solve_triangular_formula(const Question& q) {
  return q.flag("left") ? "nn,nK+ -> nK" : "nn,Kn+ -> Kn";
}

/// The product of an orthogonal matrix, which has as many rows as its reflectors `mn`, and another.
std::string ormqr_formula(const Question& q) {
  return q.flag("left") ? "mn,k,mC+ -> mC" : "mn,k,Cm+ -> Cm";
}

/// The drivers that give residuals do so by the ranks that they find.
std::string lstsq_formula(const Question& q) {
  const std::string_view driver = text_of(q, "driver");
  if (!driver.empty() && driver != "gelsy") return "";
  if (q.in(1).dims() != q.in(0).dims()) return "";
  return "mn,mc -> nc,!0,,!0";
}

// ---- Fourier transforms ----------------------------------------------------------------------

namespace {

std::vector<std::size_t> transformed(const Question& q) {
  std::vector<std::size_t> out;
  for (const std::int64_t d : q.arg("dim")->toIntVector()) {
    out.push_back(static_cast<std::size_t>(normalize_dim(q.schema().name(), d, q.in(0).dims())));
  }
  return out;
}

}  // namespace

Rows fft(const Question& q) {
  const auto dims = transformed(q);
  Rows rows;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    rows.push_back(split({static_cast<int>(d)}, {static_cast<int>(d)}));
  }
  rows.push_back(linear(1, {0}));
  return rows;
}

/// None where dimensions are not the last, in order: the result then has them innermost in memory,
/// and says so.
Sizes fft_sizes(const Question& q) {
  const auto dims = transformed(q);
  Shape out = q.in(0).sizes;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != out.size() - dims.size() + i) return {};
  }
  if (dims.empty()) return {out};
  std::int64_t& last = out[dims.back()];
  if (q.flag("onesided")) last = last / 2 + 1;
  last = q.integer("last_dim_size", last);
  return {out};
}

}  // namespace intarsia::rules

namespace intarsia {
namespace {

/// Every letter of a result is one of an operand, but for `k`, which m and n make.
void check_letters(const std::string& indices, const rules::Formula& f) {
  std::string known;
  for (const rules::Entry& entry : f.in) known += entry.letters;
  const auto has = [&](char c) { return known.find(c) != std::string::npos; };
  for (const rules::Entry& entry : f.out) {
    for (const char c : entry.letters) {
      if (std::isdigit(static_cast<unsigned char>(c)) != 0 || has(c)) continue;
      if (c == 'k' && has('m') && has('n')) continue;
      fail<ValueError>("index_rule", "'", indices, "' has a result with the index ", c,
                       ", which no operand has; only their lengths are known");
    }
  }
}

}  // namespace

Rule index_rule(std::string name, std::string indices, RuleOptions options) {
  if (indices.find("->") == std::string::npos) {
    fail<ValueError>("index_rule", "'", indices, "' has no ->; `MK,KN -> MN` is a product");
  }
  const rules::Formula f(indices);
  check_letters(indices, f);
  const auto for_call = [name, indices, operands = f.in.size()](const Question& q) {
    if (q.inputs() != operands) {
      fail<ValueError>("index_rule", "'", indices, "' is for ", operands, " operands, but ", name,
                       " has ", q.inputs(),
                       "; name the last dimensions of each, also of those in lists and of optional "
                       "ones that were not passed");
    }
    return indices;
  };
  return rules::batched(std::move(name), for_call, std::move(options));
}

}  // namespace intarsia

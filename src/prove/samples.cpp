#include "prove/samples.h"

#include <ATen/ATen.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <numeric>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/prove.h"
#include "prove/sample.h"

namespace intarsia {
namespace {

using Sizes = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

/// Whether the op itself takes these values.
bool is_accepted(const Sample& sample) {
  const at::NoGradGuard no_grad;
  try {
    torch::jit::Stack stack = sample.values(0);
    sample.op.callBoxed(&stack);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// ---- patterns: lines with `$` ----------------------------------------------------------------

struct Geometry {
  Sizes sizes;
  Sizes order = {};
};

/// What the tensors of a pattern are, for one, two and three of them; more have equal sizes.
using Geometries = std::vector<std::vector<Geometry>>;

const Geometries& geometries(std::size_t tensors) {
  static const Geometries one{{{{}}},        {{{5}}},    {{{4, 6}}},
                              {{{3, 1, 7}}}, {{{3, 0}}}, {{{2, 3, 4}, {2, 0, 1}}}};
  static const Geometries two{
      {{{}}, {{}}},      {{{5}}, {{5}}},          {{{5}}, {{}}},
      {{{}}, {{5}}},     {{{3, 4}}, {{4}}},       {{{3, 4}}, {{3, 1}}},
      {{{7}}, {{2, 7}}}, {{{2, 1, 5}}, {{3, 1}}}, {{{4, 6}, {1, 0}}, {{4, 6}}}};
  static const Geometries three{{{{}}, {{}}, {{}}},
                                {{{5}}, {{5}}, {{5}}},
                                {{{5}}, {{}}, {{}}},
                                {{{}}, {{3, 4}}, {{4}}},
                                {{{3, 4}}, {{4}}, {{3, 1}}},
                                {{{3, 1}}, {{5}}, {{3, 5}}},
                                {{{4, 6}}, {{4, 6}, {1, 0}}, {{4, 6}}}};
  return tensors == 2 ? two : tensors == 3 ? three : one;
}

void add_sizes(const Sample& pattern, bool equal_sizes, Texts& out) {
  Sample sample = pattern;
  const auto tensors = sample.tensors();
  const std::size_t kinds = equal_sizes ? 1 : tensors.size();
  for (const auto& geometry : geometries(kinds)) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Geometry& g = geometry[std::min(i, geometry.size() - 1)];
      tensors[i]->sizes = g.sizes;
      tensors[i]->order = g.order;
    }
    out.push_back(sample.to_string());
  }
}

/// The pattern with other dtypes in place of its own, where the op takes them: all alike, and
/// mixed.
void add_dtypes(const Sample& pattern, Texts& out) {
  static const std::vector<std::vector<DType>> of_floats{{DType::f32},
                                                         {DType::bf16},
                                                         {DType::i64},
                                                         {DType::u8},
                                                         {DType::b1},
                                                         {DType::c128},
                                                         {DType::f32, DType::f64},
                                                         {DType::i64, DType::f32},
                                                         {DType::f64, DType::c64}};
  static const std::vector<std::vector<DType>> of_integers{
      {DType::i32}, {DType::u8}, {DType::b1}, {DType::i32, DType::i64}};
  const auto tensors = pattern.tensors();
  const auto number = std::find_if(tensors.begin(), tensors.end(), [](const TensorSample* t) {
    return t->dtype == DType::f64 || t->dtype == DType::i64;
  });
  if (number == tensors.end()) return;
  const DType first = (*number)->dtype;
  for (const auto& dtypes : first == DType::f64 ? of_floats : of_integers) {
    Sample sample = pattern;
    std::size_t replaced = 0;
    bool fits = true;
    for (TensorSample* t : sample.tensors()) {
      t->sizes = {5};
      if (t->dtype != first) continue;
      t->dtype = dtypes[std::min(replaced++, dtypes.size() - 1)];
      // Numbers of the text may be negative or fractions.
      fits &= (t->dtype != DType::u8 && t->dtype != DType::b1) || t->numbers.empty();
    }
    if (replaced >= dtypes.size() && fits && is_accepted(sample)) out.push_back(sample.to_string());
  }
}

std::string with_sizes(std::string_view line, std::string_view sizes) {
  std::string out;
  for (const char c : line) c == '$' ? out += sizes : out += c;
  return out;
}

void add_pattern(std::string_view line, bool dtypes, Texts& out) {
  const Sample pattern = Sample::parse(with_sizes(line, "[]"));
  add_sizes(pattern, pattern.op.schema().name().ends_with("_backward"), out);
  if (dtypes) add_dtypes(pattern, out);
}

// ---- the table -------------------------------------------------------------------------------

/// Smallest first, nothing twice.
void put_in_order(Texts& texts) {
  const auto elements = [](const std::string& text) {
    const Sample sample = Sample::parse(text);
    std::int64_t count = 0;
    for (const TensorSample* t : sample.tensors()) count += t->count();
    return count;
  };
  std::vector<std::pair<std::int64_t, std::string>> keyed;
  for (std::string& text : texts) {
    const bool known =
        std::any_of(keyed.begin(), keyed.end(), [&](const auto& k) { return k.second == text; });
    if (!known) keyed.emplace_back(elements(text), std::move(text));
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  texts.clear();
  for (auto& [count, text] : keyed) texts.push_back(std::move(text));
}

/// `aten::sum.dim_IntList` of a line that calls it.
std::string op_of(std::string_view line) {
  return concat("aten::", line.substr(0, line.find('(')));
}

std::optional<c10::OperatorHandle> find_op(const std::string& name) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
}

std::map<std::string, Texts> read_table() {
  std::map<std::string, Texts> out;
  std::map<std::string, bool> has_pattern;
  for (const std::string_view line : sample_lines()) {
    const std::string name = op_of(line);
    if (!find_op(name)) continue;  // another version of ATen
    Texts& texts = out[name];
    if (line.find('$') == std::string_view::npos) {
      texts.push_back(Sample::parse(line).to_string());
    } else {
      add_pattern(line, !std::exchange(has_pattern[name], true), texts);
    }
  }
  for (auto& [name, texts] : out) put_in_order(texts);
  return out;
}

const std::map<std::string, Texts>& table() {
  static const auto* const read = new std::map<std::string, Texts>(read_table());
  return *read;
}

// ---- pointwise ops without a line ------------------------------------------------------------

bool is_usable(const c10::OperatorHandle& op) {
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CompositeImplicitAutograd,
                         c10::DispatchKey::CompositeExplicitAutograd,
                         c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

bool is_derivable(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (!op.hasTag(at::Tag::pointwise) || op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (schema.name().find("::_foreach_") != std::string::npos || schema.is_mutable()) return false;
  const auto gives_tensor = [](const c10::Argument& a) {
    return a.type()->kind() == c10::TypeKind::TensorType;
  };
  return !schema.returns().empty() &&
         std::all_of(schema.returns().begin(), schema.returns().end(), gives_tensor) &&
         is_usable(op);
}

/// The argument of a pattern; unset where only the op could say what makes sense.
std::optional<std::string> pattern_argument(const c10::Argument& a) {
  // Orthogonal polynomials, the only ops with these names: of degree n at x.
  if (a.type()->kind() == c10::TypeKind::TensorType) {
    return a.name() == "n" ? "i64$<4" : a.name() == "x" ? "f64$in(0, 1)" : "f64$";
  }
  if (a.type()->kind() == c10::TypeKind::NumberType) return a.name() == "n" ? "3" : "0.5";
  if (a.type()->kind() == c10::TypeKind::FloatType) return "0.5";
  if (a.type()->kind() == c10::TypeKind::IntType) return "2";
  if (a.type()->kind() == c10::TypeKind::BoolType) return "False";
  return std::nullopt;
}

Texts derive(const c10::OperatorHandle& op) {
  Texts parts;
  for (const c10::Argument& a : op.schema().arguments()) {
    if (a.default_value()) continue;
    const auto part = pattern_argument(a);
    if (!part) return {};
    parts.push_back(concat(a.name(), '=', *part));
  }
  const std::string line = concat(text_of(op), '(', join(parts, ", "), ')');
  if (line.find('$') == std::string::npos || !is_accepted(Sample::parse(with_sizes(line, "[5]")))) {
    return {};
  }
  Texts out;
  add_pattern(line, /*dtypes=*/true, out);
  put_in_order(out);
  return out;
}

}  // namespace

std::vector<std::string> samples_of(const c10::OperatorHandle& op) {
  const auto written = table().find(text_of(op));
  if (written != table().end()) return written->second;
  return is_derivable(op) ? derive(op) : Texts{};
}

std::string with_namespace(std::string_view op) {
  return op.find("::") == std::string_view::npos ? concat("aten::", op) : std::string(op);
}

c10::OperatorHandle op_named(const std::string& name) {
  const std::size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

std::vector<std::string> provable_ops() {
  Texts out;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && !samples_of(*op).empty()) out.push_back(text_of(*op));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace intarsia

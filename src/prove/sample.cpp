#include "prove/sample.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

constexpr std::string_view kParse = "Sample::parse";

// ---- numbers ---------------------------------------------------------------------------------

/// A float that reads as one: `1.0`, `-inf`.
std::string float_text(double value) {
  std::string text = number_text(value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

std::variant<std::int64_t, double> read_number(Cursor& cursor) {
  Cursor ahead = cursor;
  const bool named = ahead.accept("-inf") || ahead.accept("inf") || ahead.accept("nan");
  if (named) return cursor.number();
  ahead.integer();
  if (ahead.peek(".") || ahead.peek("e")) return cursor.number();
  return cursor.integer();
}

double read_double(Cursor& cursor) {
  return std::visit([](auto v) { return static_cast<double>(v); }, read_number(cursor));
}

template <class T, class Read>
std::vector<T> read_list(Cursor& cursor, std::string_view open, std::string_view close, Read read) {
  std::vector<T> out;
  cursor.expect(open);
  while (!cursor.accept(close)) {
    if (!out.empty()) cursor.expect(",");
    out.push_back(read());
  }
  return out;
}

// ---- tensors ---------------------------------------------------------------------------------

at::ScalarType scalar_type(DType dtype) {
  // Both enumerations are small, and dtype_of is the one place that pairs them.
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (dtype_of(type) == dtype) return type;
  }
  fail<ValueError>("TensorSample", "no dtype of ATen for ", to_text(dtype));
}

DType read_dtype(Cursor& cursor) {
  Cursor ahead = cursor;
  const std::string name = ahead.name();
  const auto dtype = name == "b1" ? DType::b1 : parse_dtype(name);
  if (!dtype) cursor.fail_here("a dtype such as f64, i64, u8, bool or c128");
  cursor = ahead;
  return *dtype;
}

TensorSample read_tensor(Cursor& cursor) {
  using Values = TensorSample::Values;
  TensorSample out;
  out.dtype = read_dtype(cursor);
  const auto size = [&] {
    Cursor here = cursor;
    const std::int64_t value = cursor.integer();
    if (value < 0) here.fail_here("a size, 0 or more");
    return value;
  };
  out.sizes = read_list<std::int64_t>(cursor, "[", "]", size);
  Cursor here = cursor;
  if (cursor.accept("<")) {
    out.values = Values::below;
    out.numbers = {static_cast<double>(cursor.integer())};
    if (out.numbers[0] < 1) here.fail_here("a limit of 1 or more, as values begin at 0");
  } else if (cursor.accept(">")) {
    cursor.expect("0");
    out.values = Values::positive;
  } else if (cursor.accept("in")) {
    out.values = Values::between;
    out.numbers = read_list<double>(cursor, "(", ")", [&] { return read_double(cursor); });
    if (out.numbers.size() != 2 || out.numbers[0] >= out.numbers[1]) {
      here.fail_here("an interval such as in(-1, 1)");
    }
  } else if (cursor.accept("distinct")) {
    out.values = Values::distinct;
  } else if (cursor.accept("of")) {
    out.values = Values::listed;
    out.numbers = read_list<double>(cursor, "(", ")", [&] { return read_double(cursor); });
    if (out.numbers.empty()) here.fail_here("a value or more, such as of(2, 0)");
  }
  here = cursor;
  if (cursor.accept("~")) {
    out.order = read_list<std::int64_t>(cursor, "(", ")", [&] { return cursor.integer(); });
    std::vector<std::int64_t> sorted = out.order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int64_t> dims(out.sizes.size());
    std::iota(dims.begin(), dims.end(), 0);
    if (sorted != dims) here.fail_here(concat("an order of all ", dims.size(), " dimensions"));
    if (out.order == dims) out.order.clear();
  }
  return out;
}

/// A stream of numbers that depends on its seed alone.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) : seed_(seed) {}

  std::uint64_t bits() { return hash_mix(seed_, next_++); }
  /// In the open interval (0, 1).
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  std::int64_t whole(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

/// Values 0.5 apart, none twice also by size: ..., -0.875, -0.375, 0.125, 0.625, ...
std::vector<double> distinct_values(std::size_t n, bool whole, bool from_zero, Stream& stream) {
  std::vector<double> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto rank = static_cast<double>(i) - (from_zero ? 0.0 : static_cast<double>(n / 2));
    out[i] = whole ? rank : rank / 2 + 0.125;
  }
  for (std::size_t i = n; i > 1; --i) {
    std::swap(out[i - 1],
              out[static_cast<std::size_t>(stream.whole(0, static_cast<std::int64_t>(i) - 1))]);
  }
  return out;
}

std::vector<double> draw(const TensorSample& s, std::size_t n, Stream& stream) {
  using Values = TensorSample::Values;
  const at::ScalarType type = scalar_type(s.dtype);
  const bool whole = at::isIntegralType(type, /*includeBool=*/true);
  const bool from_zero = s.dtype == DType::b1 || s.dtype == DType::u8 || s.dtype == DType::u16 ||
                         s.dtype == DType::u32 || s.dtype == DType::u64;
  const auto integer = [](double v) { return static_cast<std::int64_t>(v); };
  if (s.values == Values::distinct) return distinct_values(n, whole, from_zero, stream);
  std::vector<double> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    switch (s.values) {
      case Values::usual:
        out[i] = s.dtype == DType::b1 ? static_cast<double>(stream.whole(0, 1))
                 : whole              ? static_cast<double>(stream.whole(from_zero ? 0 : -4, 4))
                                      : stream.normal();
        break;
      case Values::below:
        out[i] = static_cast<double>(stream.whole(0, integer(s.numbers[0]) - 1));
        break;
      case Values::positive:
        out[i] = whole ? static_cast<double>(stream.whole(1, 4)) : 0.5 + 1.5 * stream.uniform();
        break;
      case Values::between:
        out[i] =
            whole ? static_cast<double>(stream.whole(integer(s.numbers[0]), integer(s.numbers[1])))
                  : s.numbers[0] + (s.numbers[1] - s.numbers[0]) * stream.uniform();
        break;
      case Values::listed:
        out[i] = s.numbers[i % s.numbers.size()];
        break;
      case Values::distinct:
        break;
    }
  }
  return out;
}

// ---- arguments, by the types of the schema ----------------------------------------------------

using Words = std::vector<std::pair<std::string_view, std::int64_t>>;

const Words& words_of(c10::TypeKind kind) {
  static const Words none;
  static const Words layouts{{"strided", static_cast<std::int64_t>(at::kStrided)}};
  static const Words formats{
      {"contiguous", static_cast<std::int64_t>(at::MemoryFormat::Contiguous)},
      {"preserve", static_cast<std::int64_t>(at::MemoryFormat::Preserve)},
      {"channels_last", static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast)},
      {"channels_last_3d", static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast3d)}};
  if (kind == c10::TypeKind::LayoutType) return layouts;
  if (kind == c10::TypeKind::MemoryFormatType) return formats;
  return none;
}

const c10::Type& element_of(const c10::Type& type) { return *type.containedType(0); }

SampleArgument read_word(Cursor& cursor, const c10::Type& type) {
  if (type.kind() == c10::TypeKind::ScalarTypeType) {
    return {SampleWord{std::string(to_text(read_dtype(cursor)))}};
  }
  Cursor ahead = cursor;
  const std::string name = ahead.name();
  const Words& words = words_of(type.kind());
  const bool known =
      std::any_of(words.begin(), words.end(), [&](const auto& word) { return word.first == name; });
  if (!known) cursor.fail_here(concat("a ", type.str()));
  cursor = ahead;
  return {SampleWord{name}};
}

SampleArgument read_text(Cursor& cursor) {
  const std::string quote = cursor.peek("'") ? "'" : "\"";
  cursor.expect(quote);
  if (cursor.accept(quote)) return {std::string()};
  std::string text = cursor.name();
  cursor.expect(quote);
  return {std::move(text)};
}

std::optional<bool> accept_bool(Cursor& cursor) {
  if (cursor.accept("True")) return true;
  if (cursor.accept("False")) return false;
  return std::nullopt;
}

/// `repeat`: how many equal numbers a single one stands for, where the op takes a list of them.
SampleArgument read_argument(Cursor& cursor, const c10::Type& type, std::optional<int> repeat) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      if (cursor.accept("None")) return {};
      return read_argument(cursor, element_of(type), repeat);
    case c10::TypeKind::TensorType:
      return {read_tensor(cursor)};
    case c10::TypeKind::ListType: {
      if (repeat && !cursor.peek("[")) {
        const auto n = static_cast<std::size_t>(std::max(*repeat, 1));
        return {SampleArgument::List(n, read_argument(cursor, element_of(type), {}))};
      }
      return {read_list<SampleArgument>(
          cursor, "[", "]", [&] { return read_argument(cursor, element_of(type), {}); })};
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return {cursor.integer()};
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return {read_double(cursor)};
    case c10::TypeKind::NumberType:
      if (const auto flag = accept_bool(cursor)) return {*flag};
      return std::visit([](auto v) { return SampleArgument{v}; }, read_number(cursor));
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      if (const auto flag = accept_bool(cursor)) return {*flag};
      cursor.fail_here("True or False");
    case c10::TypeKind::StringType:
      return read_text(cursor);
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return read_word(cursor, type);
    case c10::TypeKind::DeviceObjType:
      cursor.expect("cpu");
      return {SampleWord{"cpu"}};
    default:
      cursor.fail_here(concat("None; samples have no text for a ", type.str()));
  }
}

/// What an argument that is left out means.
SampleArgument from_default(const c10::IValue& value, const c10::Type& type) {
  if (value.isNone()) return {};
  if (type.kind() == c10::TypeKind::OptionalType) return from_default(value, element_of(type));
  if (type.kind() == c10::TypeKind::ScalarTypeType) {
    const auto dtype = dtype_of(value.toScalarType());
    if (dtype) return {SampleWord{std::string(to_text(*dtype))}};
  }
  for (const auto& [name, number] : words_of(type.kind())) {
    if (value.toInt() == number) return {SampleWord{std::string(name)}};
  }
  if (value.isDevice()) return {SampleWord{"cpu"}};
  if (value.isBool()) return {value.toBool()};
  if (value.isInt() && type.kind() == c10::TypeKind::FloatType) {
    return {static_cast<double>(value.toInt())};
  }
  if (value.isInt()) return {value.toInt()};
  if (value.isDouble()) return {value.toDouble()};
  if (value.isString()) return {value.toStringRef()};
  if (value.isList()) {
    SampleArgument::List list;
    for (const c10::IValue& v : value.toListRef()) {
      list.push_back(from_default(v, element_of(type)));
    }
    return {std::move(list)};
  }
  fail<ValueError>("Sample", "a default of type ", type.str(),
                   " has no text; pass the argument itself");
}

/// Makes values of arguments; counts the tensors, whose place is part of their seed.
struct Maker {
  std::uint64_t seed;
  std::uint64_t place = 0;

  c10::IValue word(const std::string& text, const c10::Type& type) const {
    if (type.kind() == c10::TypeKind::ScalarTypeType) {
      return static_cast<std::int64_t>(scalar_type(*parse_dtype(text)));
    }
    for (const auto& [name, number] : words_of(type.kind())) {
      if (name == text) return number;
    }
    return at::Device(at::kCPU);
  }

  c10::IValue list(const SampleArgument::List& values, const c10::Type& type) {
    const c10::TypePtr element = type.containedType(0);
    // Lists of the schema's pretended types: whole numbers for SymInt.
    c10::impl::GenericList out(element->kind() == c10::TypeKind::SymIntType ? c10::IntType::get()
                                                                            : element);
    for (const SampleArgument& v : values) out.push_back(make(v, *element));
    return out;
  }

  c10::IValue make(const SampleArgument& argument, const c10::Type& type) {
    if (argument.is_none()) return {};
    if (type.kind() == c10::TypeKind::OptionalType) return make(argument, element_of(type));
    return std::visit(
        [&]<class T>(const T& v) -> c10::IValue {
          if constexpr (std::is_same_v<T, std::monostate>)
            return {};
          else if constexpr (std::is_same_v<T, SampleWord>)
            return word(v.text, type);
          else if constexpr (std::is_same_v<T, TensorSample>)
            return v.make(hash_mix(seed, place++));
          else if constexpr (std::is_same_v<T, SampleArgument::List>)
            return list(v, type);
          else
            return v;
        },
        argument.value);
  }
};

// ---- calls -----------------------------------------------------------------------------------

std::string text_of(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

/// The argument that is named next, as in `dim=1`; reads up to its value.
std::optional<std::size_t> read_keyword(Cursor& cursor,
                                        const std::vector<c10::Argument>& declared) {
  for (std::size_t i = 0; i < declared.size(); ++i) {
    Cursor ahead = cursor;
    if (!ahead.accept(declared[i].name()) || !ahead.accept("=")) continue;
    cursor = ahead;
    return i;
  }
  return std::nullopt;
}

/// The arguments in parentheses, for one overload; nothing for those left out.
std::vector<std::optional<SampleArgument>> read_given(Cursor& cursor,
                                                      const c10::FunctionSchema& schema) {
  const auto& declared = schema.arguments();
  std::vector<std::optional<SampleArgument>> given(declared.size());
  std::size_t next = 0;  // by position; behind the last one once names began
  bool first = true;
  cursor.expect("(");
  while (!cursor.accept(")")) {
    if (!std::exchange(first, false)) cursor.expect(",");
    Cursor here = cursor;
    const auto keyword = read_keyword(cursor, declared);
    const std::size_t at = keyword ? *keyword : next;
    if (at == declared.size() || (!keyword && declared[at].kwarg_only())) {
      here.fail_here(concat("one of the arguments, or ')', of ", c10::toString(schema), ','));
    }
    const c10::Argument& a = declared[at];
    if (given[at]) here.fail_here(concat("an argument other than ", a.name()));
    try {
      given[at] = read_argument(cursor, *a.real_type(), a.N());
    } catch (const ValueError& error) {
      throw ValueError(concat(error.what(), "; argument '", a.name(), "' of ", schema.name(),
                              schema.overload_name().empty() ? "" : ".", schema.overload_name(),
                              " is a ", a.real_type()->str()));
    }
    next = keyword ? declared.size() : next + 1;
  }
  return given;
}

std::vector<SampleArgument> read_arguments(Cursor& cursor, const c10::FunctionSchema& schema) {
  const auto given = read_given(cursor, schema);
  std::vector<SampleArgument> out;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& a = schema.arguments()[i];
    if (!given[i] && !a.default_value()) {
      cursor.fail_here(
          concat("argument '", a.name(), "' before it, of ", c10::toString(schema), ','));
    }
    out.push_back(given[i] ? *given[i] : from_default(*a.default_value(), *a.real_type()));
  }
  return out;
}

/// The overloads of an op in the order in which they are tried.
std::vector<c10::OperatorHandle> overloads_of(const std::string& name) {
  std::vector<c10::OperatorHandle> out;
  for (const c10::OperatorName& n : c10::Dispatcher::singleton().getAllOpNames()) {
    if (n.name != name) continue;
    if (const auto op = c10::Dispatcher::singleton().findSchema(n)) out.push_back(*op);
  }
  const auto key = [](const c10::OperatorHandle& op) {
    const auto& arguments = op.schema().arguments();
    const bool writes = !arguments.empty() && arguments.back().is_out();
    return std::pair(writes, op.schema().overload_name());
  };
  std::sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return out;
}

Sample read_call(Cursor& cursor, const c10::OperatorHandle& op) {
  Sample sample{op, read_arguments(cursor, op.schema())};
  cursor.end();
  return sample;
}

[[noreturn]] void refuse_unknown(std::string_view text, std::string_view asked,
                                 const std::string& name) {
  std::vector<std::string> known;
  for (const auto& op : overloads_of(name)) known.push_back(text_of(op));
  fail<ValueError>(kParse, "there is no op ", asked, " to call \"", text, "\"; ",
                   known.empty() ? "is the library that has it loaded?"
                                 : concat("there are ", join(known, ", ")));
}

template <class Argument, class Tensors>
void collect(Argument& argument, Tensors& out) {
  if (auto* tensor = std::get_if<TensorSample>(&argument.value)) out.push_back(tensor);
  if (auto* list = std::get_if<SampleArgument::List>(&argument.value)) {
    for (auto& element : *list) collect(element, out);
  }
}

}  // namespace

TensorSample TensorSample::parse(std::string_view text) {
  Cursor cursor("TensorSample::parse", text);
  TensorSample out = read_tensor(cursor);
  cursor.end();
  return out;
}

std::string TensorSample::to_string() const {
  std::string text = concat(to_text(dtype), '[', join(sizes, ", "), ']');
  switch (values) {
    case Values::usual:
      break;
    case Values::below:
      text += concat('<', static_cast<std::int64_t>(numbers[0]));
      break;
    case Values::positive:
      text += ">0";
      break;
    case Values::between:
      text += concat("in(", join(numbers, ", "), ')');
      break;
    case Values::distinct:
      text += "distinct";
      break;
    case Values::listed:
      text += concat("of(", join(numbers, ", "), ')');
      break;
  }
  if (!order.empty()) text += concat("~(", join(order, ", "), ')');
  return text;
}

std::int64_t TensorSample::count() const { return c10::multiply_integers(sizes); }

at::Tensor TensorSample::make(std::uint64_t seed) const {
  // Reading its own text is the check of what a caller may have changed.
  const std::string text = to_string();
  parse(text);
  Stream stream(hash_mix(hash_text(text), seed));
  const bool complex = at::isComplexType(scalar_type(dtype));
  const auto n = static_cast<std::size_t>(count());
  std::vector<double> drawn = draw(*this, complex ? 2 * n : n, stream);
  const auto kind = complex ? at::kComplexDouble : at::kDouble;
  at::Tensor out = at::from_blob(drawn.data(), sizes, at::TensorOptions(kind))
                       .to(scalar_type(dtype), /*non_blocking=*/false, /*copy=*/true);
  if (order.empty()) return out;
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  }
  return out.permute(order).contiguous().permute(back);
}

std::string SampleArgument::to_string() const {
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (std::is_same_v<T, std::monostate>)
          return "None";
        else if constexpr (std::is_same_v<T, bool>)
          return v ? "True" : "False";
        else if constexpr (std::is_same_v<T, double>)
          return float_text(v);
        else if constexpr (std::is_same_v<T, std::string>)
          return concat('\'', v, '\'');
        else if constexpr (std::is_same_v<T, SampleWord>)
          return v.text;
        else if constexpr (std::is_same_v<T, List>)
          return concat('[', join(v, ", "), ']');
        else
          return concat(v);
      },
      value);
}

bool operator==(const SampleArgument& a, const SampleArgument& b) { return a.value == b.value; }

Sample Sample::parse(std::string_view text) {
  Cursor cursor(kParse, text);
  std::string name = cursor.name();
  name = cursor.accept("::") ? concat(name, "::", cursor.name()) : concat("aten::", name);
  const bool chosen = cursor.accept(".");
  const std::string overload = chosen ? cursor.name() : "";
  // The overload that is meant first: listing the others means asking all of ATen.
  std::vector<c10::OperatorHandle> candidates;
  if (const auto op = c10::Dispatcher::singleton().findSchema({name, overload})) {
    candidates.push_back(*op);
  }
  std::string why;
  for (const bool all : {false, true}) {
    if (all) candidates = chosen ? std::vector<c10::OperatorHandle>() : overloads_of(name);
    for (const c10::OperatorHandle& op : candidates) {
      try {
        Cursor here = cursor;
        return read_call(here, op);
      } catch (const ValueError& error) {
        if (why.empty()) why = error.what();
      }
    }
  }
  if (!why.empty()) throw ValueError(why);
  refuse_unknown(text, chosen ? concat(name, '.', overload) : name, name);
}

std::string Sample::to_string() const {
  const auto& declared = op.schema().arguments();
  const auto is_default = [&](std::size_t i) {
    const auto& value = declared[i].default_value();
    return value && from_default(*value, *declared[i].real_type()) == arguments[i];
  };
  std::size_t positional = 0;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (!declared[i].kwarg_only() && !is_default(i)) positional = i + 1;
  }
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (i < positional)
      parts.push_back(arguments[i].to_string());
    else if (!is_default(i))
      parts.push_back(concat(declared[i].name(), '=', arguments[i]));
  }
  return concat(text_of(op), '(', join(parts, ", "), ')');
}

torch::jit::Stack Sample::values(std::uint64_t seed) const {
  Maker maker{seed};
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(maker.make(arguments[i], *op.schema().arguments()[i].real_type()));
  }
  return stack;
}

std::vector<TensorSample*> Sample::tensors() {
  std::vector<TensorSample*> out;
  for (SampleArgument& a : arguments) collect(a, out);
  return out;
}

std::vector<const TensorSample*> Sample::tensors() const {
  std::vector<const TensorSample*> out;
  for (const SampleArgument& a : arguments) collect(a, out);
  return out;
}

}  // namespace intarsia

#include "prove/sample.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "prove/literals.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

constexpr std::string_view kParse = "Sample::parse";

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
    // Lists of the schema's pretended types: integers for SymInt.
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

/// The arguments in parentheses, for one overload; unset for those left out.
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

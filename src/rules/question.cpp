#include <algorithm>
#include <numeric>

#include "intarsia/rule.h"

namespace intarsia {

Question::Question(const c10::FunctionSchema& schema, std::span<const c10::IValue> args,
                   std::vector<Operand> in)
    : schema_(schema), args_(args), in_(std::move(in)), inputs_(in_.size()) {
  for (const c10::Argument& a : schema.arguments()) inputs_ -= a.is_out() ? 1 : 0;
  for (const c10::Argument& r : schema.returns()) {
    results_ += r.type()->kind() == c10::TypeKind::TensorType ? 1 : 0;
  }
  in_.resize(inputs_);
}

std::optional<std::size_t> argument_index(const c10::FunctionSchema& schema,
                                          std::string_view name) {
  const auto& declared = schema.arguments();
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name() == name) return i;
  }
  return std::nullopt;
}

const c10::IValue* Question::arg(std::string_view name) const {
  const auto at = argument_index(schema_, name);
  return at ? &args_[*at] : nullptr;
}

std::optional<std::size_t> Question::operand(std::string_view name) const {
  std::size_t at = 0;
  const auto& declared = schema_.arguments();
  for (std::size_t i = 0; i < declared.size() && i < args_.size(); ++i) {
    const bool wanted = declared[i].name() == name;
    const c10::IValue& value = args_[i];
    const auto* type = declared[i].type().get();
    const bool is_tensor = type->isSubtypeOf(*c10::TensorType::get()) ||
                           type->isSubtypeOf(*c10::OptionalType::ofTensor());
    if (is_tensor) {
      if (wanted) return at < in_.size() && in_[at].given ? std::optional(at) : std::nullopt;
      ++at;
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      if (wanted) return at;
      at += value.toListRef().size();
    }
  }
  return std::nullopt;
}

std::int64_t Question::integer(std::string_view name, std::int64_t otherwise) const {
  const c10::IValue* value = arg(name);
  return value != nullptr && value->isInt() ? value->toInt() : otherwise;
}

bool Question::flag(std::string_view name) const {
  const c10::IValue* value = arg(name);
  return value != nullptr && value->isBool() && value->toBool();
}

std::size_t Question::dim(std::string_view name) const {
  return static_cast<std::size_t>(
      normalize_dim(schema_.name(), integer(name), std::max<std::size_t>(in_[0].dims(), 1)));
}

std::optional<std::vector<std::size_t>> Question::dims(std::string_view name) const {
  const c10::IValue* value = arg(name);
  const std::size_t n = std::max<std::size_t>(in_[0].dims(), 1);
  if (value == nullptr || value->isNone()) return std::nullopt;
  std::vector<std::size_t> out;
  const auto add = [&](std::int64_t d) {
    out.push_back(static_cast<std::size_t>(normalize_dim(schema_.name(), d, n)));
  };
  if (value->isInt()) {
    add(value->toInt());
  } else {
    for (const std::int64_t d : value->toIntVector()) add(d);
    // No dimensions mean all, but for all.dims and any.dims.
    if (out.empty() && !schema_.overload_name().starts_with("dims")) return std::nullopt;
  }
  return out;
}

}  // namespace intarsia

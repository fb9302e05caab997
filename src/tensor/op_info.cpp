#include <algorithm>
#include <array>
#include <string_view>

#include <ATen/core/enum_tag.h>

#include "tensor/decision.h"
#include "tensor/random.h"

namespace intarsia {
namespace {

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 11> kLike{
    "empty_like", "zeros_like", "ones_like", "full_like",  "new_empty",        "new_zeros",
    "new_ones",   "new_full",   "rand_like", "randn_like", "new_empty_strided"};

constexpr std::array<std::string_view, 3> kRefused{"resize", "resize_as", "set"};

/// In place, they make a tensor a view of itself.
constexpr std::array<std::string_view, 5> kReshapes{"as_strided", "squeeze", "t", "transpose",
                                                    "unsqueeze"};

/// They write to `running_mean` and `running_var`, which are no results, in training.
constexpr std::array<std::string_view, 3> kUpdateStatistics{
    "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"};

/// `aten::add_` -> `add`, `aten::_foreach_add_` -> `_foreach_add`.
std::string base_of(std::string_view name) {
  const auto colons = name.find("::");
  std::string_view base = colons == std::string_view::npos ? name : name.substr(colons + 2);
  if (base.size() > 1 && base.back() == '_') base.remove_suffix(1);
  return std::string(base);
}

ArgumentKind kind_of(const c10::Argument& a) {
  const c10::Type* type = a.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    type = optional->getElementType().get();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::tensor;
    case c10::TypeKind::ListType: {
      const c10::Type* element = type->castRaw<c10::ListType>()->getElementType().get();
      if (const auto* optional = element->castRaw<c10::OptionalType>()) {
        element = optional->getElementType().get();
      }
      if (element->kind() == c10::TypeKind::TensorType) return ArgumentKind::tensor_list;
      const bool scalars = element->kind() == c10::TypeKind::NumberType ||
                           element->kind() == c10::TypeKind::FloatType;
      return scalars ? ArgumentKind::typed : ArgumentKind::fixed;
    }
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::typed;
    default:
      return ArgumentKind::fixed;
  }
}

/// Ops that do what others do, under another name.
std::string_view known_as(std::string_view base) {
  if (base == "_index_put_impl" || base == "_unsafe_index_put") return "index_put";
  if (base == "_unsafe_index") return "index";
  return base;
}

bool is_view(const c10::FunctionSchema& schema, std::string_view base) {
  if (base == "_unsafe_view") return !schema.arguments().back().is_out();
  if (schema.returns().empty() || schema.arguments().empty()) return false;
  const auto* result = schema.returns()[0].alias_info();
  const auto* self = schema.arguments()[0].alias_info();
  return result != nullptr && self != nullptr && !result->isWrite() && !self->isWrite();
}

}  // namespace

std::shared_ptr<const Rule> rule_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const std::string base = base_of(name);
  if (!name.starts_with("aten::")) {
    return find_rule(name.substr(0, name.find("::") + 2) + base);
  }
  return find_rule(known_as(base), op.hasTag(at::Tag::pointwise) || base == "copy");
}

OpInfo::OpInfo(const c10::OperatorHandle& handle) : op(handle) {
  const c10::FunctionSchema& schema = op.schema();
  name = c10::toString(op.operator_name());
  base_name = base_of(schema.name());
  returns = schema.returns().size();
  rule = rule_of(op);
  const bool updates_statistics = is_one_of(base_name, kUpdateStatistics);
  for (const c10::Argument& a : schema.arguments()) {
    // The schema of _fused_adagrad_ says that counts of steps are written; its kernels only read
    // them.
    const bool only_read = base_name == "_fused_adagrad" && a.name() == "state_steps";
    const bool written = a.alias_info() != nullptr && a.alias_info()->isWrite() && !only_read;
    Argument info{kind_of(a), written, a.is_out()};
    if (rule != nullptr && info.kind == ArgumentKind::typed) {
      const auto& fixed = rule->options.fixed;
      if (std::find(fixed.begin(), fixed.end(), a.name()) != fixed.end()) {
        info.kind = ArgumentKind::fixed;
      }
    }
    if (updates_statistics && a.name().starts_with("running_")) {
      info.written = true;
      hidden_writes = true;
    } else {
      in_place |= info.written && !info.is_out;
    }
    has_out |= info.is_out;
    arguments.push_back(info);
  }
  const bool foreach_like = base_name.starts_with("_foreach_") || base_name.starts_with("_fused_");
  if (in_place && is_one_of(base_name, kReshapes)) {
    family = Family::reshapes;
  } else if (is_one_of(base_name, kRefused) && in_place) {
    family = Family::refused;
  } else if (is_random(base_name, in_place)) {
    family = Family::random;
  } else if (is_view(schema, base_name)) {
    family = Family::view;
  } else if (is_one_of(base_name, kLike) && !has_out) {
    family = Family::like;
  } else if (foreach_like) {
    family = Family::each;
  } else if (rule != nullptr) {
    family = Family::rule;
  }
}

}  // namespace intarsia

#include "tensor/call/op_info.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>

#include "rules/op_traits.h"

namespace intarsia {
namespace {

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
  const std::string base(base_of(name));
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
  const bool updates_statistics = has_trait(base_name, kUpdatesStatistics);
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
  if (in_place && has_trait(base_name, kReshapes)) {
    family = Family::reshapes;
  } else if (has_trait(base_name, kResizes) && in_place) {
    family = Family::refused;
  } else if (has_trait(base_name, in_place ? kRandomInPlace : kRandom)) {
    family = Family::random;
  } else if (is_view(schema, base_name)) {
    family = Family::view;
  } else if (has_trait(base_name, kLike) && !has_out) {
    family = Family::like;
  } else if (foreach_like) {
    family = Family::each;
  } else if (rule != nullptr) {
    family = Family::rule;
  }
}

}  // namespace intarsia

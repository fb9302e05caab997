// A call of an op as its rule sees it, made of sizes and options, and what the rule answers as
// text.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "intarsia/rule.h"

namespace intarsia::testing {

using Ints = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

inline at::Tensor sized(const Ints& sizes, at::ScalarType dtype = at::kFloat) {
  return at::zeros(sizes, dtype);
}

/// An index tensor, of zeros.
inline at::Tensor indices(const Ints& sizes) { return sized(sizes, at::kLong); }

/// An argument that is not passed.
inline c10::IValue unset() { return {}; }

/// A call of `op`, such as `aten::sum.dim_IntList`; arguments that are not listed have their
/// defaults. Converts to a Question, which must not live longer.
class Asked {
 public:
  Asked(const std::string& op, std::vector<c10::IValue> args) : args_(std::move(args)) {
    const auto dot = op.find('.');
    const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
    schema_ = &c10::Dispatcher::singleton()
                   .findSchemaOrThrow(op.substr(0, dot).c_str(), overload.c_str())
                   .schema();
    const auto& declared = schema_->arguments();
    for (std::size_t i = args_.size(); i < declared.size(); ++i) {
      args_.push_back(declared[i].default_value().value_or(c10::IValue()));
    }
  }

  operator Question() const { return {*schema_, args_, operands()}; }

 private:
  std::vector<Operand> operands() const {
    std::vector<Operand> out;
    for (std::size_t i = 0; i < args_.size(); ++i) {
      const auto& type = *schema_->arguments()[i].type();
      if (type.isSubtypeOf(*c10::OptionalType::ofTensor())) {
        out.push_back(operand(args_[i]));
      } else if (args_[i].isTensorList() || args_[i].isOptionalTensorList()) {
        for (const c10::IValue& item : args_[i].toListRef()) out.push_back(operand(item));
      }
    }
    return out;
  }

  static Operand operand(const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return {};
    const at::Tensor& t = value.toTensor();
    return {Shape(std::span<const std::int64_t>(t.sizes().data(), t.sizes().size())),
            t.scalar_type(), true};
  }

  std::vector<c10::IValue> args_;
  const c10::FunctionSchema* schema_ = nullptr;
};

inline Texts texts(const std::vector<Row>& rows) {
  Texts out;
  for (const Row& row : rows) out.push_back(row.to_string());
  return out;
}

/// Of the rows, those with a partial operand.
inline Texts partial_rows(const std::vector<Row>& rows) {
  Texts out;
  for (const Row& row : rows) {
    const bool partial = std::any_of(row.in.begin(), row.in.end(),
                                     [](const Placement& p) { return p.is_partial(); });
    if (partial) out.push_back(row.to_string());
  }
  return out;
}

}  // namespace intarsia::testing

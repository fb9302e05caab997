// Rules: what an op does on one mesh axis.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "intarsia/layout.h"
#include "rules/choose.h"

namespace intarsia {

/// A tensor among an op's arguments; those in lists count one by one, in order.
struct Operand {
  Shape sizes;
  at::ScalarType dtype = at::kFloat;
  /// False for optional tensors that were not passed.
  bool given = false;
  std::size_t dims() const { return sizes.size(); }
};

/// The place of the named argument; nothing where the schema has none of that name.
std::optional<std::size_t> argument_index(const c10::FunctionSchema& schema, std::string_view name);

/// A call of an op, as its rule sees it: global sizes, no mesh and no ranks.
class Question {
 public:
  Question(const c10::FunctionSchema& schema, std::span<const c10::IValue> args,
           std::vector<Operand> in);

  const c10::FunctionSchema& schema() const { return schema_; }
  const std::vector<Operand>& in() const { return in_; }
  const Operand& in(std::size_t i) const { return in_[i]; }
  /// The operand of the named argument; nothing, where there is none or it was not passed. A list:
  /// its first.
  std::optional<std::size_t> operand(std::string_view name) const;

  /// The named argument; null where the schema has none of that name.
  const c10::IValue* arg(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise = 0) const;
  bool flag(std::string_view name) const;
  /// A dimension of operand 0, counted from the front.
  std::size_t dim(std::string_view name = "dim") const;
  /// Several; nothing where they were not passed, which means all.
  std::optional<std::vector<std::size_t>> dims(std::string_view name = "dim") const;

  /// The overload without `out`: `add.out` asks as `add` does, its last operands being results.
  std::size_t inputs() const { return inputs_; }
  std::size_t results() const { return results_; }

 private:
  const c10::FunctionSchema& schema_;
  std::span<const c10::IValue> args_;
  std::vector<Operand> in_;
  std::size_t inputs_ = 0;
  std::size_t results_ = 0;
};

/// How the op on the pieces differs from the op on the whole.
enum class LocalForm : std::uint8_t {
  same,
  mean_from_sum,  ///< a mean over a cut dimension: sums, divided by the whole count
  loss_from_sum,  ///< a mean loss over a cut batch: sums, divided by the whole weight
  rows_of_table,  ///< a lookup in a table of which this rank has some rows
};

/// What few rules need.
struct RuleOptions {
  /// Result 0 has its dimensions in memory in the order of the operands', as ATen's pointwise ops.
  bool follows_strides = false;
  /// The order in which result 0 has its dimensions in memory, where it is always the same; other
  /// results follow it as far as they have these dimensions.
  std::vector<std::int8_t> memory_order = {};
  LocalForm form = LocalForm::same;
  /// The op runs on pieces without elements too, and must: another operand is a term of the result.
  bool runs_empty = false;
  /// The argument that says the sizes of result 0, and must say those of the piece.
  std::string_view sizes_argument = {};
  /// Names of scalar arguments on whose value rows or sizes depend.
  std::vector<std::string_view> fixed = {};
};

struct Rule {
  std::string_view name;  ///< without namespace, overload, or the `_` of ops in place
  /// The ways to do it along one axis, besides replicated.
  std::vector<Row> (*rows)(const Question&) = nullptr;
  /// The sizes of each result; none where only the result itself can say them.
  std::vector<Shape> (*sizes)(const Question&) = nullptr;
  RuleOptions options = {};
};

/// The rule of an op, by its name without namespace; null where there is none. Pointwise ops have
/// one by ATen's tag.
const Rule* find_rule(std::string_view name, bool tagged_pointwise);

/// All rules with a row of their own in the table.
std::span<const Rule> all_rules();

}  // namespace intarsia

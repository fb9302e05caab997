// Rules: what an op does on one mesh axis. Ours are a table; users add rules for their own ops.
//
//     static const RuleHandle rule = add_rule(index_rule("mylib::scaled_mm", "MK,KN -> MN"));
//
// or, in all generality:
//
//     static const RuleHandle rule = add_rule(
//         {.name = "mylib::scaled_by",  // (Tensor x, Tensor factor) -> Tensor
//          .rows = [](const Question&) { return parse_rows({"S(0),R -> S(0)", "P,R -> P"}); },
//          .sizes = [](const Question& q) { return Shapes{q.in(0).sizes}; }});
//
// `prove` (prove.h) runs a rule on many ranks and compares it with the op on full tensors.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/layout.h"

namespace intarsia {

/// One way to run an op along one mesh axis: the placements of its operands and results. S(d)
/// stands for every way to shard d, also in blocks: an op that can be sharded along an index can be
/// split anywhere along it.
///
/// Text form: `S(0),R -> S(0)`; P without a kind stands for P(sum) and P(avg), in which the op is
/// linear: `P,R -> P`; P(*) for every kind: `P(*),R -> P(*)`. At the end ` by formula`, ` in runs`
/// or ` in 6 parts`, where that is so.
struct Row {
  std::vector<Placement> in;
  std::vector<Placement> out;
  /// The op is linear in the operands that are partial here: P stands for P(sum) and P(avg).
  bool linear = false;
  /// With `linear`: P stands for every kind, since the op only moves elements.
  bool any_kind = false;
  /// The op on the pieces would be wrong: the rule's formula is used instead. The value is about
  /// how many bytes the formula reduces over the axis for each byte of operand 0.
  std::optional<double> formula = std::nullopt;
  /// S stands for S alone, not for blocks: each rank has one run of the dimension, in the order of
  /// ranks.
  bool contiguous = false;
  /// With `contiguous`, if not 0: the dimension consists of so many groups that must not be split,
  /// so the number of ranks that shard it must divide this number.
  std::int64_t parts = 0;
  /// About how many bytes the op itself sends over the axis for each byte of operand 0, at most the
  /// piece: elements that it reads beyond the edges of pieces. Not part of the text.
  double sends = 0;

  static Row parse(std::string_view text);
  std::string to_string() const;
  friend bool operator==(const Row&, const Row&) = default;
};
std::vector<Row> parse_rows(std::initializer_list<std::string_view> texts);

using Shapes = std::vector<Shape>;

/// A tensor among an op's arguments; those in lists count one by one, in order.
struct Operand {
  Shape sizes;
  at::ScalarType dtype = at::kFloat;
  /// False for optional tensors that were not passed.
  bool given = false;
  std::size_t dims() const { return sizes.size(); }
};

/// Whether a dtype is of integers or of truth values.
inline bool is_integral(at::ScalarType dtype) {
  return !at::isFloatingType(dtype) && !at::isComplexType(dtype);
}

/// The index of the named argument; nullopt where the schema has none of that name.
std::optional<std::size_t> argument_index(const c10::FunctionSchema& schema, std::string_view name);

/// A call of an op, as its rule sees it: global sizes, no mesh and no ranks.
class Question {
 public:
  Question(const c10::FunctionSchema& schema, std::span<const c10::IValue> args,
           std::vector<Operand> in);

  const c10::FunctionSchema& schema() const { return schema_; }
  const std::vector<Operand>& in() const { return in_; }
  const Operand& in(std::size_t i) const { return in_[i]; }
  /// The operand of the named argument; of a list, its first. nullopt where there is none or it was
  /// not passed.
  std::optional<std::size_t> operand(std::string_view name) const;

  /// The named argument; null where the schema has none of that name.
  const c10::IValue* arg(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise = 0) const;
  bool flag(std::string_view name) const;
  /// A dimension of operand 0, counted from the front.
  std::size_t dim(std::string_view name = "dim") const;
  /// The same for several; nullopt where they were not passed, which means all.
  std::optional<std::vector<std::size_t>> dims(std::string_view name = "dim") const;

  /// The numbers of operands and results of the overload without `out`: to a rule, `add.out` looks
  /// like `add`.
  std::size_t inputs() const { return inputs_; }
  std::size_t results() const { return results_; }

 private:
  const c10::FunctionSchema& schema_;
  std::span<const c10::IValue> args_;
  std::vector<Operand> in_;
  std::size_t inputs_ = 0;
  std::size_t results_ = 0;
};

/// How the op on pieces differs from the op on full tensors.
enum class LocalForm : std::uint8_t {
  same,
  mean_from_sum,   ///< a mean over a sharded dimension: sums, divided by the full count
  loss_from_sum,   ///< a mean loss over a sharded batch: sums, divided by the full weight
  rows_of_table,   ///< a lookup in a table of which this rank has some rows
  window,          ///< elements beyond the edges of the piece are fetched from other ranks
  rows_of_result,  ///< writes by index to a tensor of which this rank has some rows
  aligned,         ///< the op wants matrices whose rows begin at multiples of 16 bytes
  scan,            ///< a running sum or product along a sharded dimension: pieces before are added
  contiguity,      ///< what the op returns depends on whether its operand is contiguous
  memory_format,   ///< what the op returns depends on whether its operand is channels last
};

/// An op written by other ops. It gets the arguments of the overload without out=, distributed
/// tensors as they are, and leaves the results. What it sends enters the bill under the op's name.
/// A result that it leaves partial, where the row says otherwise, is reduced.
using Formula = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

/// A formula from a function with the arguments and results of the op's schema.
template <class Result, class... Arguments>
Formula formula(Result (*function)(Arguments...)) {
  return [kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)](
             const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    kernel.callBoxed(op, c10::DispatchKeySet(), &stack);
  };
}

/// Options that few rules need.
struct RuleOptions {
  /// Results have their dimensions in memory in the same order as the operands, like ATen's
  /// pointwise ops; with `memory_order`, only result 0 has.
  bool follows_strides = false;
  /// With `follows_strides`: the second operand counts before the first, as in some gradients.
  bool second_leads = false;
  /// Result 0 has the first operand's strides, gaps included.
  bool keeps_strides = false;
  /// An overload whose results are contiguous in spite of that.
  std::string contiguous_overload = {};
  /// The order in which results have their dimensions in memory, where it is always the same.
  /// Dimensions that a result does not have are skipped. Not for result 0 where that follows the
  /// operands.
  std::vector<std::int8_t> memory_order = {};
  /// When results are channels last.
  enum class Format : std::uint8_t {
    contiguous,  ///< never
    of_first,    ///< where the first operand is
    of_second,   ///< where the second operand is
    of_all,      ///< where all operands of as many dimensions are
    of_any,      ///< where one of the first two operands is
    /// Where the first operand is, also if only its dimensions of one element say that it is not;
    /// but not where it is contiguous.
    of_dense_first
  } format = Format::contiguous;
  LocalForm form = LocalForm::same;
  /// The op must run on pieces without elements too: for example because another operand is added
  /// to the result.
  bool runs_empty = false;
  /// The argument that gives the sizes of result 0. On pieces it must give those of the piece.
  std::string sizes_argument = {};
  /// Integer arguments that give a size of an operand. On pieces they must give that of the piece.
  struct LocalSize {
    std::string argument;
    std::size_t operand = 0;
    std::size_t dim = 0;
  };
  std::vector<LocalSize> local_sizes = {};
  /// Names of scalar arguments on whose value rows or sizes depend.
  std::vector<std::string> fixed = {};
  /// For rows that are done by formula.
  Formula formula = {};
};

struct Rule {
  /// The op, without overload or the `_` of ops in place: `mylib::op`. For ATen's ops, `mm` or
  /// `aten::mm`.
  std::string name;
  /// The ways to run it along one axis, besides replicated.
  std::function<std::vector<Row>(const Question&)> rows;
  /// The sizes of each result; none where only the result itself tells them.
  std::function<Shapes(const Question&)> sizes;
  RuleOptions options = {};
};

/// The rule of an op that works on the last dimensions of its tensors, and does the same for every
/// index of the dimensions before. These broadcast, and any of them can be sharded. `MK,KN -> MN`
/// names the last dimensions of each operand and of each result. It gives both rows and sizes:
///
///   K      an index that can be sharded; where no result has it, the op is a sum over it
///   n      an index that cannot; `k`, where no operand has it: the lesser of m and n
///   0      a length of 0, or of another digit
///   nK+    an operand in which the op is linear; where several have it: jointly
///   !0     a result that has no dimensions before
///
/// In calls whose sizes do not fit, the op runs on full tensors.
Rule index_rule(std::string name, std::string indices, RuleOptions options = {});

/// Keeps an added rule in force. THREADS: any.
class [[nodiscard]] RuleHandle {
 public:
  explicit RuleHandle(std::shared_ptr<const Rule> rule) : rule_(std::move(rule)) {}
  RuleHandle(RuleHandle&&) noexcept = default;
  RuleHandle& operator=(RuleHandle&&) = delete;
  ~RuleHandle() { remove(); }
  const std::string& name() const { return rule_->name; }
  /// Takes the rule away now: the op is again what it was before.
  void remove();

 private:
  std::shared_ptr<const Rule> rule_;
};

/// Adds a rule for an op. Where an op has several, the last added is used, and any of these before
/// ours. Every process of a job must add the same rules, before it uses the op. THREADS: any; ops
/// that run meanwhile use one rule or the other.
RuleHandle add_rule(Rule rule);

/// The rule of an op, by its name as in Rule; null where there is none. `tagged_pointwise`: ATen
/// tags the op as pointwise, and such ops have a rule without a row in the table.
std::shared_ptr<const Rule> find_rule(std::string_view name, bool tagged_pointwise = false);

/// All rules with a row of their own in the table, by name; not those that were added.
std::vector<std::shared_ptr<const Rule>> all_rules();

/// Changes whenever a rule is added or removed.
std::uint32_t rules_generation();

}  // namespace intarsia

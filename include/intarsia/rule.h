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
// `prove` (prove.h) runs a rule on many ranks and compares it with the whole op.
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

/// One way to do an op along one mesh axis: how its operands and results lie there. A shard S(d)
/// stands for every way to cut d, also in blocks: an op that can be cut along an index can be cut
/// anywhere.
///
/// Text form: `S(0),R -> S(0)`; P without a kind stands for P(sum) and P(avg), in which the op is
/// linear: `P,R -> P`; P(*) for every kind: `P(*),R -> P(*)`. At the end ` by formula`, ` in runs`
/// or ` in 6 parts`, where that is so.
struct Row {
  std::vector<Placement> in;
  std::vector<Placement> out;
  /// The op is linear in the operands that are partial here: P stands for P(sum) and P(avg).
  bool linear = false;
  /// With `linear`: P stands for every kind, for the op only moves elements.
  bool any_kind = false;
  /// The op is not right on the pieces: the rule's formula is used instead. For each byte of
  /// operand 0, it reduces about so many bytes over the axis.
  std::optional<double> formula = std::nullopt;
  /// S stands for S alone: each rank has one run of the dimension, in the order of ranks.
  bool contiguous = false;
  /// With `contiguous`, if not 0: so many groups must not be cut apart, so the ranks that cut must
  /// divide this number.
  std::int64_t parts = 0;
  /// For each byte of operand 0, the op itself sends about so many over the axis, at most the
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

/// Whether a dtype is of whole numbers or truth values.
inline bool is_whole(at::ScalarType dtype) {
  return !at::isFloatingType(dtype) && !at::isComplexType(dtype);
}

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
  mean_from_sum,   ///< a mean over a cut dimension: sums, divided by the whole count
  loss_from_sum,   ///< a mean loss over a cut batch: sums, divided by the whole weight
  rows_of_table,   ///< a lookup in a table of which this rank has some rows
  window,          ///< elements beyond the edges of the piece are fetched from other ranks
  rows_of_result,  ///< writes by index to a tensor of which this rank has some rows
  aligned,         ///< the op wants matrices whose rows begin at multiples of 16 bytes
  scan,            ///< a running sum or product over a cut dimension: what comes before is added
  contiguity,      ///< what the op returns depends on whether its operand is contiguous
  memory_format,   ///< the same of channels last
};

/// An op in terms of other ops. It gets the arguments of the overload without out=, distributed
/// tensors as such, and leaves the results. What it sends is booked under the op's name. A result
/// that it leaves as terms, where the row says otherwise, is reduced.
using Formula = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

/// A formula from a function with the arguments and results of the op's schema.
template <class Result, class... Arguments>
Formula formula(Result (*function)(Arguments...)) {
  return [kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)](
             const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    kernel.callBoxed(op, c10::DispatchKeySet(), &stack);
  };
}

/// What few rules need.
struct RuleOptions {
  /// Results have their dimensions in memory in the order of the operands', as ATen's pointwise
  /// ops; with `memory_order`, only result 0.
  bool follows_strides = false;
  /// The second operand comes before the first in that, as in some gradients.
  bool second_leads = false;
  /// Result 0 has the first operand's strides, gaps included.
  bool keeps_strides = false;
  /// The overload whose results are contiguous all the same.
  std::string contiguous_overload = {};
  /// The order in which results have their dimensions in memory, where it is always the same, as
  /// far as they have these dimensions; not for result 0 where that follows the operands.
  std::vector<std::int8_t> memory_order = {};
  /// Results are channels last where the first operand is, or the second one, or all of as many
  /// dimensions are, or one of the first two; or where the first one is, also if only dimensions of
  /// one element say that it is not, unless it is contiguous.
  enum class Format : std::uint8_t {
    contiguous,
    of_first,
    of_second,
    of_all,
    of_any,
    of_dense_first
  } format = Format::contiguous;
  LocalForm form = LocalForm::same;
  /// The op runs on pieces without elements too, and must: another operand is a term of the result.
  bool runs_empty = false;
  /// The argument that says the sizes of result 0, and must say those of the piece.
  std::string sizes_argument = {};
  /// Integer arguments that say a size of an operand, and must say that of the piece.
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
  /// The op, without overload or the `_` of ops in place: `mylib::op`; of ATen's `mm` or
  /// `aten::mm`.
  std::string name;
  /// The ways to do it along one axis, besides replicated.
  std::function<std::vector<Row>(const Question&)> rows;
  /// The sizes of each result; none where only the result itself can say them.
  std::function<Shapes(const Question&)> sizes;
  RuleOptions options = {};
};

/// The rule of an op on the last dimensions of its tensors that does the same for every index of
/// the ones before, which broadcast and of which any can be cut. `MK,KN -> MN` names the last ones,
/// of each operand and of each result; it says rows and sizes both:
///
///   K      an index that can be cut; where no result has it, the op is a sum over it
///   n      one that cannot; `k`, where no operand has it: the lesser of m and n
///   0      a length of 0, or of another digit
///   nK+    an operand in which the op is linear; several: jointly
///   !0     a result that has no dimensions before
///
/// In calls whose sizes are other, the op runs on whole tensors.
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

/// Adds a rule for an op, or one that is used instead of ours, the last added first. Every process
/// of a job must add the same rules, before it uses the op. THREADS: any; ops that run meanwhile
/// use one rule or the other.
RuleHandle add_rule(Rule rule);

/// The rule of an op, by its name as above; null where there is none. Pointwise ops of ATen have
/// one by its tag.
std::shared_ptr<const Rule> find_rule(std::string_view name, bool tagged_pointwise = false);

/// All rules with a row of their own in the table, by name; not those that were added.
std::vector<std::shared_ptr<const Rule>> all_rules();

/// Changes whenever a rule is added or removed.
std::uint32_t rules_generation();

}  // namespace intarsia

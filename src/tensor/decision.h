// Decision: how one call of an op is run on the pieces; made once for each kind of call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "intarsia/plan.h"
#include "intarsia/rule.h"
#include "tensor/impl.h"

namespace intarsia {

enum class ArgumentKind : std::uint8_t {
  tensor,
  tensor_list,
  fixed,  ///< its value decides layouts or sizes, and enters the key
  typed,  ///< only its type does: step-varying scalars
};

/// How ops of a family are decided and run.
enum class Family : std::uint8_t {
  rule,
  view,
  like,      ///< new tensors made after another one
  random,    ///< by global index, see random.h
  each,      ///< foreach and fused optimizer ops: tensor by tensor
  reshapes,  ///< squeeze_ and its like: the tensor becomes a view of itself
  refused,
  fallback  ///< no rule: replicated
};

/// How to read the arguments of an op; made once per op.
struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op);

  struct Argument {
    ArgumentKind kind = ArgumentKind::fixed;
    bool written = false;
    bool is_out = false;
  };

  c10::OperatorHandle op;
  std::string name;       ///< `aten::add_.Tensor`
  std::string base_name;  ///< `add`
  std::vector<Argument> arguments;
  Family family = Family::fallback;
  std::shared_ptr<const Rule> rule;
  bool in_place = false;       ///< writes to its first tensor argument, or to lists
  bool hidden_writes = false;  ///< writes to arguments that are no results
  bool has_out = false;
  std::size_t returns = 0;
};

/// The rule that holds for an op now; null where it has none.
std::shared_ptr<const Rule> rule_of(const c10::OperatorHandle& op);

/// How one result is wrapped.
struct Result {
  enum class Kind : std::uint8_t { value, tensor, list, written } kind = Kind::value;
  std::vector<Spec> specs;  ///< one; for a list, as many as it has
  std::size_t operand = 0;  ///< for `written`: the operand that is returned
};

/// What an op does to the pieces of one hosted rank, where it is not the op itself.
using LocalCall = std::function<void(std::size_t member, torch::jit::Stack& stack)>;

struct Decision {
  /// The operands' specs; plain ones count as replicated. They also keep the key's words unique.
  std::vector<Spec> in;
  std::vector<Layout> kept_layouts;  ///< others of which the key holds words
  /// The layouts in which the op runs, and how each operand gets there: empty where all stay.
  std::vector<Layout> layouts;
  std::vector<std::shared_ptr<const Plan>> moves;
  std::vector<Result> results;
  /// Layouts in which results leave the local op, where `results` say otherwise (in place, out=).
  std::vector<Layout> out_layouts;

  /// The op to run on the pieces; for each hosted rank, arguments to replace, by index.
  std::optional<c10::OperatorHandle> local_op;
  std::vector<std::vector<std::pair<std::size_t, c10::IValue>>> local_arguments;
  LocalCall local_call;
  /// Runs once before the local op, on the pieces of each operand as they lie in `layouts`.
  std::function<void(std::vector<Pieces>& operands)> beforehand;
  /// Runs once after the local op, on the pieces of each result.
  std::function<void(std::vector<std::vector<at::Tensor>>& results)> afterwards;
  /// Run ATen's own decomposition of the op instead, on the distributed tensors.
  bool decomposes = false;
  /// Run the rule's formula instead, on distributed tensors in `layouts`.
  bool by_formula = false;

  /// An operand in place cannot stay in its layout: the op works on a copy, which is brought back.
  bool brings_back = false;
  /// The results of a view are views of a moved copy.
  bool moves_view = false;
  /// Some hosted rank has an empty piece of a tensor that is not empty: results are made without
  /// running the op, for that rank.
  std::vector<bool> skip;
  /// Pieces have no values: results are made by their specs.
  bool by_spec = false;
  /// The local op runs on pieces without elements too.
  bool runs_empty = false;
  /// Ops without a rule: specs are taken from the results.
  bool open_results = false;
  /// One hosted rank, nothing to move, to replace, to skip or to bring back.
  bool simple = false;
};

}  // namespace intarsia

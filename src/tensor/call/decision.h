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
#include "tensor/core/impl.h"

namespace intarsia {

/// How one result is wrapped.
struct Result {
  enum class Kind : std::uint8_t { value, tensor, list, written } kind = Kind::value;
  std::vector<Spec> specs;  ///< one; for a list, as many as it has
  std::size_t operand = 0;  ///< for `written`: the operand that is returned
};

/// What an op does to the pieces of one hosted rank, where it is not the op itself.
using LocalCall = std::function<void(std::size_t member, torch::jit::Stack& stack)>;

/// What is done to pieces. As it is made: the op itself, on every hosted rank.
struct LocalRun {
  /// Another op than the call's; for each hosted rank, arguments to replace, by index.
  std::optional<c10::OperatorHandle> op;
  std::vector<std::vector<std::pair<std::size_t, c10::IValue>>> arguments;
  /// Instead of an op.
  LocalCall call;
  /// Runs once before, on the pieces of each operand, laid out as the decision's `layouts`.
  std::function<void(std::vector<Pieces>& operands)> beforehand;
  /// Runs once after, on the pieces of each result.
  std::function<void(std::vector<std::vector<at::Tensor>>& results)> afterwards;
  /// Hosted ranks with an empty piece of a tensor that is not empty, for which results are made
  /// without running; empty where there are none.
  std::vector<bool> skip;
  /// It runs on pieces without elements too.
  bool runs_empty = false;
  /// Pieces have no values: results are made by their specs.
  bool by_spec = false;
};

/// How a call is run.
enum class Strategy : std::uint8_t {
  pieces,     ///< on the pieces
  simple,     ///< the same, with one hosted rank and nothing to move, skip or bring back
  formula,    ///< the rule's formula, on distributed tensors in `layouts`
  decompose,  ///< ATen's own decomposition of the op, on the distributed tensors
};

/// Complete, and never changed, once it is in the cache: ranks that are threads share it.
struct Decision {
  Strategy strategy = Strategy::pieces;
  /// The operands' specs; plain ones count as replicated. They also keep the key's words unique.
  std::vector<Spec> in;
  std::vector<Layout> kept_layouts;  ///< others of which the key holds words
  /// The layouts in which the op runs, and how each operand gets there: empty where all stay.
  std::vector<Layout> layouts;
  std::vector<std::shared_ptr<const Plan>> moves;
  std::vector<Result> results;
  /// Layouts in which results leave the local op, where `results` say otherwise (in place, out=).
  std::vector<Layout> out_layouts;
  LocalRun local;

  /// An operand in place cannot stay in its layout: the op works on a copy, which is brought back.
  bool brings_back = false;
  /// The results of a view are views of a moved copy.
  bool moves_view = false;
  /// Ops without a rule: specs are taken from the results.
  bool open_results = false;
};

}  // namespace intarsia

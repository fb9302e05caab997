// OpInfo: how to read the arguments of an op; made once per op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "intarsia/rule.h"

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

}  // namespace intarsia

// What Intarsia does with each op, as `intarsia ops` shows it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/rule.h"

namespace intarsia::tools {

/// All overloads of an op, and the ops that write its result in place or into `out`.
struct OpEntry {
  std::string name;  ///< `mm` of ATen's, `mylib::op` of others; `uniform_` where nothing else is
  /// `rule`, `pointwise` (by ATen's tag), `view`, `like`, `random`, `each`, `refused`, `no rule`.
  std::string how;
  std::vector<c10::OperatorHandle> overloads;
  bool in_place = false;
  bool out = false;

  std::shared_ptr<const Rule> rule() const;
  /// Those of all overloads.
  std::vector<std::string> samples() const;
};

/// The ops of ATen that reach distributed tensors on the CPU, and those of others that have a rule
/// or were registered after the libraries of this program; by name. Ops that ATen takes apart
/// before, and those without a tensor among their arguments, are not there.
std::vector<OpEntry> all_ops();

/// The op as a user names it: `mm`, `aten::sum`, `aten::sum.dim_IntList`, `add_`. ValueError that
/// names similar ones where there is none.
OpEntry find_op(std::string_view name);

/// The overload that is named, or all of them: `aten::sum.dim_IntList`.
std::vector<c10::OperatorHandle> find_overloads(std::string_view name);

/// A sample call and the rows that its rule has for it, R for all left out; only operands that are
/// given.
struct RowSet {
  std::string sample;
  std::vector<std::string> rows;
  std::size_t samples = 0;  ///< that have these rows
};

/// The different sets of rows that a rule has for the op's samples, each with the sample that shows
/// it best.
std::vector<RowSet> row_sets(const OpEntry& op);

}  // namespace intarsia::tools

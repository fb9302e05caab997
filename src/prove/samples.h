// The samples that rules are tried on.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

/// Calls of the op, smallest first, as `Sample::parse` reads them. They come from the table, or,
/// for a pointwise op that has no line there, from its schema. None for other ops, for those that
/// draw random numbers or give no tensor, and for those that write: `add_` and `add.out` are tried
/// with the samples of `add`.
///
/// THREADS: any.
std::vector<std::string> samples_of(const c10::OperatorHandle& op);

/// `aten::mm` for `mm`: names without a namespace are ATen's.
std::string with_namespace(std::string_view op);
/// The op of a name with namespace and, if it has one, overload: `aten::sum.dim_IntList`.
c10::OperatorHandle op_named(const std::string& name);

/// The lines of the table as written. In a line such as `add.Tensor(f64$, f64$)` the `$` stand for
/// sizes that broadcast (for `_backward`: equal ones), and other dtypes are tried too.
std::vector<std::string_view> sample_lines();

}  // namespace intarsia

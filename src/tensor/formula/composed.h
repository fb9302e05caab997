// Ops of ATen that are composed of others here.
#pragma once

#include <ATen/core/operator_name.h>

namespace intarsia {

/// Whether the op has such a kernel in the place of ours.
bool is_composed(const c10::OperatorName& name);

/// Registers them on the key of distributed tensors; those that ATen too composes of others also on
/// their autograd key. Called once.
void register_composed();

}  // namespace intarsia

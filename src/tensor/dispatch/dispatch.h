// The kernel: what the dispatcher calls for every op on distributed tensors.
#pragma once

namespace intarsia {

/// Registers the kernel for all ops, once per process. Called before the first tensor is made.
void register_kernels();

}  // namespace intarsia

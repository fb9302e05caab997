// Notes in the StepLog which kernels a program runs on pieces and on plain tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <span>

#include "intarsia/step_time.h"

namespace intarsia {

/// What the kernel of an op does, by what it was given and gave. Views and what only makes memory
/// do nothing.
StepEvent kernel_event(const c10::FunctionSchema& schema, std::span<const c10::IValue> inputs,
                       std::span<const c10::IValue> outputs);

/// Notes a kernel that a simulated world did not run, where a log is there.
void note_kernel(const c10::OperatorHandle& op, std::span<const c10::IValue> inputs,
                 std::span<const c10::IValue> outputs);

/// While it lives, kernels that torch runs in this thread are noted in the thread's StepLog: of
/// ops that run others, the outermost that has a kernel of its own. Of ops on distributed tensors
/// the call is noted, and then what they run on pieces.
class KernelObserver {
 public:
  KernelObserver();
  ~KernelObserver();
  KernelObserver(const KernelObserver&) = delete;
  KernelObserver& operator=(const KernelObserver&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace intarsia

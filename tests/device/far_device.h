// A device for tests, with memory that the host cannot touch: whoever reads or writes it without a
// kernel ends the program. Copies to pinned memory that are not to be waited for are done later,
// and the memory holds other bytes until then. It stands for GPUs where there are none: what
// assumes the CPU's memory, or does not wait, is found; what depends on several streams is not.
//
// It is torch's device `privateuseone`, under the name `far`. Kernels are the CPU's, on copies.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace intarsia::testing {

/// The first of two.
c10::Device far_device();

/// What was asked of it since the program began.
struct FarCalls {
  std::int64_t kernels = 0;
  std::int64_t copies_in = 0;   ///< from the host
  std::int64_t copies_out = 0;  ///< to the host
  std::int64_t waits = 0;       ///< of the host, for all that was asked before
  std::int64_t live_bytes = 0;
  std::int64_t pinned_bytes = 0;  ///< of the host, taken since then
};
FarCalls far_calls();

}  // namespace intarsia::testing

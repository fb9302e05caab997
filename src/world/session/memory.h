// What the library itself tells its meters.
#pragma once

#include <c10/core/DispatchKey.h>

namespace intarsia {

/// Excluded in threads that work on pieces of distributed tensors. No tensor has this key, so that
/// nothing else comes of it. On the meta device only what is allocated meanwhile is counted: what
/// programs put there themselves is to take no memory.
inline constexpr c10::DispatchKey kPieces = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// While one lives, what this thread allocates is not counted: for stand-ins of tensors that are
/// counted already.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace intarsia

// Calls that ATen refuses.
#pragma once

#include <exception>

namespace intarsia {

/// What a rule throws when it is asked about a call that cannot be: a stride of 0, too few
/// dimensions. The op then runs on full tensors, and ATen says what is wrong.
class WrongCall final : public std::exception {
 public:
  const char* what() const noexcept override { return "the call cannot be"; }
};

/// For what a rule relies on, and ATen checks only when the op runs.
inline void require_call(bool holds) {
  if (!holds) throw WrongCall();
}

}  // namespace intarsia

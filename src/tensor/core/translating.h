// Our errors as those that ATen's users expect, and that keep their kind through autograd to
// Python.
#pragma once

#include <c10/util/Exception.h>

#include "intarsia/error.h"

namespace intarsia {

/// An error of ATen's family that is a Failure too.
template <class Base>
class Translated final : public Base, public Failure {
 public:
  explicit Translated(const Error& error)
      : Base({"translating", __FILE__, __LINE__}, error.what()), kind_(error.kind()) {}
  Kind kind() const noexcept override { return kind_; }
  const char* text() const noexcept override { return this->what_without_backtrace(); }

 private:
  Kind kind_;
};

template <class Function>
void translating(Function&& call) {
  try {
    call();
  } catch (const ValueError& e) {
    throw Translated<c10::ValueError>(e);
  } catch (const UnsupportedError& e) {
    throw Translated<c10::NotImplementedError>(e);
  } catch (const WorldError& e) {
    throw Translated<c10::DistError>(e);
  }
}

}  // namespace intarsia

// Our errors as those that ATen's users expect, and that keep their kind through autograd to
// Python.
#pragma once

#include <c10/util/Exception.h>

#include "intarsia/error.h"

namespace intarsia {

template <class Function>
void translating(Function&& call) {
  try {
    call();
  } catch (const ValueError& e) {
    throw c10::ValueError({__func__, __FILE__, __LINE__}, e.what());
  } catch (const UnsupportedError& e) {
    throw c10::NotImplementedError({__func__, __FILE__, __LINE__}, e.what());
  } catch (const WorldError& e) {
    throw c10::DistError({__func__, __FILE__, __LINE__}, e.what());
  }
}

}  // namespace intarsia

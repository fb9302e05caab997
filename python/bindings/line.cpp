// Which line of a Python program a thread is in.
#include <Python.h>
#include <frameobject.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bind.h"

namespace intarsia {
namespace {

bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

/// The folders and files whose lines are not the user's. REQUIRES: the lock is held.
const std::vector<std::string>& folders_of_libraries() {
  static const auto* const folders = [] {
    auto* found = new std::vector<std::string>;
    for (const char* name : {"torch", "intarsia"}) {
      for (const py::handle path : py::module_::import(name).attr("__path__")) {
        found->push_back(py::cast<std::string>(path) + '/');
      }
    }
    // torch wraps what it calls deprecated in a function of this file.
    found->push_back(
        py::cast<std::string>(py::module_::import("typing_extensions").attr("__file__")));
    return found;
  }();
  return *folders;
}

bool is_users(const std::string& file) {
  if (file.starts_with("<frozen ")) return false;
  const auto& others = folders_of_libraries();
  return std::none_of(others.begin(), others.end(),
                      [&](const std::string& folder) { return file.starts_with(folder); });
}

}  // namespace

std::string python_line() {
  if (is_ending()) return {};
  const py::gil_scoped_acquire lock;
  try {
    auto frame = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    while (frame) {
      auto* const at = reinterpret_cast<PyFrameObject*>(frame.ptr());
      const auto code =
          py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
      const auto file = py::cast<std::string>(code.attr("co_filename"));
      if (is_users(file)) {
        const auto function = py::cast<std::string>(code.attr("co_name"));
        const std::string place =
            file.substr(file.rfind('/') + 1) + ':' + std::to_string(PyFrame_GetLineNumber(at));
        return function == "<module>" ? place : place + " in " + function;
      }
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
    }
  } catch (const py::error_already_set&) {
    // An error is on its way already: it goes without the line.
  }
  return {};
}

}  // namespace intarsia

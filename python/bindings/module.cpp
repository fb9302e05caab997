// The Python module intarsia._C: the C++ library under the same names.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bind.h"
#include "intarsia/error.h"
#include "intarsia/waiting.h"

namespace intarsia {
namespace {

PyObject* g_world_error = nullptr;  // the module keeps them alive
PyObject* g_file_error = nullptr;

/// Our errors, and those of ATen below our functions, as Python's.
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const ValueError& e) {
    py::set_error(PyExc_ValueError, e.what());
  } catch (const UnsupportedError& e) {
    py::set_error(PyExc_NotImplementedError, e.what());
  } catch (const WorldError& e) {
    py::set_error(g_world_error, e.what());
  } catch (const FileError& e) {
    py::set_error(g_file_error, e.what());
  } catch (const py::builtin_exception&) {
    throw;
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(error);
  }
}

}  // namespace
}  // namespace intarsia

PYBIND11_MODULE(_C, m) {
  namespace py = pybind11;
  m.doc() =
      "The C++ library under the same names; the package adds defaults and texts for layouts.";
  // Ops throw torch.distributed.DistError for the same troubles, so that one `except` gets both.
  const py::object base = py::module_::import("torch._C").attr("_DistError");
  intarsia::g_world_error = PyErr_NewExceptionWithDoc(
      "intarsia.WorldError", "Other processes could not be reached, or failed.", base.ptr(),
      nullptr);
  m.attr("WorldError") = py::reinterpret_borrow<py::object>(intarsia::g_world_error);
  intarsia::g_file_error = PyErr_NewExceptionWithDoc(
      "intarsia.FileError", "A file could not be written or read, or is damaged.", PyExc_OSError,
      nullptr);
  m.attr("FileError") = py::reinterpret_borrow<py::object>(intarsia::g_file_error);
  py::register_local_exception_translator(intarsia::translate);

  // Torch calls some ops, such as indexing, with the lock held; backends' threads want it to copy
  // and to free hooks of saved tensors. Worlds may end after the interpreter.
  intarsia::set_around_waits({[]() -> void* {
                                const bool held =
                                    Py_IsInitialized() != 0 && PyGILState_Check() != 0;
                                return held ? PyEval_SaveThread() : nullptr;
                              },
                              [](void* left) {
                                if (left != nullptr)
                                  PyEval_RestoreThread(static_cast<PyThreadState*>(left));
                              },
                              intarsia::python_line});

  intarsia::bind_layout(m);
  intarsia::bind_plan(m);
  intarsia::bind_world(m);
  intarsia::bind_tensor(m);
  intarsia::bind_communication(m);
  intarsia::bind_rule(m);
  intarsia::bind_simulate(m);
  intarsia::bind_prove(m);
  intarsia::bind_fully_shard(m);
  intarsia::bind_optim(m);
  intarsia::bind_replicate(m);
  intarsia::bind_tensor_parallel(m);
  intarsia::bind_checkpoint(m);
  intarsia::bind_context(m);
}

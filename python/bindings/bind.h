// What the files of the Python module share.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <string>
#include <vector>

#include "intarsia/fixed_vector.h"

namespace pybind11::detail {

/// Shapes, coordinates, boxes: tuples in Python; any sequence is taken.
template <class T, std::size_t N>
struct type_caster<intarsia::FixedVector<T, N>> {
  using Vector = intarsia::FixedVector<T, N>;
  PYBIND11_TYPE_CASTER(Vector, const_name("tuple[") + make_caster<T>::name + const_name(", ...]"));

  bool load(handle source, bool convert) {
    make_caster<std::vector<T>> values;
    if (!values.load(source, convert)) return false;
    const auto& list = cast_op<std::vector<T>&>(values);
    value.assign(list.begin(), list.end());
    return true;
  }
  static handle cast(const Vector& values, return_value_policy policy, handle parent) {
    tuple result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      result[i] = reinterpret_steal<object>(make_caster<T>::cast(values[i], policy, parent));
    }
    return result.release();
  }
};

}  // namespace pybind11::detail

namespace intarsia {

namespace py = pybind11;

/// For functions that communicate or wait: other Python threads run meanwhile.
using WithoutGil = py::call_guard<py::gil_scoped_release>;

void bind_layout(py::module_& m);
void bind_plan(py::module_& m);
void bind_world(py::module_& m);
void bind_tensor(py::module_& m);
void bind_communication(py::module_& m);
void bind_rule(py::module_& m);
void bind_simulate(py::module_& m);
void bind_prove(py::module_& m);
void bind_fully_shard(py::module_& m);
void bind_optim(py::module_& m);
void bind_replicate(py::module_& m);
void bind_tensor_parallel(py::module_& m);
void bind_checkpoint(py::module_& m);
void bind_context(py::module_& m);

/// The line of the user's program that this thread is in, such as `train.py:88 in step`; empty
/// where it runs no Python. Takes the interpreter's lock.
std::string python_line();

/// Values never change from Python: a copy of one, deep or not, is the same value. So what holds
/// them, such as a module that was laid out by a plan, can be copied.
template <class T>
void copy_as_value(py::class_<T>& value) {
  value.def("__copy__", [](const T& self) { return self; });
  value.def(
      "__deepcopy__", [](const T& self, const py::dict&) { return self; }, py::arg("memo"));
}

template <class T>
py::tuple to_tuple(const T& values) {
  py::tuple result(values.size());
  std::size_t i = 0;
  for (const auto& value : values) result[i++] = py::cast(value);
  return result;
}

}  // namespace intarsia

// Rules of users' own ops: rows and sizes that Python functions give.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <variant>

#include "bind.h"
#include "intarsia/error.h"
#include "intarsia/rule.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

/// A Python object that C++ may drop anywhere, also without the GIL.
using Kept = std::shared_ptr<py::object>;

Kept keep(py::object object) {
  return {new py::object(std::move(object)), [](py::object* kept) {
            if (Py_IsInitialized() == 0) return;  // too late; the process ends
            const py::gil_scoped_acquire gil;
            delete kept;
          }};
}

/// The call as a rule's functions see it, while they run.
struct Asked {
  const Question* question = nullptr;

  const Question& get() const {
    if (question == nullptr) {
      throw ValueError("[Question] lives as long as the function that it was given to");
    }
    return *question;
  }
  const Operand& operand(std::size_t i) const {
    const auto& in = get().in();
    if (i >= in.size()) {
      throw ValueError("[Question] there is no tensor " + std::to_string(i) + "; " +
                       get().schema().name() + " has " + std::to_string(in.size()));
    }
    return in[i];
  }
};

py::object argument(const Asked& asked, const std::string& name) {
  const c10::IValue* value = asked.get().arg(name);
  if (value == nullptr) {
    throw ValueError("[Question] " + asked.get().schema().name() + " has no argument '" + name +
                     "'");
  }
  if (value->isTensor() || value->isTensorList() || value->isOptionalTensorList()) {
    throw ValueError(
        "[Question] rules do not see values of tensors; sizes(i) and dtype(i) are "
        "what they know of '" +
        name + "'");
  }
  return torch::jit::toPyObject(*value);
}

/// What the function gives for a call. Its errors become ours, as nothing between here and the op
/// knows Python's.
template <class Result>
Result ask(const Kept& function, const std::string& rule, const Question& question) {
  const py::gil_scoped_acquire gil;
  const py::object asked = py::cast(Asked{&question});
  const auto forget = [&] { asked.cast<Asked&>().question = nullptr; };
  try {
    Result result = (*function)(asked).cast<Result>();
    forget();
    return result;
  } catch (const py::error_already_set& error) {
    forget();
    throw ValueError("[add_rule] the rule of " + rule + " raised " + error.what());
  } catch (const py::cast_error&) {
    forget();
    throw ValueError("[add_rule] the rule of " + rule +
                     " gives something else than a list of row texts, or for sizes a list with the "
                     "sizes of each result");
  }
}

using Texts = std::vector<std::string>;
using RowsGiven = std::variant<std::string, Texts, py::function>;  // a text: index notation

std::vector<Row> parse_all(const Texts& texts) {
  std::vector<Row> rows;
  for (const std::string& text : texts) rows.push_back(Row::parse(text));
  return rows;
}

auto rows_function(const RowsGiven& given, const std::string& rule)
    -> std::function<std::vector<Row>(const Question&)> {
  if (const auto* texts = std::get_if<Texts>(&given)) {
    return [rows = parse_all(*texts)](const Question&) { return rows; };
  }
  return [function = keep(std::get<py::function>(given)), rule](const Question& q) {
    return parse_all(ask<Texts>(function, rule, q));
  };
}

auto sizes_function(const std::optional<py::function>& given, const std::string& rule)
    -> std::function<Shapes(const Question&)> {
  if (!given) return [](const Question& q) { return Shapes(q.results(), q.in(0).sizes); };
  return [function = keep(*given), rule](const Question& q) {
    return ask<std::optional<Shapes>>(function, rule, q).value_or(Shapes{});
  };
}

}  // namespace

void bind_rule(py::module_& m) {
  py::class_<Asked>(m, "Question", "A call of an op, as its rule sees it: global sizes, no mesh.")
      .def_property_readonly("op", [](const Asked& self) { return self.get().schema().name(); })
      .def_property_readonly("inputs", [](const Asked& self) { return self.get().inputs(); })
      .def_property_readonly("results", [](const Asked& self) { return self.get().results(); })
      .def(
          "sizes", [](const Asked& self, std::size_t i) { return self.operand(i).sizes; }, "i"_a)
      .def(
          "dtype", [](const Asked& self, std::size_t i) { return self.operand(i).dtype; }, "i"_a)
      .def(
          "given", [](const Asked& self, std::size_t i) { return self.operand(i).given; }, "i"_a)
      .def("arg", &argument, "name"_a)
      .def(
          "dim", [](const Asked& self, const std::string& name) { return self.get().dim(name); },
          "name"_a = "dim")
      .def(
          "dims", [](const Asked& self, const std::string& name) { return self.get().dims(name); },
          "name"_a = "dim");
  py::class_<RuleHandle>(m, "RuleHandle", "Keeps an added rule in force.")
      .def("remove", &RuleHandle::remove, WithoutGil());
  m.def(
      "add_rule",
      [](const std::string& name, const RowsGiven& rows, const std::optional<py::function>& sizes,
         const Texts& fixed, bool follows_strides) {
        const auto* indices = std::get_if<std::string>(&rows);
        if (indices != nullptr && sizes) {
          throw ValueError(
              "[add_rule] index notation says the sizes of results; leave `sizes` out");
        }
        Rule rule = indices != nullptr
                        ? index_rule(name, *indices)
                        : Rule{name, rows_function(rows, name), sizes_function(sizes, name), {}};
        rule.options.follows_strides = follows_strides;
        rule.options.fixed = fixed;
        return add_rule(std::move(rule));
      },
      "name"_a, "rows"_a, "sizes"_a = py::none(), "fixed"_a = py::list(),
      "follows_strides"_a = false);
}

}  // namespace intarsia

// Sharded parameters.
#include "intarsia/fully_shard.h"

#include <torch/csrc/utils/pybind.h>

#include "bind.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

/// What Python passes for one parameter: name, tensor, and its layout in use if it is sharded
/// already.
using Given = std::tuple<std::string, at::Tensor, std::optional<Layout>>;

std::vector<ParameterGroup> to_groups(
    const std::vector<std::pair<std::string, std::vector<Given>>>& given) {
  std::vector<ParameterGroup> groups;
  for (const auto& [name, parameters] : given) {
    ParameterGroup group{.name = name, .parameters = {}};
    for (const auto& [parameter, tensor, use] : parameters) {
      group.parameters.push_back({parameter, tensor, use});
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

/// A scope that Python ends by name.
class PythonNoSync {
 public:
  explicit PythonNoSync(std::shared_ptr<FullyShard> sharded) : sharded_(std::move(sharded)) {
    scope_.emplace(*sharded_);
  }
  void close() { scope_.reset(); }

 private:
  std::shared_ptr<FullyShard> sharded_;
  std::optional<FullyShard::NoSync> scope_;
};

}  // namespace

void bind_fully_shard(py::module_& m) {
  py::class_<GroupReport>(m, "GroupReport")
      .def_readonly("name", &GroupReport::name)
      .def_readonly("gathers", &GroupReport::gathers)
      .def_readonly("reductions", &GroupReport::reductions)
      .def_readonly("gather_bytes", &GroupReport::gather_bytes)
      .def_readonly("reduce_bytes", &GroupReport::reduce_bytes)
      .def_readonly("exposed_at_first", &GroupReport::exposed_at_first)
      .def_readonly("exposed", &GroupReport::exposed);

  py::class_<FullyShardOptions>(m, "FullyShardOptions")
      .def(py::init([](std::vector<std::string> shard, std::vector<std::string> replicate,
                       std::vector<std::pair<std::string, int>> dims,
                       std::optional<at::ScalarType> param_dtype,
                       std::optional<at::ScalarType> reduce_dtype, bool keep_after_forward,
                       bool prefetch, bool offload) {
             return FullyShardOptions{
                 std::move(shard), std::move(replicate), std::move(dims), param_dtype,
                 reduce_dtype,     keep_after_forward,   prefetch,        offload};
           }),
           "shard"_a, "replicate"_a, "dims"_a, "param_dtype"_a, "reduce_dtype"_a,
           "keep_after_forward"_a, "prefetch"_a, "offload"_a);

  py::class_<FullyShard, std::shared_ptr<FullyShard>>(m, "FullyShard")
      .def("finish", &FullyShard::finish, WithoutGil())
      .def("release", &FullyShard::release, WithoutGil())
      .def("gathered", &FullyShard::gathered)
      .def("most_gathered", &FullyShard::most_gathered)
      .def("groups", &FullyShard::groups)
      .def("report", &FullyShard::report);

  py::class_<PythonNoSync>(m, "NoSyncScope")
      .def(py::init<std::shared_ptr<FullyShard>>(), "sharded"_a)
      .def("close", &PythonNoSync::close);

  using Groups = std::vector<std::pair<std::string, std::vector<Given>>>;
  m.def(
      "fully_shard",
      [](const Groups& groups, const FullyShardOptions& options) {
        return fully_shard(to_groups(groups), options);
      },
      "groups"_a, "options"_a, WithoutGil());
  m.def(
      "check_fully_shard",
      [](const Groups& groups, const FullyShardOptions& options) {
        check_fully_shard(to_groups(groups), options);
      },
      "groups"_a, "options"_a);
  m.def("sharded_layout", &sharded_layout, "use"_a, "dims"_a, "options"_a, "name"_a);
  m.def(
      "parameter_groups",
      [](const NamedTensors& parameters, const std::vector<std::string>& modules) {
        std::vector<std::pair<std::string, std::vector<std::string>>> out;
        for (const ParameterGroup& group : parameter_groups(parameters, modules)) {
          std::vector<std::string> names;
          for (const ShardedParameter& p : group.parameters) names.push_back(p.name);
          out.emplace_back(group.name, std::move(names));
        }
        return out;
      },
      "parameters"_a, "modules"_a);
}

}  // namespace intarsia

// Data parallel for plain modules.
#include <pybind11/native_enum.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "bind.h"
#include "intarsia/replicate.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

using WorldPtr = std::shared_ptr<World>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<NamedTensor> to_named(const Named& tensors) {
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) named.push_back({name, tensor});
  return named;
}

/// LocalScope with Python's beginning and end.
class PythonLocalScope {
 public:
  explicit PythonLocalScope(std::shared_ptr<Replica> replica) : replica_(std::move(replica)) {}
  PythonLocalScope(const PythonLocalScope&) = delete;
  PythonLocalScope& operator=(const PythonLocalScope&) = delete;
  void enter() { scopes_.push_back(std::make_unique<Scope>(*replica_)); }
  void exit() { scopes_.pop_back(); }

 private:
  struct Scope {
    explicit Scope(Replica& replica) : scope(replica.no_sync()) {}
    Replica::LocalScope scope;
  };
  std::shared_ptr<Replica> replica_;
  std::vector<std::unique_ptr<Scope>> scopes_;
};

}  // namespace

void bind_replicate(py::module_& m) {
  py::native_enum<BufferSync>(m, "BufferSync", "enum.Enum")
      .value("from_first", BufferSync::from_first)
      .value("averaged", BufferSync::averaged)
      .value("own", BufferSync::own)
      .finalize();
  py::class_<ReplicaCounters>(m, "ReplicaCounters", "What a replica has done on this rank.")
      .def_readonly("buckets", &ReplicaCounters::buckets)
      .def_readonly("rounds", &ReplicaCounters::rounds)
      .def_readonly("collectives", &ReplicaCounters::collectives)
      .def_readonly("bytes", &ReplicaCounters::bytes)
      .def_readonly("copies", &ReplicaCounters::copies);
  py::class_<PythonLocalScope>(m, "LocalScope", "Gradients add up on this rank, until its end.")
      .def("__enter__", &PythonLocalScope::enter)
      .def("__exit__", [](PythonLocalScope& self, const py::args&) { self.exit(); });
  py::class_<Replica, std::shared_ptr<Replica>>(m, "Replica", "Keeps a model's gradients in step.")
      .def("no_sync",
           [](std::shared_ptr<Replica> self) {
             return std::make_unique<PythonLocalScope>(std::move(self));
           })
      .def("finish", &Replica::finish, WithoutGil())
      .def("counters", &Replica::counters, WithoutGil())
      .def("buckets", &Replica::buckets, WithoutGil());
  m.def(
      "replicate",
      [](const Named& parameters, const Named& buffers, const WorldPtr& world, const Mesh& mesh,
         const std::vector<std::string>& axes, std::int64_t bucket_bytes,
         std::int64_t first_bucket_bytes, const std::optional<at::ScalarType>& reduce_dtype,
         BufferSync sync) {
        const ReplicateOptions options{.bucket_bytes = bucket_bytes,
                                       .first_bucket_bytes = first_bucket_bytes,
                                       .reduce_dtype = reduce_dtype,
                                       .buffers = sync,
                                       .torch_errors = true};
        return replicate({to_named(parameters), to_named(buffers)}, *world, mesh, axes, options);
      },
      "parameters"_a, "buffers"_a, "world"_a, "mesh"_a, "axes"_a, "bucket_bytes"_a,
      "first_bucket_bytes"_a, "reduce_dtype"_a, "sync"_a, WithoutGil());
}

}  // namespace intarsia

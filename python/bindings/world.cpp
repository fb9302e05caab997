// Worlds, rendezvous and the ledger.
#include <pybind11/native_enum.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>

#include "bind.h"
#include "intarsia/ledger.h"
#include "intarsia/lockstep.h"
#include "intarsia/phase.h"
#include "intarsia/rendezvous.h"
#include "intarsia/waiting.h"
#include "intarsia/watch.h"
#include "intarsia/world.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

WorldOptions to_options(const std::string& backend, const std::optional<at::Device>& device,
                        double seconds, Launcher launcher, std::size_t ledger_entries,
                        const std::string& topology) {
  return {.backend = backend,
          .device = device,
          .timeout = std::chrono::milliseconds(std::llround(seconds * 1000)),
          .launcher = launcher,
          .ledger_entries = ledger_entries,
          .topology = topology};
}

void bind_rendezvous(py::module_& m) {
  py::native_enum<Launcher>(m, "Launcher", "enum.Enum")
      .value("detect", Launcher::detect)
      .value("torchrun", Launcher::torchrun)
      .value("openmpi", Launcher::openmpi)
      .value("slurm", Launcher::slurm)
      .value("plain", Launcher::plain)
      .value("none", Launcher::none)
      .finalize();
  py::class_<Rendezvous>(m, "Rendezvous", "Who this process is and where the others meet.")
      .def(py::init<>())
      .def_readwrite("launcher", &Rendezvous::launcher)
      .def_readwrite("rank", &Rendezvous::rank)
      .def_readwrite("size", &Rendezvous::size)
      .def_readwrite("local_rank", &Rendezvous::local_rank)
      .def_readwrite("local_size", &Rendezvous::local_size)
      .def_readwrite("address", &Rendezvous::address)
      .def_readwrite("port", &Rendezvous::port)
      .def_readwrite("rank0_serves", &Rendezvous::rank0_serves)
      .def_readwrite("attempt", &Rendezvous::attempt)
      .def("to_string", &Rendezvous::to_string)
      .def("__str__", &Rendezvous::to_string)
      .def("__repr__", [](const Rendezvous& r) { return "<Rendezvous " + r.to_string() + ">"; });
  m.def(
      "read_rendezvous",
      [](Launcher launcher) { return read_rendezvous(process_environment(), launcher); },
      py::arg_v("launcher", Launcher::detect, "Launcher.detect"));
}

void bind_watch(py::module_& m) {
  m.def(
      "watch",
      [](const std::string& group_name, const std::string& name, std::vector<std::int64_t> ranks) {
        return watch(group_name, {.name = name, .ranks = std::move(ranks)});
      },
      WithoutGil(), "group_name"_a, "name"_a, "ranks"_a);
  m.def("describe_job", py::overload_cast<std::optional<std::int64_t>>(&describe_job), "process"_a);
  m.def("describe_job", py::overload_cast<const std::string&>(&describe_job), "folder"_a);
}

void bind_phases(py::module_& m) {
  py::class_<RankTimes> times(m, "RankTimes", "How long the steps of a rank take, in seconds.");
  py::class_<RankTimes::OfPhase>(times, "OfPhase")
      .def_readonly("phase", &RankTimes::OfPhase::phase)
      .def_readonly("seconds", &RankTimes::OfPhase::seconds);
  times.def_readonly("rank", &RankTimes::rank)
      .def_readonly("steps", &RankTimes::steps)
      .def_readonly("own", &RankTimes::own)
      .def_readonly("waited", &RankTimes::waited)
      .def("of", &RankTimes::of, "phase"_a)
      .def("total", &RankTimes::total);
  py::class_<Straggler>(m, "Straggler", "A rank that others wait for.")
      .def_readonly("rank", &Straggler::rank)
      .def_readonly("phase", &Straggler::phase)
      .def_readonly("seconds", &Straggler::seconds)
      .def_readonly("others", &Straggler::others)
      .def_readonly("share", &Straggler::share)
      .def("__str__", &Straggler::to_string);
  m.def(
      "begin_phase", [](const std::string& name) { begin_phase(name); }, "name"_a);
  m.def("end_phase", &end_phase);
  m.def("step_times", &step_times);
  m.def(
      "find_straggler",
      [](const std::vector<RankTimes>& of_ranks, double least_share) {
        return find_straggler(of_ranks, least_share);
      },
      "times"_a, "least_share"_a);
  m.def(
      "to_prometheus",
      [](const std::vector<RankTimes>& of_ranks) { return to_prometheus(of_ranks); }, "times"_a);
  m.def(
      "note_error", [](const std::string& error) { note_error(error); }, "error"_a);
  m.def(
      "note_stay", [](const std::string& line) { note_stay(line); }, "line"_a);
  m.def("quiet_seconds", &quiet_seconds);
}

void bind_ledger(py::module_& m) {
  py::native_enum<CallKind> kind(m, "CallKind", "enum.Enum");
  for (int i = 0; i <= static_cast<int>(CallKind::barrier); ++i) {
    const auto value = static_cast<CallKind>(i);
    kind.value(std::string(to_text(value)).c_str(), value);
  }
  kind.finalize();
  py::class_<LedgerEntry>(m, "LedgerEntry", "One call of the backend, as this rank made it.")
      .def_readonly("sequence", &LedgerEntry::sequence)
      .def_readonly("group", &LedgerEntry::group)
      .def_readonly("kind", &LedgerEntry::kind)
      .def_readonly("dtype", &LedgerEntry::dtype)
      .def_readonly("bytes", &LedgerEntry::bytes)
      .def_readonly("tensor", &LedgerEntry::tensor)
      .def_readonly("op", &LedgerEntry::op)
      .def_readonly("module", &LedgerEntry::module);
  py::class_<LedgerTotals>(m, "LedgerTotals", "Totals since the world was made.")
      .def_readonly("calls", &LedgerTotals::calls)
      .def_readonly("bytes", &LedgerTotals::bytes);
  py::class_<Ledger, std::shared_ptr<Ledger>>(m, "Ledger", "The record of every collective.")
      .def("groups", &Ledger::groups)
      .def("group_name", &Ledger::group_name, "group"_a)
      .def("group_collectives", &Ledger::group_collectives, "group"_a)
      .def("enable", &Ledger::enable, "on"_a)
      .def("entries", &Ledger::entries)
      .def("totals", [](const Ledger& self) { return self.totals(); })
      .def(
          "totals", [](const Ledger& self, CallKind kind) { return self.totals(kind); }, "kind"_a)
      .def("dump", &Ledger::dump, "last"_a = 32);
}

void bind_world_class(py::module_& m) {
  const auto backend = py::arg_v("backend", std::string(), "''");
  const auto device = py::arg_v("device", std::optional<at::Device>(), "None");
  const auto timeout = py::arg_v("timeout", 600.0, "600");
  const auto launcher = py::arg_v("launcher", Launcher::detect, "Launcher.detect");
  const auto ledger_entries = py::arg_v("ledger_entries", std::size_t{4096}, "4096");
  const auto topology = py::arg_v("topology", std::string(), "''");
  py::class_<World, std::shared_ptr<World>>(
      m, "World", "The processes of a job, and the groups of ranks in which they talk.")
      .def_static(
          "connect",
          [](const std::optional<Rendezvous>& rendezvous, const std::string& b,
             const std::optional<at::Device>& d, double t, Launcher l, std::size_t n,
             const std::string& file) {
            const WorldOptions options = to_options(b, d, t, l, n, file);
            return rendezvous ? World::connect(*rendezvous, options) : World::connect(options);
          },
          WithoutGil(), "rendezvous"_a = py::none(), py::kw_only(), backend, device, timeout,
          launcher, ledger_entries, topology)
      .def_static(
          "adopt",
          [](const std::string& group_name, const std::optional<at::Device>& d, double t,
             std::size_t n, const std::string& file) {
            return World::adopt(group_name, to_options("", d, t, Launcher::detect, n, file));
          },
          WithoutGil(), "group_name"_a, py::kw_only(), device, timeout, ledger_entries, topology)
      .def("rank", &World::rank)
      .def("size", &World::size)
      .def("hosted", [](const World& self) { return to_tuple(self.hosted()); })
      .def("in_lockstep", &World::in_lockstep)
      .def("simulated", &World::simulated)
      .def("local_rank", &World::local_rank)
      .def("device", &World::device)
      .def("timeout",
           [](const World& self) { return static_cast<double>(self.timeout().count()) / 1000; })
      .def("ledger", &World::shared_ledger)
      .def("close", &World::close, WithoutGil())
      .def("closed", &World::closed)
      .def("__repr__", [](const World& self) {
        const std::string size = std::to_string(self.size());
        const std::string ranks = self.in_lockstep() ? size + " ranks in lockstep"
                                  : self.hosted().empty()
                                      ? "no rank of " + size
                                      : "rank " + std::to_string(self.rank()) + " of " + size;
        return "<World " + ranks + (self.closed() ? ", closed>" : ">");
      });
  m.def(
      "lockstep_world",
      [](std::int64_t ranks, const std::optional<at::Device>& d) {
        return lockstep_world(ranks, d.value_or(at::kCPU));
      },
      "ranks"_a, device, WithoutGil());
}

}  // namespace

void bind_world(py::module_& m) {
  bind_rendezvous(m);
  bind_watch(m);
  bind_phases(m);
  bind_ledger(m);
  bind_world_class(m);
}

}  // namespace intarsia

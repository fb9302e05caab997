#include "intarsia/rendezvous.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "World";

std::optional<int> parse_integer(std::string_view text) {
  int value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Reads variables and explains their absence in terms of one launcher.
class Reader {
 public:
  Reader(const Environment& environment, Launcher launcher)
      : environment_(environment), launcher_(launcher) {}

  std::optional<std::string> text(const std::string& name) const { return environment_(name); }

  std::optional<int> number(const std::string& name) const {
    const auto value = environment_(name);
    if (!value) return std::nullopt;
    const auto parsed = parse_integer(*value);
    if (!parsed) fail<ValueError>(kWhere, name, "=\"", *value, "\" is not an integer");
    return parsed;
  }

  std::string need(const std::string& name, std::string_view hint) const {
    if (auto value = environment_(name)) return *value;
    const std::string although = launcher_ == Launcher::plain
                                     ? concat(environment_("RANK") ? "RANK" : "WORLD_SIZE", " is")
                                     : concat(to_text(launcher_), " started this process");
    fail<ValueError>(kWhere, name, " is not set, although ", although, "; ", hint);
  }

  int need_number(const std::string& name, std::string_view hint) const {
    (void)need(name, hint);
    return *number(name);
  }

 private:
  const Environment& environment_;
  Launcher launcher_;
};

/// A port below the range that kernels hand out by themselves, the same for all processes of a job.
int port_of_job(std::string_view job) { return 20000 + static_cast<int>(hash_text(job) % 12000); }

void read_master(const Reader& read, Rendezvous& r) {
  if (const auto address = read.text("MASTER_ADDR")) r.address = *address;
  if (const auto port = read.number("MASTER_PORT")) r.port = *port;
}

Rendezvous read_torchrun(const Reader& read) {
  constexpr std::string_view hint = "start the program with torchrun, which sets it";
  Rendezvous r;
  r.rank = read.need_number("RANK", hint);
  r.size = read.need_number("WORLD_SIZE", hint);
  r.local_rank = read.need_number("LOCAL_RANK", hint);
  r.local_size = read.number("LOCAL_WORLD_SIZE").value_or(r.size);
  r.address = read.need("MASTER_ADDR", hint);
  r.port = read.need_number("MASTER_PORT", hint);
  r.rank0_serves = read.text("TORCHELASTIC_USE_AGENT_STORE").value_or("False") != "True";
  r.attempt = read.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return r;
}

Rendezvous read_plain(const Reader& read) {
  constexpr std::string_view hint = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together";
  Rendezvous r;
  r.rank = read.need_number("RANK", hint);
  r.size = read.need_number("WORLD_SIZE", hint);
  r.local_rank = read.number("LOCAL_RANK").value_or(0);
  r.local_size = read.number("LOCAL_WORLD_SIZE").value_or(1);
  if (r.size > 1) {
    (void)read.need("MASTER_ADDR", hint);
    (void)read.need_number("MASTER_PORT", hint);
  }
  read_master(read, r);
  return r;
}

Rendezvous read_openmpi(const Reader& read) {
  constexpr std::string_view hint = "start the program with mpirun, which sets it";
  Rendezvous r;
  r.rank = read.need_number("OMPI_COMM_WORLD_RANK", hint);
  r.size = read.need_number("OMPI_COMM_WORLD_SIZE", hint);
  r.local_rank = read.need_number("OMPI_COMM_WORLD_LOCAL_RANK", hint);
  r.local_size = read.number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(r.size);
  if (r.local_size != r.size) {
    (void)read.need("MASTER_ADDR",
                    "on several machines mpirun does not say where rank 0 runs: pass it with "
                    "mpirun -x MASTER_ADDR=<host of rank 0>");
  }
  const auto job = read.text("OMPI_MCA_ess_base_jobid");  // Open MPI 4; later ones say it to PMIx
  if (job || read.text("PMIX_NAMESPACE"))
    r.port = port_of_job(job ? *job : *read.text("PMIX_NAMESPACE"));
  read_master(read, r);
  if (r.port == 0) (void)read.need("MASTER_PORT", "pass it with mpirun -x MASTER_PORT=<free port>");
  return r;
}

Rendezvous read_slurm(const Reader& read) {
  constexpr std::string_view hint = "start the program with srun, which sets it";
  Rendezvous r;
  r.rank = read.need_number("SLURM_PROCID", hint);
  const auto step_size = read.number("SLURM_STEP_NUM_TASKS");
  r.size = step_size ? *step_size : read.need_number("SLURM_NTASKS", hint);
  r.local_rank = read.need_number("SLURM_LOCALID", hint);
  const auto first_of = [&read](const char* step, const char* job) {
    const auto value = read.text(step);
    return value ? value : read.text(job);
  };
  const auto counts = first_of("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const int node = read.number("SLURM_NODEID").value_or(0);
  r.local_size = counts ? tasks_on_node(*counts, node).value_or(r.size) : r.size;
  if (r.local_size != r.size) {
    const auto nodes = first_of("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    r.address = nodes ? first_host(*nodes) : read.need("MASTER_ADDR", "export the host of rank 0");
  }
  if (const auto job = read.text("SLURM_JOB_ID")) {
    r.port = port_of_job(concat(*job, '.', read.text("SLURM_STEP_ID").value_or("0")));
  }
  read_master(read, r);
  if (r.port == 0) (void)read.need("MASTER_PORT", "export a free port");
  return r;
}

struct LauncherRow {
  Launcher launcher;
  std::string_view name;
  const char* mark;  // the variable by which it is recognised
  const char* size;  // its number of processes, to find contradictions
  const char* rank;
  Rendezvous (*read)(const Reader&);
};

constexpr std::array<LauncherRow, 4> kLaunchers{{
    {Launcher::torchrun, "torchrun", "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK", read_torchrun},
    {Launcher::plain, "plain", "RANK", "WORLD_SIZE", "RANK", read_plain},
    {Launcher::openmpi, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_RANK", read_openmpi},
    {Launcher::slurm, "srun", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_PROCID", read_slurm},
}};

const LauncherRow& row_of(Launcher launcher) {
  for (const LauncherRow& row : kLaunchers) {
    if (row.launcher == launcher) return row;
  }
  fail<ValueError>(kWhere, "Launcher::", to_text(launcher), " cannot be read");
}

/// RANK and WORLD_SIZE set by hand, under mpirun or srun, must agree with the launcher: otherwise
/// each process may believe itself alone, or two may have the same rank. A launcher that started
/// one process has nothing to say about the world.
void check_agreement(const Reader& read, const Rendezvous& r) {
  for (const LauncherRow& other : kLaunchers) {
    const bool outer = other.launcher == Launcher::openmpi || other.launcher == Launcher::slurm;
    if (!outer) continue;
    const auto size = read.number(other.size);
    const auto rank = read.number(other.rank);
    if (!read.text(other.mark) || !size || !rank || *size == 1 ||
        (*size == r.size && *rank == r.rank))
      continue;
    fail<ValueError>(kWhere, "RANK=", r.rank, " and WORLD_SIZE=", r.size, " contradict ",
                     other.rank, "=", *rank, " and ", other.size, "=", *size, ", which ",
                     other.name,
                     " set; unset RANK and WORLD_SIZE, or choose with WorldOptions::launcher");
  }
}

void check_ranges(const Rendezvous& r) {
  if (r.size < 1) fail<ValueError>(kWhere, "the world size is ", r.size, "; it is at least 1");
  if (r.rank < 0 || r.rank >= r.size) {
    fail<ValueError>(kWhere, "rank ", r.rank, " does not exist in a world of size ", r.size,
                     "; ranks are 0..", r.size - 1);
  }
  if (r.size > 1 && (r.port < 1 || r.port > 65535)) {
    fail<ValueError>(kWhere, "MASTER_PORT=", r.port, " is no port; use 1..65535");
  }
}

Launcher detected(const Reader& read) {
  for (const LauncherRow& row : kLaunchers) {
    if (read.text(row.mark)) return row.launcher;
  }
  if (read.text("WORLD_SIZE")) return Launcher::plain;  // reported as a missing RANK
  if (read.number("PMI_SIZE").value_or(1) > 1) {
    fail<ValueError>(
        kWhere, "PMI_SIZE=", *read.number("PMI_SIZE"),
        " says that MPICH's or Intel's mpirun "
        "started this process, which is not read; set RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT, or use Open MPI's mpirun, srun or torchrun");
  }
  return Launcher::none;
}

}  // namespace

std::string_view to_text(Launcher launcher) {
  for (const LauncherRow& row : kLaunchers) {
    if (row.launcher == launcher) {
      return launcher == Launcher::plain ? "a plain environment" : row.name;
    }
  }
  return launcher == Launcher::none ? "no launcher" : "detect";
}

std::string Rendezvous::to_string() const {
  std::string text = concat("rank ", rank, " of ", size, " (local ", local_rank, " of ", local_size,
                            ") by ", to_text(launcher));
  return size == 1 ? text : concat(text, ", store at ", address, ":", port);
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Rendezvous read_rendezvous(const Environment& environment, Launcher launcher) {
  const Launcher found =
      launcher == Launcher::detect ? detected(Reader(environment, launcher)) : launcher;
  if (found == Launcher::none) return {};
  const Reader read(environment, found);
  Rendezvous r = row_of(found).read(read);
  r.launcher = found;
  if (launcher == Launcher::detect && found == Launcher::plain) check_agreement(read, r);
  check_ranges(r);
  return r;
}

std::string first_host(std::string_view node_list) {
  const std::size_t stop = node_list.find_first_of(",[");
  std::string host(node_list.substr(0, stop));
  if (stop == std::string_view::npos || node_list[stop] == ',') return host;
  const std::string_view numbers = node_list.substr(stop + 1);
  const std::size_t close = numbers.find(']');
  host += numbers.substr(0, numbers.find_first_of(",-]"));
  if (close == std::string_view::npos) return host;
  const std::string_view rest = numbers.substr(close + 1);  // a suffix: n[1-4]-ib
  return host + std::string(rest.substr(0, rest.find(',')));
}

std::optional<int> tasks_on_node(std::string_view counts, int node) {
  while (!counts.empty()) {
    const std::string_view entry = counts.substr(0, counts.find(','));
    counts.remove_prefix(std::min(counts.size(), entry.size() + 1));
    const std::size_t times = entry.find("(x");
    const auto count = parse_integer(entry.substr(0, times));
    int nodes = 1;
    if (times != std::string_view::npos) {
      const auto repeat = parse_integer(entry.substr(times + 2, entry.size() - times - 3));
      if (!repeat) return std::nullopt;
      nodes = *repeat;
    }
    if (!count) return std::nullopt;
    if (node < nodes) return count;
    node -= nodes;
  }
  return std::nullopt;
}

}  // namespace intarsia

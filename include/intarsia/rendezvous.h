// Rendezvous: who this process is and where the others meet, as its launcher says it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace intarsia {

/// What started the processes. Intarsia reads the variables that launchers set and invents none.
enum class Launcher : std::uint8_t {
  detect,    ///< whichever of the following has set its variables
  torchrun,  ///< RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*
  openmpi,   ///< mpirun: OMPI_COMM_WORLD_*
  slurm,     ///< srun: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, node list
  plain,     ///< RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set by hand
  none,      ///< nothing is set: one process, rank 0 of 1
};

std::string_view to_text(Launcher launcher);

struct Rendezvous {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int size = 1;
  /// This process among those on the same machine.
  int local_rank = 0;
  int local_size = 1;
  /// Where rank 0's store listens.
  std::string address = "127.0.0.1";
  int port = 0;
  /// False when the launcher itself runs the store (torchrun's agent).
  bool rank0_serves = true;
  /// Keeps keys of different attempts of one job apart.
  std::string attempt;

  std::string to_string() const;
};

/// Looks up an environment variable; an empty one counts as not set.
using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// The variables of this process.
Environment process_environment();

/// Reads what the launcher set. A missing, malformed or contradictory variable is a ValueError that
/// names it and what to do.
///
/// MASTER_ADDR and MASTER_PORT always win. Without them, on one machine, the address is loopback
/// and the port follows from the job's number; on several machines Slurm's node list gives the
/// address, and mpirun needs MASTER_ADDR.
Rendezvous read_rendezvous(const Environment& environment, Launcher launcher = Launcher::detect);

/// The first host of a Slurm node list: `n[03-07,9],m1` -> `n03`.
std::string first_host(std::string_view node_list);

/// The n-th entry of Slurm's counts per node: `2(x3),1` -> 2, 2, 2, 1.
std::optional<int> tasks_on_node(std::string_view counts, int node);

}  // namespace intarsia

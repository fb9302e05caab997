// The checks of `intarsia doctor`. None of them throws, and none takes long: whatever waits for
// something outside of this process has a time limit.
#pragma once

#include <filesystem>
#include <vector>

#include "intarsia/rendezvous.h"
#include "tools/doctor/check.h"

namespace intarsia::tools {

// ---- torch_checks.cpp: what only a program that loads libtorch can tell -------------------------

struct TorchFindings {
  /// torch, backends, gloo and in_process; torch alone when the probe does not run.
  std::vector<Check> checks;
  /// Whether a backend is there that talks to network cards directly: NCCL or UCC.
  bool locks_memory = false;
};

/// Runs the first probe that exists, for at most 30 s.
TorchFindings check_torch(const std::vector<std::filesystem::path>& places);

// ---- network_checks.cpp -------------------------------------------------------------------------

/// The interfaces that are up, and the one that Gloo would use.
Check check_network(const Environment& environment);

/// Who this process is according to its launcher, and whether it can reach the job's store.
Check check_rendezvous(const Environment& environment);

// ---- machine_checks.cpp -------------------------------------------------------------------------

/// Whether the wall clock is synchronised, and the steady clock steady.
Check check_clock();
Check check_open_files();
/// `matters`: a low limit is worth a warning.
Check check_locked_memory(bool matters);
Check check_shared_memory();
Check check_cores(const Environment& environment);
Check check_memory();

}  // namespace intarsia::tools

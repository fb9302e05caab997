#include "world/transport/backends.h"

#include <array>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/transport/error_text.h"

namespace intarsia {
namespace {

struct BackendRow {
  std::string_view name;
  Backend (*make)(const BackendRequest&);
  bool present;
  bool waits_in_slices = false;  // others let the device wait, not the host
};

#ifndef INTARSIA_HAS_NCCL
#define INTARSIA_HAS_NCCL 0
#endif
#ifndef INTARSIA_HAS_UCC
#define INTARSIA_HAS_UCC 0
#endif

constexpr std::array<BackendRow, 4> kBackends{{
    {"gloo", make_gloo, true, true},
    {"nccl", make_nccl, INTARSIA_HAS_NCCL != 0},
    {"shm", make_shm, true, true},
    {"ucc", make_ucc, INTARSIA_HAS_UCC != 0},
}};

[[noreturn]] void no_such_backend(const std::string& name) {
  if (name == "mpi") {
    fail<UnsupportedError>(
        "World",
        "libtorch makes MPI groups only by all processes together, and "
        "Intarsia's groups are made by their members; use gloo, shm, nccl or ucc, which "
        "mpirun starts as well");
  }
  fail<ValueError>("World", "there is no backend '", name, "'; use gloo, shm, nccl or ucc");
}

}  // namespace

Backend make_backend(const std::string& name, const BackendRequest& request) {
  for (const BackendRow& row : kBackends) {
    if (row.name == name) return row.make(request);
  }
  no_such_backend(name);
}

void check_backend(const std::string& name) {
  for (const BackendRow& row : kBackends) {
    if (row.name != name) continue;
    if (!row.present) row.make({});  // the stand-in says what is missing
    return;
  }
  no_such_backend(name);
}

bool has_backend(const std::string& name) {
  for (const BackendRow& row : kBackends) {
    if (row.name == name) return row.present;
  }
  return false;
}

bool waits_in_slices(std::string_view name) {
  for (const BackendRow& row : kBackends) {
    if (row.name == name) return row.waits_in_slices;
  }
  return false;
}

c10::intrusive_ptr<c10d::ProcessGroup> registered_group(std::string_view where,
                                                        const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const std::exception& error) {
    fail<ValueError>(where, "no process group is registered as '", name,
                     "'; in Python its name is group.group_name (", text_of(error), ")");
  }
}

}  // namespace intarsia

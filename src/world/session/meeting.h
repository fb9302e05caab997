// How the processes of a job meet: the store that they share, and the register of who came.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/rendezvous.h"

namespace intarsia {

/// The store of a job, with keys of this world only. The process of rank 0 serves it, at the
/// address that MASTER_ADDR names and no other of this machine, unless the launcher serves it or
/// that address belongs to something in between. WorldError when nothing there answers as a store
/// before the timeout. COLLECTIVE: all processes of the job.
c10::intrusive_ptr<c10d::Store> meet(const Rendezvous& rendezvous,
                                     std::chrono::milliseconds timeout);

/// What a process says of itself to the others.
struct Attendance {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::string backend;
  std::string host;
  std::int64_t process = 0;

  /// This process as a member of a job.
  static Attendance of(const Rendezvous& rendezvous, std::string backend);
  /// `rank 2 (process 4711 on host a)`
  std::string name() const;
};

/// Waits until every rank has said who it is. Ranks that come twice, worlds of different sizes and
/// different backends are a WorldError on all ranks that wait, at once; at the timeout those that
/// did not come are named. `serves`: this process serves the store, and ends with an error only
/// when the others have had time to read why. COLLECTIVE: all ranks.
void register_rank(c10d::Store& store, const Attendance& me, bool serves,
                   std::chrono::milliseconds timeout);

}  // namespace intarsia

// The c10d backends that a libtorch may have. One file each; a file that says so where one is
// absent.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

/// What any backend needs to make a group.
struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;  ///< with keys of this group only
  int index = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  at::Device device = at::kCPU;
  std::string address;  ///< where the job meets; tells whether all ranks are on this machine
  std::vector<std::int64_t> ranks;  ///< what errors call the members; empty: their places
  bool lazy = false;                ///< members connect when they first talk to each other
};

using Backend = c10::intrusive_ptr<c10d::Backend>;

Backend make_gloo(const BackendRequest& request);
Backend make_nccl(const BackendRequest& request);
/// Shared memory where all members are on one host, else Gloo.
Backend make_shm(const BackendRequest& request);
Backend make_ucc(const BackendRequest& request);

/// By name. UnsupportedError when this libtorch has no such backend; ValueError for an unknown
/// name.
Backend make_backend(const std::string& name, const BackendRequest& request);

/// Whether libtorch was built with it.
bool has_backend(const std::string& name);

/// Whether a wait for one of its collectives may end before that does, and begin again: there
/// waiting is all that a wait does.
bool waits_in_slices(std::string_view name);

/// The group that torch.distributed registered under a name; ValueError if there is none.
c10::intrusive_ptr<c10d::ProcessGroup> registered_group(std::string_view where,
                                                        const std::string& name);

/// Throws what `make_backend` would, without making one.
void check_backend(const std::string& name);

}  // namespace intarsia

// Watching the collectives of any program that uses c10d: DDP, FSDP2, DTensor, or calls by hand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace intarsia {

struct WatchOptions {
  /// What errors call the group.
  std::string name = "default";
  /// Its ranks, as the first group that was watched counts them; empty: this is the first, and has
  /// all ranks.
  std::vector<std::int64_t> ranks = {};
};

/// From now on the guard compares the collectives that the ranks of a group make on the CPU, before
/// they are made: see docs/guard.md. A rank that makes another call than the others gets a
/// WorldError in its place, and they get one while they wait; ranks that have died are named.
/// Messages between two ranks are compared with each other, unless they are received from anybody.
///
/// False where nothing is compared: a world of one, INTARSIA_GUARD=off.
/// COLLECTIVE: all ranks of the group, before its first collective and, for the first group, before
/// other groups are made.
bool watch(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WatchOptions& options = {});
/// The same for the group that torch.distributed registered under this name.
bool watch(const std::string& group_name, const WatchOptions& options = {});

/// What all ranks of a running job do, a line for each: its last call, its phase, the line that it
/// is at where that is known, its last error; and the groups in which some ranks are further than
/// others. `process`: one of its ranks on this host, of this user; unset: all jobs of this user.
/// They are not disturbed. ValueError if there is no guard.
std::string describe_job(std::optional<std::int64_t> process);
/// The same from the files that its ranks kept in INTARSIA_GUARD_DIR, also when it has ended.
std::string describe_job(const std::string& folder);

}  // namespace intarsia

// What passes between stages in a step: sent, expected, taken.
#pragma once

#include <list>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "intarsia/schedule.h"
#include "pipeline/run/boundary.h"
#include "pipeline/run/link.h"
#include "pipeline/schedule/actions.h"

namespace intarsia::pipeline {

/// What passes between stages, by the stage where it arrives and microbatch.
using Boundaries = std::vector<std::vector<std::optional<Boundary>>>;

/// Memory that is received into, by kind, number of the buffer, and peer. What someone still looks
/// at is not written over: there is new memory then.
class ReceiveBuffers {
 public:
  at::Tensor get(bool backward, int buffer, std::size_t peer, std::int64_t bytes,
                 at::Device device);

 private:
  std::map<std::tuple<bool, int, std::size_t>, at::Tensor> memory_;
};

/// What outlives a step.
struct Connections {
  World& world;
  const std::vector<Mesh>& places;
  std::string name;
  /// By the places that it leads from and to, and whether gradients pass.
  std::map<std::tuple<int, int, bool>, Link> links = {};
  ReceiveBuffers buffers = {};

  Link& link(int from, int to, bool backward);
  /// Makes the links of a schedule and the groups that they talk by, in one order on all ranks, so
  /// that none waits for another in the middle of a step. COLLECTIVE: all ranks.
  void open(const Schedule& schedule);
};

/// What an action waits for, if anything.
std::optional<Transfer> needs(const Schedule& schedule, const Action& action);

/// The transfers of one step, by the schedule.
class StepTransfers {
 public:
  /// `known`: what was agreed upon in an earlier step; empty where sizes are to be announced, and
  /// filled in then.
  StepTransfers(Connections& connections, const Schedule& schedule, std::size_t microbatches,
                Boundaries& known);

  /// Sends what a stage gave, or the gradients of what it got.
  void send(const Action& action, const Tensors& values);
  /// Begins to receive, into the buffer that the action names.
  void expect(const Action& action);
  /// In lockstep: whether what an action waits for has been sent.
  bool has_come(const Transfer& transfer) const;
  /// Waits for a transfer. REQUIRES: it is expected, as in every legal schedule. What was sent
  /// before it has come too. Where the step trains, what takes a gradient requires it.
  Tensors take(const Transfer& transfer, bool trains);

 private:
  struct Expected {
    Transfer transfer;
    int buffer = -1;
    std::optional<Arriving> arriving = std::nullopt;
  };

  int place_of(int stage) const { return schedule_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  std::optional<Boundary>& boundary(int to_stage, int microbatch) {
    return known_[static_cast<std::size_t>(to_stage)][static_cast<std::size_t>(microbatch)];
  }
  Link& link_of(const Transfer& transfer) const;
  void begin_receiving(Expected& expected);

  Connections& connections_;
  const Schedule& schedule_;
  Boundaries& known_;
  bool announces_;
  std::map<const Link*, std::list<Expected>> expected_;
};

}  // namespace intarsia::pipeline

// Sharding: the groups of a sharded model, and when each is gathered, dropped and reduced.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/fully_shard.h"
#include "parallel/gradients/after_failure.h"
#include "parallel/gradients/backward_rounds.h"
#include "parallel/sharded/gathered_groups.h"
#include "parallel/sharded/group_orders.h"
#include "parallel/sharded/group_reductions.h"
#include "parallel/sharded/shard_group.h"
#include "tensor/core/on_use.h"

namespace intarsia {

/// Groups of parameters, in which order they are gathered and reduced, and when they are dropped.
///
/// Parameters own it, by what their tensors remember; it knows them only weakly.
/// THREADS: any; one lock, held while something is waited for.
class Sharding final : public UseSource, public std::enable_shared_from_this<Sharding> {
 public:
  Sharding(std::vector<ParameterGroup> groups, const FullyShardOptions& options,
           std::shared_ptr<World> world, const Mesh& mesh);

  /// Lets the parameters know where they come from.
  void attach();
  /// By parameter; undefined where it is gone.
  std::vector<at::Tensor> parameters() const;
  /// Takes the gradient of a parameter in the backward that runs.
  void take_gradient(std::size_t index, const at::Tensor& gradient);

  // ---- UseSource -------------------------------------------------------------------------------
  at::Tensor in_use(std::size_t index) override;
  Layout layout_in_use(std::size_t index) const override;
  void written(std::size_t index) override;
  std::uint64_t writes() const override { return writes_; }

  // ---- FullyShard, see there -------------------------------------------------------------------
  void finish();
  void release();
  void hold();
  void let_go();
  void forget();
  void reduce();
  std::size_t gathered() const;
  std::size_t most_gathered() const { return gathers_.most(); }
  std::vector<GroupReport> groups() const;
  bool set_sync(bool on);

 private:
  using Index = GroupIndex;

  void enter(Index g);
  void use(Index g);
  void step_to(std::size_t position, bool used);
  void finish_phase();
  void begin_phase(Phase phase);
  std::optional<std::size_t> position_of(Index g) const;

  void watch_backward();
  void backward_ended(int task);
  void begin_backward();
  void leave_failed_backward();
  void end_backward();

  const FullyShardOptions options_;
  const std::shared_ptr<World> world_;
  const Mesh mesh_;
  std::vector<std::unique_ptr<ShardGroup>> groups_;
  std::vector<std::pair<Index, std::size_t>> places_;  // by parameter

  mutable std::recursive_mutex mutex_;
  std::atomic<std::uint64_t> writes_ = 0;
  GroupOrders orders_;
  std::uint64_t steps_ = 0;

  GatheredGroups gathers_;
  Phase phase_ = Phase::forward;
  bool running_ = false;  // somewhere between the first use of a phase and its end
  bool trains_ = false;   // a backward follows this forward: as its first use on this rank says
  std::size_t next_ = 0;  // the position in the order that was not yet entered

  bool sync_ = true;
  bool held_ = false;   // all groups are gathered until `let_go`
  bool keeps_ = false;  // gradients stay unreduced until `reduce`
  BackwardRounds rounds_;
  std::string broken_;  // why the ranks cannot go on
  GroupReductions reductions_;
};

}  // namespace intarsia

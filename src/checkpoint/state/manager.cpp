#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>

#include "base/text.h"
#include "checkpoint/session/background.h"
#include "checkpoint/session/retention.h"
#include "checkpoint/session/save_step.h"
#include "checkpoint/state/tensor_state.h"
#include "checkpoint/store/all_files.h"
#include "intarsia/checkpoint_manager.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

using checkpoint::all_files;
using checkpoint::LocalStep;

constexpr std::string_view kWhere = "CheckpointManager";

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// What one rank that lives here saves, and the memory for its copy, which is used again.
struct RankJob {
  std::vector<checkpoint::SavedTensor> saved;
  checkpoint::RankState state;
  std::optional<LocalStep> step;
  std::exception_ptr error;  // told to all ranks when they meet
  at::Tensor pool;
};

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0
                               : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// A group of all ranks in which nobody else makes calls, so that a thread may.
Comm own_group(World& world, std::string_view purpose) {
  const std::vector<std::string> axes{"world"};
  return world.along(checkpoint::mesh_of_all(world), axes, purpose);
}

const std::string& checked(const std::string& folder, const CheckpointManagerOptions& options) {
  if (options.every < 0 || options.keep < 0) {
    fail<ValueError>(kWhere, "every is ", options.every, " and keep ", options.keep,
                     "; neither may be less than 0");
  }
  return folder;
}

/// Removes what a crash has left. REQUIRES: nobody writes there now; the second folder's turn comes
/// after this.
void sweep(std::initializer_list<std::string> folders) {
  for (const std::string& folder : folders) {
    if (folder.empty() || !all_files().exists(folder)) continue;
    checkpoint::remove_unfinished(all_files(), folder);
  }
}

}  // namespace

class CheckpointManager::Impl {
 public:
  Impl(std::shared_ptr<World> world, const std::string& folder,
       const CheckpointManagerOptions& options)
      : world_(std::move(world)),
        folder_(checked(folder, options)),
        options_(options),
        save_options_{.replace = options.replace, .check_replicas = options.check_replicas},
        ranks_(own_group(*world_, "checkpoints")),
        requests_(own_group(*world_, "checkpoint requests")),
        jobs_(world_->hosted().size()) {
    checkpoint::check_world(kWhere, *world_);
  }

  ~Impl() {
    try {
      wait();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool due(std::int64_t step) {
    const bool is_first = std::exchange(is_first_, false) && options_.first;
    const bool is_asked = options_.heed_requests && heed();
    const bool is_turn = options_.every > 0 && step > 0 && step % options_.every == 0;
    return (is_first || is_asked || is_turn) && last_ != step;
  }

  void save(std::int64_t step, const NamedTensors& tensors, const CheckpointValues& values) {
    wait();
    {
      const std::lock_guard lock(mutex_);
      ++times_.saves;
    }
    last_good_ = std::exchange(last_, step);
    in_first_ = false;
    plan(checkpoint::converted(kWhere, tensors, options_.form, options_.hf_dtype), values);
    staged_.reset();
    may_write_.reset();
    if (options_.mode == SaveMode::overlapped) {
      for (const auto& [name, tensor] : tensors) versions_.push_back(version_of(tensor));
      held_ = tensors;
      background_.start([this, step] {
        stage();
        staged_.set();
        may_write_.wait();
        write(step);
      });
      return;
    }
    stage();
    background_.start([this, step] { write(step); });
    if (options_.mode == SaveMode::wait) wait();
  }

  void wait_staged() {
    if (held_.empty() && versions_.empty()) {
      may_write_.set();
      return;
    }
    const Stopwatch watch;
    staged_.wait();
    add(&CheckpointTimes::waiting, watch);
    for (std::size_t t = 0; t < held_.size(); ++t) {
      if (version_of(held_[t].second) == versions_[t]) continue;
      const auto error = std::make_exception_ptr(ValueError(
          concat('[', kWhere, "] '", held_[t].first,
                 "' was changed before wait_staged(): call it before the optimizer's step")));
      for (RankJob& job : jobs_) job.error = error;
      break;
    }
    held_.clear();
    versions_.clear();
    may_write_.set();
  }

  void wait() {
    wait_staged();
    const Stopwatch watch;
    try {
      background_.wait();
      if (options_.mode != SaveMode::wait) add(&CheckpointTimes::waiting, watch);
    } catch (const std::exception& error) {
      if (!in_first_) last_ = last_good_;
      const auto* failure = dynamic_cast<const Failure*>(&error);
      const bool is_of_world = failure != nullptr && failure->kind() == Failure::Kind::world;
      {
        const std::lock_guard lock(mutex_);
        ++times_.failures;
      }
      if (options_.stop_on_failure || is_of_world) throw;
      if (hosts_first()) std::fprintf(stderr, "%s; training goes on\n", error.what());
    }
  }

  bool busy() const { return background_.running(); }
  void request_stop() noexcept { requested_ = true; }
  bool stop_requested() const { return stop_; }
  std::optional<std::int64_t> last_step() const { return last_; }

  CheckpointTimes times() const {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  /// Asks all ranks. True once, on all of them, if one was asked to stop; throws what failed.
  bool heed() {
    if (world_->hosted().empty()) return false;
    std::int64_t said = (requested_ ? 1 : 0) + (background_.failed() ? 2 : 0);
    if (!world_->in_lockstep() && world_->size() > 1) {
      const at::Tensor all =
          all_gather(requests_,
                     at::full({1}, said, at::TensorOptions(at::kLong).device(world_->device())), 0)
              .tensor()
              .cpu();
      for (std::int64_t i = 0; i < all.numel(); ++i) said |= all.const_data_ptr<std::int64_t>()[i];
    }
    if ((said & 2) != 0) wait();
    return (said & 1) != 0 && !std::exchange(stop_, true);
  }

  void plan(const NamedTensors& tensors, const CheckpointValues& values) {
    const at::NoGradGuard no_grad;
    for (std::size_t r = 0; r < jobs_.size(); ++r) {
      const std::int64_t rank = world_->hosted()[r];
      RankJob& job = jobs_[r];
      job.step.reset();
      job.error = nullptr;
      try {
        job.saved = checkpoint::types_of(kWhere, *world_, tensors);
        job.state = checkpoint::state_of(*world_, tensors, rank);
        job.step.emplace(checkpoint::StepState{.tensors = job.saved,
                                               .pieces = job.state.pieces,
                                               .values = checkpoint::values_json(kWhere, values),
                                               .hf_file_bytes = checkpoint::hf_file_bytes(
                                                   kWhere, options_.form, options_.hf_file_bytes)},
                         rank, world_->size());
      } catch (...) {
        job.error = std::current_exception();
      }
    }
  }

  /// Copies what will be written.
  void stage() {
    const Stopwatch watch;
    for (RankJob& job : jobs_) {
      if (job.error) continue;
      try {
        if (options_.check_replicas) job.step->hash_replicas();
        const auto bytes = static_cast<std::int64_t>(job.step->staged_bytes());
        if (!job.pool.defined() || job.pool.numel() < bytes) {
          job.pool.reset();  // before the new one is taken
          job.pool = at::empty({bytes}, at::kByte);
        }
        job.step->stage(checkpoint::memory_of(job.pool));
      } catch (...) {
        job.error = std::current_exception();
      }
      job.state = {};
    }
    add(&CheckpointTimes::staging, watch);
  }

  void write(std::int64_t step) {
    const Stopwatch watch;
    checkpoint::lower_priority();
    write_to(folder_, step);
    in_first_ = true;
    add(&CheckpointTimes::writing, watch);
    if (hosts_first()) remove_old();
    if (options_.also.empty()) return;
    const Stopwatch second;
    write_to(options_.also, step);
    add(&CheckpointTimes::writing, second);
  }

  void write_to(const std::string& folder, std::int64_t step) {
    if (hosts_first()) checkpoint::try_make_folders(folder);
    checkpoint::for_each_rank(*world_, ranks_, [&](checkpoint::Ranks& ranks) {
      const RankJob& job =
          jobs_[world_->in_lockstep() ? static_cast<std::size_t>(ranks.rank()) : 0];
      const auto make = [&] {
        if (job.error) std::rethrow_exception(job.error);
        return *job.step;
      };
      checkpoint::save_local_step(all_files(), ranks, folder, step, make, save_options_);
    });
  }

  /// The step is safe: what cannot be removed is told, and tried again after the next.
  void remove_old() {
    const Stopwatch watch;
    try {
      if (!std::exchange(is_swept_, true)) sweep({folder_, options_.also});
      if (options_.keep > 0) checkpoint::remove_old_steps(all_files(), folder_, options_.keep);
    } catch (const FileError& error) {
      std::fprintf(stderr, "%s; old steps stay\n", error.what());
    }
    add(&CheckpointTimes::removing, watch);
  }

  bool hosts_first() const { return !world_->hosted().empty() && world_->hosted()[0] == 0; }

  void add(double CheckpointTimes::*part, const Stopwatch& watch) {
    const std::lock_guard lock(mutex_);
    times_.*part += watch.seconds();
  }

  std::shared_ptr<World> world_;
  std::string folder_;
  CheckpointManagerOptions options_;
  checkpoint::SaveOptions save_options_;
  Comm ranks_;     // the thread talks here
  Comm requests_;  // and after_step here
  std::vector<RankJob> jobs_;
  /// Overlapped, until wait_staged: the tensors, and the versions that are copied.
  NamedTensors held_;
  std::vector<std::uint32_t> versions_;
  checkpoint::Signal staged_;
  checkpoint::Signal may_write_;
  std::optional<std::int64_t> last_;
  std::optional<std::int64_t> last_good_;
  std::atomic<bool> in_first_{false};  // whether the step at hand is in the first folder
  bool is_first_ = true;
  bool is_swept_ = false;
  bool stop_ = false;
  std::atomic<bool> requested_{false};
  mutable std::mutex mutex_;
  CheckpointTimes times_;
  checkpoint::Background background_;  // the last: its thread uses the others
};

CheckpointManager::CheckpointManager(std::shared_ptr<World> world, std::string folder,
                                     const CheckpointManagerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(world), folder, options)) {}

CheckpointManager::~CheckpointManager() = default;

bool CheckpointManager::after_step(std::int64_t step, const NamedTensors& tensors,
                                   const CheckpointValues& values) {
  if (!due(step)) return false;
  save(step, tensors, values);
  return true;
}

bool CheckpointManager::due(std::int64_t step) { return impl_->due(step); }

void CheckpointManager::save(std::int64_t step, const NamedTensors& tensors,
                             const CheckpointValues& values) {
  impl_->save(step, tensors, values);
}

void CheckpointManager::finish(std::int64_t step, const NamedTensors& tensors,
                               const CheckpointValues& values) {
  impl_->wait();
  if (impl_->last_step() != step) impl_->save(step, tensors, values);
  impl_->wait();
}

void CheckpointManager::wait_staged() { impl_->wait_staged(); }
void CheckpointManager::wait() { impl_->wait(); }
void CheckpointManager::request_stop() noexcept { impl_->request_stop(); }
bool CheckpointManager::stop_requested() const { return impl_->stop_requested(); }
bool CheckpointManager::busy() const { return impl_->busy(); }
std::optional<std::int64_t> CheckpointManager::last_step() const { return impl_->last_step(); }
CheckpointTimes CheckpointManager::times() const { return impl_->times(); }

}  // namespace intarsia

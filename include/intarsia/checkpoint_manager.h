// CheckpointManager: checkpoints of a run, saved behind its training loop.
//
//   CheckpointManager checkpoints(world, "runs/a", {.every = 1000});
//   for (...) {
//     ...                                                  // forward, backward, optimizer step
//     checkpoints.after_step(step, tensors_of(net), {{"sample", std::to_string(sample)}});
//   }
//   checkpoints.finish(step, tensors_of(net));             // saves the last step too
//
// What is saved is a copy of the moment of the call, whatever training does to the tensors next.
// docs/checkpoints.md tells more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "intarsia/checkpoint.h"

namespace intarsia {

/// When a save does its work.
enum class SaveMode : std::uint8_t {
  /// `save` returns when the step is on the disk.
  wait,
  /// `save` copies what this rank writes, and returns; a thread writes it.
  behind,
  /// `save` returns at once; a thread copies while the next forward and backward run. `wait_staged`
  /// must be called before any of the tensors changes, which is before the optimizer's step.
  overlapped,
};

struct CheckpointManagerOptions {
  /// Every so many steps `after_step` saves. 0: none.
  std::int64_t every = 0;
  /// The first step that `after_step` sees is saved too.
  bool first = false;
  /// How many steps stay; older ones are removed when a newer one is on the disk. 0: all.
  std::int64_t keep = 10;
  SaveMode mode = SaveMode::behind;
  /// A second folder, such as one in an object store, that gets each step when the first has it,
  /// from the same copy. Nothing is removed there. If it cannot be written, the step stays in the
  /// first.
  std::string also = {};
  /// As for save_checkpoint.
  bool replace = false;
  bool check_replicas = true;
  CheckpointForm form = CheckpointForm::native;
  std::uint64_t hf_file_bytes = 5'000'000'000;
  std::optional<at::ScalarType> hf_dtype = std::nullopt;
  /// A save that failed stops the run. Not so: it is told on stderr, and training goes on.
  bool stop_on_failure = true;
  /// `after_step` heeds `request_stop`: it asks all ranks, by one small collective each step. What
  /// failed behind training then stops the run at the next step, instead of at the next save.
  bool heed_requests = false;
};

/// Seconds, all saves together. Blocked is what training waited for: staging (not overlapped), and
/// waiting.
struct CheckpointTimes {
  double staging = 0;   ///< copying what is written
  double waiting = 0;   ///< training, for copies and for a save before that was not done
  double writing = 0;   ///< behind it, or in `save`
  double removing = 0;  ///< old steps
  std::int64_t saves = 0;
  std::int64_t failures = 0;
};

/// Belongs to one folder and one run, which nobody else saves in: what a crash has left there is
/// removed after the first save. Errors of a save are those of save_checkpoint, and the same on all
/// ranks; where `save` does not wait, they come with the next `save`, `wait` or `finish`.
///
/// Saves are written one at a time: the next one waits until the one before is on the disk. The
/// memory for copies is taken once, and kept.
///
/// THREADS: one thread calls it; request_stop may come from anywhere.
class CheckpointManager {
 public:
  CheckpointManager(std::shared_ptr<World> world, std::string folder,
                    const CheckpointManagerOptions& options = {});
  /// Waits for what is being written. An error that nobody was told of goes to stderr.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Saves the step if it is due, and says whether it was. COLLECTIVE when it is, or if the manager
  /// heeds requests.
  bool after_step(std::int64_t step, const NamedTensors& tensors,
                  const CheckpointValues& values = {});
  /// Whether after_step would save it, for those whose state is dear to collect: once for each
  /// step.
  bool due(std::int64_t step);
  /// Saves the step. COLLECTIVE: all ranks of the world.
  void save(std::int64_t step, const NamedTensors& tensors, const CheckpointValues& values = {});
  /// Saves the step unless it was saved, and waits until all is on the disk. COLLECTIVE.
  void finish(std::int64_t step, const NamedTensors& tensors, const CheckpointValues& values = {});

  /// Returns when the tensors may change. A save whose tensors have changed before fails, if the
  /// change is one that autograd would see: not one through `.data()` or `local()`.
  void wait_staged();
  /// Returns when nothing is being written. Throws what has failed.
  void wait();

  /// Asks all ranks to save the next step and to stop then: for handlers of signals.
  void request_stop() noexcept;
  /// Whether a rank has asked, as all ranks know it since their last `after_step`.
  bool stop_requested() const;

  /// Whether a save is being copied or written now, on this rank.
  bool busy() const;
  /// The step that was saved last, or is being written; unset before the first.
  std::optional<std::int64_t> last_step() const;
  CheckpointTimes times() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace intarsia

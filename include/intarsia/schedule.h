// Pipeline schedules as data: what each rank does with its stages, action by action.
//
// A model is divided into stages, of which a rank has one or several. A schedule says in which
// order each rank computes them for the microbatches of a step, and what it sends:
//
//     const Schedule s = make_schedule(ScheduleKind::zb_v, {.ranks = 4, .microbatches = 8});
//     check(s);  // legal, or a ValueError that says what is not
//     std::cout << times_text(simulate(s));
//
// It is made by a generator, found by a search, written by hand or loaded from a file. Nothing of
// this needs torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

enum class ActionKind : std::uint8_t {
  forward,           ///< `F`
  backward,          ///< `B`: gradients of the stage's input and of its parameters
  input_backward,    ///< `I`: of the input only, so that the stage before can go on
  weight_backward,   ///< `W`: of the parameters, later
  send_forward,      ///< `SF`: the output, to the stage behind
  receive_forward,   ///< `RF`: the input, from the stage before; begins, and `F` waits for it
  send_backward,     ///< `SB`: the gradient of the input, to the stage before
  receive_backward,  ///< `RB`: that of the output, from the stage behind; `B` or `I` waits for it
  gather,            ///< `G`: the stage's parameters are gathered
  free,              ///< `X`: and given up
  reduce,            ///< `R`: its gradients are reduced over the other axes
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int microbatch = -1;     ///< none for gather, free and reduce
  int buffer = -1;         ///< which one is received into
  bool with_next = false;  ///< runs at the same time as the action behind it

  /// `3F5`, `3RF5@1`, `3G`; with the next: `3F5&`.
  std::string to_string() const;
  friend bool operator==(const Action&, const Action&) = default;
};

/// The actions of all ranks. The text form is
///
/// ```text
/// schedule 1f1b
/// microbatches 2
/// stages on ranks 0 1
/// rank 0: 0F0 0SF0 0F1 0SF1 0RB0@0 0B0 0RB1@0 0B1
/// rank 1: 1RF0@0 1RF1@1 1F0 1B0 1SB0 1F1 1B1 1SB1
/// ```
struct Schedule {
  std::string name;
  int microbatches = 0;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> ranks;  ///< their actions

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  std::string to_string() const;
  /// ValueError where it cannot be read. Whether it is legal, `check` says.
  static Schedule parse(std::string_view text);
  static Schedule load(const std::string& path);
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// ---- generators ---------------------------------------------------------------------------------

enum class ScheduleKind : std::uint8_t {
  gpipe,        ///< all forwards, then all backwards
  one_f_one_b,  ///< backwards as soon as they can run
  interleaved,  ///< the same with several stages on each rank, which shortens the bubble
  looped_bfs,   ///< several stages on each rank, all microbatches stage by stage
  zb_h1,        ///< 1F1B with weight gradients in the gaps
  zb_v,         ///< two stages on each rank, there and back: hardly a gap, memory of 1F1B
  v_half,       ///< the same with half of the memory
  dual_pipe_v,  ///< the same with a forward and a backward at a time
};

/// `gpipe`, `1f1b`, `interleaved`, `looped-bfs`, `zb-h1`, `zb-v`, `v-half`, `dualpipe-v`.
std::string_view to_text(ScheduleKind kind);
/// ValueError for an unknown name.
ScheduleKind parse_schedule_kind(std::string_view text);
const std::vector<ScheduleKind>& schedule_kinds();

struct ScheduleShape {
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;  ///< stages on each rank; the V-shaped kinds have two
};

/// Why a kind has no schedule of this shape; nothing where it has one.
std::optional<std::string> refusal(ScheduleKind kind, const ScheduleShape& shape);

/// ValueError where `refusal` says why. Sends, receives and buffers are in it.
Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);

/// Adds sends, receives one action ahead, and the fewest buffers to actions that compute; what is
/// there of these is replaced.
Schedule with_transfers(Schedule schedule);

/// Adds that parameters are gathered where a stage computes and given up again, so that a rank has
/// those of at most so many stages at a time (or of both of a pair), and that gradients of a stage
/// are reduced behind its last backward.
Schedule with_gathers(Schedule schedule, int most_gathered);

/// Its forwards alone, for an evaluation.
Schedule without_backward(Schedule schedule);

// ---- checks -------------------------------------------------------------------------------------

/// What a legal schedule needs. One without any backward is for an evaluation.
struct ScheduleFacts {
  std::vector<int> live;  ///< by rank: most microbatches of stages between F and their last B or W
  std::vector<int> gathered;  ///< most stages whose parameters are gathered at a time
  std::vector<int> buffers;   ///< that are received into
  std::size_t transfers = 0;
  /// Empty where the ranks of a pair could also share one channel for both directions; else how
  /// they would wait for each other for ever.
  std::string shared_channel_deadlock;
};

/// ValueError that names the first fault: an action on a rank that does not have the stage, twice,
/// missing, before what it needs, or with a buffer that is still in use; transfers that two ranks
/// have in different orders; ranks that wait for each other, with the circle.
ScheduleFacts check(const Schedule& schedule);

// ---- times --------------------------------------------------------------------------------------

/// Of one stage and microbatch.
struct StageCosts {
  double forward = 1;
  double input_backward = 1;
  double weight_backward = 1;
  double activation = 1;   ///< bytes from the forward on
  double for_weights = 1;  ///< bytes of them that are still held between `I` and `W`
};

struct ScheduleCosts {
  std::vector<StageCosts> stages = {{}};  ///< one for each stage, or one for all
  double transfer = 0;                    ///< of an activation or a gradient to another rank
  bool transfers_overlap = true;          ///< else a rank does nothing else while it sends
  /// How long a pair of actions takes at a time, in parts of the sum of both.
  double together = 1;

  const StageCosts& of(int stage) const {
    return stages[stages.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
  }
};

struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

struct ScheduleTimes {
  double total = 0;              ///< from the first begin to the last end
  std::vector<double> computes;  ///< by rank
  std::vector<double> peak;      ///< bytes of activations, by rank
  double bubble = 0;             ///< the largest part of `total` in which a rank computes nothing
  std::vector<std::vector<TimedAction>> ranks;  ///< what computes, in order
};

/// When everything happens by these costs. REQUIRES: the schedule is legal.
ScheduleTimes simulate(const Schedule& schedule, const ScheduleCosts& costs = {});

/// A line for each rank, a column for each `unit` of time.
std::string times_text(const ScheduleTimes& times, double unit = 1);
std::string times_svg(const ScheduleTimes& times, std::string_view title);
/// For Perfetto and chrome://tracing; `microseconds`: how many of them a unit of cost is.
std::string times_trace(const ScheduleTimes& times, double microseconds = 1);

// ---- search -------------------------------------------------------------------------------------

struct SearchOptions {
  int ranks = 1;
  int microbatches = 1;
  ScheduleCosts costs = {};  ///< of a stage where there is one on each rank; one for all
  double most_bytes = 0;     ///< of activations on a rank; 0: no limit
};

/// A schedule that was tried, with costs for its stages: where a rank has several, each has its
/// part.
struct FoundSchedule {
  Schedule schedule;
  ScheduleCosts costs;
  ScheduleTimes times;
};

/// The fastest of all generators and of schedules that are made for these costs, if any fits into
/// the memory.
std::optional<FoundSchedule> search_schedule(const SearchOptions& options);
/// That of the generators alone.
std::optional<FoundSchedule> best_named_schedule(const SearchOptions& options);

}  // namespace intarsia

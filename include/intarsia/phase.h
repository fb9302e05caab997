// Phases of a program: what a rank does beside its calls, and which rank is slow, and in what.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

/// While it lives, the program of this process is in this phase. Other ranks that wait say so:
/// `rank 3 is in data since 12 s`. Names are the program's own; some have a meaning. What comes
/// after `data` is `forward`, what comes after `backward` belongs to `optimizer`, and with
/// `optimizer` a step ends:
///
///     torch::Tensor x;
///     {
///       const Phase phase("data");
///       x = torch::ones({2}, torch::requires_grad());
///     }
///     const torch::Tensor loss = (2 * x).sum();  // forward
///     {
///       const Phase phase("backward");
///       loss.backward();
///     }
///
/// A phase inside of another one ends before it; then the outer one goes on. The Python package
/// marks data (DataLoader), backward and optimizer by itself. THREADS: one at a time.
class Phase {
 public:
  explicit Phase(std::string_view name);
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
};

/// How long one rank's steps take: medians of the last ones, in seconds.
struct RankTimes {
  struct OfPhase {
    std::string phase;
    double seconds = 0;  ///< without the time that the rank waited for others
  };
  std::int64_t rank = 0;
  std::uint64_t steps = 0;   ///< of which the medians are
  std::vector<OfPhase> own;  ///< in the order in which the rank came to the phases
  double waited = 0;         ///< for other ranks

  double of(std::string_view phase) const;
  double total() const;  ///< of a step
};

/// The times of all ranks whose boards this process reaches (docs/guard.md), of the newest world or
/// watched program; of this process alone where there is none. Not collective: nothing is sent.
std::vector<RankTimes> step_times();

/// A rank that others wait for.
struct Straggler {
  std::int64_t rank = 0;
  std::string phase;   ///< in which it loses most
  double seconds = 0;  ///< what it takes there in a step
  double others = 0;   ///< what the others do, their median
  double share = 0;    ///< of a step that is lost

  /// `rank 2 is slow in data: 0.121 s of a step where others take 0.080 s, 18 % of the step`
  std::string to_string() const;
};

/// The rank and the phase that lose most, if that is at least `least_share` of a step.
std::optional<Straggler> find_straggler(std::span<const RankTimes> times, double least_share = 0.1);

/// Times in the text format of Prometheus: intarsia_own_seconds{rank="2",phase="data"} 0.121
std::string to_prometheus(std::span<const RankTimes> times);

}  // namespace intarsia

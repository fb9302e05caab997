// Step times: how long a training step takes on ranks that need not exist.
//
// `predict` (predict.h) notes what a rank does in a step, without doing it: the kernels it runs,
// the collectives it begins, where it waits for them. With what `intarsia calibrate` measured on
// the machines of a job, that becomes a time:
//
//     const std::vector<StepEvent> events{{.name = "mm", .products = 2e9, .bytes = 24e6}};
//     StepCosts costs;
//     costs.topology.flops = 1e11;
//     const StepTime time = step_time(events, costs, Mesh({{"dp", 8}}));
//     std::cout << time.to_string() << time.total;  // 0.02
//
// Nothing of this needs torch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "intarsia/mesh.h"
#include "intarsia/topology.h"

namespace intarsia {

/// What a rank does, one after the other.
struct StepEvent {
  enum class Kind : std::uint8_t {
    kernel,      ///< computes
    collective,  ///< begins one
    wait,        ///< for a collective that it began
  };
  Kind kind = Kind::kernel;
  std::string name = {};  ///< of the op or collective, without overload: `mm`, `all_reduce`

  double products = 0;    ///< kernel: operations of matrix products, of each that it computes
  double count = 1;       ///< kernel: how many products; their sizes decide how fast they are
  double attention = 0;   ///< kernel: operations of attention
  double head_size = 0;   ///< of attention
  double elements = 0;    ///< kernel: of the longest operand or result
  double bytes = 0;       ///< kernel: read and written; collective: of the longer buffer
  bool in_place = false;  ///< kernel: makes no new tensor
  bool is_call = false;  ///< kernel: no kernel, but what an op on a distributed tensor takes itself

  /// collective: among these.
  std::shared_ptr<const std::vector<std::int64_t>> ranks = {};
  std::size_t of = 0;  ///< wait: the place of the collective among the events
};

/// The order of a step: what is sent, where the rank waits for it, and what it computes in between.
///
/// ```text
/// computes     14 kernels, 23 calls: mm 4, silu 2, mul 2, ...
/// begins   #1  all_gather of 1.5 MiB among 8 ranks
/// computes     3 kernels, 5 calls: mm 1, ...
/// waits    #1
/// ```
std::string schedule_text(std::span<const StepEvent> events);

/// A figure that depends on a size, at sizes that were measured. Between them it is interpolated by
/// logarithms; beyond them the nearest holds.
class Curve {
 public:
  using Point = std::pair<double, double>;

  Curve() = default;
  /// ValueError unless sizes ascend and all numbers are above 0.
  explicit Curve(std::vector<Point> points);
  bool empty() const { return points_.empty(); }
  double at(double size) const;
  const std::vector<Point>& points() const { return points_; }
  friend bool operator==(const Curve&, const Curve&) = default;

 private:
  std::vector<Point> points_;
};

/// What computing and communicating costs a rank. The file of `intarsia calibrate` holds it: a
/// topology, and in its entry `compute` the rest. What was not measured follows from the topology.
struct StepCosts {
  Topology topology = Topology::standard();
  double call = 0;      ///< seconds that an op on a distributed tensor takes beside its kernel
  Curve products = {};  ///< operations per second, by operations of one product
  Curve memory = {};    ///< bytes per second of ops that make a new tensor, by bytes
  std::map<std::string, double> seconds_per_element = {};  ///< of ops that take longer
  Curve attention = {};           ///< operations per second, by the size of heads
  Curve attention_backward = {};  ///< likewise
  /// By name and number of ranks: seconds, by bytes of the longer buffer.
  std::map<std::pair<std::string, std::int64_t>, Curve> collectives = {};
  /// By how many seconds ranks come apart in a second of computing; in other times by the root of
  /// them, as it is chance. A collective begins when the last rank comes.
  double skew = 0;
  /// Which part of a collective hides behind what is computed meanwhile: 1 where it takes nothing
  /// of the processor.
  double hides = 1;

  /// ValueError for unknown names, as of Topology.
  static StepCosts parse(std::string_view json);
  static StepCosts load(const std::string& path);
  std::string to_json() const;
  friend bool operator==(const StepCosts&, const StepCosts&) = default;
};

/// A step on a clock.
struct StepTime {
  struct Part {
    std::string name;
    bool sends = false;
    double begin = 0;
    double end = 0;
  };
  double total = 0;     ///< seconds
  double computes = 0;  ///< of them, in kernels and calls
  double waits = 0;     ///< of them, for collectives, or slowed down by them
  double sends = 0;     ///< what collectives take by themselves
  std::vector<Part> parts;

  /// `12.3 ms: computes 10.1 ms, sends 4.4 ms, of which 2.2 ms are hidden`.
  std::string to_string() const;
  /// For Perfetto and chrome://tracing: a track of what is computed, one of what is sent.
  std::string to_trace() const;
};

/// Kernels run one after the other; collectives too, beside them. All ranks are taken to do the
/// same as this one.
StepTime step_time(std::span<const StepEvent> events, const StepCosts& costs, const Mesh& mesh);

}  // namespace intarsia

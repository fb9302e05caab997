// From measured times to what moving data costs. No torch.
#pragma once

#include <span>
#include <vector>

#include "intarsia/topology.h"

namespace intarsia::tools {

/// How long a collective took.
struct Timing {
  double messages = 0;  ///< that each rank received, one after the other
  double bytes = 0;     ///< that each rank received
  double seconds = 0;
};

/// `overhead + messages * latency + bytes / bandwidth`.
double seconds_of(const Link& link, double messages, double bytes);

/// The link whose times are nearest to these: the least sum of squares of relative errors, of those
/// without negative figures. What cannot be told apart, because all have as many messages, is
/// overhead. Where times do not grow with bytes the bandwidth is infinite.
/// REQUIRES: at least one timing, and seconds above 0.
Link fit_link(std::span<const Timing> timings);

/// A time of which a part is known, and the rest is a multiple of `unit`.
struct Scaled {
  double known = 0;
  double unit = 0;
  double seconds = 0;
};

/// The factor by which `known + factor * unit` comes nearest to the seconds, by relative errors; 1
/// where none above 0 does, since what is known takes all the time.
double fit_factor(std::span<const Scaled> times);

/// How far `fitted` is off, relative to what was measured: 0.1 is a tenth too long.
double relative_error(double fitted, double measured);

/// The middle value; of an even number, the mean of the two in the middle. REQUIRES: not empty.
double median(std::vector<double> values);

/// With four digits that count, which is more than measurements have.
double rounded(double value);

}  // namespace intarsia::tools

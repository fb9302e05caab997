// Topology: what moving data between the ranks of a job costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/mesh.h"

namespace intarsia {

/// What it costs a group of ranks to exchange data.
struct Link {
  double latency = 0;   ///< seconds that each message takes on its way
  double overhead = 0;  ///< seconds to start and to end a collective
  /// Bytes per second that a rank receives while all receive.
  double bandwidth = std::numeric_limits<double>::infinity();
  friend bool operator==(const Link&, const Link&) = default;
};

/// Links by level (inside a node, across nodes, across racks), and for single axes or sets of
/// axes that behave otherwise: a value that plans are priced by. Every rank must use the same one.
///
/// Written by `intarsia calibrate`, or by hand:
///
///   { "copy_gigabytes_per_s": 1000, "gigaflops": 60000,
///     "levels": [
///       { "name": "node", "ranks": 8, "latency_us": 2, "overhead_us": 8, "gigabytes_per_s": 200 },
///       { "name": "cluster", "latency_us": 8, "overhead_us": 15, "gigabytes_per_s": 25 } ],
///     "axes": [
///       { "axes": ["dp", "tp"], "latency_us": 8, "overhead_us": 15, "gigabytes_per_s": 60 } ],
///     "relative": { "all_gather": 0.9, "all_reduce": 1.2, "attention": 0.5 } }
///
/// A group belongs to the first level that holds all its ranks: of a level of 8 ranks, ranks 0..7,
/// 8..15 and so on are neighbours. The last level holds all.
struct Topology {
  struct Level {
    std::string name = {};
    std::int64_t ranks = 0;  ///< how many neighbours it joins; 0: all
    Link link = {};
    friend bool operator==(const Level&, const Level&) = default;
  };
  struct Fused {
    std::vector<std::string> axes = {};  ///< names, in any order
    Link link = {};
    friend bool operator==(const Fused&, const Fused&) = default;
  };

  /// The innermost first. Never empty.
  std::vector<Level> levels = {{}};
  /// Links of axes, alone or together, that differ from those of their level.
  std::vector<Fused> axes = {};
  /// Bytes per second of a copy within a rank.
  double copy_bandwidth = std::numeric_limits<double>::infinity();
  /// Operations per second of a rank's matrix products, in float32: they tell how much
  /// communication can hide behind computation.
  double flops = std::numeric_limits<double>::infinity();
  /// What a byte costs in the backend's own collectives, relative to one in an all-to-all.
  double all_gather = 1;
  double all_reduce = 1;
  /// Operations per second of attention's kernels, relative to matrix products.
  double attention = 0.5;

  /// What is assumed where nothing was declared: one level on which starting a collective costs
  /// as much as 8 KiB, and a message as much as 1 KiB; a rank multiplies and adds 50 times while a
  /// byte arrives.
  static Topology standard();
  /// Reads the text above; unknown names are refused.
  static Topology parse(std::string_view json);
  /// Reads a file.
  static Topology load(const std::string& path);
  std::string to_json() const;

  /// The link of the groups of ranks that differ along these axes only (indices of mesh axes).
  const Link& link(const Mesh& mesh, std::span<const std::int8_t> axes) const;

  friend bool operator==(const Topology&, const Topology&) = default;
};

}  // namespace intarsia

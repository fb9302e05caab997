// Collectives over symmetric memory, of flat buffers on the host.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "intarsia/placement.h"
#include "intarsia/symmetric_memory.h"

namespace intarsia {

/// The collectives of one rank. A call is a sequence of rounds, which all ranks of the group count
/// alike. In each a rank puts the next of what it brings into one of its slots, and takes what it
/// needs from the slots of the others; it signals both. It puts ahead as long as there are slots
/// from which all have taken what they need.
///
/// Reductions combine partial values in the order of ranks. Calls return when the rank has what it
/// needs. WorldError when ranks do not come, or call different things; the memory is then of no
/// further use. THREADS: one at a time.
class SharedCollectives {
 public:
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;

  /// The memory that each rank must have.
  static constexpr std::size_t bytes() { return kSlots * kSlotBytes; }

  /// `names`: what errors call the ranks. REQUIRES: memory of `bytes()`, which outlives this.
  SharedCollectives(SymmetricMemory& memory, std::vector<std::int64_t> names,
                    std::chrono::milliseconds timeout);

  /// `out`: as many parts of the length of `in` as there are ranks.
  void all_gather(Bytes out, ConstBytes in);
  /// One part to each rank, and one from each.
  void all_to_all(const std::vector<Bytes>& out, const std::vector<ConstBytes>& in);
  void broadcast(Bytes inout, int root);
  void all_reduce(Bytes inout, at::ScalarType type, const Placement& how);
  /// `in`: as many parts of the length of `out` as there are ranks.
  void reduce_scatter(Bytes out, ConstBytes in, at::ScalarType type, const Placement& how);
  void barrier();

 private:
  // Small enough to stay in a core's cache, large enough that ranks seldom wait for each other.
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 18;
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kNothing = static_cast<std::size_t>(-1);

  /// What this rank brings to a call.
  struct Brought {
    std::string what;               // in words that must be the same on all ranks
    std::vector<ConstBytes> parts;  // one for all ranks, or one for each but this
    std::size_t unit = 1;           // parts are split at multiples of so many bytes
    std::uint64_t rounds = 1;       // over which they are spread
  };
  /// What a rank takes from another in a round, and where that begins in the part.
  struct Arrived {
    std::size_t begin = 0;
    ConstBytes bytes = {};
  };

  /// How many rounds are needed for so many bytes in so many parts.
  std::uint64_t rounds_for(std::size_t bytes, std::size_t parts, std::size_t unit) const;
  std::size_t head_bytes() const;

  /// Runs a call. `expected`: the bytes that come from each rank, or kNothing. `take` gets the
  /// round, and what arrived in it, by rank.
  template <class Take>
  void run(const Brought& brought, const std::vector<std::size_t>& expected, const Take& take);
  /// Whether all ranks have taken what was in the slot that comes next.
  bool has_room() const;
  void put(const Brought& brought, std::uint64_t round);
  /// What a rank has put for this one in this round. Raises `rounds` to those of that rank.
  Arrived look(std::size_t from, const Brought& brought, std::uint64_t round, std::size_t expected,
               std::uint64_t& rounds) const;
  /// Where a rank puts what it brings to a round, as all rounds of the group are counted.
  std::byte* slot_of(std::size_t rank, std::uint64_t count) const;

  /// Runs a call that copies what comes from the others to `out`, by rank.
  void copy_to(const std::vector<Bytes>& out, const Brought& brought);
  /// Combines the parts that all ranks have for this one, into `out`, which may be that part.
  void reduce(std::string what, std::byte* out, const std::vector<ConstBytes>& parts,
              at::ScalarType type, const Placement& how);

  SymmetricMemory& memory_;
  std::vector<std::int64_t> names_;
  std::chrono::milliseconds timeout_;
  SymmetricMemory::Clock::time_point deadline_;  // of the call under way
  std::size_t me_;
  std::size_t n_;
  std::uint64_t put_ = 0;    // rounds in which this rank has put something
  std::uint64_t taken_ = 0;  // rounds of which it has taken what it needs
  std::array<std::size_t, kSlots> reserved_{};
};

}  // namespace intarsia

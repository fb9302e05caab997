// The prover: runs the rule of an op on many ranks and layouts, and compares it with the op on full
// tensors.
//
//     const Proof proof = prove("aten::mm");
//     if (!proof.holds()) std::cout << proof.to_string();
//
// A user's own op is proven with samples of its own, in text form:
//
//     prove_samples({"mylib::scaled_mm(f64[6, 4], f64[4, 5])",
//                    "mylib::scaled_mm(f64[3, 1], f64[1, 2], scale=2.0)"});
//
// An op that has no rule is run on full tensors. The prover then lists as missing the rows that a
// rule could have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

struct ProofOptions {
  /// Sizes of the one axis on which all combinations of placements are tried.
  std::vector<std::int64_t> ranks = {2, 3, 4};
  /// The most combinations that are tried for each sample and size; of more, a sample of them.
  std::size_t combinations = 256;
  /// How many combinations are tried for each sample on each mesh of two and three axes.
  std::size_t sampled = 12;
  /// Proves gradients too.
  bool backward = true;
  /// Proves the forms in place and with out= too, where there are some.
  bool variants = true;
  /// Looks for rows that the rule could have.
  bool missing = true;
  /// At most so many samples of the op; 0: all.
  std::size_t samples = 0;
  std::uint64_t seed = 1;
  /// Stops after so many counter-examples: one rule can be wrong in a thousand calls.
  std::size_t counter_examples = 5;
};

/// A call whose result differs from that of the op on full tensors.
struct CounterExample {
  /// `aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]`: the call, the layouts of its tensors,
  /// and the mesh. `prove_case` runs it again. Where the rule itself is at fault, because two of
  /// its rows have the same inputs, the sample alone.
  std::string call;
  std::string difference;
};

/// A row that the table does not offer, though the op on the pieces gives the pieces of the result.
struct MissingRow {
  std::string row;     ///< `S(0),P -> P`
  std::string sample;  ///< a call for which it holds
};

struct Proof {
  std::string op;
  std::size_t samples = 0;
  std::size_t cases = 0;              ///< calls compared with the op on full tensors
  std::size_t gradients = 0;          ///< of which with gradients
  std::vector<CounterExample> wrong;  ///< one for each way of being wrong, made as small as can be
  std::vector<MissingRow> missing;

  bool holds() const { return wrong.empty(); }
  std::string to_string() const;
};

/// The ops that have samples, with overload: `aten::mm`, `aten::sum.dim_IntList`, ...
std::vector<std::string> provable_ops();

/// Proves one op, with all overloads that have samples if none is named: `mm`, `aten::sum`,
/// `aten::sum.dim_IntList`. ValueError where there are no samples. Runs in this process, in
/// lockstep.
Proof prove(std::string_view op, const ProofOptions& options = {});

/// Proves the rule of an op on given samples, all of the same op.
Proof prove_samples(const std::vector<std::string>& samples, const ProofOptions& options = {});

/// Runs one counter-example again: the difference, or an empty text where there is none.
std::string prove_case(std::string_view call, const ProofOptions& options = {});

}  // namespace intarsia

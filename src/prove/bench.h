// The bench that cases are run on: in lockstep, and compared with the op on full tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/world.h"
#include "prove/case.h"

namespace intarsia {

/// What the op gives on full tensors: results, and gradients of its inputs for made-up gradients of
/// results.
struct Reference {
  torch::jit::Stack arguments;
  std::vector<at::Tensor> inputs;   ///< plain, one per tensor of the sample
  std::vector<at::Tensor> results;  ///< those in lists one by one
  std::vector<at::Tensor> result_gradients;
  std::vector<at::Tensor> gradients;  ///< one per input; undefined where there is none
  bool has_gradients = false;
  std::uint64_t seed = 0;

  /// The pieces of an input for all ranks, made once for each layout.
  const std::vector<at::Tensor>& pieces(std::size_t input, const Layout& layout) const;

 private:
  mutable std::map<std::pair<std::size_t, std::string>, std::vector<at::Tensor>> pieces_;
};

/// What came out of a case.
struct Outcome {
  std::string difference;     ///< empty: equal
  bool communicated = false;  ///< while the op ran forward
  bool gradients = false;     ///< they were compared too
};

/// Worlds and references that cases share.
class Bench {
 public:
  explicit Bench(std::uint64_t seed) : seed_(seed) {}

  /// The world in lockstep that has the ranks of the mesh.
  World& world(const Mesh& mesh);
  /// Null where the op refuses the sample on full tensors. `draw` numbers different values for it.
  const Reference* reference(const Sample& sample, bool backward, std::uint64_t draw = 0);
  /// Runs the case, for `backward` with gradients, and compares. An error is a difference too;
  /// where the op refuses the sample, there is none.
  Outcome run(const Case& c, bool backward);

  /// The op on the pieces of each rank, without moving any: whether the results of all ranks are
  /// pieces of the result in some layout, and which for each. Mesh of one axis.
  std::optional<std::vector<Placement>> legal(const Case& c, std::uint64_t draw);

 private:
  std::uint64_t seed_;
  std::map<std::int64_t, std::shared_ptr<World>> worlds_;  // by number of ranks
  std::map<std::string, std::unique_ptr<Reference>> references_;
};

}  // namespace intarsia

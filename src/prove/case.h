// One call of an op in given layouts, run in lockstep and compared with the whole op.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/rule.h"
#include "intarsia/world.h"
#include "prove/sample.h"

namespace intarsia {

/// How a call writes its result.
enum class Variant : std::uint8_t { functional, in_place, out };

/// A call to be compared. Text form: `aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]`.
struct Case {
  Sample sample;
  std::vector<Layout> layouts;  ///< one per tensor of the sample
  Variant variant = Variant::functional;

  static Case parse(std::string_view text);
  std::string to_string() const;
  const Mesh& mesh() const { return layouts[0].mesh(); }
};

/// What the whole op gives: results, and gradients of its inputs for made-up gradients of results.
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

  World& world(const Mesh& mesh);
  /// Nothing where the whole op refuses the sample. `draw` numbers different values for it.
  const Reference* reference(const Sample& sample, bool backward, std::uint64_t draw = 0);
  Outcome run(const Case& c, bool backward);

  /// The op on the pieces of each rank, without moving any: whether the results of all ranks are
  /// pieces of the result in some layout, and which for each. Mesh of one axis.
  std::optional<std::vector<Placement>> legal(const Case& c, std::uint64_t draw);

 private:
  std::uint64_t seed_;
  std::map<std::int64_t, std::shared_ptr<World>> worlds_;  // by number of ranks
  std::map<std::string, std::unique_ptr<Reference>> references_;
};

/// The tensors among arguments or results, those in lists one by one.
std::vector<at::Tensor> tensors_in(const torch::jit::Stack& stack);
/// The same arguments with other tensors.
torch::jit::Stack with_tensors(const torch::jit::Stack& stack,
                               const std::vector<at::Tensor>& tensors);

/// The rows of the rule that holds for the op now, for this call: with the placements of the
/// tensors that it has, without those that it could have. None where the op has no rule.
std::vector<Row> rows_of(const Sample& sample, const torch::jit::Stack& arguments);

/// The pieces of `whole` for all ranks of the mesh. Terms of partial values differ on all ranks,
/// are of mixed sign and combine to the value.
std::vector<at::Tensor> made_pieces(const at::Tensor& whole, const Layout& layout,
                                    std::uint64_t seed);

/// Which placements a tensor may have on one axis: all kinds that its dtype allows.
std::vector<Placement> placements_for(const TensorSample& tensor);

/// The op that writes the result of another into its first argument, or into `out`.
std::optional<c10::OperatorHandle> variant_of(const c10::OperatorHandle& op, Variant variant);

}  // namespace intarsia

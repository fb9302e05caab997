// Gradients that several backwards add up before they are reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace intarsia {

/// While one lives, backwards leave the gradients of distributed leaves as they compute them, for
/// example partial along an axis on which ranks have different rows. `reduce` lays out all of them
/// together, once. Leaves of other kinds, and those whose gradients someone else takes, are left
/// alone.
///
/// Gradients that were there before are put aside meanwhile, and added at the end; dropped without
/// `reduce`, it puts them back and forgets what came since. THREADS: one at a time.
class KeptGradients {
 public:
  explicit KeptGradients(const std::vector<at::Tensor>& leaves);
  ~KeptGradients();
  KeptGradients(const KeptGradients&) = delete;
  KeptGradients& operator=(const KeptGradients&) = delete;

  /// COLLECTIVE: all ranks of the leaves' mesh, where a gradient is laid out otherwise than its
  /// leaf.
  void reduce();

 private:
  struct Kept {
    at::Tensor leaf;
    at::Tensor before;
  };
  void keep(bool on);

  std::vector<Kept> kept_;
};

}  // namespace intarsia

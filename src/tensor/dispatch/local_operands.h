// The operands of a call as they are given to the local op.
#pragma once

#include <vector>

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// A call, how it is run, and the pieces of its operands.
struct LocalOperands {
  const Frame& frame;
  const Decision& decision;
  std::vector<Coordinate> here;  ///< of the hosted ranks
  std::vector<Pieces> pieces;    ///< by operand, then by hosted rank

  /// The arguments, with the pieces of one hosted rank for the tensors.
  torch::jit::Stack arguments(std::size_t member) const { return arguments(member, pieces); }
  /// The same with other pieces.
  torch::jit::Stack arguments(std::size_t member, const std::vector<Pieces>& pieces) const;

  /// The same as the decision's local op takes them.
  torch::jit::Stack local_arguments(std::size_t member) const {
    return local_arguments(member, pieces);
  }
  torch::jit::Stack local_arguments(std::size_t member, const std::vector<Pieces>& pieces) const;

  const c10::OperatorHandle& op() const {
    return decision.local.op ? *decision.local.op : frame.info.op;
  }
};

}  // namespace intarsia

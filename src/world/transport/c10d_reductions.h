// The reductions that c10d knows too.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <array>

#include "intarsia/placement.h"

namespace intarsia {

/// Norms are not among them.
struct ReductionOfC10d {
  Reduction reduction;
  c10d::ReduceOp::RedOpType op;
};
inline constexpr std::array<ReductionOfC10d, 8> kReductionsOfC10d{{
    {Reduction::sum, c10d::ReduceOp::SUM},
    {Reduction::avg, c10d::ReduceOp::AVG},
    {Reduction::min, c10d::ReduceOp::MIN},
    {Reduction::max, c10d::ReduceOp::MAX},
    {Reduction::product, c10d::ReduceOp::PRODUCT},
    {Reduction::bit_and, c10d::ReduceOp::BAND},
    {Reduction::bit_or, c10d::ReduceOp::BOR},
    {Reduction::bit_xor, c10d::ReduceOp::BXOR},
}};

}  // namespace intarsia

// What goes along a sequence, before it is sharded: tokens, positions and labels, put in order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "intarsia/packing.h"
#include "intarsia/sequence_order.h"

namespace intarsia {

/// The tensor with the positions along `dim` as they are stored in an order, and the reverse. Of a
/// plain tensor, or a distributed one that is not sharded along `dim`; differentiable; communicates
/// nothing.
at::Tensor in_order(const at::Tensor& tensor, const SequenceOrder& order, std::int64_t dim);
at::Tensor in_positions(const at::Tensor& tensor, const SequenceOrder& order, std::int64_t dim);

/// The labels of a language model: for each position the token after it along the last dimension,
/// and `ignore_index` at the end of the sequence and of each document. On tokens that are not
/// sharded there: shards lack the first token of the next shard, so shift first, then put in order
/// and shard.
at::Tensor next_tokens(const at::Tensor& tokens, std::span<const std::int64_t> documents = {},
                       std::int64_t ignore_index = -100);

/// [size], the position at each place of an order, counted from the begin of its document: what
/// rotary angles are made of. Of each position of the sequence, if `documents` is empty.
at::Tensor positions_in_order(const SequenceOrder& order, std::int64_t size,
                              std::span<const std::int64_t> documents = {});

/// [1, packing.size, ...]: the samples of a packing, each [length, ...], one after the other, and
/// `padding` at the end. In positions: put it in_order before it is sharded.
at::Tensor packed(const Packing& packing, const std::vector<at::Tensor>& samples,
                  const at::Scalar& padding = 0);

/// next_tokens of what `packed` gave, and `ignore_index` for the padding.
at::Tensor packed_labels(const Packing& packing, const at::Tensor& tokens,
                         std::int64_t ignore_index = -100);

}  // namespace intarsia

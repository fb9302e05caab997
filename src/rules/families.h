// Families of ops that share their mathematics. Each function gives the rows, or the sizes of the
// results, of one family.
#pragma once

#include "intarsia/rule.h"

namespace intarsia::rules {

using Rows = std::vector<Row>;
using Sizes = Shapes;

/// The row of one index of the op's formula: the dimension that it is in each operand and result,
/// or -1. A result without it is `missing`.
Row split(const std::vector<int>& in, const std::vector<int>& out,
          const Placement& missing = Placement::partial());
/// The row in which the listed operands, in which the op is jointly linear, are partial.
Row linear(std::size_t operands, const std::vector<std::size_t>& partial, std::size_t results = 1);

/// The row in which the listed operands are partial, all of one kind, of whichever: what an op does
/// that only moves elements.
Row moved(std::size_t operands, const std::vector<std::size_t>& partial, std::size_t results = 1);
/// The same row, done by the rule's formula.
Row by_formula(Row row, double reduced_share);

Rows pointwise(const Question& q);
Sizes broadcast_sizes(const Question& q);
Sizes sizes_of_first(const Question& q);

Rows mm(const Question& q);
Rows bmm(const Question& q);
Rows mv(const Question& q);
Rows dot(const Question& q);
Rows addmm(const Question& q);
Rows baddbmm(const Question& q);
Sizes matmul_sizes(const Question& q);

Rows sum(const Question& q);
Rows extremum(const Question& q);
Rows logical(const Question& q);
Rows product(const Question& q);
Rows vector_norm(const Question& q);
Rows reduce_whole(const Question& q);  // no reduced dimension may be cut
Sizes reduced_sizes(const Question& q);

Rows along(const Question& q);  // every dimension but `dim`; results have the operand's sizes
Sizes along_sizes(const Question& q);
Rows softmax(const Question& q);
Rows logsumexp(const Question& q);
Rows loss_over_all(const Question& q);
Sizes loss_sizes(const Question& q);

Rows layer_norm(const Question& q);
Sizes layer_norm_sizes(const Question& q);
Rows layer_norm_backward(const Question& q);
Sizes layer_norm_backward_sizes(const Question& q);
Rows convolution(const Question& q);
Sizes convolution_sizes(const Question& q);
Rows convolution_backward(const Question& q);
Sizes convolution_backward_sizes(const Question& q);
Rows pool(const Question& q);       // with windows; and backwards
Rows pool_each(const Question& q);  // only batch and channels may be cut
Sizes pool_sizes(const Question& q);
Sizes sizes_of_space(const Question& q);  // as output_size says
Rows fractional_pool(const Question& q);

Rows embedding(const Question& q);
Sizes embedding_sizes(const Question& q);
Rows embedding_backward(const Question& q);
Sizes embedding_backward_sizes(const Question& q);
Rows nll_loss(const Question& q);
Sizes nll_loss_sizes(const Question& q);
Rows nll_loss_backward(const Question& q);
Sizes second_sizes(const Question& q);
Rows attention(const Question& q);
Sizes attention_sizes(const Question& q);
Rows attention_backward(const Question& q);
Sizes attention_backward_sizes(const Question& q);

Rows cat(const Question& q);
Sizes cat_sizes(const Question& q);
Rows stack(const Question& q);
Sizes stack_sizes(const Question& q);
Rows index_select(const Question& q);
Sizes index_select_sizes(const Question& q);
Rows gather(const Question& q);
Sizes gather_sizes(const Question& q);
Rows scatter(const Question& q);
Rows index_add(const Question& q);  // and index_copy, index_fill, index_reduce
Rows index(const Question& q);
Sizes index_sizes(const Question& q);
Rows index_put(const Question& q);
Rows matrix_batch(const Question& q);  // all but the last two dimensions
Rows flip(const Question& q);
Rows roll(const Question& q);
Rows pad(const Question& q);
Rows pad_with_inside(const Question& q);  // reflection and replication, and backwards
Sizes pad_sizes(const Question& q);
Rows view_backward(const Question& q);  // select_backward, slice_backward
Sizes view_backward_sizes(const Question& q);

/// The dimension in which an op looks up rows by index, or writes them; nothing where there is not
/// one.
std::optional<std::size_t> table_dim(const Question& q);

}  // namespace intarsia::rules

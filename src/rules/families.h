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

/// The same row, done by the rule's formula.
Row by_formula(Row row, double reduced_share);

/// Dimensions that a reduction takes away or makes 1; nothing stands for all.
using Reduced = std::optional<std::vector<std::size_t>>;
bool reduces(const Reduced& dims, std::size_t d);
/// Where input dimension `d` is in the result of a reduction; -1 when it is reduced.
int after_reduction(const Question& q, const Reduced& dims, std::size_t d);
/// Rows of a reduction of operand 0 to one result, which is of this kind where it is cut.
Rows reduction(const Question& q, const Placement& kind, bool is_linear);
/// One over the product of the sizes that are reduced.
double reduced_share(const Question& q, const Reduced& dims);
/// Rows that cut a reduced dimension, of operands that all have it, by formula; `out`: how the
/// results lie.
void add_reduced(const Question& q, const Reduced& dims, const std::vector<Placement>& out,
                 double share, Rows& rows);

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
Rows sum_of_parts(const Question& q);  // a sum of what the op makes of each element
Rows extremum(const Question& q);
Rows logical(const Question& q);
Rows product(const Question& q);
Rows reduce_whole(const Question& q);  // no reduced dimension may be cut
Sizes reduced_sizes(const Question& q);

Rows along(const Question& q);  // every dimension but `dim`; results have the operand's sizes
Sizes along_sizes(const Question& q);
Rows softmax(const Question& q);
Rows logsumexp(const Question& q);
Rows loss_over_all(const Question& q);
Sizes loss_sizes(const Question& q);

Rows variance(const Question& q);
Rows arg_extremum(const Question& q);
Rows both_extremes(const Question& q);
Rows vector_norm(const Question& q);
Rows renorm(const Question& q);
Rows layer_norm(const Question& q);
Sizes layer_norm_sizes(const Question& q);
Rows layer_norm_backward(const Question& q);
Sizes layer_norm_backward_sizes(const Question& q);
Rows group_norm(const Question& q);
Sizes group_norm_sizes(const Question& q);
Rows group_norm_backward(const Question& q);
Sizes group_norm_backward_sizes(const Question& q);
Rows batch_norm(const Question& q);  // all ops of that kind
Sizes batch_norm_sizes(const Question& q);
Rows batch_norm_backward(const Question& q);
Sizes batch_norm_backward_sizes(const Question& q);

Rows convolution(const Question& q);
Sizes convolution_sizes(const Question& q);
Rows convolution_backward(const Question& q);
Sizes convolution_backward_sizes(const Question& q);
Rows max_pool2d(const Question& q);
Sizes max_pool2d_sizes(const Question& q);
Rows max_pool2d_backward(const Question& q);

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
Rows index(const Question& q);
Sizes index_sizes(const Question& q);
Rows matrix_batch(const Question& q);  // all but the last two dimensions
Rows flip(const Question& q);
Rows pad(const Question& q);
Sizes pad_sizes(const Question& q);
Rows view_backward(const Question& q);  // select_backward, slice_backward
Sizes view_backward_sizes(const Question& q);

}  // namespace intarsia::rules

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
/// Helpers of families.
bool contains(const std::vector<std::size_t>& values, std::size_t v);
bool given(const Question& q, std::size_t operand);
std::int64_t element_count(const Shape& sizes, std::size_t first_dim = 0);
Shape shape_of(const std::vector<std::int64_t>& sizes);
/// The op without namespace, and without the `_` of ops in place.
std::string base_name(const Question& q);
bool is_backward(const Question& q);

/// The same row, done by the rule's formula.
Row by_formula(Row row, double reduced_share);

/// Dimensions that a reduction takes away or makes 1; unset stands for all.
using Reduced = std::optional<std::vector<std::size_t>>;
bool reduces(const Reduced& dims, std::size_t d);
/// Where input dimension `d` is in the result of a reduction; -1 when it is reduced.
int after_reduction(const Question& q, const Reduced& dims, std::size_t d);
/// Rows of a reduction of operand 0 to one result, which has the placement `kind` where a reduced
/// dimension is sharded.
Rows reduction(const Question& q, const Placement& kind, bool is_linear);
/// One over the product of the sizes that are reduced.
double reduced_share(const Question& q, const Reduced& dims);
/// Rows that shard a reduced dimension, which all operands have, by formula; `out`: the placements
/// of the results.
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
Rows grouped_mm(const Question& q);
Sizes grouped_mm_sizes(const Question& q);
Rows addmv(const Question& q);
Rows addr(const Question& q);
Sizes addr_sizes(const Question& q);
Rows addbmm(const Question& q);
Sizes addbmm_sizes(const Question& q);

Rows sum(const Question& q);
Rows sum_of_parts(const Question& q);  // a sum of what the op makes of each element
Rows extremum(const Question& q);
Rows logical(const Question& q);
Rows product(const Question& q);
Rows histc(const Question& q);
Sizes histc_sizes(const Question& q);
Rows reduce_unsharded(const Question& q);  // no reduced dimension may be sharded
Sizes reduced_sizes(const Question& q);

Rows along(const Question& q);  // every dimension but `dim`; results have the operand's sizes
Sizes along_sizes(const Question& q);
Rows softmax(const Question& q);
Rows scan(const Question& q);
Rows logsumexp(const Question& q);
Rows loss_over_all(const Question& q);
Sizes loss_sizes(const Question& q);
Rows weighted_loss(const Question& q);  // the same with weights, which broadcast
Rows margin_loss(const Question& q);    // of rows of scores; not their mean
Sizes margin_loss_sizes(const Question& q);
Rows margin_loss_backward(const Question& q);
Sizes glu_sizes(const Question& q);
Rows cross(const Question& q);

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
Rows pool(const Question& q);       // with windows; and backwards
Rows pool_each(const Question& q);  // only batch and channels may be sharded
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

/// The dimension in which an op looks up rows by index, or writes them; unset where there is not
/// one.
std::optional<std::size_t> table_dim(const Question& q);

// ---- the same to each of many matrices -------------------------------------------------------

using FormulaOf = std::function<std::string(const Question&)>;

/// See index_rule in rule.h. An empty formula: the op runs on full tensors. Where `options` have a
/// `memory_order`, it does so too but for one dimension before the last ones.
Rule batched(std::string name, const std::string& formula, RuleOptions options = {});
/// With a formula that depends on other arguments.
Rule batched(std::string name, const FormulaOf& formula, RuleOptions options = {});

std::string svd_formula(const Question& q);
std::string qr_formula(const Question& q);
std::string eigh_formula(const Question& q);
std::string lu_formula(const Question& q);
std::string lu_unpack_formula(const Question& q);
std::string solve_formula(const Question& q);
std::string lu_solve_formula(const Question& q);
std::string solve_triangular_formula(const Question& q);
std::string ormqr_formula(const Question& q);
std::string lstsq_formula(const Question& q);
Rows fft(const Question& q);
Sizes fft_sizes(const Question& q);

// ---- elements that move ----------------------------------------------------------------------

Rows repeat(const Question& q);
Sizes repeat_sizes(const Question& q);
Rows diag_embed(const Question& q);
Sizes diag_embed_sizes(const Question& q);
Rows diagonal_backward(const Question& q);
Rows view_scatter(const Question& q);  // select_scatter, slice_scatter, diagonal_scatter
Rows trace(const Question& q);
Sizes one_number(const Question& q);
Rows searchsorted(const Question& q);
Sizes searchsorted_sizes(const Question& q);
/// The rule of an op that looks up every element of one operand in the others.
Rule lookup(std::string name, const std::string& operand, std::vector<std::size_t> linear_in = {});

// ---- images ----------------------------------------------------------------------------------

Rows upsample(const Question& q);
Sizes upsample_sizes(const Question& q);
Sizes sizes_argument(const Question& q);  // what `input_size` or `input_sizes` says
Rows grid_sampler(const Question& q);
Sizes grid_sampler_sizes(const Question& q);
Rows grid_sampler_backward(const Question& q);
Sizes grid_sampler_backward_sizes(const Question& q);
Rows channel_shuffle(const Question& q);
Rows pixel_shuffle(const Question& q);
Sizes pixel_shuffle_sizes(const Question& q);
Sizes pixel_unshuffle_sizes(const Question& q);
Rows image_batch(const Question& q);  // im2col, col2im
Sizes im2col_sizes(const Question& q);
Sizes col2im_sizes(const Question& q);

}  // namespace intarsia::rules

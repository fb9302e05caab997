// The table: one row per op. To add an op, add a row.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/added.h"
#include "rules/checked.h"
#include "rules/families.h"
#include "rules/formulas.h"

namespace intarsia {
namespace {

using namespace rules;

constexpr auto kOfFirst = RuleOptions::Format::of_first;
constexpr auto kOfSecond = RuleOptions::Format::of_second;
constexpr auto kOfAll = RuleOptions::Format::of_all;

const std::vector<Rule>& lines() {
  // Matrices as LAPACK writes them, in a batch of one dimension. Ranks without matrices run the op
  // too: made-up pivots of 0 would point outside.
  const RuleOptions in_columns{.memory_order = {0, 2, 1}, .runs_empty = true};
  const RuleOptions of_batch_norm{.format = RuleOptions::Format::of_dense_first,
                                  .form = LocalForm::memory_format,
                                  .formula = batch_norm_formula};
  // They factor the transposed matrix where that is in the order of LAPACK, and so does backward.
  const RuleOptions of_determinant{
      .memory_order = {0, 2, 1}, .form = LocalForm::contiguity, .runs_empty = true};
  // Sorted by name.
  static const auto* const rows = new std::vector<Rule>{
      {"_adaptive_avg_pool2d", pool_each, sizes_of_space, {.format = kOfFirst}},
      {"_adaptive_avg_pool2d_backward", pool_each, second_sizes, {.format = kOfSecond}},
      {"_adaptive_avg_pool3d", pool_each, sizes_of_space},
      {"_adaptive_avg_pool3d_backward", pool_each, second_sizes},
      {"_batch_norm_no_update", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_batch_norm_with_update", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_batch_norm_with_update_functional", batch_norm, batch_norm_sizes, of_batch_norm},
      batched("_cdist_backward", "RC+,Rm,Cm,RC -> Rm"),
      batched("_cdist_forward", "Rm,Cm -> RC"),
      batched("_euclidean_dist", "Rm,Cm -> RC"),
      {"_fft_c2c", fft, fft_sizes},
      {"_fft_c2r", fft, fft_sizes},
      {"_fft_r2c", fft, fft_sizes},
      {"_grouped_mm", grouped_mm, grouped_mm_sizes, {.form = LocalForm::aligned}},
      batched("_linalg_det", "nn -> ,nn,n", of_determinant),
      batched("_linalg_eigh", eigh_formula, in_columns),
      batched("_linalg_eigvals", "nn -> n"),
      batched("_linalg_slogdet", "nn -> ,,nn,n", of_determinant),
      batched("_linalg_solve_ex", solve_formula, in_columns),
      batched("_linalg_svd", svd_formula, in_columns),
      {"_log_softmax", softmax, along_sizes, {.formula = formula(log_softmax_formula)}},
      {"_log_softmax_backward_data",
       softmax,
       along_sizes,
       {.formula = formula(log_softmax_backward_formula)}},
      {"_native_batch_norm_legit", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_native_batch_norm_legit_functional", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_native_batch_norm_legit_no_training", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_prelu_kernel", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"_prelu_kernel_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"_safe_softmax", softmax, along_sizes, {.formula = formula(safe_softmax_formula)}},
      {"_scaled_dot_product_flash_attention_for_cpu",
       attention,
       attention_sizes,
       {.follows_strides = true, .memory_order = {0, 2, 1, 3}}},
      {"_scaled_dot_product_flash_attention_for_cpu_backward",
       attention_backward,
       attention_backward_sizes,
       {.memory_order = {0, 2, 1, 3}}},
      {"_softmax", softmax, along_sizes, {.formula = formula(softmax_formula)}},
      {"_softmax_backward_data",
       softmax,
       along_sizes,
       {.formula = formula(softmax_backward_formula)}},
      {"_to_copy", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"_upsample_bicubic2d_aa", upsample, upsample_sizes, {.format = kOfFirst}},
      {"_upsample_bicubic2d_aa_backward",
       upsample,
       sizes_argument,
       {.sizes_argument = "input_size"}},
      {"_upsample_bilinear2d_aa", upsample, upsample_sizes, {.format = kOfFirst}},
      {"_upsample_bilinear2d_aa_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"_upsample_nearest_exact1d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"_upsample_nearest_exact1d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"_upsample_nearest_exact2d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"_upsample_nearest_exact2d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"_upsample_nearest_exact3d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"_upsample_nearest_exact3d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"abs", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"adaptive_max_pool2d", pool_each, sizes_of_space, {.format = kOfFirst}},
      {"adaptive_max_pool2d_backward", pool_each, second_sizes, {.format = kOfSecond}},
      {"adaptive_max_pool3d", pool_each, sizes_of_space},
      {"adaptive_max_pool3d_backward", pool_each, second_sizes},
      {"addbmm", addbmm, addbmm_sizes, {.runs_empty = true}},
      {"addmm", addmm, matmul_sizes, {.runs_empty = true}},
      {"addmv", addmv, matmul_sizes, {.runs_empty = true}},
      {"addr", addr, addr_sizes, {.runs_empty = true}},
      {"all", logical, reduced_sizes},
      {"amax", extremum, reduced_sizes},
      {"amin", extremum, reduced_sizes},
      {"aminmax", both_extremes, reduced_sizes},
      {"any", logical, reduced_sizes},
      {"argmax", arg_extremum, reduced_sizes, {.formula = formula(argmax_formula)}},
      {"argmin", arg_extremum, reduced_sizes, {.formula = formula(argmin_formula)}},
      {"avg_pool2d", pool, pool_sizes, {.format = kOfFirst, .form = LocalForm::window}},
      {"avg_pool2d_backward", pool, second_sizes, {.format = kOfSecond, .form = LocalForm::window}},
      {"avg_pool3d", pool, pool_sizes, {.form = LocalForm::window}},
      {"avg_pool3d_backward", pool, second_sizes, {.form = LocalForm::window}},
      {"baddbmm", baddbmm, matmul_sizes, {.runs_empty = true}},
      {"batch_norm_backward",
       batch_norm_backward,
       batch_norm_backward_sizes,
       {.format = kOfFirst,
        .form = LocalForm::memory_format,
        .formula = batch_norm_backward_formula}},
      {"binary_cross_entropy",
       weighted_loss,
       loss_sizes,
       {.follows_strides = true, .form = LocalForm::mean_from_sum}},
      {"binary_cross_entropy_backward",
       weighted_loss,
       loss_sizes,
       {.form = LocalForm::mean_from_sum}},
      {"binary_cross_entropy_with_logits",
       weighted_loss,
       loss_sizes,
       {.follows_strides = true, .form = LocalForm::mean_from_sum}},
      {"bmm", bmm, matmul_sizes},
      lookup("bucketize", "self"),
      {"cat", cat, cat_sizes, {.format = kOfAll}},
      {"channel_shuffle", channel_shuffle, sizes_of_first, {.format = kOfFirst}},
      batched("cholesky_inverse", "nn -> nn", in_columns),
      batched("cholesky_solve", "nK+,nn -> nK", in_columns),
      {"clone", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"col2im", image_batch, col2im_sizes},
      {"complex", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"constant_pad_nd", pad, pad_sizes, {.format = kOfFirst, .form = LocalForm::window}},
      {"convolution",
       convolution,
       convolution_sizes,
       {.format = RuleOptions::Format::of_any, .form = LocalForm::window}},
      {"convolution_backward",
       convolution_backward,
       convolution_backward_sizes,
       {.form = LocalForm::window}},
      {"copy", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"count_nonzero", sum_of_parts, reduced_sizes},
      {"cummax", along, along_sizes},
      {"cummin", along, along_sizes},
      {"cumprod", scan, along_sizes, {.form = LocalForm::scan, .runs_empty = true}},
      {"cumsum", scan, along_sizes, {.form = LocalForm::scan, .runs_empty = true}},
      {"diag_embed", diag_embed, diag_embed_sizes},
      {"diagonal_backward", diagonal_backward, sizes_argument, {.sizes_argument = "input_sizes"}},
      {"diagonal_scatter", view_scatter, sizes_of_first, {.keeps_strides = true}},
      {"dot", dot, matmul_sizes},
      {"elu_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"embedding", embedding, embedding_sizes, {.form = LocalForm::rows_of_table}},
      {"embedding_dense_backward", embedding_backward, embedding_backward_sizes},
      {"fill", pointwise, sizes_of_first, {.follows_strides = true}},
      {"flip", flip, sizes_of_first, {.follows_strides = true, .form = LocalForm::window}},
      {"float_power",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .contiguous_overload = "Scalar"}},
      {"floor_divide", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"fractional_max_pool2d", fractional_pool, sizes_of_space},
      {"fractional_max_pool2d_backward", pool_each, second_sizes},
      {"gather", gather, gather_sizes, {.form = LocalForm::rows_of_table}},
      batched("geqrf", "mn -> mn,k", in_columns),
      {"glu", along, glu_sizes},
      {"glu_backward", along, second_sizes},
      {"grid_sampler_2d", grid_sampler, grid_sampler_sizes},
      {"grid_sampler_2d_backward", grid_sampler_backward, grid_sampler_backward_sizes},
      {"grid_sampler_3d", grid_sampler, grid_sampler_sizes},
      {"grid_sampler_3d_backward", grid_sampler_backward, grid_sampler_backward_sizes},
      {"hardshrink_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"hardsigmoid_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"hardswish", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"hardswish_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"hardtanh_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"histc", histc, histc_sizes, {.fixed = {"min", "max"}}},
      {"huber_loss",
       loss_over_all,
       loss_sizes,
       {.follows_strides = true, .form = LocalForm::mean_from_sum}},
      {"huber_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"im2col", image_batch, im2col_sizes},
      {"index", index, index_sizes, {.follows_strides = true, .form = LocalForm::rows_of_table}},
      {"index_add",
       index_add,
       sizes_of_first,
       {.form = LocalForm::rows_of_result, .runs_empty = true}},
      {"index_copy", index_add, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"index_fill",
       index_add,
       sizes_of_first,
       {.follows_strides = true, .form = LocalForm::rows_of_result}},
      {"index_put",
       index_put,
       sizes_of_first,
       {.follows_strides = true, .form = LocalForm::rows_of_result, .runs_empty = true}},
      {"index_reduce", index_add, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"index_select", index_select, index_select_sizes, {.form = LocalForm::rows_of_table}},
      lookup("isin", "elements"),
      {"kthvalue", reduce_unsharded, reduced_sizes},
      {"leaky_relu_backward",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .second_leads = true}},
      batched("linalg_cholesky_ex", "nn -> nn,", in_columns),
      {"linalg_cross", cross, broadcast_sizes},
      batched("linalg_eig", "nn -> n,nn", in_columns),
      batched("linalg_householder_product", "mn,r -> mn", in_columns),
      batched("linalg_inv_ex", "nn -> nn,", in_columns),
      batched("linalg_ldl_factor_ex", "nn -> nn,n,", in_columns),
      batched("linalg_ldl_solve", "nn,n,nK+ -> nK", in_columns),
      batched("linalg_lstsq", lstsq_formula, in_columns),
      batched("linalg_lu", lu_formula),
      batched("linalg_lu_factor_ex", "mn -> mn,k,", in_columns),
      batched("linalg_lu_solve", lu_solve_formula, in_columns),
      batched("linalg_matrix_exp", "nn -> nn"),
      batched("linalg_pinv", "mn,, -> nm"),
      batched("linalg_qr", qr_formula, in_columns),
      batched("linalg_solve_triangular", solve_triangular_formula, in_columns),
      {"linalg_vector_norm",
       vector_norm,
       reduced_sizes,
       {.fixed = {"ord"}, .formula = vector_norm_formula}},
      {"log_sigmoid_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"log_sigmoid_forward", pointwise, broadcast_sizes},
      {"logcumsumexp", scan, along_sizes, {.form = LocalForm::scan, .runs_empty = true}},
      {"logsumexp", logsumexp, reduced_sizes, {.formula = formula(logsumexp_formula)}},
      batched("lu_unpack", lu_unpack_formula, {.runs_empty = true}),
      {"masked_fill", pointwise, broadcast_sizes},
      {"max", extremum, reduced_sizes, {.formula = formula(max_formula)}},
      {"max_pool2d_with_indices",
       pool,
       pool_sizes,
       {.format = kOfFirst, .form = LocalForm::window}},
      {"max_pool2d_with_indices_backward",
       pool,
       second_sizes,
       {.format = kOfSecond, .form = LocalForm::window}},
      {"max_pool3d_with_indices",
       pool,
       pool_sizes,
       {.format = kOfFirst, .form = LocalForm::window}},
      {"max_pool3d_with_indices_backward",
       pool,
       second_sizes,
       {.format = kOfSecond, .form = LocalForm::window}},
      {"max_unpool2d", pool_each, sizes_of_space},
      {"max_unpool3d", pool_each, sizes_of_space},
      {"mean", sum, reduced_sizes, {.form = LocalForm::mean_from_sum}},
      {"median", reduce_unsharded, reduced_sizes},
      {"min", extremum, reduced_sizes, {.formula = formula(min_formula)}},
      {"mm", mm, matmul_sizes},
      {"mode", reduce_unsharded, reduced_sizes},
      {"mse_loss",
       loss_over_all,
       loss_sizes,
       {.follows_strides = true, .form = LocalForm::mean_from_sum}},
      {"mse_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"multi_margin_loss", margin_loss, margin_loss_sizes},
      {"multi_margin_loss_backward", margin_loss_backward, second_sizes},
      {"multilabel_margin_loss_backward", margin_loss_backward, second_sizes},
      {"multilabel_margin_loss_forward", margin_loss, margin_loss_sizes},
      {"mv", mv, matmul_sizes},
      {"mvlgamma", pointwise, broadcast_sizes},
      {"nanmedian", reduce_unsharded, reduced_sizes},
      {"nansum", sum_of_parts, reduced_sizes},
      {"native_batch_norm", batch_norm, batch_norm_sizes, of_batch_norm},
      {"native_batch_norm_backward",
       batch_norm_backward,
       batch_norm_backward_sizes,
       {.format = kOfFirst,
        .form = LocalForm::memory_format,
        .formula = batch_norm_backward_formula}},
      {"native_group_norm",
       group_norm,
       group_norm_sizes,
       {.format = kOfFirst, .local_sizes = {{"N", 0, 0}}, .formula = formula(group_norm_formula)}},
      {"native_group_norm_backward",
       group_norm_backward,
       group_norm_backward_sizes,
       {.format = kOfFirst,
        .local_sizes = {{"N", 0, 0}},
        .formula = formula(group_norm_backward_formula)}},
      {"native_layer_norm", layer_norm, layer_norm_sizes, {.formula = formula(layer_norm_formula)}},
      {"native_layer_norm_backward",
       layer_norm_backward,
       layer_norm_backward_sizes,
       {.formula = formula(layer_norm_backward_formula)}},
      {"nll_loss2d_backward",
       nll_loss_backward,
       second_sizes,
       {.formula = formula(nll_loss_backward_formula)}},
      {"nll_loss2d_forward",
       nll_loss,
       nll_loss_sizes,
       {.form = LocalForm::loss_from_sum, .formula = formula(nll_loss_formula)}},
      {"nll_loss_backward",
       nll_loss_backward,
       second_sizes,
       {.formula = formula(nll_loss_backward_formula)}},
      {"nll_loss_forward",
       nll_loss,
       nll_loss_sizes,
       {.form = LocalForm::loss_from_sum, .formula = formula(nll_loss_formula)}},
      {"norm", vector_norm, reduced_sizes, {.fixed = {"p"}, .formula = vector_norm_formula}},
      batched("ormqr", ormqr_formula, in_columns),
      {"pixel_shuffle", pixel_shuffle, pixel_shuffle_sizes, {.format = kOfFirst}},
      {"pixel_unshuffle", pixel_shuffle, pixel_unshuffle_sizes, {.format = kOfFirst}},
      {"polar", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"pow",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .contiguous_overload = "Scalar"}},
      {"prod", product, reduced_sizes},
      {"reflection_pad1d", pad_with_inside, pad_sizes},
      {"reflection_pad1d_backward", pad_with_inside, second_sizes},
      {"reflection_pad2d", pad_with_inside, pad_sizes, {.format = kOfFirst}},
      {"reflection_pad2d_backward", pad_with_inside, second_sizes},
      {"reflection_pad3d", pad_with_inside, pad_sizes, {.format = kOfFirst}},
      {"reflection_pad3d_backward", pad_with_inside, second_sizes},
      {"renorm", renorm, sizes_of_first, {.formula = formula(renorm_formula)}},
      {"repeat", repeat, repeat_sizes},
      {"replication_pad1d", pad_with_inside, pad_sizes},
      {"replication_pad1d_backward", pad_with_inside, second_sizes},
      {"replication_pad2d", pad_with_inside, pad_sizes, {.format = kOfFirst}},
      {"replication_pad2d_backward", pad_with_inside, second_sizes},
      {"replication_pad3d", pad_with_inside, pad_sizes, {.format = kOfFirst}},
      {"replication_pad3d_backward", pad_with_inside, second_sizes},
      {"roll", roll, sizes_of_first, {.format = kOfFirst, .form = LocalForm::window}},
      {"scatter", scatter, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"scatter_add",
       scatter,
       sizes_of_first,
       {.form = LocalForm::rows_of_result, .runs_empty = true}},
      {"scatter_reduce", scatter, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"searchsorted", searchsorted, searchsorted_sizes},
      {"select_backward", view_backward, view_backward_sizes, {.sizes_argument = "input_sizes"}},
      {"select_scatter", view_scatter, sizes_of_first, {.keeps_strides = true}},
      {"slice_backward", view_backward, view_backward_sizes, {.sizes_argument = "input_sizes"}},
      {"slice_scatter", view_scatter, sizes_of_first, {.keeps_strides = true}},
      {"smooth_l1_loss",
       loss_over_all,
       loss_sizes,
       {.follows_strides = true, .form = LocalForm::mean_from_sum}},
      {"smooth_l1_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"soft_margin_loss",
       weighted_loss,
       loss_sizes,
       {.follows_strides = true, .form = LocalForm::mean_from_sum}},
      {"soft_margin_loss_backward", weighted_loss, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"softplus_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"softshrink_backward", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"sort", along, along_sizes, {.follows_strides = true}},
      {"stack", stack, stack_sizes},
      {"std", variance, reduced_sizes, {.formula = formula(std_formula)}},
      {"std_mean", variance, reduced_sizes, {.formula = formula(std_mean_formula)}},
      {"sum", sum, reduced_sizes},
      lookup("take", "index", {0}),
      {"threshold_backward",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .second_leads = true}},
      {"topk", along, along_sizes},
      {"trace", trace, one_number},
      batched("triangular_solve", "nk,nn -> nk,nn", in_columns),
      {"tril", matrix_batch, sizes_of_first},
      {"triu", matrix_batch, sizes_of_first},
      {"unfold_backward", view_backward, view_backward_sizes, {.sizes_argument = "input_sizes"}},
      {"upsample_bicubic2d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"upsample_bicubic2d_backward", upsample, sizes_argument, {.sizes_argument = "input_size"}},
      {"upsample_bilinear2d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"upsample_bilinear2d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"upsample_linear1d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"upsample_linear1d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"upsample_nearest1d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"upsample_nearest1d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"upsample_nearest2d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"upsample_nearest2d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"upsample_nearest3d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"upsample_nearest3d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"upsample_trilinear3d", upsample, upsample_sizes, {.format = kOfFirst}},
      {"upsample_trilinear3d_backward",
       upsample,
       sizes_argument,
       {.format = kOfFirst, .sizes_argument = "input_size"}},
      {"var", variance, reduced_sizes, {.formula = formula(var_formula)}},
      {"var_mean", variance, reduced_sizes, {.formula = formula(var_mean_formula)}},
      {"vdot", dot, matmul_sizes},
      {"zero", pointwise, sizes_of_first, {.follows_strides = true}},
  };
  return *rows;
}

using RulePtr = std::shared_ptr<const Rule>;

const RulePtr& pointwise_rule() {
  static const auto* const rule =
      new RulePtr(new Rule{"pointwise", pointwise, broadcast_sizes, {.follows_strides = true}});
  return *rule;
}

const std::vector<RulePtr>& table() {
  static const auto* const rules = [] {
    auto* list = new std::vector<RulePtr>;
    for (const Rule& line : lines()) list->push_back(std::make_shared<const Rule>(line));
    return list;
  }();
  return *rules;
}

constexpr std::string_view kAten = "aten::";

/// Rules that users added, the last one last.
struct Added {
  std::mutex mutex;
  std::vector<RulePtr> rules;
  std::atomic<std::uint32_t> generation = 0;
  std::atomic<void (*)(const std::string&)> listener = nullptr;

  void tell(const std::string& name) const {
    if (auto* call = listener.load()) call(name);
  }

  static Added& instance() {
    static auto* const added = new Added;
    return *added;
  }
};

}  // namespace

RuleHandle add_rule(Rule rule) {
  if (rule.name.empty() || !rule.rows || !rule.sizes) {
    fail<ValueError>("add_rule", "a rule has a name, rows and sizes; '", rule.name, "' lacks ",
                     !rule.rows    ? "rows"
                     : !rule.sizes ? "sizes"
                                   : "a name");
  }
  if (rule.name.starts_with(kAten)) rule.name.erase(0, kAten.size());
  auto kept = std::make_shared<const Rule>(checked(std::move(rule)));
  Added& added = Added::instance();
  {
    const std::scoped_lock lock(added.mutex);
    added.rules.push_back(kept);
    ++added.generation;
  }
  added.tell(kept->name);
  return RuleHandle(std::move(kept));
}

void RuleHandle::remove() {
  if (!rule_) return;
  Added& added = Added::instance();
  const auto removed = std::exchange(rule_, nullptr);
  {
    const std::scoped_lock lock(added.mutex);
    std::erase(added.rules, removed);
    ++added.generation;
  }
  added.tell(removed->name);
}

void listen_to_rules(void (*listener)(const std::string& name)) {
  Added& added = Added::instance();
  added.listener = listener;
  std::vector<RulePtr> before;
  {
    const std::scoped_lock lock(added.mutex);
    before = added.rules;
  }
  for (const RulePtr& rule : before) listener(rule->name);
}

std::uint32_t rules_generation() {
  return Added::instance().generation.load(std::memory_order_acquire);
}

std::vector<std::shared_ptr<const Rule>> all_rules() { return table(); }

RulePtr find_rule(std::string_view name, bool tagged_pointwise) {
  if (name.starts_with(kAten)) name.remove_prefix(kAten.size());
  {
    Added& added = Added::instance();
    const std::scoped_lock lock(added.mutex);
    const auto last = std::find_if(added.rules.rbegin(), added.rules.rend(),
                                   [&](const RulePtr& r) { return r->name == name; });
    if (last != added.rules.rend()) return *last;
  }
  const auto& rules = table();
  const auto at =
      std::lower_bound(rules.begin(), rules.end(), name,
                       [](const RulePtr& r, std::string_view n) { return r->name < n; });
  if (at != rules.end() && (*at)->name == name) return *at;
  return tagged_pointwise ? pointwise_rule() : nullptr;
}

}  // namespace intarsia

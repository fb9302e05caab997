// The table: one row per op. To add an op, add a row.
#include <algorithm>
#include <array>

#include "rules/families.h"

namespace intarsia {
namespace {

using namespace rules;

const std::vector<Rule>& table() {
  // Sorted by name.
  static const auto* const rows = new std::vector<Rule>{
      {"_log_softmax", along, along_sizes},
      {"_log_softmax_backward_data", along, along_sizes},
      {"_scaled_dot_product_flash_attention_for_cpu",
       attention,
       attention_sizes,
       {.memory_order = {0, 2, 1, 3}}},
      {"_scaled_dot_product_flash_attention_for_cpu_backward",
       attention_backward,
       attention_backward_sizes,
       {.memory_order = {0, 2, 1, 3}}},
      {"_softmax", along, along_sizes},
      {"_softmax_backward_data", along, along_sizes},
      {"_to_copy", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"abs", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"addmm", addmm, matmul_sizes, {.runs_empty = true}},
      {"all", logical, reduced_sizes},
      {"amax", extremum, reduced_sizes},
      {"amin", extremum, reduced_sizes},
      {"any", logical, reduced_sizes},
      {"argmax", reduce_whole, reduced_sizes},
      {"argmin", reduce_whole, reduced_sizes},
      {"baddbmm", baddbmm, matmul_sizes, {.runs_empty = true}},
      {"bmm", bmm, matmul_sizes},
      {"cat", cat, cat_sizes},
      {"clone", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"constant_pad_nd", pad, pad_sizes},
      {"convolution", convolution, convolution_sizes},
      {"convolution_backward", convolution_backward, convolution_backward_sizes},
      {"copy", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"cumprod", along, along_sizes},
      {"cumsum", along, along_sizes},
      {"dot", dot, matmul_sizes},
      {"embedding", embedding, embedding_sizes, {.form = LocalForm::rows_of_table}},
      {"embedding_dense_backward", embedding_backward, embedding_backward_sizes},
      {"fill", pointwise, sizes_of_first, {.follows_strides = true}},
      {"flip", flip, sizes_of_first},
      {"gather", gather, gather_sizes},
      {"huber_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"huber_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"index", index, index_sizes},
      {"index_select", index_select, index_select_sizes},
      {"linalg_vector_norm", vector_norm, reduced_sizes, {.fixed = {"ord"}}},
      {"logsumexp", reduce_whole, reduced_sizes},
      {"masked_fill", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"max", extremum, reduced_sizes},
      {"max_pool2d_with_indices", max_pool2d, max_pool2d_sizes},
      {"max_pool2d_with_indices_backward", max_pool2d_backward, second_sizes},
      {"mean", sum, reduced_sizes, {.form = LocalForm::mean_from_sum}},
      {"min", extremum, reduced_sizes},
      {"mm", mm, matmul_sizes},
      {"mse_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"mse_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"mv", mv, matmul_sizes},
      {"native_layer_norm", layer_norm, layer_norm_sizes},
      {"native_layer_norm_backward", layer_norm_backward, layer_norm_backward_sizes},
      {"nll_loss_backward", nll_loss_backward, second_sizes},
      {"nll_loss_forward", nll_loss, nll_loss_sizes, {.form = LocalForm::loss_from_sum}},
      {"prod", product, reduced_sizes},
      {"scatter", scatter, sizes_of_first},
      {"scatter_add", scatter, sizes_of_first},
      {"select_backward", view_backward, view_backward_sizes, {.sizes_argument = "input_sizes"}},
      {"slice_backward", view_backward, view_backward_sizes, {.sizes_argument = "input_sizes"}},
      {"smooth_l1_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"smooth_l1_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"sort", along, along_sizes},
      {"stack", stack, stack_sizes},
      {"std", reduce_whole, reduced_sizes},
      {"sum", sum, reduced_sizes},
      {"topk", along, along_sizes},
      {"tril", matrix_batch, sizes_of_first},
      {"triu", matrix_batch, sizes_of_first},
      {"var", reduce_whole, reduced_sizes},
      {"var_mean", reduce_whole, reduced_sizes},
      {"zero", pointwise, sizes_of_first, {.follows_strides = true}},
  };
  return *rows;
}

const Rule& pointwise_rule() {
  static const Rule rule{"pointwise", pointwise, broadcast_sizes, {.follows_strides = true}};
  return rule;
}

}  // namespace

std::span<const Rule> all_rules() { return table(); }

const Rule* find_rule(std::string_view name, bool tagged_pointwise) {
  const auto& rows = table();
  const auto at = std::lower_bound(rows.begin(), rows.end(), name,
                                   [](const Rule& r, std::string_view n) { return r.name < n; });
  if (at != rows.end() && at->name == name) return &*at;
  return tagged_pointwise ? &pointwise_rule() : nullptr;
}

}  // namespace intarsia

// The table: one row per op. To add an op, add a row.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/added.h"
#include "rules/families.h"
#include "rules/formulas.h"

namespace intarsia {
namespace {

using namespace rules;

constexpr auto kOfFirst = RuleOptions::Format::of_first;
constexpr auto kOfAll = RuleOptions::Format::of_all;

const std::vector<Rule>& lines() {
  // Sorted by name.
  static const auto* const rows = new std::vector<Rule>{
      {"_adaptive_avg_pool2d", pool_each, sizes_of_space, {.format = kOfFirst}},
      {"_adaptive_avg_pool2d_backward", pool_each, second_sizes},
      {"_adaptive_avg_pool3d", pool_each, sizes_of_space},
      {"_adaptive_avg_pool3d_backward", pool_each, second_sizes},
      {"_index_put_impl",
       index_put,
       sizes_of_first,
       {.form = LocalForm::rows_of_result, .runs_empty = true}},
      {"_log_softmax", softmax, along_sizes, {.formula = formula(log_softmax_formula)}},
      {"_log_softmax_backward_data",
       softmax,
       along_sizes,
       {.formula = formula(log_softmax_backward_formula)}},
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
      {"abs", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"adaptive_max_pool2d", pool_each, sizes_of_space, {.format = kOfFirst}},
      {"adaptive_max_pool2d_backward", pool_each, second_sizes},
      {"adaptive_max_pool3d", pool_each, sizes_of_space},
      {"adaptive_max_pool3d_backward", pool_each, second_sizes},
      {"addmm", addmm, matmul_sizes, {.runs_empty = true}},
      {"all", logical, reduced_sizes},
      {"amax", extremum, reduced_sizes},
      {"amin", extremum, reduced_sizes},
      {"any", logical, reduced_sizes},
      {"argmax", reduce_whole, reduced_sizes},
      {"argmin", reduce_whole, reduced_sizes},
      {"avg_pool2d", pool, pool_sizes, {.format = kOfFirst, .form = LocalForm::window}},
      {"avg_pool2d_backward", pool, second_sizes, {.form = LocalForm::window}},
      {"avg_pool3d", pool, pool_sizes, {.form = LocalForm::window}},
      {"avg_pool3d_backward", pool, second_sizes, {.form = LocalForm::window}},
      {"baddbmm", baddbmm, matmul_sizes, {.runs_empty = true}},
      {"bmm", bmm, matmul_sizes},
      {"cat", cat, cat_sizes, {.format = kOfAll}},
      {"clone", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"constant_pad_nd", pad, pad_sizes, {.format = kOfFirst, .form = LocalForm::window}},
      {"convolution",
       convolution,
       convolution_sizes,
       {.format = kOfFirst, .form = LocalForm::window}},
      {"convolution_backward",
       convolution_backward,
       convolution_backward_sizes,
       {.form = LocalForm::window}},
      {"copy", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"cumprod", along, along_sizes},
      {"cumsum", along, along_sizes},
      {"dot", dot, matmul_sizes},
      {"embedding", embedding, embedding_sizes, {.form = LocalForm::rows_of_table}},
      {"embedding_dense_backward", embedding_backward, embedding_backward_sizes},
      {"fill", pointwise, sizes_of_first, {.follows_strides = true}},
      {"flip", flip, sizes_of_first, {.follows_strides = true, .form = LocalForm::window}},
      {"float_power",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .contiguous_overload = "Scalar"}},
      {"fractional_max_pool2d", fractional_pool, sizes_of_space},
      {"fractional_max_pool2d_backward", pool_each, second_sizes},
      {"gather", gather, gather_sizes, {.form = LocalForm::rows_of_table}},
      {"huber_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"huber_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"index", index, index_sizes, {.form = LocalForm::rows_of_table}},
      {"index_add",
       index_add,
       sizes_of_first,
       {.form = LocalForm::rows_of_result, .runs_empty = true}},
      {"index_copy", index_add, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"index_fill", index_add, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"index_put",
       index_put,
       sizes_of_first,
       {.form = LocalForm::rows_of_result, .runs_empty = true}},
      {"index_reduce", index_add, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"index_select", index_select, index_select_sizes, {.form = LocalForm::rows_of_table}},
      {"linalg_vector_norm", vector_norm, reduced_sizes, {.fixed = {"ord"}}},
      {"logsumexp", logsumexp, reduced_sizes, {.formula = formula(logsumexp_formula)}},
      {"masked_fill", pointwise, broadcast_sizes},
      {"max", extremum, reduced_sizes},
      {"max_pool2d_with_indices",
       pool,
       pool_sizes,
       {.format = kOfFirst, .form = LocalForm::window}},
      {"max_pool2d_with_indices_backward", pool, second_sizes, {.form = LocalForm::window}},
      {"max_pool3d_with_indices",
       pool,
       pool_sizes,
       {.format = kOfFirst, .form = LocalForm::window}},
      {"max_pool3d_with_indices_backward", pool, second_sizes, {.form = LocalForm::window}},
      {"max_unpool2d", pool_each, sizes_of_space},
      {"max_unpool3d", pool_each, sizes_of_space},
      {"mean", sum, reduced_sizes, {.form = LocalForm::mean_from_sum}},
      {"min", extremum, reduced_sizes},
      {"mm", mm, matmul_sizes},
      {"mse_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"mse_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"mv", mv, matmul_sizes},
      {"mvlgamma", pointwise, broadcast_sizes},
      {"native_layer_norm", layer_norm, layer_norm_sizes},
      {"native_layer_norm_backward", layer_norm_backward, layer_norm_backward_sizes},
      {"nll_loss_backward", nll_loss_backward, second_sizes},
      {"nll_loss_forward", nll_loss, nll_loss_sizes, {.form = LocalForm::loss_from_sum}},
      {"pow",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .contiguous_overload = "Scalar"}},
      {"prod", product, reduced_sizes},
      {"reflection_pad1d", pad_with_inside, pad_sizes},
      {"reflection_pad1d_backward", pad_with_inside, second_sizes},
      {"reflection_pad2d", pad_with_inside, pad_sizes},
      {"reflection_pad2d_backward", pad_with_inside, second_sizes},
      {"reflection_pad3d", pad_with_inside, pad_sizes},
      {"reflection_pad3d_backward", pad_with_inside, second_sizes},
      {"replication_pad1d", pad_with_inside, pad_sizes},
      {"replication_pad1d_backward", pad_with_inside, second_sizes},
      {"replication_pad2d", pad_with_inside, pad_sizes},
      {"replication_pad2d_backward", pad_with_inside, second_sizes},
      {"replication_pad3d", pad_with_inside, pad_sizes},
      {"replication_pad3d_backward", pad_with_inside, second_sizes},
      {"roll", roll, sizes_of_first, {.form = LocalForm::window}},
      {"scatter", scatter, sizes_of_first, {.form = LocalForm::rows_of_result}},
      {"scatter_add",
       scatter,
       sizes_of_first,
       {.form = LocalForm::rows_of_result, .runs_empty = true}},
      {"scatter_reduce", scatter, sizes_of_first, {.form = LocalForm::rows_of_result}},
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
  constexpr std::string_view kAten = "aten::";
  if (rule.name.starts_with(kAten)) rule.name.erase(0, kAten.size());
  auto kept = std::make_shared<const Rule>(std::move(rule));
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

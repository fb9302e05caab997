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
  const RuleOptions of_batch_norm{.format = kOfFirst, .formula = batch_norm_formula};
  // Sorted by name.
  static const auto* const rows = new std::vector<Rule>{
      {"_batch_norm_no_update", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_batch_norm_with_update", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_batch_norm_with_update_functional", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_log_softmax", softmax, along_sizes, {.formula = formula(log_softmax_formula)}},
      {"_log_softmax_backward_data",
       softmax,
       along_sizes,
       {.formula = formula(log_softmax_backward_formula)}},
      {"_native_batch_norm_legit", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_native_batch_norm_legit_functional", batch_norm, batch_norm_sizes, of_batch_norm},
      {"_native_batch_norm_legit_no_training", batch_norm, batch_norm_sizes, of_batch_norm},
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
      {"addmm", addmm, matmul_sizes, {.runs_empty = true}},
      {"all", logical, reduced_sizes},
      {"amax", extremum, reduced_sizes},
      {"amin", extremum, reduced_sizes},
      {"aminmax", both_extremes, reduced_sizes},
      {"any", logical, reduced_sizes},
      {"argmax", arg_extremum, reduced_sizes, {.formula = formula(argmax_formula)}},
      {"argmin", arg_extremum, reduced_sizes, {.formula = formula(argmin_formula)}},
      {"baddbmm", baddbmm, matmul_sizes, {.runs_empty = true}},
      {"batch_norm_backward",
       batch_norm_backward,
       batch_norm_backward_sizes,
       {.format = kOfFirst, .formula = batch_norm_backward_formula}},
      {"bmm", bmm, matmul_sizes},
      {"cat", cat, cat_sizes, {.format = kOfAll}},
      {"clone", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"constant_pad_nd", pad, pad_sizes},
      {"convolution", convolution, convolution_sizes, {.format = kOfFirst}},
      {"convolution_backward", convolution_backward, convolution_backward_sizes},
      {"copy", pointwise, broadcast_sizes, {.follows_strides = true}},
      {"count_nonzero", sum_of_parts, reduced_sizes},
      {"cumprod", along, along_sizes},
      {"cumsum", along, along_sizes},
      {"dot", dot, matmul_sizes},
      {"embedding", embedding, embedding_sizes, {.form = LocalForm::rows_of_table}},
      {"embedding_dense_backward", embedding_backward, embedding_backward_sizes},
      {"fill", pointwise, sizes_of_first, {.follows_strides = true}},
      {"flip", flip, sizes_of_first},
      {"float_power",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .contiguous_overload = "Scalar"}},
      {"gather", gather, gather_sizes},
      {"huber_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"huber_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"index", index, index_sizes},
      {"index_select", index_select, index_select_sizes},
      {"linalg_vector_norm",
       vector_norm,
       reduced_sizes,
       {.fixed = {"ord"}, .formula = vector_norm_formula}},
      {"logsumexp", logsumexp, reduced_sizes, {.formula = formula(logsumexp_formula)}},
      {"masked_fill", pointwise, broadcast_sizes},
      {"max", extremum, reduced_sizes, {.formula = formula(max_formula)}},
      {"max_pool2d_with_indices", max_pool2d, max_pool2d_sizes, {.format = kOfFirst}},
      {"max_pool2d_with_indices_backward", max_pool2d_backward, second_sizes},
      {"mean", sum, reduced_sizes, {.form = LocalForm::mean_from_sum}},
      {"min", extremum, reduced_sizes, {.formula = formula(min_formula)}},
      {"mm", mm, matmul_sizes},
      {"mse_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"mse_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"mv", mv, matmul_sizes},
      {"mvlgamma", pointwise, broadcast_sizes},
      {"nansum", sum_of_parts, reduced_sizes},
      {"native_batch_norm", batch_norm, batch_norm_sizes, of_batch_norm},
      {"native_batch_norm_backward",
       batch_norm_backward,
       batch_norm_backward_sizes,
       {.format = kOfFirst, .formula = batch_norm_backward_formula}},
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
      {"nll_loss_backward", nll_loss_backward, second_sizes},
      {"nll_loss_forward", nll_loss, nll_loss_sizes, {.form = LocalForm::loss_from_sum}},
      {"norm", vector_norm, reduced_sizes, {.fixed = {"p"}, .formula = vector_norm_formula}},
      {"pow",
       pointwise,
       broadcast_sizes,
       {.follows_strides = true, .contiguous_overload = "Scalar"}},
      {"prod", product, reduced_sizes},
      {"renorm", renorm, sizes_of_first, {.formula = formula(renorm_formula)}},
      {"scatter", scatter, sizes_of_first},
      {"scatter_add", scatter, sizes_of_first},
      {"select_backward", view_backward, view_backward_sizes, {.sizes_argument = "input_sizes"}},
      {"slice_backward", view_backward, view_backward_sizes, {.sizes_argument = "input_sizes"}},
      {"smooth_l1_loss", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"smooth_l1_loss_backward", loss_over_all, loss_sizes, {.form = LocalForm::mean_from_sum}},
      {"sort", along, along_sizes},
      {"stack", stack, stack_sizes},
      {"std", variance, reduced_sizes, {.formula = formula(std_formula)}},
      {"std_mean", variance, reduced_sizes, {.formula = formula(std_mean_formula)}},
      {"sum", sum, reduced_sizes},
      {"topk", along, along_sizes},
      {"tril", matrix_batch, sizes_of_first},
      {"triu", matrix_batch, sizes_of_first},
      {"var", variance, reduced_sizes, {.formula = formula(var_formula)}},
      {"var_mean", variance, reduced_sizes, {.formula = formula(var_mean_formula)}},
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

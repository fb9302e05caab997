// The prover itself under test: rules that are wrong on purpose, added one at a time, which it must
// all find.
//
//     prove_mutants [--quick] [--only TEXT]
//
// --quick takes a third of every category; --only those with this text in category, op or name.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <set>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/prove.h"
#include "intarsia/rule.h"
#include "rules/families.h"
#include "world/collectives/wire.h"
#include "world/transport/error_text.h"

namespace intarsia {
namespace {

using rules::linear;
using rules::Rows;
using rules::split;

// Those of the sample in CI, and one counter-example is enough.
const ProofOptions kOptions{
    .combinations = 64, .sampled = 6, .missing = false, .counter_examples = 1};

/// Makes a right rule wrong.
using Change = std::function<void(Rule&)>;

struct Mutant {
  std::string name;
  std::string op;
  Change change;
};

struct Category {
  std::string name;
  std::vector<Mutant> mutants;
};

const Placement kWhole = Placement::replicate();
const Placement kSum = Placement::partial();

Placement p(Reduction kind) { return Placement::partial(kind); }
int as_int(std::size_t d) { return static_cast<int>(d); }

// ---- ways to be wrong ------------------------------------------------------------------------

Change rows(std::function<Rows(const Question&, Rows)> change) {
  return [change](Rule& rule) {
    rule.rows = [change, right = rule.rows](const Question& q) { return change(q, right(q)); };
  };
}

Change each_row(std::function<void(const Question&, Row&)> change) {
  return rows([change](const Question& q, Rows all) {
    for (Row& row : all) change(q, row);
    return all;
  });
}

Change sizes(std::function<void(const Question&, Shapes&)> change) {
  return [change](Rule& rule) {
    rule.sizes = [change, right = rule.sizes](const Question& q) {
      Shapes out = right(q);
      if (!out.empty()) change(q, out);
      return out;
    };
  };
}

Change options(std::function<void(RuleOptions&)> change) {
  return [change](Rule& rule) { change(rule.options); };
}

Change both(const Change& one, const Change& other) {
  return [one, other](Rule& rule) {
    one(rule);
    other(rule);
  };
}

const Change local_form_forgotten = options([](RuleOptions& o) { o.form = LocalForm::same; });
/// Rows that need the formula, on pieces.
const Change formula_forgotten = rows([](const Question&, Rows all) {
  for (Row& row : all) row.formula.reset();
  return all;
});
const Change strides_forgotten = options([](RuleOptions& o) {
  o.follows_strides = false;
  o.memory_order = {};
});
const Change strides_followed = options([](RuleOptions& o) { o.follows_strides = true; });
const Change fixed_forgotten = options([](RuleOptions& o) { o.fixed = {}; });
const Change sizes_argument_forgotten = options([](RuleOptions& o) { o.sizes_argument = {}; });

Change memory_order(std::vector<std::int8_t> order) {
  return options([order](RuleOptions& o) { o.memory_order = order; });
}
/// Rows for which ranks read beyond their pieces are gone, and what is read there too: to add wrong
/// ones in their place.
const Change windows_forgotten =
    both(local_form_forgotten, rows([](const Question& q, Rows all) {
           std::erase_if(all, [&](const Row& row) {
             const bool term = std::any_of(row.in.begin(), row.in.end(),
                                           [](const Placement& x) { return x.is_partial(); });
             const bool groups = q.integer("groups", 1) > 1 && row.in[0].is_shard(1);
             return row.contiguous || groups || (term && !row.linear);
           });
           return all;
         }));

Change runs_empty(bool on) {
  return options([on](RuleOptions& o) { o.runs_empty = on; });
}

bool has_shard(const std::vector<Placement>& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& x) { return x.is_shard(); });
}

/// Results that combine pieces of cut operands combine them otherwise; `result`: only that one.
Change combines(const Placement& how, std::optional<std::size_t> result = std::nullopt) {
  return each_row([how, result](const Question&, Row& row) {
    if (!has_shard(row.in)) return;
    for (std::size_t r = 0; r < row.out.size(); ++r) {
      if (row.out[r].is_partial() && (!result || *result == r)) row.out[r] = how;
    }
  });
}
const Change never_combines = combines(kWhole);

/// Whether a row speaks of dimensions that the operands have.
bool fits(const Question& q, const Row& row) {
  if (row.in.size() != q.inputs()) return false;
  for (std::size_t i = 0; i < row.in.size(); ++i) {
    const Operand& x = q.in(i);
    if (x.given && row.in[i].is_shard() && row.in[i].dim() >= as_int(x.dims())) return false;
  }
  return true;
}

/// A row more, for calls that it fits.
Change also(std::string_view text) {
  return rows([row = Row::parse(text)](const Question& q, Rows all) {
    if (fits(q, row)) all.push_back(row);
    return all;
  });
}

/// Other rows for terms: linear jointly in each of these groups, and nothing else.
Change linear_in(std::vector<std::vector<std::size_t>> groups) {
  return rows([groups](const Question& q, Rows all) {
    std::erase_if(all, [](const Row& row) { return row.linear; });
    for (const auto& group : groups) {
      const bool there = std::all_of(group.begin(), group.end(), [&](std::size_t i) {
        return i < q.inputs() && q.in(i).given;
      });
      if (there) all.push_back(linear(q.inputs(), group, std::max<std::size_t>(q.results(), 1)));
    }
    return all;
  });
}

/// All results, and all operands that have it, cut along one dimension.
Row all_cut(const Question& q, std::size_t dim) {
  std::vector<int> in;
  for (const Operand& x : q.in()) in.push_back(dim < x.dims() ? as_int(dim) : -1);
  return split(in, std::vector<int>(q.results(), as_int(dim)));
}

/// The dimension along which the op works is cut too, the result along it or combined.
Change cut_along_dim(std::optional<Placement> out = std::nullopt) {
  return rows([out](const Question& q, Rows all) {
    if (q.in(0).dims() == 0) return all;
    const std::size_t n = q.in(0).dims();
    const auto dims = q.arg("dims") != nullptr ? q.dims("dims") : q.dims();
    for (std::size_t d = 0; d < n; ++d) {
      const bool worked = !dims || std::find(dims->begin(), dims->end(), d) != dims->end();
      if (!worked) continue;
      Row row = all_cut(q, d);
      if (out) row.out.assign(row.out.size(), *out);
      all.push_back(row);
    }
    return all;
  });
}

/// As where `d == dim` is asked of a negative `dim`: the dimension counts as any other.
const Change negative_dim_is_no_dim = rows([](const Question& q, Rows all) {
  if (q.integer("dim") >= 0 || q.in(0).dims() == 0) return all;
  std::size_t n = q.in(0).dims();
  if (const c10::IValue* whole = q.arg("input_sizes")) n = whole->toIntVector().size();
  const std::size_t dim = static_cast<std::size_t>(q.integer("dim") + static_cast<std::int64_t>(n));
  if (dim < q.in(0).dims()) all.push_back(all_cut(q, dim));
  return all;
});

/// The dimensions that a reduction names, without negative ones.
std::optional<std::vector<std::size_t>> plain_dims(const Question& q) {
  const c10::IValue* value = q.arg("dim");
  if (value == nullptr || value->isNone()) return std::nullopt;
  std::vector<std::int64_t> raw{value->isInt() ? std::vector<std::int64_t>{value->toInt()}
                                               : value->toIntVector()};
  if (raw.empty()) return std::nullopt;
  std::vector<std::size_t> out;
  for (const std::int64_t d : raw) {
    if (d >= 0) out.push_back(static_cast<std::size_t>(d));
  }
  return out;
}

/// The same for reductions.
const Change negative_dims_are_not_reduced = rows([](const Question& q, Rows all) {
  const auto dims = plain_dims(q);
  if (!dims || dims->size() == q.dims()->size() || q.in(0).dims() == 0) return all;
  Rows out;
  for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
    if (std::find(dims->begin(), dims->end(), d) != dims->end()) continue;
    const auto before =
        std::count_if(dims->begin(), dims->end(), [&](std::size_t x) { return x < d; });
    const int place = as_int(d) - (q.flag("keepdim") ? 0 : static_cast<int>(before));
    out.push_back(split({as_int(d)}, std::vector<int>(q.results(), place)));
  }
  return out;
});

/// Results of a reduction are cut as if the reduced dimensions were gone, or as if they were not.
Change keepdim_taken_as(bool kept) {
  return each_row([kept](const Question& q, Row& row) {
    const auto dims = q.dims();
    if (!row.in[0].is_shard() || !row.out[0].is_shard() || !dims || q.flag("keepdim") == kept)
      return;
    int place = row.in[0].dim();
    if (!kept) {
      for (const std::size_t d : *dims) place -= as_int(d) < row.in[0].dim() ? 1 : 0;
    }
    for (Placement& out : row.out) out = Placement::shard(place);
  });
}

/// Dimensions of size 1, which are broadcast, are cut like those that they meet.
const Change broadcast_dims_cut = each_row([](const Question& q, Row& row) {
  if (!row.out[0].is_shard()) return;
  std::size_t dims = 0;
  for (const Operand& x : q.in()) dims = std::max(dims, x.dims());
  for (std::size_t i = 0; i < row.in.size(); ++i) {
    const int d = row.out[0].dim() - as_int(dims - q.in(i).dims());
    if (q.in(i).given && d >= 0) row.in[i] = Placement::shard(d);
  }
});

/// The same for the term of addmm and baddbmm alone.
const Change broadcast_bias_cut = each_row([](const Question& q, Row& row) {
  if (!row.out[0].is_shard()) return;
  const int d = row.out[0].dim() - as_int(q.in(1).dims() - q.in(0).dims());
  if (d >= 0) row.in[0] = Placement::shard(d);
});

/// The shards of results lie one dimension further on.
const Change result_shifted = each_row([](const Question&, Row& row) {
  if (!row.in[0].is_shard()) return;
  for (Placement& out : row.out) {
    if (out.is_shard()) out = Placement::shard(out.dim() + 1);
  }
});

double number(const Question& q, std::string_view name) {
  return q.arg(name)->toScalar().toDouble();
}

/// Rows of a mean loss in which every rank takes the mean of its own elements.
Change local_means(const Placement& how) {
  return both(local_form_forgotten, each_row([how](const Question& q, Row& row) {
                if (q.integer("reduction", 1) != at::Reduction::Mean) return;
                if (has_shard(row.in) && row.out[0].is_partial()) row.out[0] = how;
              }));
}

// ---- the mutants -----------------------------------------------------------------------------

constexpr const char* kAttention = "aten::_scaled_dot_product_flash_attention_for_cpu";
constexpr const char* kAttentionBackward =
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward";

/// The dimension of attention's mask that is dimension `d` of queries and keys; -1 where none is.
int of_mask(const Question& q, int d) {
  const auto mask = q.operand("attn_mask");
  if (!mask) return -1;
  const int at = d - (4 - as_int(q.in(*mask).dims()));
  return at >= 0 && q.in(*mask).sizes[static_cast<std::size_t>(at)] != 1 ? at : -1;
}

Change attention_also(std::vector<int> in, std::vector<int> out, const Placement& missing) {
  return rows([=](const Question& q, Rows all) {
    std::vector<int> with_mask = in;
    with_mask.resize(q.inputs(), -1);
    if (const auto mask = q.operand("attn_mask")) with_mask[*mask] = of_mask(q, in[0]);
    all.push_back(split(with_mask, out, missing));
    return all;
  });
}

std::vector<Category> categories() {
  return {
      {"reduction dropped",
       {
           {"sums stay with the rank that made them", "aten::sum", never_combines},
           {"products of a cut contraction", "aten::mm", never_combines},
           {"products of a cut contraction", "aten::bmm", never_combines},
           {"products of a cut contraction", "aten::mv", never_combines},
           {"products of a cut contraction", "aten::dot", never_combines},
           {"maxima of pieces", "aten::amax", never_combines},
           {"products of pieces", "aten::prod", never_combines},
           {"any of a piece", "aten::any", never_combines},
           {"norms of pieces", "aten::linalg_vector_norm", never_combines},
           {"losses of pieces", "aten::mse_loss", never_combines},
           {"losses of pieces", "aten::nll_loss_forward", combines(kWhole, 0)},
           {"rows of a cut table", "aten::embedding", never_combines},
           {"gradients of pieces of the index", "aten::embedding_dense_backward", never_combines},
           {"channels in", "aten::convolution", never_combines},
           {"the weight's gradient", "aten::convolution_backward", combines(kWhole, 1)},
           {"the bias's gradient", "aten::convolution_backward", combines(kWhole, 2)},
           {"the input's gradient, channels out", "aten::convolution_backward",
            combines(kWhole, 0)},
           {"the weight's gradient", "aten::native_layer_norm_backward", combines(kWhole, 1)},
           {"the bias's gradient", "aten::native_layer_norm_backward", combines(kWhole, 2)},
           {"gradients of keys and values of cut queries", kAttentionBackward,
            attention_also({2, 2, -1, -1, 2, 2}, {2, -1, -1}, kWhole)},
       }},
      {"reduction doubled",
       {
           {"a whole operand beside terms", "aten::add.Tensor", linear_in({{0}})},
           {"a whole operand beside terms", "aten::sub.Tensor", linear_in({{1}})},
           {"a whole operand beside terms", "aten::lerp", linear_in({{0}})},
           {"a whole operand beside terms", "aten::addcmul", linear_in({{1}, {2}})},
           {"a whole operand beside terms", "aten::addcdiv", linear_in({{0}})},
           {"a whole operand beside terms", "aten::cat", linear_in({{0}})},
           {"a whole operand beside terms", "aten::stack", linear_in({{0}})},
           {"a whole operand beside terms", "aten::where", linear_in({{1}, {2}})},
           {"a whole operand beside terms", "aten::copy", linear_in({{0}})},
           {"a whole bias in a cut contraction", "aten::addmm",
            each_row([](const Question&, Row& row) {
              if (has_shard(row.in) && row.out[0].is_partial()) row.in[0] = kWhole;
            })},
           {"a whole bias in a cut contraction", "aten::baddbmm",
            each_row([](const Question&, Row& row) {
              if (has_shard(row.in) && row.out[0].is_partial()) row.in[0] = kWhole;
            })},
           {"a whole bias beside terms of a matrix", "aten::addmm", linear_in({{1}, {2}})},
           {"a whole bias in cut channels", "aten::convolution",
            each_row([](const Question&, Row& row) {
              if (has_shard(row.in) && row.out[0].is_partial()) row.in[2] = kWhole;
            })},
           {"a whole source", "aten::scatter_add", linear_in({{0}})},
           {"a written value", "aten::scatter", linear_in({{0}})},
           {"a value filled into terms", "aten::fill", linear_in({{0}})},
           {"a value filled into terms", "aten::masked_fill", linear_in({{0}})},
           {"a padding put around terms", "aten::constant_pad_nd", linear_in({{0}})},
           {"the weight of all classes", "aten::nll_loss_forward",
            each_row([](const Question& q, Row& row) {
              if (q.integer("reduction", 1) == at::Reduction::Mean) row.out[1] = kSum;
            })},
       }},
      {"wrong reduction",
       {
           {"average for sum", "aten::sum", combines(p(Reduction::avg))},
           {"average for sum", "aten::mm", combines(p(Reduction::avg))},
           {"maximum for sum", "aten::sum", combines(p(Reduction::max))},
           {"average for sum of sums", "aten::mean", combines(p(Reduction::avg))},
           {"minimum for maximum", "aten::amax", combines(p(Reduction::min))},
           {"maximum for minimum", "aten::amin", combines(p(Reduction::max))},
           {"minimum for maximum", "aten::max", combines(p(Reduction::min))},
           {"sum for minimum", "aten::min", combines(kSum)},
           {"sum for product", "aten::prod", combines(kSum)},
           {"or for and", "aten::all", combines(p(Reduction::bit_or))},
           {"and for or", "aten::any", combines(p(Reduction::bit_and))},
           {"sum of norms", "aten::linalg_vector_norm", combines(kSum)},
           {"order 2 for every order", "aten::linalg_vector_norm",
            combines(Placement::partial_norm(2))},
           {"a maximum for the least", "aten::linalg_vector_norm",
            each_row([](const Question& q, Row& row) {
              if (number(q, "ord") < 0 && row.out[0].is_partial()) row.out[0] = p(Reduction::max);
            })},
           {"a norm for a count", "aten::linalg_vector_norm",
            each_row([](const Question& q, Row& row) {
              if (number(q, "ord") == 0 && row.out[0].is_partial())
                row.out[0] = Placement::partial_norm(2);
            })},
           {"average for sum", "aten::embedding_dense_backward", combines(p(Reduction::avg))},
           {"product for sum", "aten::dot", combines(p(Reduction::product))},
       }},
      {"wrong dimension",
       {
           {"rows of the first are columns of the result", "aten::mm",
            each_row([](const Question&, Row& row) {
              if (row.in[0].is_shard(0)) row.out[0] = Placement::shard(1);
            })},
           {"columns of the second are its rows", "aten::mm",
            each_row([](const Question&, Row& row) {
              if (row.out[0].is_shard(1)) row.in[1] = Placement::shard(0);
            })},
           {"batches of the second are its rows", "aten::bmm",
            each_row([](const Question&, Row& row) {
              if (row.out[0].is_shard(0)) row.in[1] = Placement::shard(1);
            })},
           {"a bias of columns cut with rows", "aten::addmm",
            each_row([](const Question& q, Row& row) {
              if (row.out[0].is_shard(0) && q.in(0).dims() == 1) row.in[0] = Placement::shard(0);
            })},
           {"a bias aligned on the left", "aten::baddbmm",
            each_row([](const Question& q, Row& row) {
              if (!row.out[0].is_shard()) return;
              const bool there = row.out[0].dim() < as_int(q.in(0).dims());
              row.in[0] = there ? row.out[0] : kWhole;
            })},
           {"reduced dimensions still count", "aten::sum", keepdim_taken_as(true)},
           {"kept dimensions do not count", "aten::sum", keepdim_taken_as(false)},
           {"kept dimensions do not count", "aten::amax", keepdim_taken_as(false)},
           {"kept dimensions do not count", "aten::argmax", keepdim_taken_as(false)},
           {"kept dimensions do not count", "aten::mean", keepdim_taken_as(false)},
           {"kept dimensions do not count", "aten::linalg_vector_norm", keepdim_taken_as(false)},
           {"kept dimensions do not count", "aten::var_mean", keepdim_taken_as(false)},
           {"the new dimension one too late", "aten::stack",
            each_row([](const Question& q, Row& row) {
              const auto n = static_cast<std::int64_t>(q.in(0).dims());
              const auto dim = q.integer("dim") < 0 ? q.integer("dim") + n + 1 : q.integer("dim");
              if (row.in[0].is_shard() && row.in[0].dim() <= dim) row.out[0] = row.in[0];
            })},
           {"the selected dimension still counts", "aten::select_backward",
            each_row([](const Question&, Row& row) {
              if (row.in[0].is_shard()) row.out[0] = row.in[0];
            })},
           {"columns of the table are the index's", "aten::embedding",
            each_row([](const Question& q, Row& row) {
              if (row.in[0].is_shard(1) && q.in(1).dims() > 0) row.out[0] = Placement::shard(0);
            })},
           {"an index of several dimensions taken for one", "aten::index",
            each_row([](const Question&, Row& row) {
              if (row.in[0].is_shard() && row.out[0].is_shard()) row.out[0] = row.in[0];
            })},
           {"channels out are batches", "aten::convolution",
            each_row([](const Question&, Row& row) {
              if (row.out[0].is_shard(1)) row.out[0] = Placement::shard(0);
            })},
           {"batches of the sums are heads", kAttention, each_row([](const Question&, Row& row) {
              if (row.out[1].is_shard(0)) row.out[1] = Placement::shard(1);
            })},
           {"pointwise, the next one", "aten::relu", result_shifted},
           {"operands aligned on the left", "aten::mul", each_row([](const Question& q, Row& row) {
              if (!row.out[0].is_shard()) return;
              for (std::size_t i = 0; i < row.in.size(); ++i) {
                const bool there = row.out[0].dim() < as_int(q.in(i).dims()) &&
                                   q.in(i).sizes[static_cast<std::size_t>(row.out[0].dim())] > 1;
                row.in[i] = there ? row.out[0] : kWhole;
              }
            })},
       }},
      {"negative dim",
       {
           {"counts as any other", "aten::_softmax", negative_dim_is_no_dim},
           {"counts as any other", "aten::_log_softmax", negative_dim_is_no_dim},
           {"counts as any other", "aten::_softmax_backward_data", negative_dim_is_no_dim},
           {"counts as any other", "aten::sort", negative_dim_is_no_dim},
           {"counts as any other", "aten::topk", negative_dim_is_no_dim},
           {"counts as any other", "aten::cat", negative_dim_is_no_dim},
           {"counts as any other", "aten::slice_backward", negative_dim_is_no_dim},
           {"counts as any other", "aten::index_select", rows([](const Question& q, Rows all) {
              const bool raw = q.integer("dim") < 0 && q.in(0).dims() > 0;
              if (raw) all.push_back(split({as_int(q.dim()), -1}, {as_int(q.dim())}));
              return all;
            })},
           {"counts as any other", "aten::gather", rows([](const Question& q, Rows all) {
              if (q.integer("dim") >= 0 || q.in(0).dims() == 0 || q.in(1).dims() == 0) return all;
              const std::size_t d = q.dim();
              if (q.in(0).sizes[d] == q.in(1).sizes[d]) all.push_back(all_cut(q, d));
              return all;
            })},
           {"counts as any other", "aten::scatter_add", rows([](const Question& q, Rows all) {
              if (q.integer("dim") >= 0 || q.in(0).dims() == 0 || q.in(1).dims() == 0) return all;
              const std::size_t d = q.dim();
              const bool equal = std::all_of(q.in().begin(), q.in().end(), [&](const Operand& x) {
                return x.sizes[d] == q.in(0).sizes[d];
              });
              if (equal) all.push_back(all_cut(q, d));
              return all;
            })},
           {"before all others", "aten::stack", each_row([](const Question& q, Row& row) {
              if (q.integer("dim") < 0 && row.in[0].is_shard()) {
                row.out[0] = Placement::shard(row.in[0].dim() + 1);
              }
            })},
           {"before all others", "aten::select_backward", each_row([](const Question& q, Row& row) {
              if (q.integer("dim") < 0 && row.in[0].is_shard()) {
                row.out[0] = Placement::shard(row.in[0].dim() + 1);
              }
            })},
           {"is not flipped", "aten::flip",
            both(windows_forgotten, rows([](const Question& q, Rows all) {
                   for (const std::int64_t d : q.arg("dims")->toIntVector()) {
                     if (d < 0) {
                       all.push_back(all_cut(
                           q, static_cast<std::size_t>(d +
                                                       static_cast<std::int64_t>(q.in(0).dims()))));
                     }
                   }
                   return all;
                 }))},
           {"is not reduced", "aten::sum", negative_dims_are_not_reduced},
           {"is not reduced", "aten::argmax", negative_dims_are_not_reduced},
           {"is not reduced", "aten::logsumexp", negative_dims_are_not_reduced},
           {"is not reduced", "aten::var", negative_dims_are_not_reduced},
           {"is not reduced", "aten::linalg_vector_norm", negative_dims_are_not_reduced},
       }},
      {"cut along the op's own dimension",
       {
           {"running sums of pieces", "aten::cumsum", local_form_forgotten},
           {"running products of pieces", "aten::cumprod", local_form_forgotten},
           {"running sums of pieces", "aten::logcumsumexp", local_form_forgotten},
           {"pieces normalised each", "aten::native_layer_norm", formula_forgotten},
           {"pieces normalised each", "aten::native_batch_norm", formula_forgotten},
           {"pieces normalised each", "aten::native_group_norm", formula_forgotten},
           {"moments of pieces", "aten::var", formula_forgotten},
           {"places in pieces", "aten::argmax", formula_forgotten},
           {"classes of pieces", "aten::nll_loss_forward", formula_forgotten},
           {"each piece sums to 1", "aten::_softmax", cut_along_dim()},
           {"each piece sums to 1", "aten::_log_softmax_backward_data", cut_along_dim()},
           {"pieces sorted each", "aten::sort", cut_along_dim()},
           {"the largest of pieces", "aten::topk", cut_along_dim()},
           {"pieces flipped each", "aten::flip", local_form_forgotten},
           {"pieces rolled each", "aten::roll", local_form_forgotten},
           {"pieces joined each", "aten::cat", cut_along_dim()},
           {"pieces padded each", "aten::constant_pad_nd", local_form_forgotten},
           {"nothing beside the edge", "aten::convolution",
            both(windows_forgotten, also("S(2),R,R -> S(2) in runs"))},
           {"nothing beside the edge", "aten::avg_pool2d", local_form_forgotten},
           {"nothing given back", "aten::avg_pool3d_backward", local_form_forgotten},
           {"runs of blocks", "aten::convolution", each_row([](const Question&, Row& row) {
              if (row.parts == 0) row.contiguous = false;
            })},
           {"groups cut apart", "aten::convolution",
            each_row([](const Question&, Row& row) { row.parts = 0; })},
           {"a place in a piece", "aten::argmax", cut_along_dim(p(Reduction::max))},
           {"places in pieces", "aten::max", rows([](const Question& q, Rows all) {
              if (q.results() < 2 || q.in(0).dims() == 0) return all;
              Row row = all_cut(q, q.dim());
              row.out.assign(2, p(Reduction::max));
              all.push_back(row);
              return all;
            })},
           {"a sum of logarithms", "aten::logsumexp", cut_along_dim(kSum)},
           {"a largest logarithm", "aten::logsumexp", cut_along_dim(p(Reduction::max))},
           {"an average of variances", "aten::var", cut_along_dim(p(Reduction::avg))},
           {"an average of deviations", "aten::std", cut_along_dim(p(Reduction::avg))},
           {"averages of both", "aten::var_mean", cut_along_dim(p(Reduction::avg))},
           {"rows of a triangle", "aten::tril", also("S(0) -> S(0)")},
           {"columns of a triangle", "aten::triu", also("S(1) -> S(1)")},
           {"a part of what is normalised", "aten::native_layer_norm",
            rows([](const Question& q, Rows all) {
              const int last = as_int(q.in(0).dims()) - 1;
              const int of_weight = as_int(q.arg("normalized_shape")->toIntVector().size()) - 1;
              all.push_back(split({last, of_weight, of_weight}, {last, -1, -1}, p(Reduction::avg)));
              return all;
            })},
           {"width", "aten::convolution", both(windows_forgotten, also("S(2),R,R -> S(2)"))},
           {"width, of kernels of one, whatever the stride", "aten::convolution",
            both(windows_forgotten, rows([](const Question& q, Rows all) {
                   const auto padding = q.arg("padding")->toIntVector();
                   const bool alone =
                       q.in(1).sizes[2] == 1 && padding[0] == 0 && !q.flag("transposed");
                   if (alone) all.push_back(split({2, -1, -1}, {2}));
                   return all;
                 }))},
           {"what is padded here and cut there", "aten::constant_pad_nd",
            both(windows_forgotten, rows([](const Question& q, Rows all) {
                   const auto widths = q.arg("pad")->toIntVector();
                   for (std::size_t i = 0; i + 1 < widths.size(); i += 2) {
                     if (widths[i] + widths[i + 1] == 0) {
                       all.push_back(all_cut(q, q.in(0).dims() - 1 - i / 2));
                     }
                   }
                   return all;
                 }))},
           {"all, where none are named", "aten::sum", rows([](const Question& q, Rows all) {
              const c10::IValue* dims = q.arg("dim");
              const bool none = dims != nullptr && dims->isIntList() && dims->toIntVector().empty();
              for (std::size_t d = 0; none && d < q.in(0).dims(); ++d) all[d] = all_cut(q, d);
              return all;
            })},
           {"channels of groups", "aten::convolution", rows([](const Question& q, Rows all) {
              if (q.integer("groups", 1) > 1 && !q.flag("transposed"))
                all.push_back(split({-1, 0, 0}, {1}));
              return all;
            })},
           {"channels of a transposed one", "aten::convolution",
            rows([](const Question& q, Rows all) {
              if (q.flag("transposed")) all.push_back(split({-1, 0, 0}, {1}));
              return all;
            })},
           {"height", "aten::max_pool2d_with_indices",
            both(windows_forgotten, rows([](const Question& q, Rows all) {
                   all.push_back(all_cut(q, q.in(0).dims() - 2));
                   return all;
                 }))},
           {"queries, each the first that looks back", kAttention,
            attention_also({2, -1, -1}, {2, 2}, kSum)},
           {"keys, as terms of a sum", kAttention, attention_also({-1, 2, 2}, {-1, -1}, kSum)},
           {"heads of keys, as if queries shared them", kAttention,
            rows([](const Question& q, Rows all) {
              if (q.in(0).sizes[1] != 2 || q.operand("attn_mask")) return all;
              all.push_back(split({-1, 1, 1, -1}, {-1, -1}, kWhole));
              return all;
            })},
           {"classes", "aten::nll_loss_forward", rows([](const Question& q, Rows all) {
              if (q.in(0).dims() == 2) all.push_back(split({1, -1, 0}, {-1, -1}));
              return all;
            })},
       }},
      {"terms through what is not linear",
       {
           {"of a sum", "aten::abs", linear_in({{0}})},
           {"of a sum", "aten::relu", linear_in({{0}})},
           {"of a sum", "aten::exp", linear_in({{0}})},
           {"of a sum", "aten::amax", linear_in({{0}})},
           {"of a sum", "aten::logsumexp", linear_in({{0}})},
           {"of a sum", "aten::cumprod", linear_in({{0}})},
           {"of a sum, and whole places", "aten::sort", rows([](const Question& q, Rows all) {
              Row row = linear(1, {0}, q.results());
              row.out[1] = kWhole;
              all.push_back(row);
              return all;
            })},
           {"of a sum", "aten::_softmax", linear_in({{0}})},
           {"of a sum", "aten::linalg_vector_norm", linear_in({{0}})},
           {"of a sum", "aten::native_layer_norm", linear_in({{0}})},
           {"of two factors at once", "aten::mul", linear_in({{0, 1}})},
           {"of two factors at once", "aten::bmm", linear_in({{0, 1}})},
           {"of a product and its term", "aten::addmm", linear_in({{0, 1, 2}})},
           {"of a divisor", "aten::div", linear_in({{1}})},
           {"of what is rounded", "aten::div", linear_in({{0}})},
           {"of what is rounded", "aten::copy", linear_in({{0, 1}})},
           {"of the result", "aten::_softmax_backward_data", linear_in({{1}})},
           {"of the total weight", "aten::nll_loss_backward", linear_in({{4}})},
           {"of a weight between two", "aten::lerp", linear_in({{0, 1, 2}})},
           {"of a sum", "aten::floor", linear_in({{0}})},
           {"of both", "aten::gelu_backward", linear_in({{0, 1}})},
           {"of the result", "aten::tanh_backward", linear_in({{1}})},
           {"of what was predicted", "aten::mse_loss_backward", linear_in({{1}})},
           {"a minimum of maxima", "aten::amax", also("P(min) -> P(min)")},
           {"a place in a term", "aten::argmax", also("P(max) -> P(max)")},
           {"a minimum of maxima", "aten::maximum", also("P(min),P(min) -> P(min)")},
           {"or of both", "aten::logical_and", also("P(or),P(or) -> P(or)")},
           {"of a sum, as or", "aten::any", also("P(sum) -> P(or)")},
           {"a maximum of norms", "aten::linalg_vector_norm", also("P(max) -> P(max)")},
           {"a maximum that turns around", "aten::neg", also("P(max) -> P(max)")},
           {"a maximum less a maximum", "aten::sub", also("P(max),P(max) -> P(max)")},
           {"a maximum times what may be negative", "aten::mul", also("P(max),R -> P(max)")},
           {"a maximum above a threshold", "aten::threshold", also("P(max) -> P(max)")},
           {"a maximum without its sign", "aten::abs", also("P(max) -> P(max)")},
           {"a minimum of sums", "aten::sum", also("P(min) -> P(min)")},
           {"a product of sums", "aten::add", also("P(prod),P(prod) -> P(prod)")},
           {"or of what is not", "aten::logical_not", also("P(or) -> P(or)")},
           {"a condition of terms", "aten::where", also("P(or),R,R -> P(max)")},
       }},
      {"sizes not compared",
       {
           {"an index that is smaller", "aten::gather", rows([](const Question& q, Rows all) {
              if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return all;
              for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
                if (d != q.dim()) all.push_back(all_cut(q, d));
              }
              return all;
            })},
           {"a source that is larger", "aten::scatter_add", rows([](const Question& q, Rows all) {
              if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return all;
              for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
                const bool equal = q.in(0).sizes[d] == q.in(1).sizes[d];
                if (d != q.dim() && equal) all.push_back(all_cut(q, d));
              }
              return all;
            })},
           {"an index that is smaller", "aten::scatter", rows([](const Question& q, Rows all) {
              if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return all;
              for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
                if (d != q.dim()) all.push_back(all_cut(q, d));
              }
              return all;
            })},
           {"a target that is larger", "aten::scatter_add", rows([](const Question& q, Rows all) {
              if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return all;
              for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
                const bool equal = q.in(1).sizes[d] == q.in(2).sizes[d];
                if (d != q.dim() && equal) all.push_back(all_cut(q, d));
              }
              return all;
            })},
           {"broadcast dimensions are cut", "aten::add", broadcast_dims_cut},
           {"broadcast dimensions are cut", "aten::where", broadcast_dims_cut},
           {"broadcast dimensions are cut", "aten::masked_fill", broadcast_dims_cut},
           {"a broadcast bias is cut", "aten::addmm", broadcast_bias_cut},
           {"a broadcast bias is cut", "aten::baddbmm", broadcast_bias_cut},
           {"a broadcast target is cut", "aten::mse_loss", rows([](const Question& q, Rows all) {
              if (q.in(0).sizes == q.in(1).sizes) return all;
              for (std::size_t d = 0; d < std::min(q.in(0).dims(), q.in(1).dims()); ++d) {
                Row row = all_cut(q, d);
                if (q.integer("reduction", 1) != 0) row.out[0] = kSum;
                all.push_back(row);
              }
              return all;
            })},
           {"a broadcast mask is cut", kAttention, each_row([](const Question& q, Row& row) {
              const auto mask = q.operand("attn_mask");
              if (mask && q.in(*mask).dims() == 4) row.in[*mask] = row.out[0];
            })},
           {"a skipped operand is cut", "aten::cat", each_row([](const Question&, Row& row) {
              if (row.linear) return;
              for (Placement& in : row.in) in = row.out[0];
            })},
       }},
      {"pieces of what is looked up",
       {
           {"an indexed dimension", "aten::index_select", local_form_forgotten},
           {"rows written by place in the piece", "aten::index_add", local_form_forgotten},
           {"rows written by place in the piece", "aten::index_put", local_form_forgotten},
           {"rows written by place in the piece", "aten::scatter_add", local_form_forgotten},
           {"rows written by place in the piece", "aten::scatter_reduce", local_form_forgotten},
           {"an indexed dimension, with its index", "aten::index_select",
            rows([](const Question& q, Rows all) {
              if (q.in(0).dims() == 0 || q.in(1).dims() == 0) return all;
              all.push_back(split({as_int(q.dim()), 0}, {as_int(q.dim())}));
              return all;
            })},
           {"an indexed dimension", "aten::index", rows([](const Question& q, Rows all) {
              if (q.inputs() != 2 || !q.in(1).given || q.in(1).dims() != 1) return all;
              all.push_back(split({0, 0}, {0}));
              return all;
            })},
           {"an indexed dimension", "aten::gather", local_form_forgotten},
           {"a mask taken for an index", "aten::index",
            [](Rule& rule) {
              rule.rows = [](const Question& q) {
                Rows all;
                for (int d = 1; d < as_int(q.in(0).dims()) && q.inputs() == 2; ++d)
                  all.push_back(split({d, -1}, {d - 1 + as_int(q.in(1).dims())}));
                return all;
              };
              rule.sizes = [](const Question& q) {
                if (q.inputs() != 2) return Shapes{};
                Shape out = q.in(1).sizes;
                for (std::size_t d = 1; d < q.in(0).dims(); ++d) out.push_back(q.in(0).sizes[d]);
                return Shapes{out};
              };
            }},
           {"rows by their place in the piece", "aten::embedding", local_form_forgotten},
           {"counts in a piece", "aten::embedding_dense_backward",
            rows([](const Question& q, Rows all) {
              if (!q.flag("scale_grad_by_freq")) return all;
              all.push_back(split({0, 0}, {-1}));
              return all;
            })},
           {"terms of an index", "aten::index_select", also("R,P(max) -> P(max)")},
       }},
      {"local means",
       {
           {"their sum", "aten::mean", local_form_forgotten},
           {"their average", "aten::mean", both(local_form_forgotten, combines(p(Reduction::avg)))},
           {"their sum", "aten::mse_loss", local_means(kSum)},
           {"their average", "aten::mse_loss", local_means(p(Reduction::avg))},
           {"their average", "aten::huber_loss", local_means(p(Reduction::avg))},
           {"their average", "aten::smooth_l1_loss", local_means(p(Reduction::avg))},
           {"the gradient of one", "aten::mse_loss_backward", local_form_forgotten},
           {"the gradient of one", "aten::huber_loss_backward", local_form_forgotten},
           {"their sum", "aten::nll_loss_forward", local_means(kSum)},
           {"their average, whatever the weights", "aten::nll_loss_forward",
            local_means(p(Reduction::avg))},
       }},
      {"empty pieces",
       {
           {"a term that is not added", "aten::addmm", runs_empty(false)},
           {"a term that is not added", "aten::baddbmm", runs_empty(false)},
           {"the largest of nothing", "aten::amax", runs_empty(true)},
           {"the smallest of nothing", "aten::min", runs_empty(true)},
           {"a norm of nothing", "aten::linalg_vector_norm", runs_empty(true)},
           {"no channels", "aten::convolution", runs_empty(true)},
           {"no batch", "aten::max_pool2d_with_indices", runs_empty(true)},
           {"rows of no table", "aten::embedding", runs_empty(true)},
           {"a mean of nothing", "aten::mean",
            both(both(local_form_forgotten, runs_empty(true)), combines(p(Reduction::avg)))},
           {"the largest of nothing", "aten::max", runs_empty(true)},
       }},
      {"static scalars",
       {
           {"one order of a norm for all", "aten::linalg_vector_norm", fixed_forgotten},
           {"the power 1 is linear", "aten::pow", rows([](const Question& q, Rows all) {
              const bool by_number = q.schema().overload_name() == "Tensor_Scalar";
              if (by_number && number(q, "exponent") == 1) all.push_back(linear(1, {0}));
              return all;
            })},
           {"a bias times 0 counts nowhere", "aten::addmm", rows([](const Question& q, Rows all) {
              if (number(q, "beta") != 0) return all;
              all.push_back(linear(3, {1}));
              all.push_back(linear(3, {2}));
              return all;
            })},
           {"a padding of 0 is linear", "aten::constant_pad_nd",
            rows([](const Question& q, Rows all) {
              if (number(q, "value") == 0) all.push_back(linear(1, {0}));
              return all;
            })},
           {"a fill with 0 is linear", "aten::masked_fill", rows([](const Question& q, Rows all) {
              const bool by_number = q.schema().overload_name() == "Scalar";
              if (by_number && number(q, "value") == 0) all.push_back(linear(2, {0}));
              return all;
            })},
       }},
      {"wrong sizes",
       {
           {"transposed", "aten::mm",
            sizes([](const Question&, Shapes& out) { std::swap(out[0][0], out[0][1]); })},
           {"reduced dimensions are gone", "aten::sum", sizes([](const Question& q, Shapes& out) {
              if (!q.flag("keepdim") || !q.dims()) return;
              Shape left;
              for (std::size_t d = 0; d < q.in(0).dims(); ++d) {
                const auto dims = *q.dims();
                if (std::find(dims.begin(), dims.end(), d) == dims.end()) left.push_back(out[0][d]);
              }
              out[0] = left;
            })},
           {"padded on one side", "aten::constant_pad_nd",
            sizes([](const Question& q, Shapes& out) {
              out[0][out[0].size() - 1] -= q.arg("pad")->toIntVector()[1];
            })},
           {"one too many", "aten::convolution",
            sizes([](const Question&, Shapes& out) { ++out[0][2]; })},
           {"groups of a transposed one forgotten", "aten::convolution",
            sizes([](const Question& q, Shapes& out) {
              if (q.flag("transposed")) out[0][1] = q.in(1).sizes[1];
            })},
           {"padding after a transposed one forgotten", "aten::convolution",
            sizes([](const Question& q, Shapes& out) {
              if (q.flag("transposed")) out[0][2] -= q.arg("output_padding")->toIntVector()[0];
            })},
           {"never rounded up", "aten::max_pool2d_with_indices",
            sizes([](const Question& q, Shapes& out) {
              if (q.flag("ceil_mode")) --out[0][out[0].size() - 1];
            })},
           {"all, not the first k", "aten::topk", sizes([](const Question& q, Shapes& out) {
              for (Shape& s : out) s = q.in(0).sizes;
            })},
           {"those of the first", "aten::cat",
            sizes([](const Question& q, Shapes& out) { out[0] = q.in(0).sizes; })},
           {"those of the table", "aten::gather",
            sizes([](const Question& q, Shapes& out) { out[0] = q.in(0).sizes; })},
           {"statistics of every element", "aten::native_layer_norm",
            sizes([](const Question& q, Shapes& out) { out[1] = q.in(0).sizes; })},
           {"always rounded up", "aten::max_pool2d_with_indices",
            sizes([](const Question&, Shapes& out) {
              for (Shape& s : out) ++s[s.size() - 1];
            })},
           {"of the piece, not of the whole", "aten::select_backward", sizes_argument_forgotten},
           {"of the piece, not of the whole", "aten::slice_backward", sizes_argument_forgotten},
       }},
      {"wrong strides",
       {
           {"contiguous", "aten::abs", strides_forgotten},
           {"contiguous", "aten::add", strides_forgotten},
           {"contiguous", "aten::clone", strides_forgotten},
           {"contiguous", "aten::_to_copy", strides_forgotten},
           {"contiguous", kAttention, strides_forgotten},
           {"like the operand", "aten::cumsum", strides_followed},
           {"columns first", "aten::mm", memory_order({1, 0})},
           {"channels last", "aten::convolution", memory_order({0, 2, 3, 1})},
       }},
  };
}

// ---- running them ----------------------------------------------------------------------------

/// `sum` of `aten::sum.dim_IntList`.
std::string rule_name(const std::string& op) {
  const std::size_t begin = op.find("::") + 2;
  return op.substr(begin, op.find('.') - begin);
}

/// Its counter-example; nothing where the prover finds none.
std::optional<CounterExample> caught(const Mutant& mutant) {
  Rule rule = *find_rule(rule_name(mutant.op), /*tagged_pointwise=*/true);
  rule.name = rule_name(mutant.op);
  mutant.change(rule);
  const RuleHandle handle = add_rule(std::move(rule));
  const Proof proof = prove(mutant.op, kOptions);
  return proof.holds() ? std::nullopt : std::optional(proof.wrong[0]);
}

/// Whether the rule of the table holds, as far as is looked here.
bool right_rule_holds(const std::string& op) {
  static std::map<std::string, bool> known;
  const auto [at, is_new] = known.emplace(op, false);
  if (is_new) {
    const Proof proof = prove(op, kOptions);
    at->second = proof.holds();
    if (!proof.holds()) std::cout << "the rule itself is wrong: " << proof.to_string();
  }
  return at->second;
}

struct Count {
  std::size_t caught = 0;
  std::size_t all = 0;
};

void run(const Category& category, const Mutant& mutant, Count& count) {
  const bool right = right_rule_holds(mutant.op);
  const auto found = caught(mutant);
  ++count.all;
  count.caught += right && found ? 1 : 0;
  std::cout << (!right  ? "UNPROVEN "
                : found ? "caught   "
                        : "SURVIVED ")
            << category.name << ": " << mutant.op << ": " << mutant.name;
  if (found) std::cout << ": " << found->call << ": " << found->difference;
  std::cout << std::endl;
}

int run_all(bool quick, const std::string& only) {
  Count count;
  std::set<std::string> ops;
  std::set<std::string> named;
  for (const Category& category : categories()) {
    for (std::size_t i = 0; i < category.mutants.size(); ++i) {
      const Mutant& mutant = category.mutants[i];
      const std::string name = concat(category.name, ": ", mutant.op, ": ", mutant.name);
      if (!named.insert(name).second) fail<ValueError>("prove_mutants", "twice: ", name);
      if ((quick && i % 3 != 0) || name.find(only) == std::string::npos) continue;
      run(category, mutant, count);
      ops.insert(mutant.op);
    }
  }
  std::cout << ops.size() << " ops, " << categories().size() << " categories\n"
            << count.caught << " of " << count.all << " caught" << std::endl;
  return count.caught == count.all && count.all > 0 ? 0 : 1;
}

}  // namespace
}  // namespace intarsia

int main(int argc, char** argv) {
  bool quick = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--quick") {
      quick = true;
    } else if (arg == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      std::cerr << "usage: prove_mutants [--quick] [--only TEXT]\n";
      return 2;
    }
  }
  try {
    return intarsia::run_all(quick, only);
  } catch (const std::exception& e) {
    std::cerr << intarsia::text_of(e) << '\n';
    return 1;
  }
}

// Families of neural-network ops.
#include <ATen/core/Reduction.h>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/families.h"
#include "rules/wrong_call.h"

namespace intarsia::rules {
// ---- lookups and losses ----------------------------------------------------------------------

Rows embedding(const Question& q) {
  Rows rows;
  const auto n = static_cast<int>(q.in(1).dims());
  for (int d = 0; d < n; ++d) rows.push_back(split({-1, d}, {d}));
  rows.push_back(split({1, -1}, {n}));
  rows.push_back(split({0, -1}, {-1}));  // LocalForm::rows_of_table
  rows.push_back(moved(2, {0}));
  return rows;
}

Sizes embedding_sizes(const Question& q) {
  if (q.in(0).dims() != 2) {
    fail<ValueError>(q.schema().name(), "the table has sizes (", join(q.in(0).sizes),
                     "); it must have two dimensions");
  }
  Shape out = q.in(1).sizes;
  out.push_back(q.in(0).sizes[1]);
  return {out};
}

// grad_out, indices -> grad of the table
Rows embedding_backward(const Question& q) {
  Rows rows;
  const auto n = static_cast<int>(q.in(1).dims());
  if (!q.flag("scale_grad_by_freq")) {
    for (int d = 0; d < n; ++d) rows.push_back(split({d, d}, {-1}));
  }
  rows.push_back(split({n, -1}, {1}));
  rows.push_back(linear(2, {0}));
  return rows;
}

Sizes embedding_backward_sizes(const Question& q) {
  require_call(q.in(0).dims() > 0);
  return {Shape{q.integer("num_weights"), q.in(0).sizes.back()}};
}

namespace {

/// Where a dimension of the scores that is not the classes is in the targets.
int in_targets(std::size_t d) { return static_cast<int>(d == 0 ? 0 : d - 1); }

}  // namespace

// self, target, weight -> loss, total_weight
Rows nll_loss(const Question& q) {
  const auto reduction = q.integer("reduction", at::Reduction::Mean);
  Rows rows;
  const std::size_t dims = q.in(0).dims();
  for (std::size_t d = 0; d < dims; ++d) {
    if (dims == 1 || d == 1) continue;
    Row row = split({static_cast<int>(d), in_targets(d), -1}, {-1, -1});
    if (reduction == at::Reduction::None) {
      row.out = {Placement::shard(in_targets(d)), Placement()};
    }
    // A mean divides by the weight of all ranks' samples: LocalForm::loss_from_sum.
    if (reduction == at::Reduction::Mean) row.out[1] = Placement();
    rows.push_back(std::move(row));
  }
  const int classes = dims == 1 ? 0 : 1;
  Row by_class = split({classes, -1, -1}, {-1, -1});
  by_class.out[1] = Placement();
  rows.push_back(by_formula(std::move(by_class), 0));
  return rows;
}

Sizes nll_loss_sizes(const Question& q) {
  if (q.integer("reduction", at::Reduction::Mean) != at::Reduction::None) return {Shape{}, Shape{}};
  return {q.in(1).sizes, Shape{}};
}

// grad_out, self, target, weight, total_weight -> grad of self
Rows nll_loss_backward(const Question& q) {
  const bool reduced = q.integer("reduction", at::Reduction::Mean) != at::Reduction::None;
  Rows rows;
  const std::size_t dims = q.in(1).dims();
  for (std::size_t d = 0; d < dims; ++d) {
    if (dims == 1 || d == 1) continue;
    const int at = static_cast<int>(d);
    rows.push_back(split({reduced ? -1 : in_targets(d), at, in_targets(d), -1, -1}, {at}));
  }
  const int classes = dims == 1 ? 0 : 1;
  rows.push_back(by_formula(split({-1, classes, -1, -1, -1}, {classes}), 0));
  rows.push_back(linear(q.inputs(), {0}));
  return rows;
}

// ---- attention -------------------------------------------------------------------------------

namespace {

/// The dimension of a mask that is index `d` of [batch, heads, queries, keys]; -1 where it repeats.
int mask_dim(const Question& q, std::optional<std::size_t> mask, int d) {
  if (!mask) return -1;
  const Shape& sizes = q.in(*mask).sizes;
  const int at = d - (4 - static_cast<int>(sizes.size()));
  return at >= 0 && sizes[static_cast<std::size_t>(at)] != 1 ? at : -1;
}

Rows by_batch_and_head(const Question& q, std::size_t queries, std::size_t results) {
  Rows rows;
  const auto mask = q.operand("attn_mask");
  for (int d = 0; d < 2; ++d) {
    const auto size = q.in(queries).sizes[static_cast<std::size_t>(d)];
    const auto keys = q.in(queries + 1).sizes[static_cast<std::size_t>(d)];
    std::vector<int> in(q.inputs(), d);
    if (mask) in[*mask] = mask_dim(q, mask, d);
    if (!mask && q.inputs() > queries + 3 && !given(q, q.inputs() - 1)) in.back() = -1;
    rows.push_back(split(in, std::vector<int>(results, d)));
    // Heads of queries that share heads of keys must stay with them.
    if (keys != size) {
      rows.back().contiguous = true;
      rows.back().parts = keys;
    }
  }
  return rows;
}

}  // namespace

// query, key, value, attn_mask -> out, logsumexp
Rows attention(const Question& q) { return by_batch_and_head(q, 0, 2); }

Sizes attention_sizes(const Question& q) {
  Shape out = q.in(0).sizes;
  out[3] = q.in(2).sizes[3];
  return {out, Shape{out[0], out[1], out[2]}};
}

// grad_out, query, key, value, out, logsumexp, attn_mask -> three grads
Rows attention_backward(const Question& q) { return by_batch_and_head(q, 1, 3); }

Sizes attention_backward_sizes(const Question& q) {
  return {q.in(1).sizes, q.in(2).sizes, q.in(3).sizes};
}

}  // namespace intarsia::rules

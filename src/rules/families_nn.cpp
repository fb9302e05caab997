// Families of neural-network ops.
#include "base/text.h"
#include "intarsia/error.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

bool given(const Question& q, std::size_t i) { return i < q.inputs() && q.in(i).given; }

}  // namespace

// ---- normalisation ---------------------------------------------------------------------------

Rows layer_norm(const Question& q) {
  const std::size_t kept = q.in(0).dims() - q.arg("normalized_shape")->toIntVector().size();
  Rows rows;
  for (std::size_t d = 0; d < kept; ++d) {
    const int at = static_cast<int>(d);
    rows.push_back(split({at, -1, -1}, {at, at, at}));
  }
  return rows;
}

Sizes layer_norm_sizes(const Question& q) {
  const Shape& x = q.in(0).sizes;
  const std::size_t kept = x.size() - q.arg("normalized_shape")->toIntVector().size();
  Shape stat = x;
  for (std::size_t d = kept; d < x.size(); ++d) stat[d] = 1;
  return {x, stat, stat};
}

// grad_out, input, mean, rstd, weight, bias -> grads of input, weight, bias
Rows layer_norm_backward(const Question& q) {
  const std::size_t kept = q.in(1).dims() - q.arg("normalized_shape")->toIntVector().size();
  Rows rows;
  for (std::size_t d = 0; d < kept; ++d) {
    const int at = static_cast<int>(d);
    rows.push_back(split({at, at, at, at, -1, -1}, {at, -1, -1}));
  }
  return rows;
}

Sizes layer_norm_backward_sizes(const Question& q) {
  const auto normalized = q.arg("normalized_shape")->toIntVector();
  const Shape w(std::span<const std::int64_t>(normalized.data(), normalized.size()));
  return {q.in(1).sizes, w, w};
}

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
  return {Shape{q.integer("num_weights"), q.in(0).sizes.back()}};
}

// self, target, weight -> loss, total_weight
Rows nll_loss(const Question& q) {
  if (q.in(0).dims() < 2) return {};
  Row batch = split({0, 0, -1}, {-1, -1});
  if (q.integer("reduction", 1) == 0) batch.out = {Placement::shard(0), Placement()};
  // A mean needs the whole weight before it can divide: LocalForm::loss_from_sum.
  if (q.integer("reduction", 1) == 1) batch.out[1] = Placement();
  return {batch};
}

Sizes nll_loss_sizes(const Question& q) {
  if (q.integer("reduction", 1) != 0) return {Shape{}, Shape{}};
  return {q.in(1).sizes, Shape{}};
}

// grad_out, self, target, weight, total_weight -> grad of self
Rows nll_loss_backward(const Question& q) {
  if (q.in(1).dims() < 2) return {};
  const int grad = q.integer("reduction", 1) == 0 ? 0 : -1;
  return {split({grad, 0, 0, -1, -1}, {0}), linear(q.inputs(), {0})};
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
    if (q.in(queries + 1).sizes[static_cast<std::size_t>(d)] != size) continue;
    std::vector<int> in(q.inputs(), d);
    if (mask) in[*mask] = mask_dim(q, mask, d);
    if (!mask && q.inputs() > queries + 3 && !given(q, q.inputs() - 1)) in.back() = -1;
    rows.push_back(split(in, std::vector<int>(results, d)));
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

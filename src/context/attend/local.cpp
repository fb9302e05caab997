#include "context/attend/local.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "intarsia/boxes.h"
#include "tensor/random/philox.h"
#include "world/session/step_log.h"

namespace intarsia::context {
namespace {

/// The samples that are computed together: all, or one by one where the mask describes each.
template <class Visit>
void for_each_sample(const Setting& setting, const Held& held, const Visit& visit) {
  if (held.heads.size() == 0) return;
  if (setting.mask.samples() == 1) {
    if (held.batch.size() > 0) visit(std::int64_t{0}, Range{0, held.batch.size()});
    return;
  }
  for (std::int64_t b = 0; b < held.batch.size(); ++b) {
    visit(held.batch.begin + b, Range{b, b + 1});
  }
}

at::Tensor part(const at::Tensor& t, Range batch, std::int64_t offset, std::int64_t size) {
  return t.narrow(0, batch.begin, batch.size()).narrow(2, offset, size);
}

/// The mask of a tile: 0 where a key is seen, -inf elsewhere. `blind`: queries that see none.
at::Tensor mask_of(const Setting& setting, std::int64_t sample, const Tile& tile,
                   const at::TensorOptions& options, std::vector<std::int64_t>& blind) {
  at::Tensor out = at::full({tile.queries.size(), tile.keys.size()}, -INFINITY,
                            options.device(at::kCPU).dtype(at::kFloat));
  auto* row = out.data_ptr<float>();
  std::vector<Range> runs;
  for (std::int64_t q = tile.queries.begin; q < tile.queries.end; ++q) {
    bool sees = false;
    setting.mask.keys_of(sample, q, setting.keys, runs);
    for (const Range& run : runs) {
      const Range both = overlap(run, tile.keys);
      if (both.size() == 0) continue;
      std::fill_n(row + (both.begin - tile.keys.begin), both.size(), 0.0F);
      sees = true;
    }
    if (!sees) blind.push_back(q - tile.queries.begin);
    row += tile.keys.size();
  }
  return out.to(options.device(), options.dtype().toScalarType());
}

/// slope * (key - query), for each head of the rank.
at::Tensor slope_bias(const Setting& setting, const Held& held, const Tile& tile,
                      const at::TensorOptions& options) {
  const auto as_row = [&](Range r) { return at::arange(r.begin, r.end, options); };
  const at::Tensor distance = as_row(tile.keys).unsqueeze(0) - as_row(tile.queries).unsqueeze(1);
  const at::Tensor slopes = setting.slopes.narrow(0, held.heads.begin, held.heads.size())
                                .to(options.device(), options.dtype().toScalarType());
  return (slopes.view({-1, 1, 1}) * distance).unsqueeze(0);
}

/// 0 for weights that are dropped, by their global places.
at::Tensor keep_of(const Setting& setting, const Held& held, Range batch, const Tile& tile,
                   const at::TensorOptions& options) {
  const Range samples{held.batch.begin + batch.begin, held.batch.begin + batch.end};
  const std::array<Range, 4> ranges{samples, held.heads, tile.queries, tile.keys};
  const std::array<std::int64_t, 4> shape{setting.batch, setting.heads, setting.queries,
                                          setting.keys};
  const at::Tensor out = at::empty(
      {samples.size(), held.heads.size(), tile.queries.size(), tile.keys.size()}, options);
  fill_bernoulli(out, {std::span<const Range>(ranges), shape}, setting.dropout_key,
                 1 - setting.dropout);
  return out.mul_(setting.dropout == 1 ? 0.0 : 1 / (1 - setting.dropout));
}

/// What the kernel is given for a tile. `blind`: its queries that see no key.
AttentionBlock block_of(const Setting& setting, const Held& held, std::int64_t sample, Range batch,
                        const Work& work, const at::Tensor& query, const KeyValue& keys,
                        std::vector<std::int64_t>& blind) {
  const Tile& tile = work.tile;
  const auto keys_part = [&](const at::Tensor& t) {
    return part(t, batch, work.key_offset, tile.keys.size());
  };
  AttentionBlock out{.query = part(query, batch, work.query_offset, tile.queries.size()),
                     .key = keys_part(keys.key),
                     .value = keys_part(keys.value),
                     .scale = setting.scale,
                     .causal = tile.kind == TileKind::causal && !setting.slopes.defined()};
  const at::TensorOptions options = query.options().dtype(accumulating(query.scalar_type()));
  if (tile.kind == TileKind::partial ||
      (tile.kind == TileKind::causal && setting.slopes.defined())) {
    out.bias = mask_of(setting, sample, tile, options, blind);
  }
  if (setting.slopes.defined()) {
    const at::Tensor slopes = slope_bias(setting, held, tile, options);
    out.bias = out.bias.defined() ? slopes + out.bias : slopes;
  }
  if (setting.dropout > 0) out.keep = keep_of(setting, held, batch, tile, options);
  return out;
}

template <class Visit>
void for_each_tile(const Setting& setting, const Held& held, const Runs& keys, const Visit& visit) {
  TileLimits limits{setting.kernel.most_queries, setting.kernel.most_keys};
  if (setting.slopes.defined()) limits = {kTileQueries, kTileKeys};  // a bias for each head
  for_each_sample(setting, held, [&](std::int64_t sample, Range batch) {
    for (const Work& work : work_of(setting.mask, sample, held.queries, keys, setting.keys, limits))
      visit(sample, batch, work);
  });
}

/// What the tiles cost, for a world without values. `passes`: of products, forward or backward.
void note_attention(const Setting& setting, const Held& held, const Runs& keys,
                    const at::Tensor& query, const char* name, double passes) {
  StepLog* log = StepLog::current();
  if (log == nullptr) return;
  StepEvent event{.name = name,
                  .head_size = static_cast<double>(query.size(-1)),
                  .bytes = static_cast<double>(query.nbytes())};
  for_each_tile(setting, held, keys, [&](std::int64_t, Range batch, const Work& work) {
    const double pairs = static_cast<double>(work.tile.queries.size()) *
                         static_cast<double>(work.tile.keys.size()) *
                         (work.tile.kind == TileKind::causal ? 0.5 : 1);
    event.attention +=
        2 * passes * pairs * static_cast<double>(batch.size() * query.size(1) * query.size(-1));
  });
  log->kernel(std::move(event));
}

/// With elements of a row side by side, as kernels expect: results of views may have them apart.
at::Tensor with_dense_rows(const at::Tensor& t) {
  return t.size(-1) <= 1 || t.stride(-1) == 1 ? t : t.contiguous();
}

KeyValue with_dense_rows(const KeyValue& keys) {
  return {with_dense_rows(keys.key), with_dense_rows(keys.value)};
}

}  // namespace

at::ScalarType accumulating(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// ---- heads -----------------------------------------------------------------------------------

KeyHeads::KeyHeads(const Setting& setting, Range heads, Range here) : here_(here), used_(here) {
  if (heads.size() == 0) {
    used_ = {here.begin, here.begin};
    return;
  }
  const std::int64_t group = setting.heads / setting.key_heads;
  used_ = {heads.begin / group, (heads.end - 1) / group + 1};
  if (heads.size() % used_.size() == 0) {
    const std::int64_t each = heads.size() / used_.size();
    bool in_groups = true;
    for (std::int64_t h = heads.begin; h < heads.end; ++h) {
      in_groups = in_groups && h / group == used_.begin + (h - heads.begin) / each;
    }
    if (in_groups) return;
  }
  for (std::int64_t h = heads.begin; h < heads.end; ++h) index_.push_back(h / group - here.begin);
}

at::Tensor KeyHeads::of(const at::Tensor& keys) const {
  if (!index_.empty()) {
    return keys.index_select(1, at::tensor(index_, at::kLong).to(keys.device()));
  }
  return keys.narrow(1, used_.begin - here_.begin, used_.size());
}

at::Tensor KeyHeads::back(const at::Tensor& grad) const {
  if (has_just_these()) return grad;
  std::vector<std::int64_t> sizes = grad.sizes().vec();
  sizes[1] = here_.size();
  at::Tensor out = at::zeros(sizes, grad.options());
  if (!index_.empty()) {
    return out.index_add_(1, at::tensor(index_, at::kLong).to(grad.device()), grad);
  }
  out.narrow(1, used_.begin - here_.begin, used_.size()).copy_(grad);
  return out;
}

// ---- forward ---------------------------------------------------------------------------------

Forward::Forward(const Setting& setting, const Held& held, const at::Tensor& query,
                 std::int64_t value_size)
    : setting_(setting), held_(held), query_(with_dense_rows(query)) {
  std::vector<std::int64_t> sizes = query.sizes().vec();
  const auto options = query.options().dtype(accumulating(query.scalar_type()));
  logsumexp_ = at::full({sizes[0], sizes[1], sizes[2]}, -INFINITY, options);
  sizes[3] = value_size;
  out_ = at::zeros(sizes, options);
  touched_.assign(static_cast<std::size_t>(sizes[0]),
                  std::vector<bool>(static_cast<std::size_t>(sizes[2])));
}

void Forward::merge(Range batch, const Work& work, const at::Tensor& out,
                    const at::Tensor& logsumexp) {
  const std::int64_t size = work.tile.queries.size();
  const at::Tensor to = part(out_, batch, work.query_offset, size);
  const at::Tensor to_logsumexp = part(logsumexp_, batch, work.query_offset, size);
  auto& touched = touched_[static_cast<std::size_t>(batch.begin)];
  const auto begin = touched.begin() + work.query_offset;
  const bool is_first = std::find(begin, begin + size, true) == begin + size;
  std::fill(begin, begin + size, true);
  if (is_first) {
    to.copy_(out);
    to_logsumexp.copy_(logsumexp);
    return;
  }
  const at::Tensor most = at::maximum(to_logsumexp, logsumexp);
  const at::Tensor finite = most.masked_fill(most == -INFINITY, 0);
  at::Tensor before = (to_logsumexp - finite).exp_();
  at::Tensor now = (logsumexp - finite).exp_();
  const at::Tensor both = (before + now).clamp_min_(1e-30);
  to.mul_(before.div_(both).unsqueeze(-1))
      .addcmul_(out.to(to.scalar_type()), now.div_(both).unsqueeze(-1));
  to_logsumexp.copy_(most + both.log());
}

void Forward::add(const KeyValue& held_keys, const Runs& runs) {
  if (query_.is_meta()) {  // a simulated world
    note_attention(setting_, held_, runs, query_, "attention", 2);
    return;
  }
  const KeyValue keys = with_dense_rows(held_keys);
  for_each_tile(setting_, held_, runs, [&](std::int64_t sample, Range batch, const Work& work) {
    std::vector<std::int64_t> blind;
    const AttentionBlock block =
        block_of(setting_, held_, sample, batch, work, query_, keys, blind);
    auto [out, logsumexp] = setting_.kernel.forward(block);
    if (!blind.empty()) {
      const at::Tensor index = at::tensor(blind, at::kLong).to(out.device());
      logsumexp = logsumexp.index_fill(2, index, -INFINITY);
      out = out.index_fill(2, index, 0);
    }
    merge(batch, work, out, logsumexp);
  });
}

at::Tensor Forward::out() const { return out_.to(query_.scalar_type()); }

at::Tensor Forward::logsumexp() const { return logsumexp_.masked_fill(logsumexp_ == -INFINITY, 0); }

// ---- backward --------------------------------------------------------------------------------

Backward::Backward(const Setting& setting, const Held& held, const at::Tensor& query,
                   const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor& grad)
    : setting_(setting),
      held_(held),
      query_(with_dense_rows(query)),
      out_(with_dense_rows(out)),
      logsumexp_(logsumexp),
      grad_(with_dense_rows(grad)),
      query_grad_(
          at::zeros(query.sizes(), query.options().dtype(accumulating(query.scalar_type())))) {}

KeyValue Backward::add(const KeyValue& held_keys, const Runs& runs) {
  const KeyValue keys = with_dense_rows(held_keys);
  const auto zeros = [&](const at::Tensor& t) {
    return at::zeros(t.sizes(), query_grad_.options());
  };
  KeyValue out{zeros(keys.key), zeros(keys.value)};
  if (query_.is_meta()) {  // a simulated world
    note_attention(setting_, held_, runs, query_, "attention_backward", 5);
    return out;
  }
  for_each_tile(setting_, held_, runs, [&](std::int64_t sample, Range batch, const Work& work) {
    std::vector<std::int64_t> blind;
    const AttentionBlock block =
        block_of(setting_, held_, sample, batch, work, query_, keys, blind);
    const auto queries = [&](const at::Tensor& t) {
      return part(t, batch, work.query_offset, work.tile.queries.size());
    };
    const auto keys_part = [&](const at::Tensor& t) {
      return part(t, batch, work.key_offset, work.tile.keys.size());
    };
    const auto [q, k, v] =
        setting_.kernel.backward(block, queries(grad_), queries(out_), queries(logsumexp_));
    queries(query_grad_).add_(q);
    keys_part(out.key).add_(k);
    keys_part(out.value).add_(v);
  });
  return out;
}

}  // namespace intarsia::context

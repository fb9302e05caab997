#include "context/attend/layouts.h"

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::context {
namespace {

/// Whether attention can compute with a tensor that is laid out so along an axis.
bool fits(const Placement& p) {
  return p.is_replicate() || (p.is_shard() && !p.is_strided() && p.dim() <= kSequence);
}

/// The layout with what fits, on other axes replicated, or sharded where only blocks do not fit.
Layout fitting(const Layout& layout) {
  Layout out = layout;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (fits(p)) continue;
    const bool is_blocks = p.is_strided() && p.dim() <= kSequence;
    out = out.with(a, is_blocks ? Placement::shard(p.dim()) : Placement::replicate());
  }
  return out;
}

std::int64_t ranks_along(const Layout& layout, int dim) {
  std::int64_t out = 1;
  for (const std::int8_t a : layout.axes_of(dim)) {
    out *= layout.mesh().size(static_cast<std::size_t>(a));
  }
  return out;
}

bool is_sharded(const Layout& layout, std::size_t axis, int dim) {
  return layout.placement(axis).is_shard(dim);
}

/// Heads instead of the sequence on the axes that the schedule names.
Layout with_heads(const Layout& query, const AttentionSchedule& schedule) {
  Layout out = query;
  for (std::size_t a = 0; a < query.mesh().axes(); ++a) {
    const auto& names = schedule.head_axes;
    const bool is_asked = schedule.all_heads || std::find(names.begin(), names.end(),
                                                          query.mesh().name(a)) != names.end();
    if (is_asked && is_sharded(query, a, kSequence)) out = out.with(a, Placement::shard(kHeads));
  }
  return out;
}

void check_heads(const Layout& query, const AttentionSchedule& schedule, std::int64_t heads) {
  for (const std::string& name : schedule.head_axes) {
    if (is_sharded(query, query.mesh().axis_index(name), kSequence)) continue;
    fail<ValueError>("attention", "the schedule ", schedule,
                     " is for a sequence that is sharded on ", name, "; queries are laid out as ",
                     query);
  }
  if (heads_fit(query, schedule, heads)) return;
  fail<ValueError>("attention", "the schedule ", schedule, " shards ", heads, " heads over ",
                   ranks_along(with_heads(query, schedule), kHeads),
                   " ranks, which does not divide them; use ring or gather there");
}

}  // namespace

bool heads_fit(const Layout& query, const AttentionSchedule& schedule, std::int64_t heads) {
  const Layout out = with_heads(query, schedule);
  return out == query || heads % ranks_along(out, kHeads) == 0;
}

Layouts layouts_for(const Layout& query, const Layout& key, const Layout& value, std::int64_t heads,
                    std::int64_t key_heads, const AttentionSchedule& schedule) {
  if (query.mesh() != key.mesh() || query.mesh() != value.mesh()) {
    fail<ValueError>("attention", "query, key and value are on one mesh, not on ", query.mesh(),
                     ", ", key.mesh(), " and ", value.mesh());
  }
  const std::size_t axes = query.mesh().axes();
  Layouts out;
  out.result = fitting(query);
  bool any_keys = false;
  for (std::size_t a = 0; a < axes; ++a) {
    const bool keys_here = is_sharded(key, a, kSequence) || is_sharded(value, a, kSequence);
    if (keys_here && out.result.placement(a).is_replicate()) {
      out.result = out.result.with(a, Placement::shard(kSequence));
    }
    any_keys = any_keys || (keys_here && is_sharded(out.result, a, kSequence));
  }
  check_heads(out.result, schedule, heads);
  out.query = with_heads(out.result, schedule);
  out.key = out.query;
  const std::int64_t ranks = ranks_along(out.query, kHeads);
  const bool heads_divide = heads % ranks == 0 && key_heads % ranks == 0;
  for (std::size_t a = 0; a < axes; ++a) {
    const bool drops_heads = is_sharded(out.query, a, kHeads) && !heads_divide;
    const bool drops_keys = is_sharded(out.query, a, kSequence) && !any_keys;
    if (drops_heads || drops_keys) out.key = out.key.with(a, Placement::replicate());
  }
  return out;
}

Layout key_grad_layout(const Layout& query, const Layout& key) {
  Layout out = key;
  for (std::size_t a = 0; a < key.mesh().axes(); ++a) {
    if (query.placement(a).is_shard() && key.placement(a).is_replicate()) {
      out = out.with(a, Placement::partial());
    }
  }
  return out;
}

}  // namespace intarsia::context

#include "tensor/move/exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "layout/chunk.h"
#include "world/collectives/flat.h"
#include "world/collectives/pending.h"
#include "world/transport/reductions.h"

namespace intarsia {

at::Tensor block_of(const at::Tensor& flat, const Shape& block, const Shape& sizes,
                    std::int64_t at) {
  return flat.as_strided(to_ref(block), to_ref(strides_of(sizes)), flat.storage_offset() + at);
}

namespace {

/// Not in simulated worlds, where groups may be large: what would be copied need not be looked up.
bool has_values(const at::Tensor& t) { return !t.is_meta(); }

using Tensors = std::vector<at::Tensor>;
using Lease = std::shared_ptr<at::Tensor>;

/// What several tensors send to each other's ranks in one call. All have one dtype, and steps over
/// the same groups.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(BufferPool& pool, std::vector<Moving> moving) : pool_(pool), moving_(std::move(moving)) {
    std::int64_t bytes = 0;
    for (Moving& t : moving_) {
      const bool reduces = t.step->partial_count > 1;
      for (std::size_t m = 0; m < t.old.size(); ++m) {
        t.type = t.old[m].scalar_type();
        t.old[m] = flat::plain(t.old[m]);
        if (reduces) t.old[m] = to_partial(t.old[m], t.step->how).contiguous();
        bytes += static_cast<std::int64_t>(t.old[m].nbytes()) +
                 elements(t.step->members[m].after) * t.old[m].element_size();
      }
    }
    held_ = pool_.hold(bytes);
    members_ = moving_[0].old.size();
  }

  Pending start(const std::function<Tensors(std::vector<Tensors>)>& then, const CallSite& site) {
    const StepRoute& first = *moving_[0].step;
    const std::int64_t chunks = first.step->chunks;
    if (chunks > 1) return ready(then(in_parts(chunks, site)));
    flat::Exchange x;
    std::vector<Counts> in_counts;
    std::vector<Counts> out_counts;
    const bool gathers =
        std::all_of(moving_.begin(), moving_.end(), [](const Moving& t) { return t.step->even; });
    for (std::size_t m = 0; m < members_; ++m) {
      const bool keeps_apart = !gathers && !sends_in_place(m) && !lands_in_place(m);
      in_counts.push_back(counts(m, &MemberRoute::to, keeps_apart));
      out_counts.push_back(counts(m, &MemberRoute::from, keeps_apart));
      x.in.push_back(gathers ? own_pieces(m) : parts_to_send(m, in_counts.back(), keeps_apart));
      x.out.push_back(landing(m, out_counts.back()));
      if (keeps_apart) keep_own(m);
    }
    const auto landed = x.out;
    x.finish = [self = shared_from_this(), landed, out_counts, then] {
      return then(self->finish(landed, out_counts));
    };
    return gathers ? flat::all_gather(*first.comm, std::move(x), site)
                   : flat::all_to_all(*first.comm, std::move(x), in_counts, out_counts, site);
  }

 private:
  using Parts = std::vector<Part> MemberRoute::*;
  /// Ranks that hold partial values of the same elements, by the partial value's index.
  using Sources = std::map<std::int64_t, std::size_t>;

  const MemberRoute& route(const Moving& t, std::size_t m) const { return t.step->members[m]; }
  std::size_t me(std::size_t m) const { return moving_[0].step->members[m].me; }
  bool sends_in_place(std::size_t m) const {
    return moving_.size() == 1 && route(moving_[0], m).sends_in_place;
  }
  bool lands_in_place(std::size_t m) const {
    return moving_.size() == 1 && route(moving_[0], m).lands_in_place;
  }
  at::TensorOptions options() const { return moving_[0].old[0].options(); }

  /// How many elements of all tensors go to, or come from, each rank.
  Counts counts(std::size_t m, Parts parts, bool without_own) const {
    Counts out(static_cast<std::size_t>(moving_[0].step->comm->size()), 0);
    for (const Moving& t : moving_) {
      for (std::size_t j = 0; j < out.size(); ++j) out[j] += (route(t, m).*parts)[j].count;
    }
    if (without_own) out[me(m)] = 0;
    return out;
  }

  static std::int64_t total(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }

  at::Tensor lend(std::int64_t count) {
    leases_.push_back(pool_.lend(count, options()));
    return *leases_.back();
  }

  at::Tensor own_pieces(std::size_t m) {
    if (moving_.size() == 1) return moving_[0].old[m].view(-1);
    std::int64_t count = 0;
    for (const Moving& t : moving_) count += t.old[m].numel();
    const at::Tensor out = lend(count);
    std::int64_t at = 0;
    for (const Moving& t : moving_) {
      out.narrow(0, at, t.old[m].numel()).copy_(t.old[m].view(-1));
      at += t.old[m].numel();
    }
    return out;
  }

  at::Tensor parts_to_send(std::size_t m, const Counts& counts, bool without_own) {
    if (sends_in_place(m)) return moving_[0].old[m].view(-1);
    const at::Tensor out = lend(total(counts));
    if (!has_values(out)) return out;
    std::int64_t at = 0;
    for (std::size_t j = 0; j < counts.size(); ++j) {
      for (const Moving& t : moving_) {
        if (without_own && j == me(m)) continue;
        const Part& part = route(t, m).to[j];
        for (const Block& b : part.blocks) {
          block_of(out, b.sizes, part.sizes, at + b.in_part)
              .copy_(block_of(t.old[m], b.sizes, route(t, m).before, b.in_old));
        }
        at += part.count;
      }
    }
    return out;
  }

  /// Where the partial values of a member's new piece are collected, a row for each; or the piece
  /// itself.
  at::Tensor rows(Moving& t, std::size_t m) {
    const std::int64_t count = elements(route(t, m).after);
    if (t.step->partial_count > 1) return lend(t.step->partial_count * count);
    return at::empty({count}, t.old[m].options());
  }

  /// The buffer in which parts arrive; it is the new piece, where they come in its order.
  at::Tensor landing(std::size_t m, const Counts& counts) {
    for (Moving& t : moving_) t.made.push_back(rows(t, m));
    return lands_in_place(m) ? moving_[0].made[m] : lend(total(counts));
  }

  std::int64_t row_of(const Moving& t, std::size_t m, std::size_t from) const {
    if (t.step->partial_count == 1) return 0;
    return route(t, m).partial_index[from] * elements(route(t, m).after);
  }

  void keep_own(std::size_t m) {
    for (Moving& t : moving_) {
      const std::int64_t row = row_of(t, m, me(m));
      for (const Block& b : route(t, m).to[me(m)].blocks) {
        block_of(t.made[m], b.sizes, route(t, m).after, row + b.in_new)
            .copy_(block_of(t.old[m], b.sizes, route(t, m).before, b.in_old));
      }
    }
  }

  std::vector<Tensors> finish(const Tensors& landed, const std::vector<Counts>& counts) {
    for (std::size_t m = 0; m < members_; ++m) {
      if (lands_in_place(m) || !has_values(landed[m])) continue;
      std::int64_t at = 0;
      for (std::size_t j = 0; j < counts[m].size(); ++j) {
        if (counts[m][j] == 0) continue;
        for (Moving& t : moving_) {
          const Part& part = route(t, m).from[j];
          const std::int64_t row = row_of(t, m, j);
          for (const Block& b : part.blocks) {
            block_of(t.made[m], b.sizes, route(t, m).after, row + b.in_new)
                .copy_(block_of(landed[m], b.sizes, part.sizes, at + b.in_part));
          }
          at += part.count;
        }
      }
    }
    return results();
  }

  std::vector<Tensors> results() {
    std::vector<Tensors> out;
    for (Moving& t : moving_) {
      for (std::size_t m = 0; m < members_; ++m) {
        const at::IntArrayRef sizes = to_ref(route(t, m).after);
        if (t.step->partial_count == 1) {
          t.made[m] = t.made[m].view(sizes);
          continue;
        }
        const std::int64_t count = elements(route(t, m).after);
        const at::Tensor rows = t.made[m].view({t.step->partial_count, count});
        const Tensors partials = has_values(rows) ? rows.unbind(0) : Tensors{rows[0]};
        t.made[m] = from_partials(combine(partials, t.step->how), t.step->how,
                                  t.step->partial_count, t.type)
                        .view(sizes);
      }
      out.push_back(std::move(t.made));
    }
    moving_.clear();
    leases_.clear();
    held_ = {};
    return out;
  }

  /// The same in parts, one after the other, so that buffers are small. Ranks that hold partial
  /// values of the same elements send the same range of them in each part, so they are combined as
  /// at once: in the order of ranks, and wide enough.
  std::vector<Tensors> in_parts(std::int64_t chunks, const CallSite& site) {
    Moving& t = moving_[0];
    std::vector<std::vector<Sources>> sources;  // by member
    for (std::size_t m = 0; m < members_; ++m) {
      sources.push_back(sources_of(route(t, m)));
      const std::int64_t count = elements(route(t, m).after);
      t.made.push_back(at::empty({count}, t.old[m].options().dtype(t.type)));
      if (t.step->partial_count == 1) keep_own(m);
    }
    for (std::int64_t c = 0; c < chunks; ++c) {
      flat::Exchange x;
      std::vector<Counts> in_counts(members_);
      std::vector<Counts> out_counts(members_);
      for (std::size_t m = 0; m < members_; ++m) {
        const MemberRoute& r = route(t, m);
        for (std::size_t j = 0; j < r.to.size(); ++j) {
          in_counts[m].push_back(j == r.me ? 0 : chunk(r.to[j].count, chunks, c).size());
          out_counts[m].push_back(j == r.me ? 0 : chunk(r.from[j].count, chunks, c).size());
        }
        x.in.push_back(lend(total(in_counts[m])));
        x.out.push_back(lend(total(out_counts[m])));
        std::int64_t at = 0;
        for (std::size_t j = 0; j < r.to.size(); ++j) {
          if (j != r.me) pack(m, r.to[j], chunk(r.to[j].count, chunks, c), x.in[m], at);
          at += in_counts[m][j];
        }
      }
      const Tensors landed = x.out;
      x.finish = [] { return Tensors(); };
      flat::all_to_all(*t.step->comm, std::move(x), in_counts, out_counts, site).wait();
      for (std::size_t m = 0; m < members_; ++m) {
        unpack(m, sources[m], chunks, c, landed[m].split_with_sizes(out_counts[m]));
      }
      leases_.clear();
    }
    std::vector<Tensors> out(1);
    for (std::size_t m = 0; m < members_; ++m) {
      out[0].push_back(t.made[m].view(to_ref(route(t, m).after)));
    }
    held_ = {};
    return out;
  }

  /// Writes a range of a part, row-major, to `out` from `at` on.
  void pack(std::size_t m, const Part& part, Range range, const at::Tensor& out, std::int64_t at) {
    const MemberRoute& r = route(moving_[0], m);
    for (const Block& b : blocks_within(part, range.begin, range.end, r.before, r.after)) {
      block_of(out, b.sizes, part.sizes, at + b.in_part)
          .copy_(block_of(moving_[0].old[m], b.sizes, r.before, b.in_old));
    }
  }

  /// Brings the c-th ranges of what came from each rank into the new piece.
  void unpack(std::size_t m, const std::vector<Sources>& all, std::int64_t chunks, std::int64_t c,
              Tensors came) {
    Moving& t = moving_[0];
    const MemberRoute& r = route(t, m);
    for (const Sources& sources : all) {
      const Part& part = r.from[sources.begin()->second];
      const Range range = chunk(part.count, chunks, c);
      if (range.size() == 0) continue;
      Tensors partials;
      for (const auto& [index, j] : sources) {
        if (j == r.me) {
          if (t.step->partial_count == 1) continue;  // kept before
          came[j] = lend(range.size());
          pack(m, part, range, came[j], 0);
        }
        partials.push_back(came[j]);
      }
      if (partials.empty()) continue;
      const at::Tensor value = t.step->partial_count == 1
                                   ? partials[0]
                                   : from_partials(combine(partials, t.step->how), t.step->how,
                                                   t.step->partial_count, t.type);
      for (const Block& b : blocks_within(part, range.begin, range.end, r.before, r.after)) {
        block_of(t.made[m], b.sizes, r.after, b.in_new)
            .copy_(block_of(value, b.sizes, part.sizes, b.in_part));
      }
    }
  }

  /// The ranks that a new piece comes from. Their parts are the same elements or have none in
  /// common, since pieces differ along axes that shard only: the first element tells them apart.
  static std::vector<Sources> sources_of(const MemberRoute& r) {
    std::map<std::int64_t, Sources> by_place;
    for (std::size_t j = 0; j < r.from.size(); ++j) {
      if (r.from[j].count == 0) continue;
      by_place[r.from[j].blocks[0].in_new].emplace(r.partial_index[j], j);
    }
    std::vector<Sources> out;
    for (auto& [place, sources] : by_place) out.push_back(std::move(sources));
    return out;
  }

  BufferPool& pool_;
  std::vector<Moving> moving_;
  std::size_t members_ = 0;
  std::vector<Lease> leases_;
  BufferPool::Hold held_;
};

}  // namespace

Pending start_exchange(BufferPool& pool, std::vector<Moving> moving,
                       const std::function<Tensors(std::vector<Tensors>)>& then,
                       const CallSite& site) {
  return std::make_shared<Exchange>(pool, std::move(moving))->start(then, site);
}

}  // namespace intarsia

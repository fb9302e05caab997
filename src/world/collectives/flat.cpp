#include "world/collectives/flat.h"

#include <ATen/ATen.h>

#include "world/collectives/hosted.h"
#include "world/collectives/parts.h"
#include "world/collectives/pending.h"
#include "world/transport/reductions.h"

namespace intarsia::flat {
namespace {

/// A group of one rank: what it sends comes back to it.
Pending alone(const Exchange& x) {
  for (std::size_t m = 0; m < x.in.size(); ++m) at::Tensor(x.out[m]).copy_(x.in[m]);
  return ready(x.finish());
}

/// Where all ranks live here: enters the call in the ledger.
void record(const HostedGroups& here, CallKind kind, const Tensors& in, CallSite site) {
  std::int64_t sum = 0;
  for (const at::Tensor& t : in) sum += static_cast<std::int64_t>(t.nbytes());
  here.ledger->record(here.ledger_group, kind, in[0].scalar_type(), sum, site.call, site.where);
}

Pending started(std::string_view what, Works works, Exchange exchange) {
  Tensors buffers = std::move(exchange.in);
  buffers.insert(buffers.end(), exchange.out.begin(), exchange.out.end());
  return pending(what, std::move(works), std::move(buffers), std::move(exchange.finish));
}

}  // namespace

at::Tensor plain(const at::Tensor& t) {
  // Autograd's zero tensors have no memory.
  const at::Tensor real = t._is_zerotensor() ? at::zeros(t.sizes(), t.options()) : t.detach();
  return real.resolve_conj().resolve_neg().contiguous();
}

bool scatters_reduced(const Comm& comm, const Placement& how, at::ScalarType dtype) {
  if (comm.size() == 1 || CommAccess::hosted(comm) != nullptr || !is_linear(how) ||
      c10::isComplexType(dtype)) {
    return false;
  }
  return CommAccess::wire(comm)->reductions().scatters_reduced(dtype, Reduction::sum);
}

Pending all_gather(const Comm& comm, Exchange x, CallSite site) {
  if (x.in.empty()) return ready({});
  if (comm.size() == 1) return alone(x);
  if (const HostedGroups* here = CommAccess::hosted(comm)) {
    record(*here, CallKind::all_gather, x.in, site);
    for (const auto& group : here->groups) {
      for (const std::size_t to : group) {
        std::int64_t at = 0;
        for (const std::size_t from : group) {
          x.out[to].narrow(0, at, x.in[from].numel()).copy_(x.in[from]);
          at += x.in[from].numel();
        }
      }
    }
    return ready(x.finish());
  }
  Works works = CommAccess::wire(comm)->all_gather(as_bytes(x.out[0]), as_bytes(x.in[0]),
                                                   x.in[0].scalar_type(), site);
  return started("all_gather", std::move(works), std::move(x));
}

Pending all_to_all(const Comm& comm, Exchange x, const std::vector<Counts>& in_counts,
                   const std::vector<Counts>& out_counts, CallSite site) {
  if (x.in.empty()) return ready({});
  if (comm.size() == 1) return alone(x);
  if (const HostedGroups* here = CommAccess::hosted(comm)) {
    record(*here, CallKind::all_to_all, x.in, site);
    for (const auto& group : here->groups) {
      std::vector<std::int64_t> taken(group.size(), 0);
      for (std::size_t place = 0; place < group.size(); ++place) {
        const std::size_t to = group[place];
        std::int64_t at = 0;
        for (std::size_t i = 0; i < group.size(); ++i) {
          const std::int64_t count = in_counts[group[i]][place];
          x.out[to].narrow(0, at, count).copy_(x.in[group[i]].narrow(0, taken[i], count));
          taken[i] += count;
          at += out_counts[to][i];
        }
      }
    }
    return ready(x.finish());
  }
  Works works = exchange_parts(*CommAccess::wire(comm), {x.out[0], out_counts[0]},
                               {x.in[0], in_counts[0]}, x.in[0].scalar_type(), site);
  return started("all_to_all", std::move(works), std::move(x));
}

Pending message(const Comm& comm, const at::Tensor& buffer, std::int64_t from, CallSite site) {
  if (buffer.numel() == 0) return ready({buffer});  // both sides know the length
  // Backends end a broadcast that was given up without the messages behind it, and may be asked
  // whether it is done; of sends and receives not all can.
  Works works =
      CommAccess::wire(comm)->broadcast(as_bytes(buffer), from, buffer.scalar_type(), site);
  return pending("message", std::move(works), {buffer}, [buffer] { return Tensors{buffer}; });
}

Pending sum(const Comm& comm, const at::Tensor& buffer, CallSite site) {
  const auto wire = CommAccess::wire(comm);
  const at::ScalarType dtype = buffer.scalar_type();
  if (!wire->reductions().reduces(dtype, Reduction::sum)) {
    return all_reduce(comm, buffer, Placement::partial(), site.call, site.where);
  }
  Works works = wire->all_reduce(buffer, Reduction::sum, dtype, site);
  return pending("all_reduce", std::move(works), {buffer}, [buffer] { return Tensors{buffer}; });
}

}  // namespace intarsia::flat

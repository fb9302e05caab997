#include "intarsia/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/order.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "layout/chunk.h"
#include "world/collectives/arguments.h"
#include "world/collectives/flat.h"
#include "world/collectives/hosted.h"
#include "world/collectives/parts.h"
#include "world/collectives/pending.h"
#include "world/collectives/wire.h"
#include "world/transport/reductions.h"

namespace intarsia {

namespace {

using Tensors = std::vector<at::Tensor>;

/// The inputs, outside autograd: what a group of one gives back.
Tensors detached(at::TensorList list) {
  Tensors out;
  for (const at::Tensor& t : list) out.push_back(t.detach());
  return out;
}

/// What a single partial value is reduced to.
Tensors alone(at::TensorList partials, const Placement& how) {
  Tensors out = detached(partials);
  for (at::Tensor& t : out) {
    if (how.reduction() == Reduction::norm) t = t.abs();
  }
  return out;
}

/// Where all members of the groups live here: enters the call in the ledger, and gives what `move`
/// makes of their groups. Unset elsewhere, where one member lives here.
template <class Move>
std::optional<Pending> among_hosted(const Comm& comm, CallKind kind, at::TensorList in,
                                    const Call& call, const std::source_location& where,
                                    const Move& move) {
  const HostedGroups* here = CommAccess::hosted(comm);
  if (here == nullptr) return std::nullopt;
  std::int64_t bytes = 0;
  for (const at::Tensor& t : in) bytes += static_cast<std::int64_t>(t.nbytes());
  here->ledger->record(here->ledger_group, kind, in.empty() ? at::kByte : in[0].scalar_type(),
                       bytes, call, where);
  const at::AutoDispatchBelowADInplaceOrView below;
  return ready(move(*here));
}

/// Complex numbers as backends add them.
at::Tensor as_real(const at::Tensor& t) { return t.is_complex() ? at::view_as_real(t) : t; }

}  // namespace

Pending all_gather(const Comm& comm, at::TensorList pieces, std::int64_t dim,
                   std::span<const std::int64_t> lengths, const Call& call, Where where) {
  constexpr std::string_view what = "all_gather";
  check_pieces(what, comm, pieces);
  if (pieces.empty()) return ready({});
  const std::int64_t n = comm.size();
  const std::int64_t d = checked_dim(what, dim, pieces[0]);
  const Counts all = checked_lengths(what, comm, lengths, pieces[0].size(d));
  check_own_lengths(what, comm, pieces, d, all);
  if (n == 1) return ready(detached(pieces));
  if (auto done = among_hosted(
          comm, CallKind::all_gather, pieces, call, where,
          [&](const HostedGroups& here) { return hosted::all_gather(here, pieces, d); })) {
    return std::move(*done);
  }
  const std::int64_t longest = *std::max_element(all.begin(), all.end());
  const bool even = *std::min_element(all.begin(), all.end()) == longest;

  at::Tensor in = flat::plain(pieces[0]);
  const std::int64_t length = all[static_cast<std::size_t>(comm.index())];
  std::vector<std::int64_t> shape = in.sizes().vec();
  shape[static_cast<std::size_t>(d)] = longest;
  if (length < longest) {
    const at::Tensor padded = at::empty(shape, in.options());
    padded.narrow(d, 0, length).copy_(in);
    padded.narrow(d, length, longest - length).zero_();
    in = padded;
  }
  shape.insert(shape.begin(), n);
  const at::Tensor out = at::empty(shape, in.options());
  const auto finish = [out, all, d, even]() -> Tensors {
    if (even && d == 0) return {out.flatten(0, 1)};
    Tensors parts;
    for (std::size_t i = 0; i < all.size(); ++i) {
      parts.push_back(out[static_cast<std::int64_t>(i)].narrow(d, 0, all[i]));
    }
    return {at::cat(parts, d)};
  };
  if (in.numel() == 0) return ready(finish());
  Works works = CommAccess::wire(comm)->all_gather(as_bytes(out), as_bytes(in), in.scalar_type(),
                                                   {call, where});
  return pending(what, std::move(works), {in, out}, finish);
}

Pending all_reduce(const Comm& comm, at::TensorList partials, const Placement& how,
                   const Call& call, Where where) {
  constexpr std::string_view what = "all_reduce";
  check_pieces(what, comm, partials);
  if (partials.empty()) return ready({});
  const std::int64_t n = comm.size();
  const at::ScalarType type = partials[0].scalar_type();
  check_reduction(what, how, type);
  if (n == 1) return ready(alone(partials, how));
  if (auto done = among_hosted(
          comm, CallKind::all_reduce, partials, call, where,
          [&](const HostedGroups& here) { return hosted::all_reduce(here, partials, how); })) {
    return std::move(*done);
  }
  const std::shared_ptr<Wire> held = CommAccess::wire(comm);  // stays alive if the world is closed
  Wire& wire = *held;
  const bool leave_to_backend = wire.reductions().native(how, type, /*scatter=*/false);
  const at::Tensor buffer = leave_to_backend ? flat::plain(partials[0]).clone()
                                             : to_partial(flat::plain(partials[0]), how);
  if (buffer.numel() == 0) return ready({buffer.to(type)});

  if (leave_to_backend) {
    const at::Tensor real = as_real(buffer);
    const Reduction asked = wire.reductions().asked_of_backend(how, type);
    Works works = wire.all_reduce(real, asked, type, {call, where});
    const auto finish = [buffer, divides = asked != how.reduction(), n]() -> Tensors {
      return {divides ? buffer.div(n) : buffer};
    };
    return pending(what, std::move(works), {real}, finish);
  }

  // Each rank combines one chunk of the flat partial values, and all gather the chunks. The first
  // half is waited for here: the second must be called now, not when the caller happens to wait, or
  // ranks that wait in another order would mix up their calls.
  Counts lengths;
  for (std::int64_t i = 0; i < n; ++i) lengths.push_back(chunk(buffer.numel(), n, i).size());
  const Parts parts{buffer.contiguous().view(-1), lengths};
  const ScatteredPartials s = scatter_partials(comm, wire, parts, how, type, {call, where});
  wait_for(s.works, what);
  const at::Tensor mine = from_partials(s.combine(), how, n, type);
  Pending gathered = all_gather(comm, mine, 0, lengths, call, where);
  return after(std::move(gathered), [shape = partials[0].sizes().vec()](Tensors out) {
    for (at::Tensor& t : out) t = t.view(shape);
    return out;
  });
}

Pending reduce_scatter(const Comm& comm, at::TensorList partials, std::int64_t dim,
                       const Placement& how, std::span<const std::int64_t> lengths,
                       const Call& call, Where where) {
  constexpr std::string_view what = "reduce_scatter";
  check_pieces(what, comm, partials);
  if (partials.empty()) return ready({});
  const std::int64_t n = comm.size();
  const at::ScalarType type = partials[0].scalar_type();
  check_reduction(what, how, type);
  const std::int64_t d = checked_dim(what, dim, partials[0]);
  const Counts all = checked_lengths(what, comm, lengths,
                                     equal_part(what, comm, partials[0].size(d), !lengths.empty()));
  check_total(what, comm, all, partials, d);
  if (n == 1) return ready(alone(partials, how));
  const LengthsOf lengths_of = [&](std::size_t m) { return of_member(comm, all, m); };
  if (auto done = among_hosted(comm, CallKind::reduce_scatter, partials, call, where,
                               [&](const HostedGroups& here) {
                                 return hosted::reduce_scatter(here, partials, d, how, lengths_of);
                               })) {
    return std::move(*done);
  }

  const Parts parts = parts_along(to_partial(flat::plain(partials[0]), how), d, all);
  std::vector<std::int64_t> shape = partials[0].sizes().vec();
  shape[static_cast<std::size_t>(d)] = all[static_cast<std::size_t>(comm.index())];
  if (parts.flat.numel() == 0) {
    return ready({at::empty({0}, parts.flat.options()).to(type).view(shape)});
  }
  const std::shared_ptr<Wire> held = CommAccess::wire(comm);
  Wire& wire = *held;
  const bool even = std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end();
  if (even && wire.reductions().native(how, type, /*scatter=*/true)) {
    const at::Tensor in = as_real(parts.flat);
    const at::Tensor out = at::empty({parts.flat.numel() / n}, parts.flat.options());
    const Reduction asked = wire.reductions().asked_of_backend(how, type);
    Works works = wire.reduce_scatter(as_real(out), in, asked, type, {call, where});
    const auto finish = [out, shape, divides = asked != how.reduction(), n]() -> Tensors {
      return {(divides ? out.div(n) : out).view(shape)};
    };
    return pending(what, std::move(works), {in, out}, finish);
  }
  ScatteredPartials s = scatter_partials(comm, wire, parts, how, type, {call, where});
  const auto finish = [combine = s.combine, shape, how, n, type]() -> Tensors {
    return {from_partials(combine(), how, n, type).view(shape)};
  };
  return pending(what, std::move(s.works), std::move(s.buffers), finish);
}

Pending all_to_all(const Comm& comm, at::TensorList pieces, std::int64_t split_dim,
                   std::int64_t join_dim, std::span<const std::int64_t> split_lengths,
                   std::span<const std::int64_t> join_lengths, const Call& call, Where where) {
  constexpr std::string_view what = "all_to_all";
  check_pieces(what, comm, pieces);
  if (pieces.empty()) return ready({});
  const std::int64_t s = checked_dim(what, split_dim, pieces[0]);
  const std::int64_t j = checked_dim(what, join_dim, pieces[0]);
  const Counts splits = checked_lengths(
      what, comm, split_lengths, equal_part(what, comm, pieces[0].size(s), !split_lengths.empty()));
  check_total(what, comm, splits, pieces, s);
  const bool joins_given = !join_lengths.empty();
  const Counts joins = checked_lengths(what, comm, join_lengths, pieces[0].size(j));
  if (s != j) check_own_lengths(what, comm, pieces, j, joins);
  if (comm.size() == 1) return ready(detached(pieces));
  const LengthsOf splits_of = [&](std::size_t m) { return of_member(comm, splits, m); };
  if (auto done = among_hosted(comm, CallKind::all_to_all, pieces, call, where,
                               [&](const HostedGroups& here) {
                                 return hosted::all_to_all(here, pieces, s, j, splits_of);
                               })) {
    return std::move(*done);
  }

  const auto me = static_cast<std::size_t>(comm.index());
  const Parts in = parts_along(flat::plain(pieces[0]), s, splits);
  Parts out;
  std::vector<std::vector<std::int64_t>> shapes;  // of what arrives, per sender
  for (std::int64_t i = 0; i < comm.size(); ++i) {
    std::vector<std::int64_t> shape = pieces[0].sizes().vec();
    shape[static_cast<std::size_t>(s)] = splits[me];
    if (joins_given || s != j)
      shape[static_cast<std::size_t>(j)] = joins[static_cast<std::size_t>(i)];
    out.counts.push_back(c10::multiply_integers(shape));
    shapes.push_back(std::move(shape));
  }
  const std::int64_t total = std::accumulate(out.counts.begin(), out.counts.end(), std::int64_t{0});
  out.flat = at::empty({total}, in.flat.options());
  Works works =
      exchange_parts(*CommAccess::wire(comm), out, in, in.flat.scalar_type(), {call, where});
  const auto finish = [out, shapes, j]() -> Tensors {
    if (j == 0) {  // the parts are stored one after the other already
      std::vector<std::int64_t> shape = shapes[0];
      shape[0] = 0;
      for (const auto& part : shapes) shape[0] += part[0];
      return {out.flat.view(shape)};
    }
    Tensors parts = out.flat.split_with_sizes(out.counts);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].view(shapes[i]);
    return {at::cat(parts, j)};
  };
  return pending(what, std::move(works), {in.flat, out.flat}, finish);
}

Pending broadcast(const Comm& comm, at::TensorList tensors, std::int64_t root, const Call& call,
                  Where where) {
  constexpr std::string_view what = "broadcast";
  check_pieces(what, comm, tensors);
  if (root < 0 || root >= comm.size()) {
    fail<ValueError>(what, "there is no rank at ", root, " in group ", comm.name(), " of ",
                     comm.size());
  }
  if (tensors.empty() || comm.size() == 1) return ready(detached(tensors));
  if (auto done = among_hosted(
          comm, CallKind::broadcast, tensors, call, where,
          [&](const HostedGroups& here) { return hosted::broadcast(here, tensors, root); })) {
    return std::move(*done);
  }
  const at::Tensor buffer = comm.index() == root ? flat::plain(tensors[0]).clone()
                                                 : at::empty_like(flat::plain(tensors[0]));
  if (buffer.numel() == 0) return ready({buffer});
  Works works = CommAccess::wire(comm)->broadcast(as_bytes(buffer), root, buffer.scalar_type(),
                                                  {call, where});
  return pending(what, std::move(works), {buffer}, [buffer] { return Tensors{buffer}; });
}

Pending permute(const Comm& comm, at::TensorList pieces, std::span<const std::int64_t> to,
                std::span<const std::vector<std::int64_t>> shapes, const Call& call, Where where) {
  constexpr std::string_view what = "permute";
  check_pieces(what, comm, pieces);
  const Counts target(to.begin(), to.end());
  if (!is_order_of(to, comm.size())) {
    fail<ValueError>(what, "(", join(to), ") does not send each of the ", comm.size(),
                     " ranks of group ", comm.name(), " to another");
  }
  if (!shapes.empty() && static_cast<std::int64_t>(shapes.size()) != comm.size()) {
    fail<ValueError>(what, "group ", comm.name(), " has ", comm.size(), " ranks, but ",
                     shapes.size(), " shapes were given");
  }
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const std::int64_t me = comm.members()[m].index;
    if (!shapes.empty() && pieces[m].sizes() != shapes[static_cast<std::size_t>(me)]) {
      fail<ValueError>(what, "the piece of rank ", comm.members()[m].rank, " has sizes (",
                       join(pieces[m].sizes()), "), but the shapes say (",
                       join(shapes[static_cast<std::size_t>(me)]), ")");
    }
  }
  if (pieces.empty() || comm.size() == 1) return ready(detached(pieces));
  if (auto done = among_hosted(
          comm, CallKind::send, pieces, call, where,
          [&](const HostedGroups& here) { return hosted::permute(here, pieces, to); })) {
    return std::move(*done);
  }
  const auto from = static_cast<std::size_t>(std::find(target.begin(), target.end(), comm.index()) -
                                             target.begin());
  const at::Tensor in = flat::plain(pieces[0]);
  const at::Tensor out = at::empty(shapes.empty() ? in.sizes().vec() : shapes[from], in.options());
  Works works = CommAccess::wire(comm)->permute(as_bytes(out), as_bytes(in), target,
                                                in.scalar_type(), {call, where});
  return pending(what, std::move(works), {in, out}, [out] { return Tensors{out}; });
}

void barrier(const Comm& comm, const Call& call, Where where) {
  if (comm.members().empty() || comm.size() == 1) return;
  if (among_hosted(comm, CallKind::barrier, {}, call, where,
                   [](const HostedGroups&) { return Tensors(); })) {
    return;
  }
  wait_for(CommAccess::wire(comm)->barrier({call, where}), "barrier");
}

}  // namespace intarsia

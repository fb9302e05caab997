#include "intarsia/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/order.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "layout/chunk.h"
#include "world/collectives/flat.h"
#include "world/collectives/hosted.h"
#include "world/collectives/pending.h"
#include "world/collectives/wire.h"
#include "world/transport/reductions.h"

namespace intarsia {

namespace {

using Tensors = std::vector<at::Tensor>;
using flat::bytes;

/// The inputs, outside autograd: what a group of one gives back.
Tensors detached(at::TensorList list) {
  Tensors out;
  for (const at::Tensor& t : list) out.push_back(t.detach());
  return out;
}

/// The value of a single term.
Tensors alone(at::TensorList terms, const Placement& how) {
  Tensors out = detached(terms);
  for (at::Tensor& t : out) {
    if (how.reduction() == Reduction::norm) t = t.abs();
  }
  return out;
}

void check_pieces(std::string_view where, const Comm& comm, at::TensorList pieces) {
  if (pieces.size() != comm.members().size()) {
    fail<ValueError>(where, "group ", comm.name(), " has ", comm.members().size(),
                     " members in this process, but ", pieces.size(), " tensors were given");
  }
  for (const at::Tensor& t : pieces) {
    if (!t.defined()) fail<ValueError>(where, "an undefined tensor was given");
    if (t.layout() != at::kStrided) {
      fail<UnsupportedError>(where, "the tensor is ", t.is_sparse() ? "sparse" : "not strided",
                             "; make it dense first");
    }
  }
}

std::int64_t checked_dim(std::string_view where, std::int64_t dim, const at::Tensor& t) {
  return normalize_dim(where, dim, static_cast<std::size_t>(t.dim()));
}

/// Of what was given for all members, or for each of them one after the other, the lengths that
/// hold for one.
std::span<const std::int64_t> of_member(const Comm& comm, const Counts& all, std::size_t member) {
  const auto n = static_cast<std::size_t>(comm.size());
  return std::span(all).subspan(all.size() == n ? 0 : member * n, n);
}

/// Lengths of all ranks along a dimension: as given, or `each` for every rank.
Counts checked_lengths(std::string_view where, const Comm& comm,
                       std::span<const std::int64_t> given, std::int64_t each) {
  Counts out(given.begin(), given.end());
  const auto n = static_cast<std::size_t>(comm.size());
  if (out.empty()) out.assign(n, each);
  if (out.size() != n && out.size() != n * comm.members().size()) {
    fail<ValueError>(where, "group ", comm.name(), " has ", comm.size(), " ranks, but ", out.size(),
                     " lengths were given (", join(out), ")");
  }
  if (*std::min_element(out.begin(), out.end()) < 0) {
    fail<ValueError>(where, "the lengths (", join(out), ") have a negative one");
  }
  return out;
}

std::int64_t equal_part(std::string_view where, const Comm& comm, std::int64_t length,
                        bool lengths_given) {
  if (!lengths_given && length % comm.size() != 0) {
    fail<ValueError>(where, "length ", length, " does not divide into ", comm.size(),
                     " equal parts; give the lengths");
  }
  return length / comm.size();
}

void check_total(std::string_view where, const Comm& comm, const Counts& all, at::TensorList pieces,
                 std::int64_t dim) {
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const auto lengths = of_member(comm, all, m);
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    if (total == pieces[m].size(dim)) continue;
    fail<ValueError>(where, "the lengths (", join(lengths), ") add up to ", total,
                     ", but the tensor is ", pieces[m].size(dim), " long");
  }
}

/// The piece of each member must be as long as the lengths say.
void check_own_lengths(std::string_view where, const Comm& comm, at::TensorList pieces,
                       std::int64_t dim, const Counts& all) {
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const Member& member = comm.members()[m];
    const auto lengths = of_member(comm, all, m);
    const std::int64_t length = lengths[static_cast<std::size_t>(member.index)];
    if (pieces[m].size(dim) == length) continue;
    fail<ValueError>(where, "the piece of rank ", member.rank, " is ", pieces[m].size(dim),
                     " long in dimension ", dim, ", but the lengths (", join(lengths), ") say ",
                     length);
  }
}

/// Where all members of the groups live here: enters the call in the ledger, and gives what `move`
/// makes of their groups. Nothing elsewhere.
template <class Move>
std::optional<Pending> among_hosted(const Comm& comm, CallKind kind, at::TensorList in,
                                    std::string_view detail, const Call& call,
                                    const std::source_location& where, const Move& move) {
  const HostedGroups* here = CommAccess::hosted(comm);
  if (here == nullptr) return std::nullopt;
  std::int64_t bytes = 0;
  for (const at::Tensor& t : in) bytes += static_cast<std::int64_t>(t.nbytes());
  here->ledger->record(here->ledger_group, kind, in.empty() ? at::kByte : in[0].scalar_type(),
                       bytes, detail, call, where);
  const at::AutoDispatchBelowADInplaceOrView below;
  return ready(move(*here));
}

/// The parts of a tensor, one after the other in one flat buffer, and how many elements each has.
struct Parts {
  at::Tensor flat;
  Counts counts;
};

Parts cut(const at::Tensor& t, std::int64_t dim, const Counts& lengths) {
  Parts out;
  Tensors flat;
  for (const at::Tensor& part : t.split_with_sizes(lengths, dim)) {
    out.counts.push_back(part.numel());
    flat.push_back(part.reshape(-1));
  }
  out.flat = dim == 0 ? t.view(-1) : at::cat(flat);
  return out;
}

Counts scaled(const Counts& counts, std::int64_t factor) {
  Counts out = counts;
  for (std::int64_t& c : out) c *= factor;
  return out;
}

/// Sends `in`, cut by counts, and fills `out`. Elements of any dtype.
Works exchange(Wire& wire, const Tensors& out, const Tensors& in,
               const std::vector<Counts>& out_counts, const std::vector<Counts>& in_counts,
               CallSite site) {
  std::vector<Counts> out_bytes;
  std::vector<Counts> in_bytes;
  for (const Counts& c : out_counts) out_bytes.push_back(scaled(c, out[0].element_size()));
  for (const Counts& c : in_counts) in_bytes.push_back(scaled(c, in[0].element_size()));
  return wire.all_to_all(bytes(out), bytes(in), out_bytes, in_bytes, site);
}

// ---- reductions ------------------------------------------------------------------------------

at::Tensor as_real(const at::Tensor& t) { return t.is_complex() ? at::view_as_real(t) : t; }

/// What the backend is asked for. An average that it does not make, or that is seen as reals, is
/// divided here.
Reduction asked_of_backend(const Wire& wire, const Placement& how, at::ScalarType type) {
  if (!is_linear(how)) return how.reduction();
  const bool averages = !c10::isComplexType(type) && wire.reduces(type, Reduction::avg);
  return how.reduction() == Reduction::avg && averages ? Reduction::avg : Reduction::sum;
}

/// Whether the backend reduces this, perhaps seen as reals.
bool native(const Wire& wire, const Placement& how, at::ScalarType type, bool scatter) {
  const bool complex = c10::isComplexType(type);
  if (complex && (!is_linear(how) || type == at::kComplexHalf)) return false;
  const at::ScalarType real = complex ? c10::toRealValueType(type) : type;
  const Reduction reduction = asked_of_backend(wire, how, type);
  return scatter ? wire.scatters_reduced(real, reduction) : wire.reduces(real, reduction);
}

/// Of the cut terms of all members, each member's part combined, flat, in the accumulator's dtype.
struct ScatteredTerms {
  Works works;
  Tensors buffers;
  std::function<Tensors()> combine;
};

ScatteredTerms scatter_terms(const Comm& comm, Wire& wire, const std::vector<Parts>& parts,
                             const Placement& how, CallSite site) {
  const std::int64_t n = comm.size();
  Tensors in;
  Tensors out;
  std::vector<Counts> in_counts;
  std::vector<Counts> out_counts;
  for (std::size_t m = 0; m < parts.size(); ++m) {
    const auto mine = static_cast<std::size_t>(comm.members()[m].index);
    in.push_back(parts[m].flat);
    in_counts.push_back(parts[m].counts);
    out_counts.emplace_back(static_cast<std::size_t>(n), parts[m].counts[mine]);
    out.push_back(at::empty({n * parts[m].counts[mine]}, parts[m].flat.options()));
  }
  ScatteredTerms s;
  s.works = exchange(wire, out, in, out_counts, in_counts, site);
  s.buffers = in;
  s.buffers.insert(s.buffers.end(), out.begin(), out.end());
  s.combine = [out, n, how] {
    Tensors combined;
    for (const at::Tensor& terms : out)
      combined.push_back(combine(terms.view({n, terms.numel() / n}).unbind(0), how));
    return combined;
  };
  return s;
}

}  // namespace

// ---- collectives --------------------------------------------------------------------------------

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
          comm, CallKind::all_gather, pieces, {}, call, where,
          [&](const HostedGroups& here) { return hosted::all_gather(here, pieces, d); })) {
    return std::move(*done);
  }
  const std::int64_t longest = *std::max_element(all.begin(), all.end());
  const bool even = *std::min_element(all.begin(), all.end()) == longest;

  Tensors in;
  Tensors out;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    at::Tensor piece = flat::plain(pieces[m]);
    const std::int64_t length = all[static_cast<std::size_t>(comm.members()[m].index)];
    std::vector<std::int64_t> shape = piece.sizes().vec();
    shape[static_cast<std::size_t>(d)] = longest;
    if (length < longest) {
      const at::Tensor padded = at::empty(shape, piece.options());
      padded.narrow(d, 0, length).copy_(piece);
      padded.narrow(d, length, longest - length).zero_();
      piece = padded;
    }
    shape.insert(shape.begin(), n);
    in.push_back(piece);
    out.push_back(at::empty(shape, piece.options()));
  }
  const auto finish = [out, all, d, even] {
    Tensors joined;
    for (const at::Tensor& gathered : out) {
      if (even && d == 0) {
        joined.push_back(gathered.flatten(0, 1));
        continue;
      }
      Tensors parts;
      for (std::size_t i = 0; i < all.size(); ++i) {
        parts.push_back(gathered[static_cast<std::int64_t>(i)].narrow(d, 0, all[i]));
      }
      joined.push_back(at::cat(parts, d));
    }
    return joined;
  };
  if (in[0].numel() == 0) return ready(finish());
  Works works =
      CommAccess::wire(comm)->all_gather(bytes(out), bytes(in), {in[0].scalar_type(), call, where});
  Tensors buffers = in;
  buffers.insert(buffers.end(), out.begin(), out.end());
  return pending(what, std::move(works), std::move(buffers), finish);
}

Pending all_reduce(const Comm& comm, at::TensorList terms, const Placement& how, const Call& call,
                   Where where) {
  constexpr std::string_view what = "all_reduce";
  check_pieces(what, comm, terms);
  if (terms.empty()) return ready({});
  const std::int64_t n = comm.size();
  const at::ScalarType type = terms[0].scalar_type();
  check_reduction(what, how, type);
  if (n == 1) return ready(alone(terms, how));
  if (auto done = among_hosted(
          comm, CallKind::all_reduce, terms, to_text(how.reduction()), call, where,
          [&](const HostedGroups& here) { return hosted::all_reduce(here, terms, how); })) {
    return std::move(*done);
  }
  const std::shared_ptr<Wire> held = CommAccess::wire(comm);  // stays alive if the world is closed
  Wire& wire = *held;
  const bool leave_to_backend = native(wire, how, type, /*scatter=*/false);
  Tensors buffers;
  for (const at::Tensor& t : terms) {
    const at::Tensor p = flat::plain(t);
    buffers.push_back(leave_to_backend ? p.clone() : to_term(p, how));
  }
  if (buffers[0].numel() == 0) {
    for (at::Tensor& t : buffers) t = t.to(type);
    return ready(std::move(buffers));
  }

  if (leave_to_backend) {
    Tensors reals;
    for (const at::Tensor& t : buffers) reals.push_back(as_real(t));
    const Reduction asked = asked_of_backend(wire, how, type);
    Works works = wire.all_reduce(reals, asked, {type, call, where});
    const auto finish = [buffers, divides = asked != how.reduction(), n] {
      Tensors out;
      for (const at::Tensor& t : buffers) out.push_back(divides ? t.div(n) : t);
      return out;
    };
    return pending(what, std::move(works), reals, finish);
  }

  // Each rank combines one chunk of the flat terms, and all gather the chunks. The first half is
  // waited for here: the second must be called now, not when the caller happens to wait, or ranks
  // that wait in another order would mix up their calls.
  Counts lengths;
  for (std::int64_t i = 0; i < n; ++i) lengths.push_back(chunk(buffers[0].numel(), n, i).size());
  std::vector<Parts> parts;
  for (const at::Tensor& t : buffers) parts.push_back({t.contiguous().view(-1), lengths});
  const ScatteredTerms s = scatter_terms(comm, wire, parts, how, {type, call, where});
  wait_for(s.works, what);
  Tensors chunks = s.combine();
  for (at::Tensor& t : chunks) t = from_terms(t, how, n, type);
  Pending gathered = all_gather(comm, chunks, 0, lengths, call, where);
  return after(std::move(gathered), [shape = terms[0].sizes().vec()](Tensors out) {
    for (at::Tensor& t : out) t = t.view(shape);
    return out;
  });
}

Pending reduce_scatter(const Comm& comm, at::TensorList terms, std::int64_t dim,
                       const Placement& how, std::span<const std::int64_t> lengths,
                       const Call& call, Where where) {
  constexpr std::string_view what = "reduce_scatter";
  check_pieces(what, comm, terms);
  if (terms.empty()) return ready({});
  const std::int64_t n = comm.size();
  const at::ScalarType type = terms[0].scalar_type();
  check_reduction(what, how, type);
  const std::int64_t d = checked_dim(what, dim, terms[0]);
  const Counts all = checked_lengths(what, comm, lengths,
                                     equal_part(what, comm, terms[0].size(d), !lengths.empty()));
  check_total(what, comm, all, terms, d);
  if (n == 1) return ready(alone(terms, how));
  const LengthsOf lengths_of = [&](std::size_t m) { return of_member(comm, all, m); };
  if (auto done = among_hosted(comm, CallKind::reduce_scatter, terms, to_text(how.reduction()),
                               call, where, [&](const HostedGroups& here) {
                                 return hosted::reduce_scatter(here, terms, d, how, lengths_of);
                               })) {
    return std::move(*done);
  }

  std::vector<Parts> parts;
  std::vector<std::vector<std::int64_t>> shapes;
  for (std::size_t m = 0; m < terms.size(); ++m) {
    parts.push_back(cut(to_term(flat::plain(terms[m]), how), d, all));
    shapes.push_back(terms[m].sizes().vec());
    shapes.back()[static_cast<std::size_t>(d)] =
        all[static_cast<std::size_t>(comm.members()[m].index)];
  }
  const auto shaped = [shapes](Tensors flat) {
    for (std::size_t m = 0; m < flat.size(); ++m) flat[m] = flat[m].view(shapes[m]);
    return flat;
  };
  if (parts[0].flat.numel() == 0) {
    Tensors empty;
    for (const Parts& p : parts) empty.push_back(at::empty({0}, p.flat.options()).to(type));
    return ready(shaped(std::move(empty)));
  }
  const std::shared_ptr<Wire> held = CommAccess::wire(comm);
  Wire& wire = *held;
  const bool even = std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end();
  if (even && native(wire, how, type, /*scatter=*/true)) {
    Tensors in;
    Tensors out;
    for (const Parts& p : parts) {
      in.push_back(as_real(p.flat));
      out.push_back(at::empty({p.flat.numel() / n}, p.flat.options()));
    }
    Tensors reals;
    for (const at::Tensor& t : out) reals.push_back(as_real(t));
    const Reduction asked = asked_of_backend(wire, how, type);
    Works works = wire.reduce_scatter(reals, in, asked, {type, call, where});
    const auto finish = [out, shaped, divides = asked != how.reduction(), n] {
      Tensors values;
      for (const at::Tensor& t : out) values.push_back(divides ? t.div(n) : t);
      return shaped(std::move(values));
    };
    in.insert(in.end(), out.begin(), out.end());
    return pending(what, std::move(works), std::move(in), finish);
  }
  ScatteredTerms s = scatter_terms(comm, wire, parts, how, {type, call, where});
  const auto finish = [combine = s.combine, shaped, how, n, type] {
    Tensors values = combine();
    for (at::Tensor& t : values) t = from_terms(t, how, n, type);
    return shaped(std::move(values));
  };
  return pending(what, std::move(s.works), std::move(s.buffers), finish);
}

Pending all_to_all(const Comm& comm, at::TensorList pieces, std::int64_t cut_dim,
                   std::int64_t join_dim, std::span<const std::int64_t> cut_lengths,
                   std::span<const std::int64_t> join_lengths, const Call& call, Where where) {
  constexpr std::string_view what = "all_to_all";
  check_pieces(what, comm, pieces);
  if (pieces.empty()) return ready({});
  const std::int64_t c = checked_dim(what, cut_dim, pieces[0]);
  const std::int64_t j = checked_dim(what, join_dim, pieces[0]);
  const Counts cuts = checked_lengths(
      what, comm, cut_lengths, equal_part(what, comm, pieces[0].size(c), !cut_lengths.empty()));
  check_total(what, comm, cuts, pieces, c);
  const bool joins_given = !join_lengths.empty();
  const Counts joins = checked_lengths(what, comm, join_lengths, pieces[0].size(j));
  if (c != j) check_own_lengths(what, comm, pieces, j, joins);
  if (comm.size() == 1) return ready(detached(pieces));
  const LengthsOf cuts_of = [&](std::size_t m) { return of_member(comm, cuts, m); };
  if (auto done = among_hosted(comm, CallKind::all_to_all, pieces, {}, call, where,
                               [&](const HostedGroups& here) {
                                 return hosted::all_to_all(here, pieces, c, j, cuts_of);
                               })) {
    return std::move(*done);
  }

  Tensors in;
  Tensors out;
  std::vector<Counts> in_counts;
  std::vector<Counts> out_counts;
  std::vector<std::vector<std::vector<std::int64_t>>>
      shapes;  // of what arrives, per member and sender
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const auto me = static_cast<std::size_t>(comm.members()[m].index);
    Parts parts = cut(flat::plain(pieces[m]), c, cuts);
    in.push_back(parts.flat);
    in_counts.push_back(parts.counts);
    out_counts.emplace_back();
    shapes.emplace_back();
    for (std::int64_t i = 0; i < comm.size(); ++i) {
      std::vector<std::int64_t> shape = pieces[m].sizes().vec();
      shape[static_cast<std::size_t>(c)] = cuts[me];
      if (joins_given || c != j)
        shape[static_cast<std::size_t>(j)] = joins[static_cast<std::size_t>(i)];
      out_counts.back().push_back(c10::multiply_integers(shape));
      shapes.back().push_back(std::move(shape));
    }
    const std::int64_t total =
        std::accumulate(out_counts.back().begin(), out_counts.back().end(), std::int64_t{0});
    out.push_back(at::empty({total}, in.back().options()));
  }
  Works works = exchange(*CommAccess::wire(comm), out, in, out_counts, in_counts,
                         {in[0].scalar_type(), call, where});
  const auto finish = [out, out_counts, shapes, j] {
    Tensors joined;
    for (std::size_t m = 0; m < out.size(); ++m) {
      if (j == 0) {  // the parts lie one after the other as they are
        std::vector<std::int64_t> shape = shapes[m][0];
        shape[0] = 0;
        for (const auto& part : shapes[m]) shape[0] += part[0];
        joined.push_back(out[m].view(shape));
        continue;
      }
      Tensors parts = out[m].split_with_sizes(out_counts[m]);
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].view(shapes[m][i]);
      joined.push_back(at::cat(parts, j));
    }
    return joined;
  };
  in.insert(in.end(), out.begin(), out.end());
  return pending(what, std::move(works), std::move(in), finish);
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
          comm, CallKind::broadcast, tensors, concat(root), call, where,
          [&](const HostedGroups& here) { return hosted::broadcast(here, tensors, root); })) {
    return std::move(*done);
  }
  Tensors buffers;
  for (std::size_t m = 0; m < tensors.size(); ++m) {
    const at::Tensor p = flat::plain(tensors[m]);
    buffers.push_back(comm.members()[m].index == root ? p.clone() : at::empty_like(p));
  }
  if (buffers[0].numel() == 0) return ready(std::move(buffers));
  Works works = CommAccess::wire(comm)->broadcast(bytes(buffers), root,
                                                  {buffers[0].scalar_type(), call, where});
  return pending(what, std::move(works), buffers, [buffers] { return buffers; });
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
  Tensors in;
  Tensors out;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const std::int64_t me = comm.members()[m].index;
    if (!shapes.empty() && pieces[m].sizes() != shapes[static_cast<std::size_t>(me)]) {
      fail<ValueError>(what, "the piece of rank ", comm.members()[m].rank, " has sizes (",
                       join(pieces[m].sizes()), "), but the shapes say (",
                       join(shapes[static_cast<std::size_t>(me)]), ")");
    }
    const auto from =
        static_cast<std::size_t>(std::find(target.begin(), target.end(), me) - target.begin());
    in.push_back(flat::plain(pieces[m]));
    const auto shape = shapes.empty() ? pieces[m].sizes().vec() : shapes[from];
    out.push_back(at::empty(shape, in.back().options()));
  }
  if (pieces.empty() || comm.size() == 1) return ready(detached(pieces));
  if (auto done = among_hosted(
          comm, CallKind::send, pieces, join(to), call, where,
          [&](const HostedGroups& here) { return hosted::permute(here, pieces, to); })) {
    return std::move(*done);
  }
  Works works = CommAccess::wire(comm)->permute(bytes(out), bytes(in), target,
                                                {in[0].scalar_type(), call, where});
  in.insert(in.end(), out.begin(), out.end());
  return pending(what, std::move(works), std::move(in), [out] { return out; });
}

void barrier(const Comm& comm, const Call& call, Where where) {
  if (comm.members().empty() || comm.size() == 1) return;
  if (among_hosted(comm, CallKind::barrier, {}, {}, call, where,
                   [](const HostedGroups&) { return Tensors(); })) {
    return;
  }
  wait_for(CommAccess::wire(comm)->barrier({at::kByte, call, where}), "barrier");
}

}  // namespace intarsia

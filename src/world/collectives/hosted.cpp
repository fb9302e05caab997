#include "world/collectives/hosted.h"

#include <ATen/ATen.h>

#include "world/transport/reductions.h"

namespace intarsia::hosted {
namespace {

/// The tensors of one group, in the order of its ranks.
Tensors of_group(at::TensorList all, const std::vector<std::size_t>& group) {
  Tensors out;
  out.reserve(group.size());
  for (const std::size_t m : group) out.push_back(all[m]);
  return out;
}

/// Gives every member of a group the value, each its own copy.
void give(Tensors& out, const std::vector<std::size_t>& group, const at::Tensor& value) {
  out[group[0]] = value;
  for (std::size_t i = 1; i < group.size(); ++i) out[group[i]] = value.clone();
}

at::Tensor reduced(const Tensors& partials, const Placement& how) {
  Tensors ready = partials;
  for (at::Tensor& t : ready) t = to_partial(t, how);
  return from_partials(combine(ready, how), how, static_cast<std::int64_t>(partials.size()),
                       partials[0].scalar_type());
}

/// The part of each member's tensor, split by its own lengths, that the rank at `place` gets.
Tensors parts_of(at::TensorList all, const std::vector<std::size_t>& group, std::int64_t dim,
                 const LengthsOf& lengths_of, std::size_t place) {
  Tensors out;
  out.reserve(group.size());
  for (const std::size_t m : group) {
    const auto lengths = lengths_of(m);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < place; ++i) begin += lengths[i];
    out.push_back(all[m].narrow(dim, begin, lengths[place]));
  }
  return out;
}

}  // namespace

Tensors all_gather(const HostedGroups& here, at::TensorList pieces, std::int64_t dim) {
  Tensors out(pieces.size());
  for (const auto& group : here.groups) give(out, group, at::cat(of_group(pieces, group), dim));
  return out;
}

Tensors all_reduce(const HostedGroups& here, at::TensorList partials, const Placement& how) {
  Tensors out(partials.size());
  for (const auto& group : here.groups) {
    give(out, group, reduced(of_group(partials, group), how).contiguous());
  }
  return out;
}

Tensors reduce_scatter(const HostedGroups& here, at::TensorList partials, std::int64_t dim,
                       const Placement& how, const LengthsOf& lengths) {
  Tensors out(partials.size());
  for (const auto& group : here.groups) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      out[group[i]] = reduced(parts_of(partials, group, dim, lengths, i), how).contiguous();
    }
  }
  return out;
}

Tensors all_to_all(const HostedGroups& here, at::TensorList pieces, std::int64_t split_dim,
                   std::int64_t join_dim, const LengthsOf& split_lengths) {
  Tensors out(pieces.size());
  for (const auto& group : here.groups) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      out[group[i]] = at::cat(parts_of(pieces, group, split_dim, split_lengths, i), join_dim);
    }
  }
  return out;
}

Tensors broadcast(const HostedGroups& here, at::TensorList tensors, std::int64_t root) {
  Tensors out(tensors.size());
  for (const auto& group : here.groups) {
    give(out, group, tensors[group[static_cast<std::size_t>(root)]].clone());
  }
  return out;
}

Tensors permute(const HostedGroups& here, at::TensorList pieces, std::span<const std::int64_t> to) {
  Tensors out(pieces.size());
  for (const auto& group : here.groups) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      out[group[static_cast<std::size_t>(to[i])]] = pieces[group[i]].clone();
    }
  }
  return out;
}

}  // namespace intarsia::hosted

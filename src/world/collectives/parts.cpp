#include "world/collectives/parts.h"

#include <ATen/ATen.h>

#include "world/transport/reductions.h"

namespace intarsia {
namespace {

Counts scaled(const Counts& counts, std::int64_t factor) {
  Counts out = counts;
  for (std::int64_t& c : out) c *= factor;
  return out;
}

}  // namespace

// A contiguous tensor of one element or none may have any strides, which a view as bytes does not
// take.
at::Tensor as_bytes(const at::Tensor& buffer) {
  return buffer.as_strided({buffer.numel()}, {1}).view(at::kByte);
}

Parts parts_along(const at::Tensor& t, std::int64_t dim, const Counts& lengths) {
  Parts out;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& part : t.split_with_sizes(lengths, dim)) {
    out.counts.push_back(part.numel());
    flat.push_back(part.reshape(-1));
  }
  out.flat = dim == 0 ? t.view(-1) : at::cat(flat);
  return out;
}

Works exchange_parts(Wire& wire, const Parts& out, const Parts& in, at::ScalarType dtype,
                     CallSite site) {
  return wire.all_to_all(as_bytes(out.flat), as_bytes(in.flat),
                         scaled(out.counts, out.flat.element_size()),
                         scaled(in.counts, in.flat.element_size()), dtype, site);
}

ScatteredPartials scatter_partials(const Comm& comm, Wire& wire, const Parts& parts,
                                   const Placement& how, at::ScalarType dtype, CallSite site) {
  const std::int64_t n = comm.size();
  const std::int64_t mine = parts.counts[static_cast<std::size_t>(comm.index())];
  const Parts arriving{at::empty({n * mine}, parts.flat.options()),
                       Counts(static_cast<std::size_t>(n), mine)};
  ScatteredPartials s;
  s.works = exchange_parts(wire, arriving, parts, dtype, site);
  s.buffers = {parts.flat, arriving.flat};
  s.combine = [partials = arriving.flat, n, how] {
    return combine(partials.view({n, partials.numel() / n}).unbind(0), how);
  };
  return s;
}

}  // namespace intarsia

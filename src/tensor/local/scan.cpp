// Running sums and products along a sharded dimension.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/collectives.h"
#include "tensor/core/places.h"
#include "tensor/local/local_forms.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

using Combine = at::Tensor (*)(const at::Tensor& before, const at::Tensor& after);

Combine combine_of(std::string_view op) {
  if (op == "cumsum") return [](const at::Tensor& a, const at::Tensor& b) { return a + b; };
  if (op == "cumprod") return [](const at::Tensor& a, const at::Tensor& b) { return a * b; };
  TORCH_INTERNAL_ASSERT(op == "logcumsumexp", op);
  return [](const at::Tensor& a, const at::Tensor& b) { return at::logaddexp(a, b); };
}

/// A run of the dimension, and the place of its last element among those of all runs, rank by rank.
struct Run {
  Range range;
  std::int64_t place = 0;
};

/// One hosted rank: the runs of all ranks of its group in the order of the dimension, and its own.
struct Scanned {
  std::vector<Run> all;
  std::vector<Range> own;
  std::vector<std::int64_t> counts;  // of runs, rank by rank
};

Scanned scanned(const Layout& layout, const Shape& sizes, std::size_t dim, const Places& places,
                const Coordinate& at) {
  Scanned out;
  const auto runs_at = [&](const Coordinate& c) {
    const Boxes held = boxes(layout, sizes, c);
    return std::vector<Range>(held.runs(dim).begin(), held.runs(dim).end());
  };
  std::int64_t place = 0;
  for (std::size_t i = 0; i < places.count(); ++i) {
    const auto runs = runs_at(places.at(i));
    for (const Range& r : runs) out.all.push_back({r, place++});
    out.counts.push_back(static_cast<std::int64_t>(runs.size()));
  }
  std::sort(out.all.begin(), out.all.end(),
            [](const Run& a, const Run& b) { return a.range.begin < b.range.begin; });
  out.own = runs_at(at);
  return out;
}

/// The last elements of all runs, on every rank: the only thing that is sent.
std::vector<at::Tensor> gather_lasts(TensorState& state, const Spec& spec,
                                     const std::vector<std::string>& axes, std::int64_t dim,
                                     const std::vector<at::Tensor>& lasts,
                                     const std::vector<std::int64_t>& counts, std::string_view op) {
  LedgerTotals sent;
  const std::string tensor = spec.to_string();
  const auto comm = state.world().along(spec->layout.mesh(), axes);
  const Call call{.tensor = tensor, .op = op, .module = module_path(), .sent = &sent};
  Pending all = all_gather(comm, lasts, dim, counts, call);
  state.bill().charge_own(op, tensor, join(axes), "scan", sent);
  return all.wait();
}

}  // namespace

void set_scan(const Frame& f, const Question& q, Decision& d) {
  if (q.in(0).dims() == 0) return;
  const std::size_t sharded_dim = q.dim();
  const Layout& layout = d.layouts[0];
  const AxisList axes = layout.axes_of(static_cast<int>(sharded_dim));
  if (axes.empty()) return;
  const Places places(f.mesh(), axes);
  const auto dim = static_cast<std::int64_t>(sharded_dim);
  std::vector<Scanned> here;
  for (const Coordinate& at : hosted_coordinates(f.lead->world(), f.mesh())) {
    here.push_back(scanned(layout, d.in[0]->sizes, sharded_dim, places, at));
  }
  d.local.call = [here, dim, has_out = f.info.has_out, op = f.info.op](std::size_t m,
                                                                       torch::jit::Stack& stack) {
    const torch::jit::Stack arguments = stack;
    std::vector<at::Tensor> parts;
    std::int64_t first = 0;
    for (const Range& r : here[m].own) {
      torch::jit::Stack part = arguments;
      part[0] = arguments[0].toTensor().narrow(dim, first, r.size());
      if (has_out) part.back() = at::empty({0}, part.back().toTensor().options());
      op.callBoxed(&part);
      parts.push_back(part[0].toTensor());
      first += r.size();
    }
    if (parts.empty()) {
      op.callBoxed(&stack);
    } else {
      stack = {at::cat(parts, dim)};
    }
  };
  d.local.afterwards =
      [here, dim, axis_names = places.names(), spec = d.in[0].with(layout), state = &f.state(),
       name = f.info.name,
       combine = combine_of(f.info.base_name)](std::vector<std::vector<at::Tensor>>& results) {
        std::vector<at::Tensor> lasts;
        std::vector<std::int64_t> counts;
        for (std::size_t m = 0; m < here.size(); ++m) {
          const at::Tensor& piece = results[0][m];
          // Not by index_select, which torch has no meta kernel of in C++: simulated worlds.
          std::vector<at::Tensor> ends;
          std::int64_t end = 0;
          for (const Range& r : here[m].own) {
            end += r.size();
            ends.push_back(piece.narrow(dim, end - 1, 1));
          }
          lasts.push_back(ends.empty() ? piece.narrow(dim, 0, 0) : at::cat(ends, dim));
          counts.insert(counts.end(), here[m].counts.begin(), here[m].counts.end());
        }
        const auto joined = gather_lasts(*state, spec, axis_names, dim, lasts, counts, name);
        for (std::size_t m = 0; m < here.size(); ++m) {
          std::map<std::int64_t, at::Tensor> before;  // by where a run begins
          std::optional<at::Tensor> so_far;
          for (const Run& run : here[m].all) {
            if (so_far) before.emplace(run.range.begin, *so_far);
            const at::Tensor total = joined[m].narrow(dim, run.place, 1);
            so_far = so_far ? combine(*so_far, total) : total;
          }
          std::vector<at::Tensor> parts;
          std::int64_t first = 0;
          for (const Range& r : here[m].own) {
            const at::Tensor part = results[0][m].narrow(dim, first, r.size());
            const auto known = before.find(r.begin);
            parts.push_back(known == before.end() ? part : combine(known->second, part));
            first += r.size();
          }
          if (!parts.empty()) results[0][m] = at::cat(parts, dim);
        }
      };
}

}  // namespace intarsia

#include "tensor/local/halo.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "tensor/core/places.h"
#include "tensor/move/state.h"
#include "world/collectives/pending.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

Range overlap(const Range& a, const Range& b) {
  const Range both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.size() > 0 ? both : Range{};
}

}  // namespace

Halo::Halo(World& world, std::string op, const Spec& spec, std::size_t dim, const Needs& needs)
    : world_(&world), op_(std::move(op)), spec_(spec), dim_(dim) {
  const Layout& layout = spec->layout;
  const Mesh& mesh = layout.mesh();
  const Places places(mesh, layout.axes_of(static_cast<int>(dim)));
  axes_ = places.names();
  for (std::size_t i = 0; i < places.count(); ++i) {
    const Coordinate at = places.at(i);
    const Boxes boxes_here = boxes(layout, spec->sizes, at);
    const auto runs = boxes_here.runs(dim);
    TORCH_INTERNAL_ASSERT(runs.size() <= 1, op_, ": a window of blocks");
    held_.push_back(runs.empty() ? Range{} : runs[0]);
    needs_.push_back(needs(at));
    for (const Range& run : needs_.back()) exchanges_ |= overlap(run, held_.back()) != run;
  }
  for (const Coordinate& at : hosted_coordinates(world, mesh)) places_.push_back(places.of(at));
}

std::vector<Halo::Part> Halo::parts(std::size_t from, std::size_t to) const {
  std::vector<Part> out;
  std::int64_t begin = 0;
  for (const Range& run : needs_[to]) {
    const Range both = overlap(held_[from], run);
    if (both.size() > 0) {
      out.push_back({begin + both.begin - run.begin, both.begin - held_[from].begin, both.size()});
    }
    begin += run.size();
  }
  return out;
}

std::int64_t Halo::window_size(std::size_t place) const {
  std::int64_t size = 0;
  for (const Range& run : needs_[place]) size += run.size();
  return size;
}

at::Tensor Halo::sized(const at::Tensor& like, std::int64_t size) const {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[dim_] = size;
  return at::empty(sizes, like.options().memory_format(like.suggest_memory_format()));
}

Pending Halo::exchange(const Pieces& tensors, bool to_windows) const {
  if (!exchanges_ || tensors.empty()) return ready({});
  const auto dim = static_cast<std::int64_t>(dim_);
  std::vector<at::Tensor> parts_to_send;
  std::vector<std::int64_t> split_lengths;
  std::vector<std::int64_t> join_lengths;
  const auto length = [](const std::vector<Part>& parts) {
    std::int64_t sum = 0;
    for (const Part& p : parts) sum += p.size;
    return sum;
  };
  for (std::size_t m = 0; m < tensors.size(); ++m) {
    const std::size_t me = places_[m];
    std::vector<at::Tensor> mine{tensors[m].narrow(dim, 0, 0)};
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const auto theirs = i == me ? std::vector<Part>{} : parts(me, i);  // of my piece
      const auto ours = i == me ? std::vector<Part>{} : parts(i, me);    // of my window
      const auto& out = to_windows ? theirs : ours;
      for (const Part& p : out) {
        mine.push_back(tensors[m].narrow(dim, to_windows ? p.in_piece : p.in_window, p.size));
      }
      split_lengths.push_back(length(out));
      join_lengths.push_back(length(to_windows ? ours : theirs));
    }
    parts_to_send.push_back(at::cat(mine, dim));
  }
  const std::string text = spec_.to_string();
  LedgerTotals sent;
  const Call call{.tensor = text, .op = op_, .module = module_path(), .sent = &sent};
  Pending moving = all_to_all(world_->along(spec_->layout.mesh(), axes_), parts_to_send, dim, dim,
                              split_lengths, join_lengths, call);
  TensorState::of(*world_).bill().charge_own(op_, text, join(axes_), "halo", sent);
  return moving;
}

Pending Halo::start_fetch(const Pieces& pieces) const {
  return after(exchange(pieces, true), [this, pieces](const std::vector<at::Tensor>& arrived) {
    const Pieces out = windows_of(pieces, arrived);
    return std::vector<at::Tensor>(out.begin(), out.end());
  });
}

Pieces Halo::fetch(const Pieces& pieces) const {
  return windows_of(pieces, exchange(pieces, true).wait());
}

Pieces Halo::windows_of(const Pieces& pieces, const std::vector<at::Tensor>& arrived) const {
  const auto dim = static_cast<std::int64_t>(dim_);
  Pieces out;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const std::size_t me = places_[m];
    const bool has_all = needs_[me].size() == 1 && needs_[me][0] == held_[me];
    out.push_back(has_all ? pieces[m] : sized(pieces[m], window_size(me)));
    if (has_all) continue;
    std::int64_t next = 0;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      for (const Part& p : parts(i, me)) {
        const at::Tensor from = i == me ? pieces[m].narrow(dim, p.in_piece, p.size)
                                        : arrived[m].narrow(dim, next, p.size);
        out[m].narrow(dim, p.in_window, p.size).copy_(from);
        if (i != me) next += p.size;
      }
    }
  }
  return out;
}

Pieces Halo::give_back(const Pieces& windows) const {
  const auto dim = static_cast<std::int64_t>(dim_);
  Pending coming = exchange(windows, false);
  const std::vector<at::Tensor>& arrived = coming.wait();
  Pieces out;
  for (std::size_t m = 0; m < windows.size(); ++m) {
    const std::size_t me = places_[m];
    out.push_back(sized(windows[m], held_[me].size()).zero_());
    std::int64_t next = 0;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      for (const Part& p : parts(me, i)) {
        const at::Tensor from = i == me ? windows[m].narrow(dim, p.in_window, p.size)
                                        : arrived[m].narrow(dim, next, p.size);
        out[m].narrow(dim, p.in_piece, p.size).add_(from);
        if (i != me) next += p.size;
      }
    }
  }
  return out;
}

}  // namespace intarsia

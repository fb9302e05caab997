#include "pipeline/run/link.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "layout/coordinates.h"
#include "pipeline/run/words.h"
#include "tensor/core/impl.h"
#include "tensor/core/in_bytes.h"
#include "tensor/move/exchange.h"
#include "tensor/move/state.h"
#include "world/collectives/flat.h"

namespace intarsia::pipeline {
namespace {

/// The piece of this rank, as it is sent.
at::Tensor piece_of(const at::Tensor& value, const PassedType& passed) {
  if (passed.is_plain) return flat::plain(value);
  const at::Tensor laid_out = layout_of(value) == passed.from.layout
                                  ? value
                                  : redistribute(value.detach(), passed.from.layout);
  return flat::plain(impl_of(laid_out).pieces()[0]);
}

}  // namespace

Link::Link(World& world, Mesh from, Mesh to, std::string name, bool may_miss)
    : world_(world),
      from_(std::move(from)),
      to_(std::move(to)),
      name_(std::move(name)),
      may_miss_(may_miss),
      parcels_(world, from_, to_, may_miss) {}

void Link::open() {
  if (world_.in_lockstep()) return;
  const bool alike = are_alike(from_, to_);
  const std::int64_t me = world_.rank();
  for (std::int64_t i = 0; i < from_.size(); ++i) {
    const std::int64_t sender = from_.rank_at(coordinate_at(from_, i));
    for (std::int64_t j = 0; j < to_.size(); ++j) {
      if (alike && i != j) continue;
      const std::int64_t receiver = to_.rank_at(coordinate_at(to_, j));
      if (sender == me) channel(receiver, /*sending=*/true);
      if (receiver == me) channel(sender, /*sending=*/false);
    }
  }
}

const Comm& Link::channel(std::int64_t peer, bool sending) {
  if (const auto found = channels_.find(peer); found != channels_.end()) return found->second;
  const std::int64_t me = world_.rank();
  const std::array<std::int64_t, 2> ranks{sending ? me : peer, sending ? peer : me};
  const Mesh pair = Mesh::of_ranks({{"link", 2}}, ranks);
  const std::vector<std::string> axes{"link"};
  return channels_.emplace(peer, world_.along(pair, axes, name_)).first->second;
}

// ---- sending ------------------------------------------------------------------------------------

void Link::post(std::int64_t peer, std::shared_ptr<at::Tensor> buffer, const std::string& what) {
  LedgerTotals sent;
  const Call call{.tensor = what, .op = kOp, .sent = &sent};
  Pending pending =
      flat::message(channel(peer, /*sending=*/true), *buffer, 0, {call, Where::current()});
  TensorState::of(world_).bill().charge_own(kOp, what, name_, may_miss_ ? "gradient" : "output",
                                            sent, may_miss_);
  sent_.push_back({std::move(pending), std::move(buffer)});
}

void Link::send(const Tensors& values, const Boundary& boundary, const std::string& what,
                bool announces) {
  const at::NoGradGuard no_grad;
  if (world_.in_lockstep()) return send_here(values, boundary);
  while (!sent_.empty() && sent_.front().pending.done()) {
    sent_.front().pending.wait();
    sent_.pop_front();
  }
  const auto parcels = parcels_.of(boundary, /*sending=*/true);
  const auto bytes = at::TensorOptions(at::kByte).device(world_.device());
  if (announces) {
    const std::string text = boundary.to_string();
    const at::Tensor letters =
        at::from_blob(const_cast<char*>(text.data()), {std::ssize(text)}, at::kByte);
    const bool alike = are_alike(from_, to_);
    const bool speaks = alike || world_.rank() == from_.rank_at(Coordinate(from_.axes(), 0));
    for (std::int64_t i = 0; speaks && i < (alike ? 1 : to_.size()); ++i) {
      const std::vector<Mesh> there{to_};
      const std::int64_t peer =
          alike ? parcels->list[0].peer : ranks_of(there)[static_cast<std::size_t>(i)];
      post(peer, std::make_shared<at::Tensor>(at::tensor({std::ssize(text)}).to(world_.device())),
           concat("length of the sizes of ", what));
      post(peer, std::make_shared<at::Tensor>(letters.clone().to(world_.device())),
           concat("sizes of ", what));
    }
  }
  std::vector<at::Tensor> pieces(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (boundary.values[i] && values[i].defined()) {
      pieces[i] = piece_of(values[i], *boundary.values[i]);
    }
  }
  const BelowAutograd below;
  for (const Parcel& parcel : parcels->list) {
    auto buffer = TensorState::of(world_).mover().pool().lend(parcel.bytes, bytes);
    if (parcels->marks > 0) {
      std::vector<std::uint8_t> marks(static_cast<std::size_t>(parcels->marks), 0);
      for (std::size_t i = 0; i < pieces.size(); ++i) marks[i] = pieces[i].defined() ? 1 : 0;
      buffer->narrow(0, 0, parcels->marks).copy_(at::tensor(marks, at::kByte));
    }
    for (const Parcel::Slice& slice : parcel.slices) {
      const at::Tensor& piece = pieces[slice.value];
      if (!piece.defined()) continue;
      const PassedType& value = *boundary.values[slice.value];
      const at::Tensor to = typed(*buffer, slice.offset, slice.sizes, value.dtype());
      if (!slice.part) {
        to.copy_(piece.view(to.sizes()));
        continue;
      }
      for (const Block& b : slice.part->blocks) {
        block_of(to, b.sizes, slice.part->sizes, b.in_part)
            .copy_(block_of(piece, b.sizes, parcels->pieces[slice.value], b.in_old));
      }
    }
    post(parcel.peer, std::move(buffer), what);
  }
}

void Link::finish_sending() {
  for (Sent& sent : sent_) sent.pending.wait();
  sent_.clear();
}

/// All ranks live here: new pieces for those of the other mesh.
void Link::send_here(const Tensors& values, const Boundary& boundary) {
  Tensors out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!boundary.values[i] || !values[i].defined()) {
      out.emplace_back();
      continue;
    }
    const PassedType& value = *boundary.values[i];
    if (value.is_plain) {
      out.push_back(values[i].detach().clone());
    } else if (are_alike(from_, to_)) {
      const at::Tensor laid_out = layout_of(values[i]) == value.from.layout
                                      ? values[i]
                                      : redistribute(values[i].detach(), value.from.layout);
      const DistributedImpl& impl = impl_of(laid_out);
      const BelowAutograd below;
      Pieces pieces;
      for (const at::Tensor& piece : impl.pieces()) pieces.push_back(flat::plain(piece).clone());
      out.push_back(make_tensor(impl, Spec(value.to.layout, value.to.shape, value.dtype()),
                                std::move(pieces)));
    } else {
      out.push_back(redistribute_between(values[i].detach(), value.to.layout));
    }
  }
  here_.push_back(std::move(out));
}

// ---- receiving ----------------------------------------------------------------------------------

Boundary Link::take_announcement(const std::string& what) {
  const bool alike = are_alike(from_, to_);
  const std::int64_t first =
      from_.rank_at(alike ? *to_.coordinate_of(world_.rank()) : Coordinate(from_.axes(), 0));
  const auto read = [&](at::Tensor buffer, const std::string& name) {
    const Call call{.tensor = name, .op = kOp};
    return flat::message(channel(first, /*sending=*/false), buffer, 0, {call, Where::current()})
        .tensor()
        .cpu();
  };
  const auto length = read(at::empty({1}, at::TensorOptions(at::kLong).device(world_.device())),
                           concat("length of the sizes of ", what))
                          .item<std::int64_t>();
  const at::Tensor text =
      read(at::empty({length}, at::TensorOptions(at::kByte).device(world_.device())),
           concat("sizes of ", what));
  return Boundary::parse(
      {reinterpret_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(length)},
      from_, to_);
}

Arriving Link::receive(const Boundary& boundary, const std::string& what,
                       const BufferMaker& buffer) {
  Arriving out{.parcels = parcels_.of(boundary, /*sending=*/false)};
  for (std::size_t i = 0; i < out.parcels->list.size(); ++i) {
    const Parcel& parcel = out.parcels->list[i];
    const Call call{.tensor = what, .op = kOp};
    out.buffers.push_back(buffer(i, parcel.bytes));
    out.pending.push_back(flat::message(channel(parcel.peer, /*sending=*/false), out.buffers.back(),
                                        0, {call, Where::current()}));
  }
  return out;
}

Tensors Link::wait(Arriving arriving) {
  const at::NoGradGuard no_grad;
  for (Pending& pending : arriving.pending) pending.wait();
  const Parcels& parcels = *arriving.parcels;
  const auto& values = parcels.boundary.values;
  std::vector<at::Tensor> pieces(values.size());
  std::vector<bool> is_there(values.size(), true);
  const BelowAutograd below;
  for (std::size_t p = 0; p < parcels.list.size(); ++p) {
    const at::Tensor& bytes = arriving.buffers[p];
    if (parcels.marks > 0) {
      const at::Tensor marks = bytes.narrow(0, 0, parcels.marks).cpu();
      for (std::size_t i = 0; i < values.size(); ++i) {
        is_there[i] = marks.const_data_ptr<std::uint8_t>()[i] != 0;
      }
    }
    for (const Parcel::Slice& slice : parcels.list[p].slices) {
      const PassedType& value = *values[slice.value];
      const at::Tensor from = typed(bytes, slice.offset, slice.sizes, value.dtype());
      at::Tensor& piece = pieces[slice.value];
      if (!slice.part) {
        piece = from;
        continue;
      }
      const Shape& sizes = parcels.pieces[slice.value];
      if (!piece.defined()) piece = at::empty(to_ref(sizes), from.options());
      for (const Block& b : slice.part->blocks) {
        block_of(piece, b.sizes, sizes, b.in_new)
            .copy_(block_of(from, b.sizes, slice.part->sizes, b.in_part));
      }
    }
  }
  Tensors out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i] || !is_there[i]) {
      out.emplace_back();
    } else if (values[i]->is_plain) {
      out.push_back(pieces[i]);
    } else {
      const PassedType& value = *values[i];
      at::Tensor piece = pieces[i];
      if (!piece.defined()) {  // nothing of it comes here
        piece = at::empty(to_ref(parcels.pieces[i]),
                          at::TensorOptions(value.dtype()).device(world_.device()));
      }
      out.push_back(make_tensor(world_.shared_from_this(), TensorState::of(world_),
                                Spec(value.to.layout, value.to.shape, value.dtype()),
                                {std::move(piece)}));
    }
  }
  return out;
}

Tensors Link::take(std::size_t number) {
  const auto at = here_.begin() + static_cast<std::ptrdiff_t>(number);
  Tensors out = std::move(*at);
  here_.erase(at);
  return out;
}

}  // namespace intarsia::pipeline

#include "pipeline/run/transfers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "intarsia/error.h"
#include "pipeline/run/words.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia::pipeline {
namespace {

std::string name_of(const Transfer& transfer) {
  return concat(transfer.backward ? "gradient" : "output", " of stage ",
                transfer.backward ? transfer.to_stage : transfer.from_stage, ", microbatch ",
                transfer.microbatch);
}

}  // namespace

std::optional<Transfer> needs(const Schedule& s, const Action& a) {
  if (a.kind == ActionKind::forward && crosses(s, a.stage, a.stage - 1)) {
    return Transfer{false, a.stage - 1, a.stage, a.microbatch};
  }
  if (is_backward(a.kind) && crosses(s, a.stage, a.stage + 1)) {
    return Transfer{true, a.stage + 1, a.stage, a.microbatch};
  }
  return std::nullopt;
}

at::Tensor ReceiveBuffers::get(bool backward, int buffer, std::size_t peer, std::int64_t bytes,
                               at::Device device) {
  at::Tensor& memory = memory_[{backward, buffer, peer}];
  const bool is_free = memory.defined() && memory.numel() >= bytes && memory.device() == device &&
                       memory.storage().use_count() == 1;
  if (!is_free) memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  return memory.narrow(0, 0, bytes);
}

Link& Connections::link(int from, int to, bool backward) {
  const std::tuple key{from, to, backward};
  if (const auto found = links.find(key); found != links.end()) return found->second;
  const std::string_view what = backward ? " gradients" : "";
  return links
      .try_emplace(key, world, places[static_cast<std::size_t>(from)],
                   places[static_cast<std::size_t>(to)], concat(name, ' ', from, '>', to, what),
                   backward)
      .first->second;
}

void Connections::open(const Schedule& schedule) {
  std::set<std::tuple<int, int, bool>> used;
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (!sends(action.kind)) continue;
      const Transfer t = transfer_of(action);
      used.emplace(schedule.rank_of_stage[static_cast<std::size_t>(t.from_stage)],
                   schedule.rank_of_stage[static_cast<std::size_t>(t.to_stage)], t.backward);
    }
  }
  for (const auto& [from, to, backward] : used) link(from, to, backward).open();
}

StepTransfers::StepTransfers(Connections& connections, const Schedule& schedule,
                             std::size_t microbatches, Boundaries& known)
    : connections_(connections), schedule_(schedule), known_(known), announces_(known.empty()) {
  if (!announces_) return;
  known_.assign(static_cast<std::size_t>(schedule.stages()),
                std::vector<std::optional<Boundary>>(microbatches));
}

Link& StepTransfers::link_of(const Transfer& transfer) const {
  return connections_.link(place_of(transfer.from_stage), place_of(transfer.to_stage),
                           transfer.backward);
}

void StepTransfers::send(const Action& action, const Tensors& values) {
  const Transfer transfer = transfer_of(action);
  Link& link = link_of(transfer);
  if (transfer.backward) {
    const Boundary gradients = gradients_of(*boundary(action.stage, action.microbatch));
    return link.send(values, gradients, name_of(transfer), false);
  }
  std::optional<Boundary>& known = boundary(transfer.to_stage, action.microbatch);
  Boundary made = boundary_of(kWhere, values, link.from(), link.to());
  if (!announces_ && made != *known) {
    fail<ValueError>(kWhere, "stage ", action.stage, " gives (", made, ") for microbatch ",
                     action.microbatch, ", where it gave (", *known,
                     ") in an earlier step with batches of these sizes; set "
                     "PipelineOptions::sizes_vary if sizes depend on values");
  }
  known = std::move(made);
  link.send(values, *known, name_of(transfer), announces_);
}

void StepTransfers::expect(const Action& action) {
  const Transfer transfer = transfer_of(action);
  Expected& expected =
      expected_[&link_of(transfer)].emplace_back(Expected{transfer, action.buffer});
  if (!announces_ && !connections_.world.in_lockstep()) begin_receiving(expected);
}

void StepTransfers::begin_receiving(Expected& expected) {
  const Transfer& t = expected.transfer;
  Link& link = link_of(t);
  const std::string name = name_of(t);
  std::optional<Boundary>& known =
      t.backward ? boundary(t.from_stage, t.microbatch) : boundary(t.to_stage, t.microbatch);
  if (announces_ && !t.backward) known = link.take_announcement(name);
  const auto buffer = [&](std::size_t peer, std::int64_t bytes) {
    return connections_.buffers.get(t.backward, expected.buffer, peer, bytes,
                                    connections_.world.device());
  };
  expected.arriving = link.receive(t.backward ? gradients_of(*known) : *known, name, buffer);
}

bool StepTransfers::has_come(const Transfer& transfer) const {
  const Link& link = link_of(transfer);
  std::size_t before = 0;
  for (const Expected& e : expected_.at(&link)) {
    if (e.transfer == transfer) break;
    ++before;
  }
  return link.has_come(before + 1);
}

Tensors StepTransfers::take(const Transfer& transfer, bool trains) {
  Link& link = link_of(transfer);
  std::list<Expected>& expected = expected_.at(&link);
  const auto wanted =
      std::ranges::find_if(expected, [&](const Expected& e) { return e.transfer == transfer; });
  Tensors out;
  if (connections_.world.in_lockstep()) {
    out = link.take(static_cast<std::size_t>(std::distance(expected.begin(), wanted)));
  } else {
    for (auto e = expected.begin(); !wanted->arriving; ++e) {
      if (!e->arriving) begin_receiving(*e);
    }
    out = link.wait(std::move(*wanted->arriving));
  }
  expected.erase(wanted);
  if (transfer.backward || !trains) return out;
  const Boundary& types = *boundary(transfer.to_stage, transfer.microbatch);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) out[i].set_requires_grad(types.values[i]->trains);
  }
  return out;
}

}  // namespace intarsia::pipeline

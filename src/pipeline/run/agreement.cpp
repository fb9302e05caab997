#include "pipeline/run/agreement.h"

#include <ATen/ATen.h>

#include "base/text.h"
#include "intarsia/error.h"
#include "layout/coordinates.h"
#include "pipeline/run/boundary.h"
#include "pipeline/run/words.h"
#include "tensor/move/state.h"

namespace intarsia::pipeline {
namespace {

std::string words_of(const Intent& intent) {
  return concat(intent.trains != 0 ? "step" : "evaluate", " #", intent.step, " with ",
                intent.weights.size(), " microbatches");
}

}  // namespace

Line::Line(World& world, std::span<const Mesh> places, std::string name)
    : world_(world), name_(std::move(name)) {
  bool alike = true;
  for (const Mesh& place : places) alike = alike && are_alike(place, places[0]);
  if (world.in_lockstep()) {
    for (std::size_t p = 0; p < places.size(); ++p) members_.push_back({p, p == 0});
    return;
  }
  for (std::size_t p = 0; p < places.size(); ++p) {
    const auto at = places[p].coordinate_of(world.rank());
    if (!at) continue;
    for (std::size_t q = 0; q < places.size(); ++q) {
      for (std::int64_t i = 0; i < (alike ? 1 : places[q].size()); ++i) {
        ranks_.push_back(alike ? places[q].rank_at(*at)
                               : places[q].rank_at(coordinate_at(places[q], i)));
        members_.push_back({q, i == 0});
      }
    }
  }
  if (ranks_.size() < 2) return;
  const Mesh mesh = Mesh::of_ranks({{"pipeline", std::ssize(ranks_)}}, ranks_);
  const std::vector<std::string> axes{"pipeline"};
  comm_ = world.along(mesh, axes, name_);
}

std::vector<std::vector<double>> Line::gather(std::string_view what,
                                              std::span<const double> mine) const {
  const std::vector<double> own(mine.begin(), mine.end());
  if (!comm_) return std::vector<std::vector<double>>(members_.size(), own);
  LedgerTotals sent;
  const Call call{.tensor = what, .op = kOp, .sent = &sent};
  const at::Tensor numbers = at::tensor(own, at::kDouble).to(world_.device());
  Pending pending = all_gather(*comm_, {numbers}, 0, {}, call);
  TensorState::of(world_).bill().charge_own(kOp, std::string(what), name_, "S->R", sent);
  const at::Tensor all = pending.tensor().cpu();
  std::vector<std::vector<double>> out;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const double* begin = all.const_data_ptr<double>() + m * own.size();
    out.emplace_back(begin, begin + own.size());
  }
  return out;
}

std::vector<Intent> Line::agree(const Intent& mine) const {
  // Bits travel as they are, whatever number they would be.
  std::vector<double> words{static_cast<double>(mine.trains), static_cast<double>(mine.step)};
  for (const std::uint64_t word : {mine.schedule, mine.batch, mine.key}) {
    words.push_back(static_cast<double>(word >> 32));
    words.push_back(static_cast<double>(word & 0xffffffffU));
  }
  words.insert(words.end(), mine.weights.begin(), mine.weights.end());
  std::vector<Intent> out;
  for (const std::vector<double>& w : gather("what ranks begin", words)) {
    const auto word = [&](std::size_t i) {
      return (static_cast<std::uint64_t>(w[i]) << 32) | static_cast<std::uint64_t>(w[i + 1]);
    };
    Intent intent{.trains = static_cast<std::int64_t>(w[0]),
                  .step = static_cast<std::int64_t>(w[1]),
                  .schedule = word(2),
                  .batch = word(4),
                  .key = word(6)};
    intent.weights.assign(w.begin() + 8, w.end());
    out.push_back(std::move(intent));
  }
  for (std::size_t m = 0; m < out.size(); ++m) {
    const Intent& other = out[m];
    const bool same = other.trains == mine.trains && other.step == mine.step;
    if (same && other.schedule == mine.schedule) continue;
    const std::string what =
        same ? concat(words_of(other), " by another schedule") : words_of(other);
    fail<ValueError>(kWhere, "ranks are not at the same place: rank ", ranks_[m], " is about to ",
                     what, ", and rank ", world_.rank(), " to ", words_of(mine),
                     "; all ranks call the same functions of a pipeline, in the same order");
  }
  return out;
}

}  // namespace intarsia::pipeline

#include "checkpoint/session/local_step.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "checkpoint/format/hashes.h"
#include "checkpoint/format/stored_dtype.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";

void check_tensors(const StepState& state, std::int64_t rank, std::int64_t world) {
  if (state.pieces.size() != state.tensors.size()) {
    fail<ValueError>(kWhere, state.pieces.size(), " pieces of ", state.tensors.size(), " tensors");
  }
  std::unordered_set<std::string_view> names;
  for (std::size_t t = 0; t < state.tensors.size(); ++t) {
    const auto& [name, type] = state.tensors[t];
    if (!names.insert(name).second) fail<ValueError>(kWhere, "two tensors are called '", name, "'");
    if (type.layout.has_partial()) {
      fail<ValueError>(kWhere, "'", name, "' is a partial value (", type.layout,
                       "), of which no rank has the numbers; redistribute it first");
    }
    if (type.layout.mesh().highest() >= world) {
      fail<ValueError>(kWhere, "'", name, "' is laid out over ", type.layout.mesh(), ", and ",
                       world, " ranks save");
    }
    const auto at = type.layout.mesh().coordinate_of(rank);
    const std::uint64_t bytes =
        at ? bytes_of(type.dtype, local_shape(type.layout, type.shape, *at)) : 0;
    if (state.pieces[t].size() != bytes) {
      fail<ValueError>(kWhere, "the piece of '", name, "' has ", state.pieces[t].size(),
                       " bytes, and ", type, " has ", bytes, " here");
    }
  }
}

/// ValueError for what JSON cannot hold.
void check_value(const std::string& name, const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    fail<ValueError>(kWhere, "the value '", name, "' is ", value.get<double>(),
                     ", which JSON cannot hold; save it as a tensor");
  }
  if (value.is_structured()) {
    for (const auto& [key, inner] : value.items()) check_value(concat(name, '.', key), inner);
  }
  if (value.is_binary() || value.is_discarded()) {
    fail<ValueError>(kWhere, "the value '", name, "' is none that JSON can hold");
  }
  try {
    if (value.is_string()) static_cast<void>(value.dump());
  } catch (const Json::exception&) {
    fail<ValueError>(kWhere, "the value '", name, "' is a text that is not UTF-8");
  }
}

/// The state, if it can be saved.
StepState checked(StepState state, std::int64_t rank, std::int64_t world) {
  check_tensors(state, rank, world);
  for (const auto& [name, value] : state.values.items()) check_value(name, value);
  return state;
}

}  // namespace

LocalStep::LocalStep(StepState state, std::int64_t rank, std::int64_t world)
    : state_(checked(std::move(state), rank, world)),
      plan_(state_.tensors),
      file_(state_.hf_file_bytes ? plan_shared_part(state_.tensors, plan_.of_rank(rank))
                                 : plan_rank_file(state_.tensors, plan_.of_rank(rank))) {
  for (const Share& share : file_.shares) {
    shares_.push_back(
        bytes_of_share(state_.tensors[share.tensor], share, state_.pieces[share.tensor]));
  }
}

void LocalStep::hash_replicas() {
  for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
    const std::size_t line = plan_.line_of(t);
    if (plan_.sharers(line) == 1 || state_.pieces[t].empty()) continue;
    std::uint64_t& hash = replica_hashes_[line];
    const std::array<std::uint64_t, 2> both{hash, hash_of(state_.pieces[t])};
    hash = hash_of(std::as_bytes(std::span(both)));
  }
}

std::uint64_t LocalStep::staged_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& share : shares_) bytes += share.size();
  return bytes;
}

void LocalStep::stage(std::span<std::byte> into) {
  for (auto& share : shares_) {
    if (!share.empty()) std::memcpy(into.data(), share.data(), share.size());
    share = into.first(share.size());
    into = into.subspan(share.size());
  }
  state_.pieces = {};
}

std::string LocalStep::tensors_of_line(std::size_t line) const {
  constexpr std::size_t kMostNames = 3;
  std::vector<std::string> names;
  for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
    if (plan_.line_of(t) == line) names.push_back(concat('\'', state_.tensors[t].name, '\''));
  }
  const std::size_t more = names.size() > kMostNames ? names.size() - kMostNames : 0;
  names.resize(names.size() - more);
  return concat(more > 0 ? "one of " : "", join(names, ", "),
                more > 0 ? concat(" and ", more, " more") : "");
}

}  // namespace intarsia::checkpoint

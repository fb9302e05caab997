#include <algorithm>
#include <array>

#include "base/text.h"
#include "intarsia/error.h"
#include "pipeline/schedule/orders.h"

namespace intarsia {
namespace {

struct KindRow {
  ScheduleKind kind;
  std::string_view name;
  bool needs_many;  ///< at least as many microbatches as ranks
  bool goes_back;   ///< two stages on each rank, there and back
  bool has_chunks;  ///< any number of stages on each rank
};

constexpr std::array<KindRow, 8> kKinds{{
    {ScheduleKind::gpipe, "gpipe", false, false, false},
    {ScheduleKind::one_f_one_b, "1f1b", false, false, false},
    {ScheduleKind::interleaved, "interleaved", true, false, true},
    {ScheduleKind::looped_bfs, "looped-bfs", false, false, true},
    {ScheduleKind::zb_h1, "zb-h1", false, false, false},
    {ScheduleKind::zb_v, "zb-v", true, true, false},
    {ScheduleKind::v_half, "v-half", true, true, false},
    {ScheduleKind::dual_pipe_v, "dualpipe-v", true, true, false},
}};

const KindRow& row_of(ScheduleKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

// From rank to rank, in chunks of work: see v_orders. The sum decides about the memory.
constexpr int kLongOut = 4;
constexpr int kLongBack = 2;
constexpr int kHalfOut = 2;
constexpr int kHalfBack = 1;

Orders split_orders(ScheduleKind kind, const ScheduleShape& shape, const std::vector<int>& stages) {
  const auto [ranks, microbatches, chunks] = shape;
  WeightOptions options;
  Orders orders;
  if (kind == ScheduleKind::zb_h1) {
    orders = one_f_one_b_orders(ranks, microbatches, true);
    options.most_live = ranks;
  } else if (kind == ScheduleKind::zb_v) {
    orders = v_orders(ranks, microbatches, kLongOut, kLongBack);
    options.most_live = 2 * ranks;
  } else {
    orders = v_orders(ranks, microbatches, kHalfOut, kHalfBack);
    options.most_live = std::min(2 * ranks, ranks + 2);
  }
  return *with_weights(stages, microbatches, orders, options);  // they fit: see the tests
}

/// For fewer microbatches than stages: zb-v, with each backward beside the forward before it.
Orders short_dual_pipe_v_orders(const ScheduleShape& shape, const std::vector<int>& stages) {
  Orders orders = split_orders(ScheduleKind::zb_v, shape, stages);
  for (auto& order : orders) {
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      const Action& next = order[i + 1];
      const bool before_is_paired = i > 0 && order[i - 1].with_next;
      order[i].with_next = !before_is_paired && order[i].kind == ActionKind::forward &&
                           next.kind == ActionKind::input_backward &&
                           order[i].microbatch != next.microbatch;
    }
  }
  return orders;
}

}  // namespace

std::string_view to_text(ScheduleKind kind) { return row_of(kind).name; }

ScheduleKind parse_schedule_kind(std::string_view text) {
  std::vector<std::string_view> names;
  for (const KindRow& row : kKinds) {
    if (row.name == text) return row.kind;
    names.push_back(row.name);
  }
  fail<ValueError>("parse_schedule_kind", "there is no schedule '", text, "'; it is one of ",
                   join(names, ", "));
}

const std::vector<ScheduleKind>& schedule_kinds() {
  static const std::vector<ScheduleKind> kinds = [] {
    std::vector<ScheduleKind> out;
    for (const KindRow& row : kKinds) out.push_back(row.kind);
    return out;
  }();
  return kinds;
}

std::optional<std::string> refusal(ScheduleKind kind, const ScheduleShape& shape) {
  const KindRow& row = row_of(kind);
  if (shape.ranks < 1 || shape.microbatches < 1 || shape.chunks < 1) {
    return concat("ranks, microbatches and chunks are at least 1, not ", shape.ranks, ", ",
                  shape.microbatches, " and ", shape.chunks);
  }
  const int stages = row.goes_back ? 2 : 1;
  if (!row.has_chunks && shape.chunks != stages) {
    return concat(row.name, " has ", stages, row.goes_back ? " stages" : " stage",
                  " on each rank, not ", shape.chunks);
  }
  if (row.needs_many && shape.microbatches < shape.ranks) {
    return concat(row.name, " needs at least as many microbatches as ranks, and ",
                  shape.microbatches, " are fewer than ", shape.ranks);
  }
  return std::nullopt;
}

Schedule make_schedule(ScheduleKind kind, const ScheduleShape& asked) {
  ScheduleShape shape = asked;
  const KindRow& row = row_of(kind);
  if (row.goes_back && shape.chunks == 1) shape.chunks = 2;  // there is no choice
  if (const auto why = refusal(kind, shape)) fail<ValueError>("make_schedule", *why);
  const auto [ranks, microbatches, chunks] = shape;
  const std::vector<int> stages =
      row.goes_back ? stages_there_and_back(ranks) : stages_around(ranks, chunks);
  Orders orders;
  switch (kind) {
    case ScheduleKind::gpipe:
    case ScheduleKind::looped_bfs:
      orders = gpipe_orders(ranks, microbatches, chunks);
      break;
    case ScheduleKind::one_f_one_b:
      orders = one_f_one_b_orders(ranks, microbatches, false);
      break;
    case ScheduleKind::interleaved:
      orders = interleaved_orders(ranks, microbatches, chunks);
      break;
    case ScheduleKind::zb_h1:
    case ScheduleKind::zb_v:
    case ScheduleKind::v_half:
      orders = split_orders(kind, shape, stages);
      break;
    case ScheduleKind::dual_pipe_v:
      orders = microbatches >= 2 * ranks ? dual_pipe_v_orders(ranks, microbatches)
                                         : short_dual_pipe_v_orders(shape, stages);
      break;
  }
  return scheduled(std::string(row.name), stages, microbatches, std::move(orders));
}

}  // namespace intarsia

#include "intarsia/plan.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "plan/search.h"

namespace intarsia {

std::string_view to_text(StepKind kind) {
  switch (kind) {
    case StepKind::relabel:
      return "relabel";
    case StepKind::slice:
      return "slice";
    case StepKind::make_partial:
      return "make_partial";
    case StepKind::all_gather:
      return "all_gather";
    case StepKind::all_reduce:
      return "all_reduce";
    case StepKind::reduce_scatter:
      return "reduce_scatter";
    case StepKind::exchange_partials:
      return "exchange_partials";
    case StepKind::all_to_all:
      return "all_to_all";
    case StepKind::permute:
      return "permute";
  }
  return "?";
}

bool Step::communicates() const {
  return kind != StepKind::relabel && kind != StepKind::slice && kind != StepKind::make_partial;
}

std::string Step::axes_text() const {
  std::vector<std::string> names;
  for (const std::int8_t a : axes) names.push_back(before.mesh().name(static_cast<std::size_t>(a)));
  return join(names, "+");
}

std::string Step::to_string() const {
  return concat(to_text(kind), ' ', axes_text(), ": ", before.placements_text(), " -> ",
                after.placements_text(), chunks > 1 ? concat(" in ", chunks, " parts") : "");
}

std::size_t Plan::collectives() const {
  return static_cast<std::size_t>(
      std::count_if(steps.begin(), steps.end(), [](const Step& s) { return s.communicates(); }));
}

std::string Plan::to_string() const {
  std::string text = concat(from.mesh(), ' ', from.placements_text(), " -> ", to.placements_text());
  for (const Step& s : steps) text += concat("\n  ", s);
  return text;
}

std::optional<Plan> make_plan(const Layout& from, const Layout& to,
                              std::span<const std::int64_t> shape, const PlanOptions& options) {
  constexpr std::string_view where = "make_plan";
  if (from.mesh() != to.mesh()) {
    fail<ValueError>(where, from, " and ", to, " are on different meshes");
  }
  check_shape(where, shape);
  check_dims(where, from, shape.size());
  check_dims(where, to, shape.size());
  for (std::size_t a = 0; a < from.mesh().axes(); ++a) {
    const Placement& have = from.placement(a);
    const Placement& want = to.placement(a);
    if (have == want || !want.is_partial() || from.mesh().size(a) == 1) continue;
    if (have.is_partial()) return std::nullopt;
    // Partial values of a norm have no sign: not every value is one.
    if (want.reduction() == Reduction::norm) return std::nullopt;
  }
  Plan plan = search(from, to, shape, options);
  if (options.peak_bytes && plan.peak_bytes > *options.peak_bytes) {
    fail<ValueError>(where, "no plan from ", from, " to ", to, " for sizes (", join(shape),
                     ") keeps under ", *options.peak_bytes, " bytes; the least possible is ",
                     plan.peak_bytes);
  }
  return plan;
}

struct PlanCache::Slots {
  static constexpr std::size_t kSlots = 4096;
  struct Slot {
    std::shared_ptr<const Plan> plan;
    std::optional<std::int64_t> peak_bytes;
  };
  std::mutex mutex;
  std::array<Slot, kSlots> slots;
};

PlanCache::PlanCache(Topology topology)
    : topology_(std::move(topology)), slots_(std::make_unique<Slots>()) {}
PlanCache::~PlanCache() = default;

std::shared_ptr<const Plan> PlanCache::plan(const Layout& from, const Layout& to,
                                            std::span<const std::int64_t> shape,
                                            std::int64_t element_size,
                                            std::optional<std::int64_t> peak_bytes) {
  std::uint64_t key = hash_mix(from.hash(), to.hash());
  for (const std::int64_t s : shape) key = hash_mix(key, static_cast<std::uint64_t>(s));
  key = hash_mix(key, static_cast<std::uint64_t>(element_size + 64 * peak_bytes.value_or(-1)));
  Slots::Slot& slot = slots_->slots[key % Slots::kSlots];
  {
    const std::scoped_lock lock(slots_->mutex);
    const Plan* known = slot.plan.get();
    if (known != nullptr && known->from == from && known->to == to &&
        known->element_size == element_size && slot.peak_bytes == peak_bytes &&
        std::equal(shape.begin(), shape.end(), known->shape.begin(), known->shape.end())) {
      return slot.plan;
    }
  }
  auto made = make_plan(from, to, shape, {element_size, &topology_, peak_bytes});
  if (!made) return nullptr;
  auto plan = std::make_shared<const Plan>(std::move(*made));
  const std::scoped_lock lock(slots_->mutex);
  slot = {plan, peak_bytes};
  return plan;
}

}  // namespace intarsia

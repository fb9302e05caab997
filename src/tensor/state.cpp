#include "tensor/state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Logging.h>
#include <torch/csrc/autograd/function.h>

#include <map>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "tensor/decide.h"

namespace intarsia {
namespace {

/// The op whose formula this thread runs; empty where none is.
thread_local std::string_view formula_op;

constexpr std::size_t kRecent = 4;
constexpr std::size_t kBillEntries = 2048;

thread_local std::string t_module;

bool is_same_entry(const BillEntry& a, const BillEntry& b) {
  return a.op == b.op && a.tensor == b.tensor && a.axis == b.axis && a.module == b.module &&
         a.transition == b.transition && a.implicit == b.implicit && a.backward == b.backward &&
         a.fallback == b.fallback;
}

}  // namespace

std::string transition_text(const Step& step) {
  bool reduces = false;
  bool cuts = false;
  for (const std::int8_t a : step.axes) {
    const auto axis = static_cast<std::size_t>(a);
    reduces = reduces || step.before.placement(axis).is_partial();
    cuts = cuts || step.after.placement(axis).is_shard();
  }
  return concat(reduces ? "P" : "S", "->", cuts ? "S" : "R");
}

std::string_view module_path() { return t_module; }

ModuleScope::ModuleScope(std::string_view name) : length_(t_module.size()) {
  if (!t_module.empty()) t_module += '.';
  t_module += name;
}

ModuleScope::~ModuleScope() { t_module.resize(length_); }

TensorState::TensorState(World& world) : world_(world) {
  if (world.shares_process()) generator_ = at::detail::createCPUGenerator();
}

TensorState& TensorState::of(World& world) {
  return static_cast<TensorState&>(
      world.extension([](World& w) -> std::unique_ptr<World::Extension> {
        return std::make_unique<TensorState>(w);
      }));
}

PlanPointer TensorState::plan(const Spec& spec, const Layout& to) {
  return world_.plans().plan(spec->layout, to, spec->sizes,
                             static_cast<std::int64_t>(c10::elementSize(spec->dtype)));
}

void TensorState::charge(const Spec& spec, const Route& route, const Reason& reason) {
  const bool backward = torch::autograd::get_current_node() != nullptr;
  const Plan& plan = *route.plan;
  for (const StepRoute& way : route.steps) {
    const Step& step = *way.step;
    if (!step.communicates()) continue;
    const Mesh& mesh = plan.from.mesh();
    BillEntry entry{.op = std::string(reason.op),
                    .tensor = spec.with(plan.from).to_string(),
                    .module = std::string(module_path()),
                    .axis = step.axes_text(),
                    .transition = transition_text(step),
                    .implicit = reason.implicit,
                    .backward = backward,
                    .fallback = reason.fallback};
    const Communication now = mode.load(std::memory_order_relaxed);
    if (reason.implicit && now != Communication::automatic) {
      const std::string text =
          concat('[', reason.op, "] ", backward ? "backward " : "", "moves ", entry.tensor, " on ",
                 mesh, " over ", entry.axis, " (", entry.transition, ", ",
                 reason.fallback ? "the op has no rule and runs on whole tensors" : "to run the op",
                 "); redistribute(tensor, \"", plan.to.placements_text(),
                 "\") before it says so in code, or choose another layout");
      if (now == Communication::explicit_only) throw ValueError(text + "; mode explicit_only");
      LOG(WARNING) << text;
    }
    const std::scoped_lock lock(mutex_);
    BillEntry& booked = book(std::move(entry));
    ++booked.count;
    booked.bytes += way.bytes;
  }
}

void TensorState::charge_own(std::string_view op, std::string tensor, std::string axis,
                             std::string transition, std::uint64_t bytes,
                             std::optional<bool> backward) {
  const std::scoped_lock lock(mutex_);
  BillEntry& booked =
      book({.op = std::string(formula_op.empty() ? op : formula_op),
            .tensor = std::move(tensor),
            .module = std::string(module_path()),
            .axis = std::move(axis),
            .transition = std::move(transition),
            .implicit = false,
            .backward = backward.value_or(torch::autograd::get_current_node() != nullptr)});
  ++booked.count;
  booked.bytes += bytes;
}

BillEntry& TensorState::book(BillEntry entry) {
  std::uint64_t key = 0;
  for (const std::string* text :
       {&entry.op, &entry.tensor, &entry.module, &entry.axis, &entry.transition}) {
    key = hash_mix(key, hash_text(*text));
  }
  key = hash_mix(
      key, (entry.implicit ? 1U : 0U) | (entry.backward ? 2U : 0U) | (entry.fallback ? 4U : 0U));
  if (const auto known = bill_index_.find(key); known != bill_index_.end()) {
    return bill_[known->second];
  }
  if (bill_.size() >= kBillEntries) {
    // Ever new shapes: the rest is counted by transition only.
    entry.op = "(others)";
    entry.tensor.clear();
    entry.module.clear();
    const auto same = std::find_if(bill_.begin(), bill_.end(),
                                   [&](const BillEntry& e) { return is_same_entry(e, entry); });
    if (same != bill_.end()) return *same;
  } else {
    bill_index_.emplace(key, bill_.size());
  }
  return bill_.emplace_back(std::move(entry));
}

std::vector<BillEntry> TensorState::bill() const {
  const std::scoped_lock lock(mutex_);
  return bill_;
}

void TensorState::clear_bill() {
  const std::scoped_lock lock(mutex_);
  bill_.clear();
  bill_index_.clear();
}

FormulaScope::FormulaScope(std::string_view op) : before_(formula_op) {
  if (formula_op.empty()) formula_op = op;
}
FormulaScope::~FormulaScope() { formula_op = before_; }

Pieces TensorState::move(const Spec& spec, const Pieces& pieces, const PlanPointer& plan,
                         const Reason& asked) {
  const Reason reason =
      formula_op.empty() ? asked
                         : Reason{.op = formula_op, .implicit = false, .fallback = asked.fallback};
  if (plan->collectives() > 0) charge(spec, *mover_.route(plan), reason);
  const std::string tensor = spec.to_string();
  const auto moved = redistribute_pieces(
      world_, pieces, plan, Call{.tensor = tensor, .op = reason.op, .module = module_path()});
  Pieces out(moved.begin(), moved.end());
  for (at::Tensor& p : out) p = in_order(p, *spec);
  return out;
}

Pieces TensorState::move(DistributedImpl& tensor, const PlanPointer& plan, const Reason& reason) {
  const bool exposed = tensor.extra() && tensor.extra()->exposed;
  if (plan->collectives() == 0 || exposed)
    return move(tensor.spec(), tensor.pieces(), plan, reason);
  if (tensor.spec()->partial) return reduce_once(tensor, plan, reason);
  const std::uint64_t now = writes_;
  {
    const std::scoped_lock lock(mutex_);
    for (const Move& m : recent_) {
      if (m.tensor == &tensor && m.writes == now && m.to == plan->to) return m.pieces;
    }
  }
  Pieces moved = move(tensor.spec(), tensor.pieces(), plan, reason);
  const std::scoped_lock lock(mutex_);
  if (recent_.size() < kRecent) recent_.resize(kRecent);
  recent_[next_recent_] = Move{&tensor, now, plan->to, moved};
  next_recent_ = (next_recent_ + 1) % kRecent;
  tensor.remembered = true;
  return moved;
}

Pieces TensorState::reduce_once(DistributedImpl& tensor, const PlanPointer& plan,
                                const Reason& reason) {
  const std::uint32_t now = tensor.memory()->writes;
  Extra::Reduced& known = tensor.extra()->reduced;
  {
    std::unique_lock lock(known.mutex);
    if (known.to && known.writes == now) {
      if (*known.to == plan->to) return known.pieces;
      const PlanPointer from_known = this->plan(tensor.spec().with(*known.to), plan->to);
      if (from_known && from_known->collectives() == 0) {
        const Pieces pieces = known.pieces;
        lock.unlock();
        return move(tensor.spec().with(plan->from), pieces, from_known, reason);
      }
    }
  }
  auto moved = reduced_with_base(tensor, plan, reason);
  if (!moved) moved = move(tensor.spec(), tensor.pieces(), plan, reason);
  const std::scoped_lock lock(known.mutex);
  known.to = plan->to;
  known.pieces = *moved;
  known.writes = now;
  return *moved;
}

/// A view of a partial tensor: the tensor is reduced, and the view taken again. So a matrix and its
/// transpose are reduced once.
std::optional<Pieces> TensorState::reduced_with_base(DistributedImpl& view, const PlanPointer& plan,
                                                     const Reason& reason) {
  const Extra::ViewOf* of = view.extra()->view_of.get();
  if (of == nullptr || plan->to != without_partial(plan->from)) return std::nullopt;
  DistributedImpl& base = *of->base;
  const PlanPointer base_plan = this->plan(base.spec(), without_partial(base.spec()->layout));
  at::Tensor whole =
      make_tensor(base, base.spec().with(base_plan->to), reduce_once(base, base_plan, reason));
  torch::jit::Stack stack{std::move(whole)};
  stack.insert(stack.end(), of->arguments.begin(), of->arguments.end());
  of->op.callBoxed(&stack);
  const DistributedImpl& again = impl_of(stack[0].toTensor());
  if (again.spec()->layout != plan->to) return std::nullopt;
  return again.pieces();
}

void TensorState::note_write(DistributedImpl& tensor) {
  ++writes_;
  if (!tensor.extra()) return;
  if (tensor.extra()->memory) ++tensor.extra()->memory->writes;
  if (tensor.extra()->inference_writes) ++*tensor.extra()->inference_writes;
  auto& on_use = tensor.extra()->on_use;
  if (!on_use) return;
  if (on_use->cast_after) {
    on_use.reset();
  } else {
    on_use->source->written(on_use->index);
  }
}

void TensorState::settle(DistributedImpl& tensor, const Reason& reason) {
  PartialMemory& memory = *tensor.memory();
  if (!memory.settled) {
    const PlanPointer plan = this->plan(memory.spec, without_partial(memory.spec->layout));
    const Pieces reduced = move(memory.spec, memory.pieces, plan, reason);
    for (std::size_t m = 0; m < reduced.size(); ++m) memory.pieces[m].copy_(reduced[m]);
    ++memory.writes;
    memory.settled = true;
  }
  tensor.refresh();
}

void TensorState::forget(const DistributedImpl& tensor) {
  std::vector<Move> dropped;
  const std::scoped_lock lock(mutex_);
  for (Move& m : recent_) {
    if (m.tensor == &tensor) dropped.push_back(std::exchange(m, Move{}));
  }
}

/// Refuses to draw from generators that began differently: every rank would get other values of
/// what all should hold alike.
void TensorState::check_seeds() {
  const auto& store = world_.store();
  if (generator_ || world_.size() == 1 || !store || world_.hosted().size() != 1) return;
  const std::uint64_t mine = at::detail::getDefaultCPUGenerator().current_seed();
  const auto key = [](std::int64_t rank) { return concat("intarsia/seed/", rank); };
  const std::string text = std::to_string(mine);
  store->set(key(world_.rank()), std::vector<std::uint8_t>(text.begin(), text.end()));
  if (world_.rank() == 0) return;
  const std::vector<std::uint8_t> bytes = store->get(key(0));
  const std::string first(bytes.begin(), bytes.end());
  if (first == text) return;
  fail<WorldError>("random", "torch's default generator has seed ", text, " on rank ",
                   world_.rank(), " and ", first,
                   " on rank 0, so ranks would draw different values; call torch.manual_seed "
                   "(torch::manual_seed) with the same number on all ranks before the first random "
                   "op");
}

std::uint64_t TensorState::draw() {
  std::call_once(seeds_checked_, [&] { check_seeds(); });
  at::Generator generator = generator_ ? *generator_ : at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

void TensorState::seed(std::uint64_t seed) {
  at::Generator generator = generator_ ? *generator_ : at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(seed);
}

// ---- the public side -------------------------------------------------------------------------

Communication communication(const World& world) {
  return TensorState::of(const_cast<World&>(world)).mode;
}

void set_communication(World& world, Communication mode) { TensorState::of(world).mode = mode; }

CommunicationScope::CommunicationScope(World& world, Communication mode)
    : world_(world), before_(communication(world)) {
  set_communication(world, mode);
}

CommunicationScope::~CommunicationScope() { set_communication(world_, before_); }

Bill bill(const World& world) { return {TensorState::of(const_cast<World&>(world)).bill()}; }
void clear_bill(World& world) { TensorState::of(world).clear_bill(); }

std::uint64_t Bill::count() const {
  std::uint64_t n = 0;
  for (const BillEntry& e : entries) n += e.count;
  return n;
}

std::uint64_t Bill::bytes() const {
  std::uint64_t n = 0;
  for (const BillEntry& e : entries) n += e.bytes;
  return n;
}

std::string Bill::transitions() const {
  std::map<std::string, std::uint64_t> counts;
  for (const BillEntry& e : entries) counts[e.transition] += e.count;
  std::vector<std::string> parts;
  for (const auto& [transition, n] : counts) parts.push_back(concat(n, ' ', transition));
  return join(parts, ", ");
}

std::string Bill::to_string() const {
  std::string text;
  for (const BillEntry& e : entries) {
    text += concat(e.count, " x ", e.transition, ' ', e.axis, "  ", e.bytes, " bytes  ", e.tensor,
                   "  ", e.op, e.backward ? " (backward)" : "", e.implicit ? "" : " (asked for)",
                   e.fallback ? " (no rule)" : "", e.module.empty() ? "" : "  in ", e.module, '\n');
  }
  return text + concat(count(), " moves, ", bytes(), " bytes: ", transitions(), '\n');
}

Budget::Budget(World& world) : world_(world), before_(bill(world).entries) {}

std::string Budget::spent() const {
  Bill now = bill(world_);
  for (BillEntry& e : now.entries) {
    for (const BillEntry& b : before_) {
      // Fewer than before: the bill was cleared in between.
      if (is_same_entry(e, b) && e.count >= b.count) e.count -= b.count;
    }
  }
  std::erase_if(now.entries, [](const BillEntry& e) { return e.count == 0; });
  return now.transitions();
}

void Budget::expect(std::string_view transitions) const {
  const std::string got = spent();
  if (got != transitions) {
    fail<ValueError>("Budget", "'", got, "' was sent where '", transitions,
                     "' is allowed; the bill:\n", bill(world_).to_string());
  }
}

CacheCounters cache_counters(const World& world) {
  return TensorState::of(const_cast<World&>(world)).decisions().counters();
}
void clear_cache(World& world) { TensorState::of(world).decisions().clear(); }
void set_cache_limit(World& world, std::size_t entries) {
  if (entries < 1) fail<ValueError>("set_cache_limit", "a cache holds at least one entry");
  TensorState::of(world).decisions().set_limit(entries);
}

}  // namespace intarsia

#include "tensor/dispatch/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <mutex>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "rules/added.h"
#include "tensor/call/call_check.h"
#include "tensor/call/plain.h"
#include "tensor/core/arguments.h"
#include "tensor/core/translating.h"
#include "tensor/dispatch/decide.h"
#include "tensor/dispatch/deferred.h"
#include "tensor/dispatch/execute.h"
#include "tensor/dispatch/leaf_hook.h"
#include "tensor/formula/autograd_formulas.h"
#include "tensor/formula/composed.h"
#include "tensor/move/state.h"
#include "tensor/move/write_through.h"
#include "tensor/random/random.h"

namespace intarsia {
namespace {

/// Things that only some tensors have, looked at before an op runs on them.
void check_operand(const Frame& f, const Frame::Tensor& t) {
  const Extra& extra = *t.impl->extra();
  if (t.impl->is_stale()) f.refuse(kStale, kStaleWayOut);
  if (t.written && extra.moved_copy &&
      extra.moved_copy->base->dtype() != impl_of(extra.moved_copy->moved).dtype()) {
    f.refuse(concat("the view shows a parameter as it is used, and it is stored as ",
                    dtype_text(extra.moved_copy->base->spec()->dtype)),
             "write to the parameter itself, or to a view of it along dimensions that are not "
             "sharded");
  }
}

/// A tensor of a build scope that is read before the scope ends is made now, replicated.
void materialise_operands(const Frame& f) {
  for (const Frame::Tensor& t : f.tensors) {
    if (t.impl != nullptr && t.impl->extra() && t.impl->extra()->recipe) {
      materialise(*t.impl, t.impl->spec()->layout);
    }
  }
}

/// squeeze_ and its like: the tensor takes the sizes, layout and pieces of the view.
void run_reshape_in_place(Frame& f) {
  const at::Tensor self = *f.tensors[0].tensor;
  // transpose_ has one overload, transpose several.
  const std::string overload =
      f.info.base_name == "transpose" ? "int" : f.info.op.schema().overload_name();
  const auto view = c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + f.info.base_name).c_str(), overload.c_str());
  torch::jit::Stack stack(f.arguments().begin(), f.arguments().end());
  const BelowAutograd below;
  view.callBoxed(&stack);
  DistributedImpl& viewed = impl_of(stack[0].toTensor());
  if (viewed.extra() && viewed.extra()->moved_copy &&
      !(impl_of(self).extra() && impl_of(self).extra()->moved_copy)) {
    f.refuse("the view would have to move elements", "use the op that is not in place");
  }
  impl_of(self).take(viewed);
  f.finish(self);
}

const OnUse* on_use(const Frame::Tensor& t) {
  if (t.impl == nullptr || !t.impl->extra()) return nullptr;
  const OnUse* use = t.impl->extra()->on_use.get();
  return use != nullptr && use->holds() ? use : nullptr;
}

/// Whether tensors that are stored otherwise are used by this call, and not only looked after as an
/// optimizer does: something else than stored tensors takes part, nothing stored is written, and
/// it is no element-wise op on tensors that are laid out as the stored one (gradients, moments).
bool uses_stored(const Frame& f) {
  if (f.info.family != Family::rule && f.info.family != Family::fallback) return false;
  bool others = false;
  bool laid_out_alike = f.info.op.hasTag(at::Tag::pointwise);
  const Frame::Tensor* stored = nullptr;
  for (const Frame::Tensor& t : f.tensors) {
    if (on_use(t) == nullptr) continue;
    if (t.written) return false;
    stored = &t;
  }
  for (const Frame::Tensor& t : f.tensors) {
    if (!t.given() || on_use(t) != nullptr) continue;
    if (t.impl == nullptr) {
      others |= t.tensor->dim() > 0;
      laid_out_alike &= t.tensor->dim() == 0;
    } else {
      others = true;
      laid_out_alike &= t.impl->spec()->layout == stored->impl->spec()->layout &&
                        t.impl->spec()->sizes == stored->impl->spec()->sizes;
    }
  }
  return others && !laid_out_alike;
}

/// What a stored tensor is in use.
at::Tensor used(const OnUse& use) {
  note_use(use.index);
  return use.tensor();
}

/// Replaces stored tensors among the arguments by what they are in use.
void bring_into_use(Frame& f) {
  std::size_t operand = 0;
  for (std::size_t i = 0; i < f.info.arguments.size(); ++i) {
    c10::IValue& value = f.stack[f.base + i];
    if (f.info.arguments[i].kind == ArgumentKind::tensor) {
      if (const OnUse* use = on_use(f.tensors[operand++])) value = used(*use);
    } else if (f.info.arguments[i].kind == ArgumentKind::tensor_list && !value.isNone()) {
      value = replaced_list(value, [&](const c10::IValue& element) -> c10::IValue {
        const OnUse* use = on_use(f.tensors[operand++]);
        return use != nullptr ? c10::IValue(used(*use)) : element;
      });
    }
  }
}

/// What a stored tensor is in use, as a moved copy of it: what is written there goes on to what is
/// stored.
at::Tensor used_as_moved_copy(const Frame::Tensor& t) {
  const at::Tensor used = on_use(t)->tensor();
  DistributedImpl& base = *t.impl;
  const at::Tensor out = make_tensor(base, impl_of(used).spec(), impl_of(used).pieces());
  impl_of(out).need_extra().moved_copy = moved_copy_of(base, used);
  impl_of(out).track_like(base);
  return out;
}

void run_decided(Frame& f, bool stored);

/// Whether ATen has the op in terms of others, for all devices; and runs it so.
bool decomposes(const OpInfo& info) {
  return info.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}
void run_composed(const OpInfo& info, torch::jit::Stack& stack) {
  info.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
}

/// A cast of a stored tensor comes from where the tensor does: what is gathered has few bytes.
void run_cast_of_stored(Frame& f) {
  OnUse use = on_use(f.tensors[0])->then(f.info.op, f.arguments().subspan(1));
  if (!use.cast_after) use.cast_after = use.source->writes();
  run_decided(f, true);
  const at::Tensor& cast = f.stack[f.base].toTensor();
  impl_of(cast).need_extra().on_use = std::make_unique<OnUse>(std::move(use));
}

void run(const OpInfo& info, torch::jit::Stack& stack) {
  Frame f(info, stack);
  TORCH_INTERNAL_ASSERT(f.lead != nullptr, info.name, " reached us without a tensor of ours");
  bool deferred = false;
  bool stored = false;
  bool through = false;  // a write goes on to the base of a view
  for (const Frame::Tensor& t : f.tensors) {
    if (t.impl == nullptr) continue;
    if (t.written && t.impl->spec()->norms && info.family != Family::reshapes) {
      f.state().settle(*t.impl, {.op = info.name});
      return run(info, stack);
    }
    if (t.impl->extra()) {
      check_operand(f, t);
      deferred |= t.impl->extra()->recipe != nullptr;
      stored |= t.impl->extra()->on_use != nullptr;
      through |= t.written && t.impl->extra()->moved_copy;
    }
    if (t.impl->autograd_meta() != nullptr) attach_leaf_hook(*t.tensor);
  }
  if (stored && uses_stored(f)) {
    bring_into_use(f);
    return run(info, stack);
  }
  CallCheck::show(f);
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    if (f.tensors[i].impl == nullptr && f.tensors[i].given()) note_plain(f, i);
  }
  if (deferred) materialise_operands(f);
  if (stored && info.base_name == "_to_copy" && on_use(f.tensors[0]) != nullptr) {
    return run_cast_of_stored(f);
  }
  if (through && info.family == Family::each && decomposes(info)) {
    // One by one: the list may have views of a tensor, and the tensor.
    return run_composed(info, stack);
  }
  switch (info.family) {
    case Family::random:
      return run_random(f);
    case Family::reshapes:
      return run_reshape_in_place(f);
    case Family::refused:
      f.refuse("a distributed tensor cannot take other sizes or memory in place",
               "make a new tensor");
    default:
      break;
  }
  run_decided(f, stored);
}

/// Runs a call whose decision is known. False: the view shows what its storage has no piece of.
bool run_known(Frame& f, const Decision& known, bool stored) {
  const bool is_view = f.info.family == Family::view;
  // Views of partial and of stored tensors remember how they were made, for which the arguments
  // must last.
  const bool needs_care =
      is_view ? f.lead->spec()->partial || stored : f.info.in_place && f.lead->extra();
  if (known.strategy == Strategy::simple && !needs_care) {
    execute_simple(f, known);
  } else if (known.strategy == Strategy::formula) {
    execute_formula(f, known);
  } else if (known.strategy == Strategy::decompose) {
    run_composed(f.info, f.stack);
  } else if (stored && known.moves_view) {
    return false;
  } else {
    execute(f, known);
  }
  return true;
}

/// Decides, runs, and keeps the decision for the next call of this kind. False: as above.
bool run_new(Frame& f, std::span<const std::uint64_t> key, std::uint64_t hash, bool stored) {
  const auto made = std::make_shared<Decision>(decide(f));
  if (stored && made->moves_view) return false;
  TensorState& state = f.state();
  const auto world = f.lead->shared_world();  // the stack may own the last tensor of it
  const std::vector<std::uint64_t> words(key.begin(), key.end());
  if (made->strategy == Strategy::formula || made->strategy == Strategy::decompose) {
    state.decisions().insert(words, hash, made);
    return run_known(f, *made, stored);
  }
  execute_new(f, *made);
  state.decisions().insert(words, hash, made);
  return true;
}

/// Runs an op as the cache says, or as is decided now.
void run_decided(Frame& f, bool stored) {
  using Cache = BoundedCache<Decision>;
  const Cache::Key key(f.key.data(), f.key.size());
  const std::uint64_t hash = Cache::hash(key);
  const OpInfo& info = f.info;
  const auto known = f.state().decisions().find(key, hash);
  const bool runs = known ? run_known(f, *known, stored) : run_new(f, key, hash, stored);
  if (!runs) {
    // A view of what is used, which writes through.
    f.stack[f.base] = used_as_moved_copy(f.tensors[0]);
    return run(info, f.stack);
  }
  // Autograd, which looks when we return, shall redo this view by calling the op again, not by
  // strides over storage. The next op switches it off again: it costs, and plain tensors need it
  // not.
  auto& autograd = c10::AutogradState::get_tls_state();
  const bool replay = info.family == Family::view && autograd.get_grad_mode();
  if (autograd.get_view_replay_enabled() != replay) autograd.set_view_replay_enabled(replay);
}

/// What is known about one op, read again when its rule changes.
class InfoSlot {
 public:
  const OpInfo& of(const c10::OperatorHandle& op) {
    const OpInfo* info = info_.load(std::memory_order_acquire);
    const std::uint32_t now = rules_generation();
    if (info == nullptr || generation_.load(std::memory_order_acquire) != now) info = read(op, now);
    return *info;
  }

 private:
  const OpInfo* read(const c10::OperatorHandle& op, std::uint32_t now) {
    const std::scoped_lock lock(mutex_);
    if (owned_.empty() || owned_.back()->rule != rule_of(op)) {
      owned_.push_back(std::make_unique<OpInfo>(op));
      info_.store(owned_.back().get(), std::memory_order_release);
    }
    generation_.store(now, std::memory_order_release);
    return owned_.back().get();
  }

  std::atomic<const OpInfo*> info_ = nullptr;
  std::atomic<std::uint32_t> generation_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<OpInfo>> owned_;  // older ones may be in use, and are parts of keys
};

/// The kernel of one op.
class OpKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    translating([&] { run(slot_.of(op), *stack); });
  }

 private:
  InfoSlot slot_;
};

/// For ops that are defined later or in other namespaces.
void run_any(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  static auto* const mutex = new std::mutex;
  static auto* const known =
      new std::map<c10::OperatorName, std::unique_ptr<InfoSlot>,
                   decltype([](const auto& a, const auto& b) {
                     return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
                   })>;
  InfoSlot* slot = nullptr;
  {
    const std::scoped_lock lock(*mutex);
    auto& entry = (*known)[op.operator_name()];
    if (!entry) entry = std::make_unique<InfoSlot>();
    slot = entry.get();
  }
  translating([&] { run(slot->of(op), *stack); });
}

/// What a tensor is that has no strides, and the way to one that has; unset for others.
std::optional<std::pair<std::string_view, std::string_view>> unstrided(const at::Tensor& t) {
  if (t.is_nested()) return {{"nested", "pad it: to_padded_tensor(0)"}};
  if (t.is_quantized()) return {{"quantized", "take its dequantize()"}};
  if (t.layout() != at::kStrided) return {{"sparse", "take its to_dense()"}};
  return std::nullopt;
}

/// For the keys that the dispatcher makes of ours and that of a tensor without strides.
void refuse_unstrided(const c10::OperatorHandle& op, c10::DispatchKeySet,
                      torch::jit::Stack* stack) {
  std::vector<std::string> ours;
  std::optional<std::pair<std::string_view, std::string_view>> other;
  const auto look_at = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (is_ours(t)) {
      ours.push_back(describe(t));
    } else if (!other) {
      other = unstrided(t);
    }
  };
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    for_each_tensor(value, look_at);
  }
  const std::string name = c10::toString(op.operator_name());
  const std::string operands = join(ours, "; ");
  translating([&] {
    if (other) {
      fail<UnsupportedError>(name, "a ", other->first,
                             " tensor is beside distributed ones: ", operands, "; ", other->second);
    }
    fail<UnsupportedError>(name, "a sparse tensor has no layout, and this makes one of ", operands,
                           "; stay dense: nn.Embedding(..., sparse=False)");
  });
}

constexpr std::array<c10::DispatchKey, 4> kUnstrided{
    c10::DispatchKey::SparsePrivateUse3, c10::DispatchKey::SparseCsrPrivateUse3,
    c10::DispatchKey::QuantizedPrivateUse3, c10::DispatchKey::NestedTensorPrivateUse3};

/// Ours, the refusal of tensors without strides also for ops that have a kernel for every backend.
void register_all() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* const kept = new std::vector<c10::RegistrationHandleRAII>;
  const auto refuse = c10::KernelFunction::makeFromBoxedFunction<&refuse_unstrided>();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::") || is_composed(name)) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    // What is composed of others is left to ATen; some of it, such as silu_backward, has kernels
    // too.
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
        !(op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && rule_of(*op) != nullptr)) {
      continue;
    }
    kept->push_back(dispatcher.registerImpl(
        name, kKey, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<OpKernel>()),
        std::nullopt, nullptr, "Intarsia"));
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      continue;
    }
    for (const c10::DispatchKey key : kUnstrided) {
      kept->push_back(
          dispatcher.registerImpl(name, key, refuse, std::nullopt, nullptr, "Intarsia"));
    }
  }
  // Ops without a formula of autograd, such as users' own, do what they do on plain tensors: a
  // gradient through them warns.
  static auto* const autograd = new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
  autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
  kept->push_back(dispatcher.registerFallback(
      kKey, c10::KernelFunction::makeFromBoxedFunction<&run_any>(), "Intarsia"));
  for (const c10::DispatchKey key : kUnstrided) {
    kept->push_back(dispatcher.registerFallback(key, refuse, "Intarsia"));
  }
}

/// For an op of others whose kernel is for all devices, and would run on distributed tensors: ours
/// comes first, where the op has a rule.
class RuledKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const OpInfo& info = slot_.of(op);
    if (info.rule == nullptr) {
      op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
    } else {
      translating([&] { run(info, *stack); });
    }
  }

 private:
  InfoSlot slot_;
};

void follow_rule(const std::string& name) {
  if (name.find("::") == std::string::npos) return;
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::map<std::string, c10::RegistrationHandleRAII>;
  const std::scoped_lock lock(*mutex);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& op : dispatcher.getAllOpNames()) {
    if ((op.name != name && op.name != name + '_') || kept->contains(c10::toString(op))) continue;
    const auto handle = dispatcher.findOp(op);
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) continue;
    kept->emplace(
        c10::toString(op),
        dispatcher.registerImpl(
            op, kKey, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RuledKernel>()),
            std::nullopt, nullptr, "Intarsia"));
  }
}

}  // namespace

void register_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_all();
    register_formulas();
    register_composed();
    register_deferred();
    listen_to_rules(follow_rule);
  });
}

}  // namespace intarsia

#include "tensor/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <map>
#include <mutex>

#include "base/text.h"
#include "intarsia/error.h"
#include "rules/added.h"
#include "tensor/autograd.h"
#include "tensor/decide.h"
#include "tensor/deferred.h"
#include "tensor/execute.h"
#include "tensor/formulas.h"
#include "tensor/plain.h"
#include "tensor/random.h"
#include "tensor/state.h"

namespace intarsia {
namespace {

/// Things that only some tensors have, looked at before an op runs on them.
void check_operand(const Frame& f, const Frame::Tensor& t) {
  const Extra& extra = *t.impl->extra();
  if (extra.window && extra.window->base->version_counter().enabled() &&
      extra.window->base->version_counter().current_version() > extra.window->version) {
    f.refuse("a view whose elements had been moved is older than the last write to its base",
             "take the view again after writing, or write through the view");
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
  if (viewed.extra() && viewed.extra()->window &&
      !(impl_of(self).extra() && impl_of(self).extra()->window)) {
    f.refuse("the view would have to move elements", "use the op that is not in place");
  }
  impl_of(self).take(viewed);
  f.finish(self);
}

void run(const OpInfo& info, torch::jit::Stack& stack) {
  Frame f(info, stack);
  TORCH_INTERNAL_ASSERT(f.lead != nullptr, info.name, " reached us without a tensor of ours");
  bool deferred = false;
  for (const Frame::Tensor& t : f.tensors) {
    if (t.impl == nullptr) {
      if (t.given()) note_plain(f, *t.tensor);
      continue;
    }
    if (t.impl->extra()) {
      check_operand(f, t);
      deferred |= t.impl->extra()->recipe != nullptr;
    }
    if (!t.impl->hooked && t.impl->autograd_meta() != nullptr) attach_leaf_hook(*t.tensor);
  }
  if (deferred) materialise_operands(f);
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
  auto& cache = f.state().decisions();
  using Cache = BoundedCache<Decision>;
  const Cache::Key key(f.key.data(), f.key.size());
  const std::uint64_t hash = Cache::hash(key);
  const auto known = cache.find(key, hash);
  const bool is_view = info.family == Family::view;
  // Views of partial tensors remember how they were made, for which the arguments must last.
  const bool needs_care = is_view ? f.lead->spec()->partial : info.in_place && f.lead->extra();
  if (known && known->simple && !needs_care) {
    execute_simple(f, *known);
  } else if (known && known->by_formula) {
    execute_formula(f, *known);
  } else if (known && !known->decomposes) {
    execute(f, const_cast<Decision&>(*known), false);
  } else {
    const auto made =
        known ? std::const_pointer_cast<Decision>(known) : std::make_shared<Decision>(decide(f));
    if (made->decomposes) {
      if (!known) cache.insert(key, hash, made);
      info.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
      return;
    }
    if (made->by_formula) {
      cache.insert(key, hash, made);
      return execute_formula(f, *made);
    }
    TensorState& state = f.state();
    const auto world = f.lead->shared_world();  // the stack may own the last tensor of it
    const std::vector<std::uint64_t> words(key.begin(), key.end());
    execute(f, *made, true);
    state.decisions().insert(words, hash, made);
  }
  // Autograd, which looks when we return, shall redo this view by calling the op again, not by
  // strides over storage. The next op switches it off again: it costs, and plain tensors need it
  // not.
  auto& autograd = c10::AutogradState::get_tls_state();
  const bool replay = is_view && autograd.get_grad_mode();
  if (autograd.get_view_replay_enabled() != replay) autograd.set_view_replay_enabled(replay);
}

/// Our errors as those that ATen's users expect.
template <class Function>
void translating(Function&& call) {
  try {
    call();
  } catch (const ValueError& e) {
    throw c10::ValueError({__func__, __FILE__, __LINE__}, e.what());
  } catch (const UnsupportedError& e) {
    throw c10::NotImplementedError({__func__, __FILE__, __LINE__}, e.what());
  } catch (const WorldError& e) {
    throw c10::DistError({__func__, __FILE__, __LINE__}, e.what());
  }
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

void register_all() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* const kept = new std::vector<c10::RegistrationHandleRAII>;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    kept->push_back(dispatcher.registerImpl(
        name, kKey, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<OpKernel>()),
        std::nullopt, nullptr, "Intarsia"));
  }
  // Ops without a formula of autograd, such as users' own, do what they do on plain tensors: a
  // gradient through them warns.
  static auto* const autograd = new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
  autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
  kept->push_back(dispatcher.registerFallback(
      kKey, c10::KernelFunction::makeFromBoxedFunction<&run_any>(), "Intarsia"));
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
    register_deferred();
    listen_to_rules(follow_rule);
  });
}

}  // namespace intarsia

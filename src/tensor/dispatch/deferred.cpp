#include "tensor/dispatch/deferred.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "intarsia/boxes.h"
#include "intarsia/rule.h"
#include "intarsia/tensor.h"
#include "rules/op_traits.h"
#include "tensor/move/state.h"
#include "tensor/random/key.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

using Stack = torch::jit::Stack;
constexpr c10::DispatchKey kScope = c10::DispatchKey::DeferredInit;

struct Current {
  World* world = nullptr;
  Mesh mesh;
};
thread_local std::optional<Current> t_scope;

/// Whether the op is one of ATen's in place, with the trait.
bool initialises(std::string_view name, OpTrait trait) {
  return name.starts_with("aten::") && name.ends_with('_') && has_trait(base_of(name), trait);
}

at::Tensor deferred(const Shape& sizes, at::ScalarType dtype) {
  const Spec spec(Layout::replicated(t_scope->mesh), sizes, dtype);
  World& world = *t_scope->world;
  at::Tensor out = make_tensor(world.shared_from_this(), TensorState::of(world), spec, Pieces());
  impl_of(out).need_extra().recipe = std::make_shared<Recipe>();
  return out;
}

at::ScalarType dtype_argument(const c10::FunctionSchema& schema, const Stack& stack,
                              std::size_t base, at::ScalarType otherwise) {
  const auto at = argument_index(schema, "dtype");
  return at && !stack[base + *at].isNone() ? stack[base + *at].toScalarType() : otherwise;
}

/// Writes down an op in place that only initialises its tensor. False when it is something else.
bool record(const c10::OperatorHandle& op, Stack& stack, std::size_t base) {
  const auto& schema = op.schema();
  if (!initialises(schema.name(), kInitialises) || !stack[base].isTensor() ||
      !is_deferred(stack[base].toTensor()))
    return false;
  for (std::size_t i = base + 1; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) continue;
    // A number that ATen wrapped is no tensor of the model.
    if (is_ours(stack[i].toTensor()) || stack[i].toTensor().dim() > 0) return false;
  }
  const at::Tensor self = stack[base].toTensor();
  DistributedImpl& impl = impl_of(self);
  Recipe::Step step{op, Stack(stack.begin() + static_cast<std::ptrdiff_t>(base) + 1, stack.end()),
                    std::nullopt};
  if (has_trait(base_of(schema.name()), kRandomInPlace)) {
    const c10::IValue* generator = nullptr;
    for (const c10::IValue& v : step.arguments) {
      if (v.isGenerator()) generator = &v;
    }
    step.key = next_key(impl.state(), generator);
  }
  impl.extra()->recipe->steps.push_back(std::move(step));
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(self);
  return true;
}

/// Factories whose result need not exist yet. False for others.
bool make_deferred(const c10::OperatorHandle& op, Stack& stack, std::size_t base) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const bool zeros = name == "aten::zeros";
  const bool ones = name == "aten::ones";
  const bool full = name == "aten::full";
  if (name != "aten::empty" && !zeros && !ones && !full) return false;
  if (!stack[base].isIntList() || schema.overload_name() == "names") return false;
  const Shape sizes = to_shape(at::IntArrayRef(stack[base].toIntVector()));
  at::ScalarType otherwise = c10::typeMetaToScalarType(c10::get_default_dtype());
  if (full && stack[base + 1].isInt()) otherwise = at::kLong;
  const at::Scalar value = full ? stack[base + 1].toScalar() : at::Scalar(ones ? 1 : 0);
  const at::Tensor out = deferred(sizes, dtype_argument(schema, stack, base, otherwise));
  if (name != "aten::empty") {
    static const auto fill =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::fill_", "Scalar");
    impl_of(out).extra()->recipe->steps.push_back({fill, {value}, std::nullopt});
  }
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(out);
  return true;
}

void run_in_scope(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard outside(kScope);
  const std::size_t base = stack->size() - op.schema().arguments().size();
  const bool takes_tensors = std::any_of(
      stack->begin() + static_cast<std::ptrdiff_t>(base), stack->end(), [](const c10::IValue& v) {
        return v.isTensor() || v.isTensorList() || v.isOptionalTensorList();
      });
  if (!t_scope) {
    op.callBoxed(stack);
    return;
  }
  if (takes_tensors) {
    if (!record(op, *stack, base)) op.callBoxed(stack);
    return;
  }
  if (make_deferred(op, *stack, base)) return;
  op.callBoxed(stack);
  // What ATen made from numbers alone is the same on all ranks.
  for (std::size_t i = base; i < stack->size(); ++i) {
    c10::IValue& v = (*stack)[i];
    if (v.isTensor() && v.toTensor().defined() && !is_ours(v.toTensor())) {
      v = distribute(v.toTensor(), Layout::replicated(t_scope->mesh), *t_scope->world);
    }
  }
}

}  // namespace

bool is_deferred(const at::Tensor& t) {
  return is_ours(t) && impl_of(t).extra() && impl_of(t).extra()->recipe;
}

bool is_unset(const at::Tensor& t) {
  if (!t.defined() || t.numel() == 0 || !is_deferred(t)) return false;
  const auto& steps = impl_of(t).extra()->recipe->steps;
  return std::all_of(steps.begin(), steps.end(), [](const Recipe::Step& step) {
    return initialises(step.op.schema().name(), kReadsBefore);
  });
}

bool defers() { return t_scope.has_value(); }

void begin_deferring(World& world, const Mesh& mesh) {
  t_scope = Current{&world, mesh};
  c10::impl::tls_set_dispatch_key_included(kScope, true);
}

void end_deferring() {
  c10::impl::tls_set_dispatch_key_included(kScope, false);
  t_scope.reset();
}

void materialise(DistributedImpl& impl, const Layout& layout) {
  const std::shared_ptr<Recipe> recipe = impl.extra()->recipe;
  const BelowAutograd below;
  const c10::impl::ExcludeDispatchKeyGuard outside(kScope);
  const Spec spec = impl.spec().with(layout);
  Pieces pieces;
  for (const Coordinate& at : hosted_coordinates(impl.world(), layout.mesh())) {
    const Shape sizes = local_shape(layout, spec->sizes, at);
    pieces.push_back(at::empty(to_ref(sizes),
                               at::TensorOptions(impl.world().piece_device()).dtype(spec->dtype)));
  }
  impl.replace(spec, std::move(pieces));
  const at::Tensor self(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(&impl));
  for (const Recipe::Step& step : recipe->steps) {
    std::optional<KeyScope> key;
    if (step.key) key.emplace(*step.key);
    Stack stack{self};
    stack.insert(stack.end(), step.arguments.begin(), step.arguments.end());
    step.op.callBoxed(&stack);
  }
}

void register_deferred() {
  static auto* const kept =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kScope, c10::KernelFunction::makeFromBoxedFunction<&run_in_scope>(), "Intarsia"));
  (void)kept;
}

}  // namespace intarsia

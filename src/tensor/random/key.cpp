#include "tensor/random/key.h"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>

namespace intarsia {
namespace {

thread_local std::optional<std::uint64_t> t_key;

}  // namespace

KeyScope::KeyScope(std::uint64_t key) : before_(std::exchange(t_key, key)) {}
KeyScope::~KeyScope() { t_key = before_; }

std::uint64_t next_key(TensorState& state, const c10::IValue* generator) {
  if (t_key) return *t_key;
  if (generator != nullptr && generator->isGenerator()) {
    at::Generator g = generator->toGenerator();
    const std::scoped_lock lock(g.mutex());
    return at::check_generator<at::CPUGeneratorImpl>(g)->random64();
  }
  return state.draws().next();
}

}  // namespace intarsia

// One call, recorded by callgrind: which files it passes.
//
//   valgrind --tool=callgrind --instr-atstart=no --demangle=no --compress-strings=no
//   --callgrind-out-file=OUT walk cached|cold
//
// `cached`: an mm that was called before and moves nothing. `cold`: a relu of a partial tensor,
// called for the first time, which is reduced first.
#include <ATen/ATen.h>
#include <valgrind/callgrind.h>

#include <functional>
#include <string_view>

#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace {

void record(const std::function<void()>& call) {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  call();
  CALLGRIND_DUMP_STATS_AT("walk");
  CALLGRIND_STOP_INSTRUMENTATION;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace intarsia;
  const std::string_view what = argc > 1 ? argv[1] : "";
  const at::NoGradGuard no_grad;
  if (what == "cached") {
    const auto world = World::connect(Rendezvous{});
    const Mesh mesh = Mesh::parse("[x=1]");
    const at::Tensor a = distribute(at::ones({8, 8}), Layout::parse("S(0)", mesh), *world);
    const at::Tensor b = distribute(at::ones({8, 8}), Layout::parse("R", mesh), *world);
    for (int i = 0; i < 3; ++i) a.mm(b);
    record([&] { a.mm(b); });
  } else if (what == "cold") {
    const Lockstep lockstep("[x=2]");
    const auto laid_out = [&](const char* layout) {
      return distribute(at::ones({8, 8}), Layout::parse(layout, lockstep.mesh()), lockstep.world());
    };
    const at::Tensor warm = laid_out("S(0)");
    warm.relu();  // what the first call of an op on any tensor does is no part of it
    const at::Tensor partial = laid_out("S(1)").mm(laid_out("S(0)"));
    record([&] { partial.relu(); });
  } else {
    return 2;
  }
  return 0;
}

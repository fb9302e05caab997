// Counts, under callgrind, the instructions of ops on plain and on distributed tensors.
//
//   valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file=OUT dispatch_cost [case]
//
// Writes dumps of OUT, named by their trigger: `add bare`, `add ours`, ... Each case is counted in
// several rounds with another state of the heap each, because an aligned allocation costs up to 300
// instructions more where the free lists are unlucky: the least of them is the cost of the op.
#include <ATen/ATen.h>
#include <valgrind/callgrind.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "intarsia/tensor.h"

namespace {

using at::Tensor;
constexpr int kCalls = 50;
constexpr int kRounds = 6;

struct Case {
  std::string name;
  std::function<void(Tensor&, Tensor&)> run;
};

void count(const Case& c, const char* kind, Tensor a, Tensor b) {
  for (int i = 0; i < 20; ++i) c.run(a, b);  // warm
  std::vector<Tensor> kept;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < round; ++i) kept.push_back(at::empty({8 + 5 * i, 8 + round}));
    c.run(a, b);
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    for (int i = 0; i < kCalls; ++i) c.run(a, b);
    CALLGRIND_DUMP_STATS_AT((c.name + " " + kind).c_str());
    CALLGRIND_STOP_INSTRUMENTATION;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace intarsia;
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[dp=1,tp=1]");
  const Layout rows = Layout::parse("S(0),R", mesh);
  const Tensor a = at::ones({8, 8});
  const Tensor b = at::ones({8, 8});
  const at::NoGradGuard no_grad;
  const std::vector<Case> cases{
      {"add", [](Tensor& x, Tensor& y) { x + y; }},
      {"add_", [](Tensor& x, Tensor& y) { x.add_(y); }},
      {"relu", [](Tensor& x, Tensor&) { x.relu(); }},
      {"mm", [](Tensor& x, Tensor& y) { x.mm(y); }},
      {"t", [](Tensor& x, Tensor&) { x.t(); }},
      {"view",
       [](Tensor& x, Tensor&) {
         x.view({4, 2, 8});
       }},
      {"sum", [](Tensor& x, Tensor&) { x.sum(0); }},
  };
  for (const Case& c : cases) {
    if (argc > 1 && c.name != argv[1]) continue;
    count(c, "bare", a.clone(), b.clone());
    const bool product = c.name == "mm";
    count(c, "ours", distribute(a, rows, *world),
          distribute(b, product ? Layout::replicated(mesh) : rows, *world));
  }
}

// What the parts of layouts cost, in nanoseconds on this machine. For comparing two versions of the
// code; claims are made by promises, which count instructions or compare within one run.
#include <benchmark/benchmark.h>

#include "intarsia/boxes.h"
#include "intarsia/view.h"

namespace intarsia {
namespace {

const Mesh kMesh = Mesh::parse("[dp=64,cp=4,tp=8]");
const Layout kLayout = Layout::parse("S(0),S(1),S(2)", kMesh);
const Shape kShape{512, 8192, 4096};

void BM_MakeLayout(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        Layout(kMesh, {Placement::shard(0), Placement::shard(1), Placement::partial()}));
  }
}
BENCHMARK(BM_MakeLayout);

void BM_LocalShape(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(local_shape(kLayout, kShape, {5, 1, 3}));
}
BENCHMARK(BM_LocalShape);

void BM_Boxes(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(boxes(kLayout, kShape, {5, 1, 3}));
}
BENCHMARK(BM_Boxes);

void BM_CoordinateOf(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(kMesh.coordinate_of(1234));
}
BENCHMARK(BM_CoordinateOf);

void BM_ViewLayout(benchmark::State& state) {
  const View view = View::unflatten(kShape, 2, {32, 128});
  for (auto _ : state) benchmark::DoNotOptimize(view_layout(kLayout, view));
}
BENCHMARK(BM_ViewLayout);

}  // namespace
}  // namespace intarsia

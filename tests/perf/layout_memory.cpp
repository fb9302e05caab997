// Makes and drops many distinct layouts and prints what the process held before and after.
//
//     layout_memory COUNT
#include <iostream>
#include <string>

#include "intarsia/layout.h"
#include "perf/resident_memory.h"

namespace {

using intarsia::testing::resident_bytes;

void make_and_drop(std::int64_t first, std::int64_t count) {
  using namespace intarsia;
  const Mesh mesh = Mesh::parse("[a=2,b=4]");
  for (std::int64_t i = first; i < first + count; ++i) {
    const Layout layout(mesh, {Placement::strided_shard(0, i + 2), Placement::shard(1)});
    if (layout.placement(0).split() != i + 2) std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::stoll(argv[1]) : 200000;
  make_and_drop(0, count / 10);
  const std::int64_t before = resident_bytes();
  make_and_drop(count / 10, count - count / 10);
  const std::int64_t grown = resident_bytes() - before;
  const std::size_t alive = intarsia::Layout::alive();
  std::cout << count << " layouts: resident memory grew by " << grown
            << " bytes after the first tenth, " << alive << " layouts alive\n";
  return grown <= 256 * 1024 && alive == 0 ? 0 : 1;
}

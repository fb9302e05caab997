// What `boxes` costs on a small and on a large mesh with the same number of axes. Run under
// callgrind by the promise; alone it prints the number of allocations per call.
//
//     boxes_cost MESH CALLS
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string>

#include "intarsia/boxes.h"

namespace {
std::int64_t allocations = 0;
}

void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

int main(int argc, char** argv) {
  using namespace intarsia;
  if (argc != 3) return 2;
  const Mesh mesh = Mesh::parse(argv[1]);
  const std::int64_t calls = std::stoll(argv[2]);
  const Layout layout = Layout::parse("S(0),SS(1,4),S(0) | 0:c>a", mesh);
  const Shape shape{1 << 20, 1 << 16, 7};
  std::int64_t held = 0;
  const std::int64_t before = allocations;
  for (std::int64_t i = 0; i < calls; ++i) {
    const std::int64_t rank = (i * 7919) % mesh.size();
    held += boxes(layout, shape, *mesh.coordinate_of(rank)).numel() > 0;
  }
  const std::int64_t made = allocations - before;
  std::cout << mesh.to_string() << ": " << mesh.size() << " ranks, " << calls << " calls, " << made
            << " allocations, " << held << " not empty\n";
  return made == calls ? 0 : 1;  // one each: the result itself
}

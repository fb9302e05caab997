// A product of two tensors that are sharded over all ranks, its gradient, and what was sent.
#include <intarsia/intarsia.h>

#include <ATen/ATen.h>

#include <exception>
#include <iostream>

int main() {
  try {
    // Meets the other processes as torchrun, mpirun, srun or the environment says, or is alone.
    const auto world = intarsia::World::connect();

    // One axis `x` over all ranks, and two layouts: it shards rows, or columns, evenly or not.
    const intarsia::Mesh mesh({{"x", world->size()}});
    const auto rows = intarsia::Layout::parse("S(0)", mesh);
    const auto columns = intarsia::Layout::parse("S(1)", mesh);

    // Of `a` each rank keeps its columns; of `b` it makes its rows, and never has the rest.
    const at::Tensor a = intarsia::distribute(at::ones({6, 10}), columns, *world);
    at::Tensor b = intarsia::ones({10, 4}, rows, *world);
    b.requires_grad_();

    // ATen's own product. Each rank multiplies what it has. That is a partial value of the result:
    // P(sum).
    const at::Tensor product = a.mm(b);
    // Adds the partial values up, and leaves each rank its rows of the sum.
    const at::Tensor result = intarsia::redistribute(product, rows);
    result.square().sum().backward();  // the gradient of `b` is laid out as `b`

    const at::Tensor full = intarsia::full(result.detach());  // a plain tensor, on every rank
    std::cout << "rank " + std::to_string(world->rank()) + " of " + std::to_string(world->size()) +
                     ": " + intarsia::describe(product) + ", then " + intarsia::describe(result) +
                     "; sum " + std::to_string(full.sum().item<std::int64_t>()) + "; gradient " +
                     intarsia::describe(b.grad()) + "\n";
    if (world->rank() == 0) std::cout << intarsia::bill(*world).to_string();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

// Which part of a tensor is mine? Makes this rank's piece, joins all pieces, and adds them up.
#include <intarsia/intarsia.h>

#include <ATen/ATen.h>

#include <exception>
#include <iostream>

int main() {
  try {
    // Meets the other processes as torchrun, mpirun, srun or the environment says, or is alone.
    const auto world = intarsia::World::connect();

    // One axis `x` over all ranks. It cuts dimension 0 of a 10 x 4 tensor, evenly or not.
    const intarsia::Mesh mesh({{"x", world->size()}});
    const auto type = intarsia::TensorType::parse("f32[10@x, 4]", mesh);

    // What a rank holds is a pure function, so every rank knows all lengths without a message.
    const intarsia::Coordinate at = *mesh.coordinate_of(world->rank());
    const auto mine = intarsia::boxes(type.layout, type.shape, at);
    const auto lengths = intarsia::lengths_along(type.layout, type.shape, 0, {"x"}, at);
    const at::Tensor piece = at::full(mine.local_shape(), world->rank(), at::kFloat);

    // Collectives go over the ranks that differ only along `x`.
    const intarsia::Comm x = world->along(mesh, {"x"});
    const auto p_sum = intarsia::Placement::partial(intarsia::Reduction::sum);
    const at::Tensor whole = intarsia::all_gather(x, piece, 0, lengths).tensor();
    const at::Tensor total = intarsia::all_reduce(x, piece.sum(), p_sum).tensor();

    std::cout << "rank " + std::to_string(world->rank()) + " of " + std::to_string(world->size()) +
                     " holds " + type.to_string() + ": " + mine.to_string() +
                     "; joined: " + std::to_string(whole.size(0)) + " rows, sum " +
                     std::to_string(total.item<std::int64_t>()) + "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

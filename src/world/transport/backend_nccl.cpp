// Compiled where libtorch has NCCL. Not run: no GPU was at hand.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "world/transport/backends.h"

namespace intarsia {

Backend make_nccl(const BackendRequest& request) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.index,
                                                             request.size, std::move(options));
  backend->setBoundDeviceId(request.device);
  return backend;
}

}  // namespace intarsia

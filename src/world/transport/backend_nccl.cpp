// Compiled where libtorch has NCCL. Not run: no GPU was at hand.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "world/transport/backends.h"
#include "world/transport/devices.h"

namespace intarsia {

Backend make_nccl(const BackendRequest& request) {
  check_device(request.device, "nccl");
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.index,
                                                             request.size, std::move(options));
  backend->setBoundDeviceId(request.device);
  return backend;
}

}  // namespace intarsia

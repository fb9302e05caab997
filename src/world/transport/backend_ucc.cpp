// Compiled where libtorch has UCC. Not run: no such libtorch was at hand.
#include <torch/csrc/distributed/c10d/ProcessGroupUCC.hpp>

#include "world/transport/backends.h"

namespace intarsia {

Backend make_ucc(const BackendRequest& request) {
  return c10d::ProcessGroupUCC::createProcessGroupUCC(request.store, request.index, request.size,
                                                      request.timeout);
}

}  // namespace intarsia

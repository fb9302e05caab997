#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "world/transport/backends.h"

namespace intarsia {
namespace {

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

/// The interface the user names, loopback when the job meets there, else what the host's name
/// means.
std::shared_ptr<::gloo::transport::Device> choose_device(const std::string& address, bool lazy) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
      interface != nullptr && *interface != 0) {
    const std::string list = interface;
    return c10d::ProcessGroupGloo::createDeviceForInterface(list.substr(0, list.find(',')), lazy);
  }
  if (is_loopback(address)) {
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1", lazy);
  }
  return c10d::ProcessGroupGloo::createDefaultDevice(lazy);
}

}  // namespace

Backend make_gloo(const BackendRequest& request) {
  auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
  options->devices.push_back(choose_device(request.address, request.lazy));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, request.index, request.size,
                                                     std::move(options));
}

}  // namespace intarsia

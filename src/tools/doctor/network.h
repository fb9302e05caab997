// Facts about the network of this machine: interfaces, names, and what can be bound and reached.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace intarsia::tools {

struct Interface {
  std::string name;
  bool up = false;
  /// In numbers: `10.0.0.3`, `::1`.
  std::vector<std::string> addresses;
};

std::vector<Interface> list_interfaces();

/// `localhost` or a loopback address.
bool is_loopback(const std::string& address);

/// An IPv6 address that only means something together with an interface: `fe80::1%eth0`.
bool is_link_local(const std::string& address);

/// The interface that has the address; null when none of these has it. All of 127.x.y.z belongs to
/// the one that has 127.0.0.1.
const Interface* owner_of(const std::string& address, const std::vector<Interface>& interfaces);

std::string host_name();

struct Resolution {
  /// In numbers, in the order in which they would be tried.
  std::vector<std::string> addresses;
  /// Why there are none.
  std::string problem;
};

/// What a name or address means here; gives up after `limit`.
Resolution resolve(const std::string& host, std::chrono::milliseconds limit);

/// Tries to listen on a TCP port of all interfaces, as rank 0's store does. Returns the problem;
/// empty when it is free.
std::string try_listen(int port);

/// Tries to connect to the addresses one after the other, all within `limit`. Returns the last
/// problem; empty when one answered.
std::string try_connect(const std::vector<std::string>& addresses, int port,
                        std::chrono::milliseconds limit);

}  // namespace intarsia::tools

#include "tools/doctor/network.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "base/text.h"

namespace intarsia::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

class Socket {
 public:
  explicit Socket(int family)
      : descriptor_(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  operator int() const { return descriptor_; }

 private:
  int descriptor_;
};

std::string numeric_text(const sockaddr* address) {
  const socklen_t length =
      address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const int error =
      getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "?";
}

/// The addresses of a host, of a port, or (host null) of all interfaces. Blocks as long as the
/// resolver likes, unless `flags` asks for numbers only.
AddressList look_up(const char* host, const char* port, int flags, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host, port, &hints, &list); error != 0) {
    problem = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
  }
  return AddressList(list);
}

Resolution resolve_now(const std::string& host) {
  Resolution result;
  const AddressList list = look_up(host.c_str(), nullptr, 0, result.problem);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    result.addresses.push_back(numeric_text(entry->ai_addr));
  }
  return result;
}

std::string listen_on(const addrinfo& address) {
  const Socket socket(address.ai_family);
  if (socket < 0) return std::strerror(errno);
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));  // as c10d's store does
  const bool free =
      bind(socket, address.ai_addr, address.ai_addrlen) == 0 && listen(socket, 1) == 0;
  return free ? "" : std::strerror(errno);
}

std::string connect_to(const addrinfo& address, Clock::time_point deadline) {
  const Socket socket(address.ai_family);
  if (socket < 0) return std::strerror(errno);
  if (connect(socket, address.ai_addr, address.ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return std::strerror(errno);
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  pollfd waiting{socket, POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) <= 0) return "no answer";
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

std::vector<Interface> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    auto known = std::ranges::find(interfaces, entry->ifa_name, &Interface::name);
    if (known == interfaces.end()) {
      known = interfaces.insert(known, {entry->ifa_name, (entry->ifa_flags & IFF_UP) != 0, {}});
    }
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    known->addresses.push_back(numeric_text(entry->ifa_addr));
  }
  freeifaddrs(list);
  return interfaces;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

bool is_link_local(const std::string& address) { return address.starts_with("fe80:"); }

const Interface* owner_of(const std::string& address, const std::vector<Interface>& interfaces) {
  const std::string sought = address.starts_with("127.") ? "127.0.0.1" : address;
  for (const Interface& interface : interfaces) {
    if (std::ranges::find(interface.addresses, sought) != interface.addresses.end()) {
      return &interface;
    }
  }
  return nullptr;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Resolution resolve(const std::string& host, milliseconds limit) {
  // The resolver cannot be told to hurry, so it works in a thread that may be left behind.
  auto promise = std::make_shared<std::promise<Resolution>>();
  std::future<Resolution> future = promise->get_future();
  std::thread([promise, host] { promise->set_value(resolve_now(host)); }).detach();
  if (future.wait_for(limit) == std::future_status::ready) return future.get();
  return {{}, concat("no answer within ", limit.count(), " ms")};
}

std::string try_listen(int port) {
  std::string problem = "no address family to listen on";
  const std::string service = std::to_string(port);
  const AddressList list = look_up(nullptr, service.c_str(), AI_PASSIVE | AI_NUMERICSERV, problem);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    problem = listen_on(*entry);
    if (problem.empty()) break;
  }
  return problem;
}

std::string try_connect(const std::vector<std::string>& addresses, int port, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::string problem = "no address";
  const std::string service = std::to_string(port);
  for (const std::string& address : addresses) {
    const AddressList list =
        look_up(address.c_str(), service.c_str(), AI_NUMERICHOST | AI_NUMERICSERV, problem);
    if (list) problem = connect_to(*list, deadline);
    if (problem.empty()) break;
  }
  return problem;
}

}  // namespace intarsia::tools

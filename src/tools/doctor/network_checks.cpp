#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/network.h"

namespace intarsia::tools {
namespace {

constexpr std::chrono::milliseconds kResolveLimit = std::chrono::seconds(3);
constexpr std::chrono::milliseconds kConnectLimit = std::chrono::seconds(3);

// ---- network ------------------------------------------------------------------------------------

/// The interfaces that are up, with addresses that other machines may use.
std::string text_of_up(const std::vector<Interface>& interfaces) {
  std::vector<std::string> entries;
  for (const Interface& interface : interfaces) {
    std::vector<std::string> shown;
    std::ranges::remove_copy_if(interface.addresses, std::back_inserter(shown), is_link_local);
    if (interface.up && !shown.empty()) {
      entries.push_back(concat(interface.name, ' ', join(shown, " ")));
    }
  }
  return entries.empty() ? "no interface is up" : concat("up: ", join(entries, ", "));
}

Check check_named_interface(const std::string& variable, const std::vector<Interface>& interfaces) {
  const std::string name = variable.substr(0, variable.find(','));  // Gloo gets the first one only
  const auto found = std::ranges::find(interfaces, name, &Interface::name);
  std::string problem;
  if (found == interfaces.end()) {
    problem = "does not exist";
  } else if (!found->up) {
    problem = "is down";
  } else if (found->addresses.empty()) {
    problem = "has no address";
  } else {
    return ok("network", concat(text_of_up(interfaces), "; Gloo uses ", name,
                                " because of GLOO_SOCKET_IFNAME"));
  }
  return fail("network",
              concat("GLOO_SOCKET_IFNAME=", variable, ": interface ", name, ' ', problem, "; ",
                     text_of_up(interfaces)),
              "set GLOO_SOCKET_IFNAME to an interface that is up, or unset it");
}

Check check_host_name(bool several_machines, const std::vector<Interface>& interfaces) {
  const std::string up = text_of_up(interfaces);
  const std::string host = host_name();
  const Resolution resolution = resolve(host, kResolveLimit);
  const std::string remedy =
      "before running on several machines: map the host name to this machine's address in DNS or "
      "/etc/hosts, or set GLOO_SOCKET_IFNAME to the interface to use";
  if (resolution.addresses.empty()) {
    return warn("network",
                concat(up, "; the host name ", host, " does not resolve: ", resolution.problem),
                remedy);
  }
  // Gloo takes the first address that it can bind.
  const auto usable = std::ranges::find_if(resolution.addresses, [&](const std::string& address) {
    return owner_of(address, interfaces) != nullptr;
  });
  if (usable == resolution.addresses.end()) {
    return warn("network",
                concat(up, "; the host name ", host, " resolves to ",
                       join(resolution.addresses, " "), ", which no interface here has"),
                remedy);
  }
  const std::string found = concat(up, "; Gloo uses ", owner_of(*usable, interfaces)->name,
                                   ": the host name ", host, " resolves to ", *usable);
  if (is_loopback(*usable) && several_machines) {
    return warn("network", concat(found, ", which other machines cannot reach"), remedy);
  }
  return ok("network", found);
}

std::optional<Rendezvous> try_read_rendezvous(const Environment& environment) {
  try {
    return read_rendezvous(environment);
  } catch (const ValueError&) {
    return std::nullopt;  // check_rendezvous tells
  }
}

// ---- rendezvous ---------------------------------------------------------------------------------

Check check_store_served_here(const Rendezvous& r) {
  if (const std::string problem = try_listen(r.port); !problem.empty()) {
    return fail("rendezvous",
                concat(r, "; this process cannot listen on port ", r.port, ": ", problem),
                "set MASTER_PORT to a free port above 1023, the same for all ranks, or end the job "
                "that uses this one");
  }
  const Resolution resolution = resolve(r.address, kResolveLimit);
  const std::vector<Interface> interfaces = list_interfaces();
  const bool here = std::ranges::any_of(resolution.addresses, [&](const std::string& address) {
    return owner_of(address, interfaces) != nullptr;
  });
  if (here) return ok("rendezvous", concat(r, "; the port is free"));
  const std::string meaning = resolution.addresses.empty()
                                  ? concat("does not resolve: ", resolution.problem)
                                  : concat("is not an address of this machine");
  return warn("rendezvous", concat(r, "; the port is free, but ", r.address, ' ', meaning),
              "set MASTER_ADDR to the machine on which rank 0 runs");
}

Check check_store_served_elsewhere(const Rendezvous& r) {
  const Resolution resolution = resolve(r.address, kResolveLimit);
  if (resolution.addresses.empty()) {
    return warn("rendezvous", concat(r, "; ", r.address, " does not resolve: ", resolution.problem),
                "set MASTER_ADDR to an address or name that this machine knows");
  }
  const std::string problem = try_connect(resolution.addresses, r.port, kConnectLimit);
  if (problem.empty()) return ok("rendezvous", concat(r, "; the store answers"));
  return warn("rendezvous", concat(r, "; the store does not answer: ", problem),
              concat("nothing to do when rank 0 has not started yet; else open port ", r.port,
                     " in its firewall, or correct MASTER_ADDR and MASTER_PORT"));
}

}  // namespace

Check check_network(const Environment& environment) {
  const std::vector<Interface> interfaces = list_interfaces();
  if (const auto variable = environment("GLOO_SOCKET_IFNAME")) {
    return check_named_interface(*variable, interfaces);
  }
  const std::optional<Rendezvous> job = try_read_rendezvous(environment);
  const bool many_ranks = job && job->size > 1;
  if (many_ranks && is_loopback(job->address)) {
    return ok("network", concat(text_of_up(interfaces),
                                "; Gloo uses loopback, where the job meets: ", job->address));
  }
  return check_host_name(many_ranks && job->local_size < job->size, interfaces);
}

Check check_rendezvous(const Environment& environment) {
  try {
    const Rendezvous r = read_rendezvous(environment);
    if (r.size == 1) return ok("rendezvous", r.to_string());
    const bool served_here = r.rank == 0 && r.rank0_serves;
    return served_here ? check_store_served_here(r) : check_store_served_elsewhere(r);
  } catch (const ValueError& error) {
    return fail("rendezvous", error.what(),
                "correct the variables, or unset them all to run a single process");
  }
}

}  // namespace intarsia::tools

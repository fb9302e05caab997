// The program `intarsia-probe`, which `intarsia doctor` runs: loads libtorch, tries two small
// worlds and prints what it found as one JSON object. A program of its own, because one that cannot
// load libtorch cannot say so.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/version.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/world.h"
#include "tools/common/child_process.h"
#include "world/transport/backends.h"

namespace {

using intarsia::concat;
using intarsia::World;
using intarsia::tools::ChildResult;
using intarsia::tools::run_child;
using nlohmann::json;

// With the 10 s that a closing world may wait, both trials take less than the 30 s of doctor.
constexpr std::chrono::seconds kLimit{5};
constexpr std::chrono::seconds kRank1Limit{20};
constexpr std::string_view kRank1 = "--rank1";  // and the port: what the probe tells its own child

// ---- torch --------------------------------------------------------------------------------------

/// The version of the library at hand, as opposed to that of the headers.
std::string loaded_version() {
  const std::uint64_t version = aoti_torch_abi_version();  // a byte each: major, minor, patch, ...
  return concat(version >> 56, '.', version >> 48 & 0xff, '.', version >> 40 & 0xff);
}

std::string loaded_library() {
  Dl_info info{};
  const auto* inside = reinterpret_cast<const void*>(&aoti_torch_abi_version);
  return dladdr(inside, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

json torch_facts() {
  return {{"built", TORCH_VERSION}, {"loaded", loaded_version()}, {"library", loaded_library()}};
}

json backend_facts() {
  json facts;
  for (const char* name : {"gloo", "nccl", "ucc"}) facts[name] = intarsia::has_backend(name);
  return facts;
}

// ---- worlds -------------------------------------------------------------------------------------

/// Sums a tensor of all ranks and compares the sum with the right one.
void reduce_and_compare(World& world) {
  const at::Tensor ones = at::ones({1000});
  const at::Tensor mine = ones * static_cast<double>(world.rank() + 1);
  const at::Tensor sum =
      intarsia::all_reduce(world.everyone(), mine, intarsia::Placement::partial()).tensor();
  const auto right = static_cast<double>(world.size() * (world.size() + 1) / 2);
  if (sum.equal(ones * right)) return;
  intarsia::fail<intarsia::WorldError>("probe", "rank ", world.rank(),
                                       " got a wrong sum: ", sum[0].item<double>(), " instead of ",
                                       right);
}

/// A port of 127.0.0.1 that was free a moment ago.
int free_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  const bool bound = descriptor >= 0 && bind(descriptor, generic, length) == 0 &&
                     getsockname(descriptor, generic, &length) == 0;
  if (descriptor >= 0) close(descriptor);
  if (!bound) intarsia::fail<intarsia::WorldError>("probe", "no port of 127.0.0.1 can be bound");
  return ntohs(address.sin_port);
}

/// One of two processes that meet at a port of this machine, as those of a job do.
void reduce_as_rank(int rank, int port) {
  intarsia::Rendezvous meeting;
  meeting.launcher = intarsia::Launcher::plain;
  meeting.rank = meeting.local_rank = rank;
  meeting.size = meeting.local_size = 2;
  meeting.port = port;
  const auto world = World::connect(meeting, {.backend = "gloo", .timeout = kLimit});
  reduce_and_compare(*world);
}

/// What went wrong; empty when nothing did.
std::string problem_of(const std::function<void()>& attempt) {
  try {
    attempt();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// This process is rank 0, and a child that runs this program again is rank 1.
void try_gloo() {
  const int port = free_port();
  auto rank1 = std::async(std::launch::async, [port] {
    return run_child("/proc/self/exe", {std::string(kRank1), std::to_string(port)}, kRank1Limit);
  });
  std::string problem = problem_of([port] { reduce_as_rank(0, port); });
  const ChildResult child = rank1.get();
  if (!child.problem.empty()) {
    problem += concat(problem.empty() ? "" : "; ", "rank 1 ", child.problem, ": ", child.out);
  }
  if (!problem.empty()) throw intarsia::WorldError(problem);
}

int run_as_rank1(int port) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody waits for it once the probe is gone
  const std::string problem = problem_of([port] { reduce_as_rank(1, port); });
  std::cout << problem;
  return problem.empty() ? 0 : 1;
}

void try_in_process() { intarsia::run_in_process(4, reduce_and_compare, {.timeout = kLimit}); }

json trial(const std::function<void()>& attempt) {
  const auto start = std::chrono::steady_clock::now();
  const std::string problem = problem_of(attempt);
  const auto took =
      std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  return {{"error", problem}, {"milliseconds", took.count()}};
}

}  // namespace

int main(int argc, char** argv) {
  unsetenv("GLOO_SOCKET_IFNAME");  // doctor checks it by itself; here 127.0.0.1 is tried
  at::set_num_threads(1);
  if (argc == 3 && argv[1] == kRank1) return run_as_rank1(std::atoi(argv[2]));
  const json facts = {{"torch", torch_facts()},
                      {"backends", backend_facts()},
                      {"gloo", trial(try_gloo)},
                      {"in_process", trial(try_in_process)}};
  std::cout << facts.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
  return 0;
}

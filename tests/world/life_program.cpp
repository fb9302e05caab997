// How worlds and groups begin and end: as one process among those that a launcher started.
//
//     life_program groups N     N groups, one after the other: made, used, dropped
//     life_program again N      one group, which ranks drop and ask for again at different times
//     life_program worlds N     N worlds, one after the other: connected, used, closed
//     life_program lockstep N   N worlds in lockstep, alone
//     life_program fork         rank 0 forks; the children use the world, close it, and exit
//     life_program lose         the last rank dies; the others say when they have closed the world
//
// The first four print what the process holds in the middle and at the end, as
// `rank 0: descriptors 30 30, threads 8 8, KiB 90112 90240`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>

#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace {

using namespace intarsia;

struct Held {
  long descriptors = 0;
  long threads = 0;
  long kib = 0;
};

long entries(const char* folder) {
  DIR* open = ::opendir(folder);
  long n = -2;
  while (::readdir(open) != nullptr) ++n;
  ::closedir(open);
  return n;
}

Held held() {
  std::ifstream statm("/proc/self/statm");
  long pages = 0;
  statm >> pages >> pages;
  // The listing itself has a descriptor.
  return {entries("/proc/self/fd") - 1, entries("/proc/self/task"),
          pages * ::sysconf(_SC_PAGESIZE) / 1024};
}

/// Does it n times, and prints what is held in the middle and at the end.
void repeat(int n, std::int64_t rank, const std::function<void(int)>& once) {
  Held middle;
  for (int i = 0; i < n; ++i) {
    once(i);
    if (i == n / 2) middle = held();
  }
  const Held end = held();
  const auto pair = [](long a, long b) { return std::to_string(a) + " " + std::to_string(b); };
  std::cout << "rank " + std::to_string(rank) + ": descriptors " +
                   pair(middle.descriptors, end.descriptors) + ", threads " +
                   pair(middle.threads, end.threads) + ", KiB " + pair(middle.kib, end.kib) + "\n"
            << std::flush;
}

std::shared_ptr<World> connect() { return World::connect({.timeout = std::chrono::seconds(60)}); }

void expect_sum(const Comm& comm, std::int64_t of) {
  const at::Tensor sum = all_reduce(comm, at::full({3}, of), Placement::partial()).tensor();
  if (sum[0].item<std::int64_t>() == of * comm.size()) return;
  throw std::runtime_error("the sum over " + comm.name() + " is wrong");
}

Comm group(World& world, const std::string& purpose) {
  const std::vector<std::string> axes{"x"};
  return world.along(Mesh({{"x", world.size()}}), axes, purpose);
}

void groups(int n) {
  const auto world = connect();
  repeat(n, world->rank(), [&](int i) {
    expect_sum(group(*world, "purpose " + std::to_string(i)), i);
    // Not all ranks are done with a group when the first makes the next.
    if (i % world->size() == world->rank()) ::usleep(2000);
  });
}

void again(int n) {
  const auto world = connect();
  std::vector<Comm> kept;
  repeat(n, world->rank(), [&](int i) {
    // Each rank keeps its handle in other rounds than the others.
    const Comm comm = group(*world, "again");
    expect_sum(comm, i);
    kept.clear();
    if (i / 9 % world->size() == world->rank()) kept.push_back(comm);
    for (int k = 0; k < 3; ++k) expect_sum(group(*world, std::to_string(3 * i + k)), k);
  });
}

void worlds(int n) {
  const std::int64_t rank = connect()->rank();
  repeat(n, rank, [](int i) {
    const auto world = connect();
    expect_sum(world->everyone(), i);
  });
}

void lockstep(int n) {
  repeat(n, 0, [](int) {
    const Lockstep ranks("[dp=4,tp=2]");
    const at::Tensor x = ones({16, 16}, Layout::parse("S(0),S(1)", ranks.mesh()), ranks.world());
    (void)full(x.mm(x));
  });
}

/// What a child ends with, which must end by itself.
int status_of(const std::function<void()>& child) {
  const pid_t process = ::fork();
  if (process == 0) {
    ::alarm(20);
    try {
      child();
    } catch (const std::exception& error) {
      std::cout << "child: " << error.what() << std::endl;
    }
    std::exit(7);  // as programs do, which close their worlds there
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void fork_children() {
  auto world = connect();
  const Comm all = world->everyone();
  expect_sum(all, 1);
  auto under_way =
      std::make_shared<Pending>(all_reduce(all, at::ones({100'000}), Placement::partial()));
  if (world->rank() == 0) {
    const std::vector<std::function<void()>> children{
        [] {},
        [&] { expect_sum(all, 1); },
        [&] { (void)group(*world, "of a child").connect(); },
        [&] { (void)world->store(); },
        [&] { (void)under_way->wait(); },
        [&] { under_way.reset(); },
        [&] { world->close(); },
        [&] { world.reset(); },
        [] { (void)World::connect(Rendezvous{}); },  // one of its own
    };
    for (const auto& child : children) {
      const int status = status_of(child);
      std::cout << "a child ended with " << status << std::endl;
    }
  }
  (void)under_way->wait();
  expect_sum(all, 2);
  expect_sum(group(*world, "afterwards"), 3);
  std::cout << "the world works" << std::endl;
}

void lose() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point failed;
  {
    const auto world = connect();
    const Comm all = world->everyone();
    expect_sum(all, 1);
    if (world->rank() == world->size() - 1) ::_exit(0);
    try {
      for (int i = 0; i < 1000; ++i) expect_sum(all, 1);
    } catch (const WorldError& error) {
      std::cout << error.what() << std::endl;
    }
    failed = Clock::now();
  }
  std::cout << "closed after "
            << std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - failed).count()
            << " ms" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string what = argc > 1 ? argv[1] : "";
  const int n = argc > 2 ? std::atoi(argv[2]) : 0;
  try {
    if (what == "groups") {
      groups(n);
    } else if (what == "again") {
      again(n);
    } else if (what == "worlds") {
      worlds(n);
    } else if (what == "lockstep") {
      lockstep(n);
    } else if (what == "fork") {
      fork_children();
    } else if (what == "lose") {
      lose();
    } else {
      std::cerr << "life_program groups|again|worlds|lockstep N, fork, or lose\n";
      return 2;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

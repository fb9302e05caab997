// Collectives over shared memory beside the same over Gloo, in one run. Under a launcher:
//
//     shared_memory [--rounds N] [--call NAME] [--smallest BYTES] [--largest BYTES]
//
// Both are timed in turns, and the time of a call is that of the rank that had it last. Results
// over shared memory must be, bit for bit, what this rank computes alone from everyone's values, in
// the order of ranks. Rank 0 prints a line of JSON for each collective and size: medians in
// seconds, and the median of the ratios of pairs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/world.h"

namespace {

using intarsia::Comm;
using intarsia::Placement;
using Clock = std::chrono::steady_clock;
using Terms = std::vector<at::Tensor>;

const Placement kSum = Placement::partial();

struct Collective {
  std::string name;
  std::function<at::Tensor(const Comm&, const at::Tensor& mine)> call;
  std::function<at::Tensor(const Terms& all, std::int64_t rank)> expected;
  bool gathers = false;  // the result is as large as all operands together
};

at::Tensor sum_in_order(const Terms& terms) {
  at::Tensor sum = terms[0].clone();
  for (std::size_t r = 1; r < terms.size(); ++r) sum.add_(terms[r]);
  return sum;
}

const std::vector<Collective> kCollectives{
    {"all_gather",
     [](const Comm& comm, const at::Tensor& mine) {
       return intarsia::all_gather(comm, mine, 0).tensor();
     },
     [](const Terms& all, std::int64_t) { return at::cat(all); }, true},
    {"reduce_scatter",
     [](const Comm& comm, const at::Tensor& mine) {
       return intarsia::reduce_scatter(comm, mine, 0, kSum).tensor();
     },
     [](const Terms& all, std::int64_t rank) {
       return sum_in_order(all).chunk(
           static_cast<std::int64_t>(all.size()))[static_cast<std::size_t>(rank)];
     }},
    {"all_reduce",
     [](const Comm& comm, const at::Tensor& mine) {
       return intarsia::all_reduce(comm, mine, kSum).tensor();
     },
     [](const Terms& all, std::int64_t) { return sum_in_order(all); }},
    {"all_to_all",
     [](const Comm& comm, const at::Tensor& mine) {
       return intarsia::all_to_all(comm, mine, 0, 0).tensor();
     },
     [](const Terms& all, std::int64_t rank) {
       Terms parts;
       for (const at::Tensor& t : all) {
         parts.push_back(
             t.chunk(static_cast<std::int64_t>(all.size()))[static_cast<std::size_t>(rank)]);
       }
       return at::cat(parts);
     }},
};

/// What a rank brings. Sums of such numbers depend on their order.
at::Tensor values(std::int64_t rank, std::int64_t elements) {
  const at::Tensor i = at::arange(elements, at::kFloat);
  return i.mul_(0.37F + static_cast<float>(rank)).sin_().mul_(static_cast<float>(rank * 10 + 1));
}

double median(std::vector<double> list) {
  std::sort(list.begin(), list.end());
  return list[list.size() / 2];
}

class Bench {
 public:
  Bench(intarsia::World& gloo, intarsia::World& shared, int rounds)
      : gloo_(gloo.everyone()), shared_(shared.everyone()), rounds_(rounds) {}

  void run(const Collective& c, std::int64_t bytes) {
    const std::int64_t n = shared_.size();
    const std::int64_t elements = bytes / 4 / (c.gathers ? n : 1);
    Terms all;
    for (std::int64_t r = 0; r < n; ++r) all.push_back(values(r, elements));
    const at::Tensor mine = all[static_cast<std::size_t>(shared_.index())];
    if (!at::equal(c.call(shared_, mine), c.expected(all, shared_.index()))) {
      throw std::runtime_error(c.name + " of " + std::to_string(bytes) + " bytes is wrong");
    }
    all.clear();
    const auto call = [&](const Comm& comm) { return c.call(comm, mine); };
    const int calls = static_cast<int>(std::clamp<std::int64_t>((1 << 21) / bytes, 1, 20));
    std::vector<double> over_gloo;
    std::vector<double> over_memory;
    std::vector<double> ratios;
    std::vector<double> work_ratios;
    for (int i = -1; i < rounds_; ++i) {
      const Spent a = time(gloo_, call, calls);
      const Spent b = time(shared_, call, calls);
      if (i < 0) continue;  // to warm up
      over_gloo.push_back(a.seconds);
      over_memory.push_back(b.seconds);
      ratios.push_back(b.seconds / a.seconds);
      work_ratios.push_back(b.work / a.work);
    }
    if (shared_.index() != 0) return;
    std::cout << "{\"call\": \"" << c.name << "\", \"ranks\": " << n << ", \"bytes\": " << bytes
              << ", \"gloo\": " << median(over_gloo) << ", \"shm\": " << median(over_memory)
              << ", \"ratio\": " << median(ratios) << ", \"work\": " << median(work_ratios) << "}"
              << std::endl;
  }

 private:
  /// Seconds until the last rank was done, and of all processors, for one call.
  struct Spent {
    double seconds;
    double work;
  };

  template <class Call>
  Spent time(const Comm& comm, const Call& call, int calls) {
    intarsia::barrier(shared_);
    const auto begin = Clock::now();
    const std::clock_t work = std::clock();
    for (int i = 0; i < calls; ++i) call(comm);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    intarsia::barrier(shared_);  // Gloo's threads may still be at work for others
    const double worked = static_cast<double>(std::clock() - work) / CLOCKS_PER_SEC;
    return {over_ranks(seconds, intarsia::Reduction::max) / calls,
            over_ranks(worked, intarsia::Reduction::sum) / calls};
  }

  double over_ranks(double value, intarsia::Reduction how) {
    const at::Tensor mine = at::scalar_tensor(value, at::kDouble);
    return intarsia::all_reduce(shared_, mine, Placement::partial(how)).tensor().item<double>();
  }

  Comm gloo_;
  Comm shared_;
  int rounds_;
};

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  // Memory of results is used again, as that of moved tensors is; else the kernel's time to hand it
  // out would be most of what large calls take.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2147483647);
  std::map<std::string, std::string> options{
      {"--rounds", "15"}, {"--smallest", "4096"}, {"--largest", "67108864"}, {"--call", ""}};
  for (int i = 1; i + 1 < argc; i += 2) options.at(argv[i]) = argv[i + 1];
  try {
    const auto gloo = intarsia::World::connect({.backend = "gloo"});
    const auto shared = intarsia::World::connect({.backend = "shm"});
    Bench bench(*gloo, *shared, std::stoi(options["--rounds"]));
    for (const Collective& c : kCollectives) {
      if (!options["--call"].empty() && options["--call"] != c.name) continue;
      const std::int64_t largest = std::stoll(options["--largest"]);
      for (std::int64_t bytes = std::stoll(options["--smallest"]); bytes <= largest; bytes *= 4) {
        bench.run(c, bytes);
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

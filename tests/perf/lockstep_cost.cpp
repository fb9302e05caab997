// Measures what lockstep costs at 256 ranks, beside the bare ops on the same pieces.
//
//   lockstep_cost [--ranks 64|256] [--mesh TEXT]
//
// Prints one line of JSON: seconds of set-up, and microseconds per rank of each op, bare and ours.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "intarsia/lockstep.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"

namespace {

using namespace intarsia;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The least seconds of several calls of `first` and of `second`, which take turns.
std::pair<double, double> least(const std::function<void()>& first,
                                const std::function<void()>& second) {
  double a = 1e9;
  double b = 1e9;
  for (int i = 0; i < 40; ++i) {
    auto start = Clock::now();
    first();
    a = std::min(a, seconds_since(start));
    start = Clock::now();
    second();
    b = std::min(b, seconds_since(start));
  }
  return {a, b};
}

}  // namespace

int main(int argc, char** argv) {
  std::string text = "[pp=4,dp=4,cp=4,tp=4]";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--mesh") == 0) text = argv[i + 1];
  }
  const at::NoGradGuard no_grad;
  auto start = Clock::now();
  const Lockstep lockstep(text);
  const Mesh& mesh = lockstep.mesh();
  World& world = lockstep.world();
  const std::int64_t ranks = mesh.size();
  std::string rows = "S(0)";
  std::string columns = "R";
  for (std::size_t a = 1; a + 1 < mesh.axes(); ++a) rows += ",S(0)";
  for (std::size_t a = 1; a + 1 < mesh.axes(); ++a) columns += ",R";
  const Layout by_rows = Layout::parse(rows + ",R", mesh);
  const Layout by_columns = Layout::parse(columns + ",S(1)", mesh);
  const at::Tensor a = distribute(at::randn({ranks * 4, 64}), by_rows, world);
  const at::Tensor w = distribute(at::randn({64, 64}), by_columns, world);
  at::Tensor y = a.mm(w);
  y = redistribute(y, by_rows);
  const double setup = seconds_since(start);

  const auto as = locals(a);
  const auto ws = locals(w);
  const at::Tensor out = a.mm(w);
  const auto outs = locals(out);
  const auto n = static_cast<std::size_t>(ranks);
  const auto last = static_cast<std::size_t>(mesh.size(mesh.axes() - 1));

  // Results are kept until the end of a call on both sides.
  const auto bare_each = [&](const std::function<at::Tensor(std::size_t)>& op) {
    return [op, n] {
      std::vector<at::Tensor> kept;
      kept.reserve(n);
      for (std::size_t r = 0; r < n; ++r) kept.push_back(op(r));
    };
  };
  const auto mm =
      least(bare_each([&](std::size_t r) { return as[r].mm(ws[r]); }), [&] { a.mm(w); });
  const auto add =
      least(bare_each([&](std::size_t r) { return as[r].add(as[r]); }), [&] { a.add(a); });
  const auto relu =
      least(bare_each([&](std::size_t r) { return as[r].relu(); }), [&] { a.relu(); });
  // What a gather along the last axis copies: for each rank, the pieces of its group.
  const auto gather =
      least(bare_each([&](std::size_t r) {
              const std::size_t first = r / last * last;
              std::vector<at::Tensor> group(outs.begin() + first, outs.begin() + first + last);
              return at::cat(group, 1);
            }),
            [&] { redistribute(out, by_rows); });
  const auto per_rank = [&](double s) { return 1e6 * s / static_cast<double>(ranks); };
  std::cout << "{\"mesh\": \"" << mesh.to_string() << "\", \"ranks\": " << ranks
            << ", \"setup\": " << setup;
  const std::vector<std::pair<const char*, std::pair<double, double>>> all{
      {"mm", mm}, {"add", add}, {"relu", relu}, {"redistribute", gather}};
  for (const auto& [name, times] : all) {
    std::cout << ", \"" << name << "\": {\"bare\": " << per_rank(times.first)
              << ", \"ours\": " << per_rank(times.second) << "}";
  }
  std::cout << "}\n";
}

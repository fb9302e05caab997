// What it takes one rank to plan a checkpoint of 10,000 tensors in a world of any size.
//
//     checkpoint_plan RANKS [--others]    milliseconds, or under callgrind the same work: what the
//     rank writes, with the header of its file, and who wrote what it needs, in the same layouts;
//     --others: also for two tensors in others, where it needs parts of very many files
//
// Half of the tensors are sharded over all ranks, the others replicated over half of them and
// sharded over the rest, as with HSDP; every tenth is a short replicated one.
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "checkpoint/plan/write_plan.h"
#include "checkpoint/transfer/rank_file.h"

namespace intarsia::checkpoint {
namespace {

constexpr int kTensors = 10000;

std::vector<SavedTensor> model(const Mesh& mesh, const std::vector<const char*>& layouts) {
  std::vector<SavedTensor> out;
  for (int i = 0; i < kTensors; ++i) {
    const bool is_short = i % 10 == 0;
    const Layout layout = Layout::parse(is_short ? "R,R" : layouts[i % layouts.size()], mesh);
    const Shape shape = is_short ? Shape{4096} : Shape{131072, 4096};
    out.push_back({"layers." + std::to_string(i) + ".weight", {DType::bf16, shape, layout}});
  }
  return out;
}

class Stopwatch {
 public:
  double milliseconds() {
    const auto now = std::chrono::steady_clock::now();
    const double out = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return out;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void run(std::int64_t ranks, bool with_others) {
  const Mesh mesh({{"replicas", 2}, {"shards", ranks / 2}});
  const auto tensors = model(mesh, {"S(0),S(0)", "R,S(0)"});
  const auto others = model(mesh, {"S(1),S(0)", "S(0),R"});
  const std::int64_t rank = ranks * 2 / 3;
  const Coordinate at = *mesh.coordinate_of(rank);
  Stopwatch watch;
  const WritePlan plan(tensors);
  const auto shares = plan.of_rank(rank);
  const std::uint64_t bytes = plan_rank_file(tensors, shares).bytes;
  const double save = watch.milliseconds();
  const auto holders = [&](const std::vector<SavedTensor>& into) {
    std::size_t count = 0;
    for (std::size_t t = 0; t < into.size(); ++t) {
      const TensorType& type = into[t].type;
      count += plan.holders(t, part_of(boxes(type.layout, type.shape, at))).size();
    }
    return count;
  };
  const std::size_t same = holders(tensors);
  const double load = watch.milliseconds();
  std::cout << ranks << " ranks: to save " << save << " ms (" << shares.size() << " parts, "
            << bytes << " bytes), to load in the same layouts " << load << " ms (" << same
            << " parts)";
  if (with_others) {
    watch.milliseconds();
    const std::size_t parts = holders({others.begin(), others.begin() + 2});
    std::cout << ", two tensors in others " << watch.milliseconds() << " ms (" << parts
              << " parts)";
  }
  std::cout << '\n';
}

}  // namespace
}  // namespace intarsia::checkpoint

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "checkpoint_plan RANKS [--others]\n";
    return 2;
  }
  intarsia::checkpoint::run(std::stoll(argv[1]), argc > 2);
  return 0;
}

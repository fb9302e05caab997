#include "checkpoint/transfer/read_mapped.h"

#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "checkpoint/files/memory_files.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/copy_runs.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Bytes;
using intarsia::testing::MemoryFiles;
using intarsia::testing::piece_of;
using intarsia::testing::RandomStates;
using intarsia::testing::save;
using intarsia::testing::saved;

/// All bytes of a mapped tensor, element by element from the saved ones.
Bytes made(const MappedTensor& tensor, const std::vector<SavedTensor>& full) {
  const auto element = static_cast<std::size_t>(element_bytes(tensor.dtype));
  Bytes out(bytes_of(tensor.dtype, tensor.shape));
  const std::size_t dims = tensor.shape.size();
  std::vector<std::int64_t> index(dims, 0);
  for (std::size_t at = 0; at < out.size(); at += element) {
    for (const MappedBlock& block : tensor.blocks) {
      std::vector<std::int64_t> there = index;
      const auto dim = static_cast<std::size_t>(tensor.dim);
      if (tensor.kind == MappedTensor::Kind::same) {
        for (std::size_t d = 0; d < tensor.order.size(); ++d) {
          there[static_cast<std::size_t>(tensor.order[d])] = index[d];
        }
      } else if (tensor.kind == MappedTensor::Kind::unstacked) {
        there.insert(there.begin() + tensor.dim, block.from.begin);
      } else {
        if (index[dim] < block.to.begin || index[dim] >= block.to.end) continue;
        there[dim] += block.from.begin - block.to.begin;
        if (tensor.kind == MappedTensor::Kind::stacked) there.erase(there.begin() + tensor.dim);
      }
      const SavedTensor& source = full[block.tensor];
      std::size_t offset = 0;
      for (std::size_t d = 0; d < there.size(); ++d) {
        offset = offset * static_cast<std::size_t>(source.type.shape[d]) +
                 static_cast<std::size_t>(there[d]);
      }
      std::memcpy(out.data() + at, piece_of(source, 0, 1).data() + offset * element, element);
    }
    for (std::size_t d = dims; d-- > 0;) {
      if (++index[d] < tensor.shape[d]) break;
      index[d] = 0;
    }
  }
  return out;
}

const std::vector<SavedTensor> kFull{
    saved("m.0.q", "f32[8, 4]", "[]"), saved("m.0.k", "f32[2, 4]", "[]"),
    saved("m.0.v", "f32[2, 4]", "[]"), saved("gate", "bf16[5, 6, 3]", "[]"),
    saved("e.0", "i16[3, 5]", "[]"),   saved("e.1", "i16[3, 5]", "[]"),
    saved("e.2", "i16[3, 5]", "[]"),   saved("pile", "f64[4, 3, 2]", "[]"),
    saved("t", "f32[3, 4, 5]", "[]"),  saved("s.0", "i64[]", "[]"),
    saved("s.1", "i64[]", "[]"),       saved("stays", "f32[7, 3]", "[]")};

constexpr const char* kRules = R"([
  {"from": ["m.*.q", "m.*.k", "m.*.v"], "to": "l.*.qkv", "sizes": [4, 1, 1]},
  {"from": "gate", "to": ["g.a", "g.b"], "dim": 1, "sizes": [1, 2]},
  {"from": "e.#", "to": "experts", "stack": 1},
  {"from": "pile", "to": "piles.#", "stack": 2},
  {"from": "t", "to": "turned", "order": [2, 0, 1]},
  {"from": "s.#", "to": "scalars", "stack": 0}])";

TEST(ReadMapped, PartsInAnyLayoutAreWhatTheRulesSay) {
  RandomStates random(7);
  const auto tensors = NameMap::parse("map", kRules).apply(kFull);
  for (int i = 0; i < 12; ++i) {
    MemoryFiles files;
    const std::int64_t world = random.pick(1, 4);
    std::vector<SavedTensor> laid_out;
    for (const auto& each : kFull) laid_out.push_back(random.elsewhere(each, world));
    run_ranks(world, [&](Ranks& ranks) { save(files, ranks, laid_out, 0, 1); });
    const std::string folder = "/root/step-00000000";
    const Manifest manifest = read_manifest(files, folder);
    for (const MappedTensor& tensor : tensors) {
      const Bytes all = made(tensor, kFull);
      const std::int64_t other = random.pick(1, 4);
      const SavedTensor as = random.elsewhere(
          {tensor.name, {tensor.dtype, tensor.shape, Layout::replicated(Mesh())}}, other);
      for (std::int64_t rank = 0; rank < other; ++rank) {
        const auto at = as.type.layout.mesh().coordinate_of(rank);
        if (!at) continue;
        const Part part = part_of(boxes(as.type.layout, as.type.shape, *at));
        Bytes got(bytes_of(tensor.dtype, part.shape));
        read_mapped(files, folder, manifest, tensor, part, got);
        Bytes want(got.size());
        const Part full = part_of(boxes(Layout::replicated(Mesh()), tensor.shape, {}));
        for (CopyRuns runs(full, part, element_bytes(tensor.dtype)); runs.run();
             runs.advance(runs.run()->bytes)) {
          std::memcpy(want.data() + runs.run()->to, all.data() + runs.run()->from,
                      runs.run()->bytes);
        }
        ASSERT_EQ(got, want) << tensor.name << ' ' << as.type.to_string() << " of rank " << rank;
      }
    }
  }
}

TEST(ReadMapped, ALongOneIsReadInSeveralGoes) {
  MemoryFiles files;
  const std::vector<SavedTensor> full{saved("long", "f64[2100, 2100]", "[]")};
  run_ranks(1, [&](Ranks& ranks) { save(files, ranks, full, 0, 1); });
  const std::string folder = "/root/step-00000000";
  const auto turned =
      NameMap::parse("map", R"([{"from": "long", "to": "gnol", "order": [1, 0]}])").apply(full)[0];
  Bytes got(bytes_of(turned.dtype, turned.shape));
  read_mapped(files, folder, read_manifest(files, folder), turned,
              part_of(boxes(Layout::replicated(Mesh()), turned.shape, {})), got);
  EXPECT_EQ(got, made(turned, full));
}

TEST(ReadMapped, WhatIsMappedComesBack) {
  const NameMap map = NameMap::parse("map", kRules);
  std::vector<SavedTensor> model;
  for (const auto& each : map.apply(kFull))
    model.push_back({each.name, {each.dtype, each.shape, {}}});
  std::map<std::string, Shape> back;
  for (const auto& each : map.reversed().apply(model)) back[each.name] = each.shape;
  std::map<std::string, Shape> was;
  for (const auto& each : kFull) was[each.name] = each.type.shape;
  EXPECT_EQ(back, was);
}

}  // namespace
}  // namespace intarsia::checkpoint

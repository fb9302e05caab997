#include "tensor/call/plain.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "rules/op_traits.h"
#include "tensor/call/frame.h"
#include "tensor/move/agreement.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

std::string ranks_that_differ(const std::vector<at::Tensor>& rows, std::int64_t column) {
  std::vector<std::int64_t> ranks;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    if (rows[r][column].item<std::int64_t>() != rows[0][column].item<std::int64_t>())
      ranks.push_back(static_cast<std::int64_t>(r));
  }
  return join(ranks);
}

[[noreturn]] void refuse_values(const PlainLog::Entry& entry, const std::string& ranks) {
  fail<WorldError>(entry.op, "the plain tensor ", entry.tensor, " differs on ranks ", ranks,
                   " from that of rank 0, and counts as replicated; make it alike (seed the "
                   "generators, broadcast it), or distribute it with the layout that it has");
}

bool is_backward() { return torch::autograd::get_current_node() != nullptr; }

constexpr std::string_view kPlainWayOut =
    ". Beside distributed tensors a plain one counts as the same on all ranks: where each rank has "
    "rows of its own, say so with from_local(tensor, \"S(0)\"); else make it alike (seed the "
    "generators, broadcast it)";

thread_local std::optional<std::size_t> t_last_used;

/// Which plain tensor it is, alike on all ranks.
std::string plain_text(const Frame& f, std::size_t operand) {
  const std::string_view module = module_path();
  std::string text = concat("the plain tensor that is operand ", operand, " of ", f.info.name,
                            module.empty() ? "" : " in ", module);
  if (t_last_used) text += concat(", near parameter ", *t_last_used, ",");
  return text;
}

/// Whether the op writes all of the tensor and reads nothing of it: what it held may differ.
bool is_overwritten(const Frame& f, const at::Tensor& tensor) {
  const bool writes_all = has_trait(f.info.base_name, kOverwrites);
  return std::any_of(f.tensors.begin(), f.tensors.end(), [&](const Frame::Tensor& t) {
    return t.tensor == &tensor && (t.is_out || (t.written && writes_all));
  });
}

/// Autograd fills in plain zeros for gradients that nobody gave: alike everywhere, and no one could
/// distribute them.
bool is_zero_gradient(const at::Tensor& t) {
  if (!is_backward()) return false;
  const BelowAutograd below;
  return t._is_zerotensor() || t.is_meta() || !t.any().item<bool>();
}

}  // namespace

void note_use(std::size_t parameter) {
  // What comes after backward is near to none.
  t_last_used = is_backward() ? std::nullopt : std::optional(parameter);
}

void note_plain(const Frame& f, std::size_t operand) {
  const at::Tensor& t = *f.tensors[operand].tensor;
  const bool number = t.unsafeGetTensorImpl()->is_wrapped_number();
  if (number) return;
  TensorState& state = f.state();
  const PlainTensors mode = state.plain_mode.load(std::memory_order_relaxed);
  if (mode == PlainTensors::refused && t.numel() > 1 && !is_zero_gradient(t)) {
    f.refuse(concat("a plain tensor, ", describe(t), ", is beside distributed ones"),
             "distribute it, or allow plain tensors");
  }
  if (f.lead->world().simulated()) return;  // no other rank could differ
  if (is_overwritten(f, t)) return;
  const BelowAutograd below;
  const PlainLog::Entry entry{f.info.name, describe(t), content_hash(t)};
  state.plain_log.add(entry);
  World& world = f.lead->world();
  // What backward uses was saved by forward, and compared there.
  if (is_backward()) {
    t_last_used.reset();
  } else if (world.guarded()) {
    world.check_value(f.mesh(), plain_text(f, operand), entry.hash,
                      concat("here it is ", entry.tensor, kPlainWayOut));
  }
  if (mode != PlainTensors::checked) return;
  const Comm comm = all_of(world, f.mesh());
  // In lockstep all ranks were given the same tensor.
  if (comm.members().size() != 1 || comm.size() == 1) return;
  const auto rows = exchange(comm, {static_cast<std::int64_t>(entry.hash)},
                             f.lead->world().device(), {.op = "check_plain_tensors"});
  if (const std::string ranks = ranks_that_differ(rows, 0); !ranks.empty()) {
    refuse_values(entry, ranks);
  }
}

PlainTensors plain_tensors(const World& world) {
  return TensorState::of(const_cast<World&>(world)).plain_mode;
}

void set_plain_tensors(World& world, PlainTensors mode) {
  TensorState::of(world).plain_mode = mode;
}

void check_plain_tensors(World& world) {
  PlainLog& current = TensorState::of(world).plain_log;
  const Comm comm = world.everyone();
  if (comm.size() == 1 || world.in_lockstep() || world.simulated()) return;
  PlainLog log;
  current.move_to(log);  // the next check begins anew, on all ranks
  constexpr std::string_view name = "check_plain_tensors";
  const auto count = static_cast<std::int64_t>(log.count());
  const auto sums =
      exchange(comm, {count, static_cast<std::int64_t>(log.hash())}, world.device(), {.op = name});
  const std::string counts = ranks_that_differ(sums, 0);
  if (counts.empty() && ranks_that_differ(sums, 1).empty()) return;
  // Where it began, as far as all ranks still know it.
  const auto hashes = exchange(comm, log.hashes(), world.device(), {.op = name});
  std::int64_t fewest = count;
  std::int64_t most = count;
  for (const at::Tensor& row : sums) {
    fewest = std::min(fewest, row[0].item<std::int64_t>());
    most = std::max(most, row[0].item<std::int64_t>());
  }
  constexpr auto kKept = static_cast<std::int64_t>(PlainLog::kEntries);
  for (std::int64_t i = std::max<std::int64_t>(0, most - kKept); i < fewest; ++i) {
    const std::string ranks = ranks_that_differ(hashes, i % kKept);
    if (!ranks.empty()) refuse_values(log.entry(static_cast<std::uint64_t>(i)), ranks);
  }
  if (fewest < most && most <= kKept) {
    std::string here;
    if (count > fewest) {
      const PlainLog::Entry first = log.entry(static_cast<std::uint64_t>(fewest));
      here = concat("; the first that others lack here is ", first.tensor, " of ", first.op);
    }
    fail<WorldError>(name, "ranks ", counts, " were given another number of plain tensors than ",
                     "rank 0 since the last check, from ", fewest, " to ", most, here,
                     "; all ranks must run the same ops");
  }
  fail<WorldError>(name, "ranks ", counts.empty() ? ranks_that_differ(sums, 1) : counts,
                   " were given other plain tensors than rank 0, more than ", kKept,
                   " calls ago; check more often");
}

}  // namespace intarsia

#include "tensor/plain.h"

#include <ATen/ATen.h>

#include <cstring>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/frame.h"
#include "tensor/state.h"

namespace intarsia {
namespace {

constexpr std::int64_t kWhole = 64 * 1024;

std::uint64_t hash_bytes(std::uint64_t h, const at::Tensor& dense) {
  return hash_mix(h, hash_text({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}));
}

/// Sizes, dtype and values: all of them in small tensors, blocks of large ones.
std::uint64_t content_hash(const at::Tensor& t) {
  std::uint64_t h = static_cast<std::uint64_t>(t.scalar_type());
  for (const std::int64_t size : t.sizes()) h = hash_mix(h, static_cast<std::uint64_t>(size));
  if (t.layout() != at::kStrided || !t.device().is_cpu() || t.numel() == 0 || t.is_conj() ||
      t.is_neg())
    return h;
  if (static_cast<std::int64_t>(t.nbytes()) <= kWhole) return hash_bytes(h, t.contiguous());
  // Every n-th index of the longest dimension, so that about 64 KiB are read.
  std::int64_t longest = 0;
  for (std::int64_t d = 1; d < t.dim(); ++d) {
    if (t.size(d) > t.size(longest)) longest = d;
  }
  const std::int64_t step = std::min<std::int64_t>(
      t.size(longest), (static_cast<std::int64_t>(t.nbytes()) + kWhole - 1) / kWhole);
  return hash_bytes(h, t.slice(longest, 0, t.size(longest), step).contiguous());
}

/// Everybody's values, by rank. COLLECTIVE: the group.
std::vector<at::Tensor> exchange(const Comm& comm, const std::vector<std::int64_t>& mine,
                                 at::Device device, const Call& call) {
  const at::Tensor row = at::tensor(mine, at::kLong).unsqueeze(0).to(device);
  return all_gather(comm, row, 0, {}, call).tensor().cpu().unbind(0);
}

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

/// All axes of the mesh as one group, whose members are in the order of its ranks.
Comm all_of(World& world, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (std::size_t a = 0; a < mesh.axes(); ++a) axes.push_back(mesh.name(a));
  return world.along(mesh, axes);
}

}  // namespace

void PlainLog::add(Entry entry) {
  const std::scoped_lock lock(mutex_);
  hash_ = hash_mix(hash_, entry.hash);
  if (ring_.size() < kEntries) ring_.resize(kEntries);
  ring_[count_++ % kEntries] = std::move(entry);
}

void PlainLog::move_to(PlainLog& other) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  other.ring_ = std::exchange(ring_, {});
  other.count_ = std::exchange(count_, 0);
  other.hash_ = std::exchange(hash_, 0);
}

std::uint64_t PlainLog::count() const {
  const std::scoped_lock lock(mutex_);
  return count_;
}

std::uint64_t PlainLog::hash() const {
  const std::scoped_lock lock(mutex_);
  return hash_;
}

std::vector<std::int64_t> PlainLog::hashes() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::int64_t> out(kEntries, 0);
  for (std::size_t i = 0; i < ring_.size(); ++i) out[i] = static_cast<std::int64_t>(ring_[i].hash);
  return out;
}

PlainLog::Entry PlainLog::entry(std::uint64_t index) const {
  const std::scoped_lock lock(mutex_);
  return ring_.empty() ? Entry{} : ring_[index % kEntries];
}

void note_plain(const Frame& f, const at::Tensor& t) {
  const bool number = t.unsafeGetTensorImpl()->is_wrapped_number();
  if (number) return;
  TensorState& state = f.state();
  const PlainTensors mode = state.plain_mode.load(std::memory_order_relaxed);
  if (mode == PlainTensors::refused && t.numel() > 1) {
    f.refuse(concat("a plain tensor, ", describe(t), ", is beside distributed ones"),
             "distribute it, or allow plain tensors");
  }
  const BelowAutograd below;
  state.plain_log.add({f.info.name, describe(t), content_hash(t)});
  if (mode != PlainTensors::checked) return;
  const Comm comm = all_of(f.lead->world(), f.mesh());
  if (comm.members().empty() || comm.size() == 1) return;
  const PlainLog::Entry entry = state.plain_log.entry(state.plain_log.count() - 1);
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
  if (comm.size() == 1) return;
  PlainLog log;
  current.move_to(log);  // the next check begins anew, on all ranks
  constexpr std::string_view name = "check_plain_tensors";
  const auto count = static_cast<std::int64_t>(log.count());
  const auto sums =
      exchange(comm, {count, static_cast<std::int64_t>(log.hash())}, world.device(), {.op = name});
  const std::string counts = ranks_that_differ(sums, 0);
  if (counts.empty() && ranks_that_differ(sums, 1).empty()) return;
  // Where it began, as far as it is still known.
  const auto hashes = exchange(comm, log.hashes(), world.device(), {.op = name});
  const std::int64_t oldest =
      std::max<std::int64_t>(0, count - static_cast<std::int64_t>(PlainLog::kEntries));
  for (std::int64_t i = oldest; i < count; ++i) {
    const std::string ranks =
        ranks_that_differ(hashes, i % static_cast<std::int64_t>(PlainLog::kEntries));
    if (!ranks.empty()) refuse_values(log.entry(static_cast<std::uint64_t>(i)), ranks);
  }
  fail<WorldError>(name, "ranks ", counts.empty() ? ranks_that_differ(sums, 1) : counts,
                   " were given other plain tensors than rank 0, more than ", PlainLog::kEntries,
                   " calls ago; check more often");
}

}  // namespace intarsia

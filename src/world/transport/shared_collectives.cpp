#include "world/transport/shared_collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/transport/reductions.h"

namespace intarsia {
namespace {

// The signals that count rounds.
constexpr int kPut = 0;
constexpr int kTaken = 1;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kReserveStep = std::size_t{1} << 16;

// Up to here all read everything and combine it themselves: one round instead of two.
constexpr std::size_t kSmallReduction = std::size_t{1} << 16;
// So many elements are combined at once: they stay in cache, and ATen starts no threads for them.
constexpr std::size_t kBlock = std::size_t{1} << 14;

/// What stands at the beginning of a slot. The bytes of each part follow it, then the parts.
struct SlotHead {
  std::array<char, 64> what;
  std::uint64_t rounds;
  std::uint64_t parts;
};

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Where the share of a round begins in a part. 10 units in 4 rounds: 0, 2, 5, 7, 10.
std::size_t share_begin(std::size_t bytes, std::size_t unit, std::uint64_t round,
                        std::uint64_t rounds) {
  return bytes / unit * std::min(round, rounds) / rounds * unit;
}

std::size_t share_size(std::size_t bytes, std::size_t unit, std::uint64_t round,
                       std::uint64_t rounds) {
  return share_begin(bytes, unit, round + 1, rounds) - share_begin(bytes, unit, round, rounds);
}

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

/// Equal parts of a buffer.
template <class T>
std::vector<std::span<T>> equal_parts(std::span<T> buffer, std::size_t n) {
  std::vector<std::span<T>> parts;
  for (std::size_t i = 0; i < n; ++i)
    parts.push_back(buffer.subspan(i * (buffer.size() / n), buffer.size() / n));
  return parts;
}

template <class Parts>
std::size_t total(const Parts& parts) {
  std::size_t sum = 0;
  for (const auto& part : parts) sum += part.size();
  return sum;
}

std::string reduction_text(std::string_view call, std::span<const std::byte> partials,
                           at::ScalarType type, const Placement& how) {
  return concat(call, " of ", partials.size() / c10::elementSize(type), ' ', c10::toString(type),
                " by ", how);
}

/// Combines the partial values of all ranks, which have `count` elements each.
void combine_partials(std::byte* out, std::size_t count,
                      const std::vector<const std::byte*>& partials, at::ScalarType type,
                      const Placement& how) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::size_t size = c10::elementSize(type);
  const auto n = static_cast<std::int64_t>(partials.size());
  std::vector<at::Tensor> block(partials.size());
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t length = std::min(kBlock, count - i);
    for (std::size_t r = 0; r < partials.size(); ++r) {
      block[r] = at::from_blob(const_cast<std::byte*>(partials[r] + i * size),
                               {static_cast<std::int64_t>(length)}, type);
    }
    const at::Tensor value = from_partials(combine(block, how), how, n, type);
    copy(out + i * size, static_cast<const std::byte*>(value.const_data_ptr()), length * size);
  }
}

}  // namespace

SharedCollectives::SharedCollectives(SymmetricMemory& memory, std::vector<std::int64_t> names,
                                     std::chrono::milliseconds timeout)
    : memory_(memory),
      names_(std::move(names)),
      timeout_(timeout),
      me_(static_cast<std::size_t>(memory.rank())),
      n_(static_cast<std::size_t>(memory.size())) {}

// ---- rounds -------------------------------------------------------------------------------------

std::size_t SharedCollectives::head_bytes() const {
  return aligned(sizeof(SlotHead) + n_ * sizeof(std::uint64_t));
}

std::uint64_t SharedCollectives::rounds_for(std::size_t bytes, std::size_t parts,
                                            std::size_t unit) const {
  const std::size_t room = kSlotBytes - head_bytes() - parts * (unit + kAlignment);
  return std::max<std::uint64_t>(1, (bytes + room - 1) / room);
}

std::byte* SharedCollectives::slot_of(std::size_t rank, std::uint64_t count) const {
  return memory_.at(static_cast<int>(rank)) + count % kSlots * kSlotBytes;
}

bool SharedCollectives::has_room() const {
  for (std::size_t r = 0; r < n_ && put_ >= kSlots; ++r) {
    if (r != me_ && memory_.value(static_cast<int>(r), kTaken) + kSlots <= put_) return false;
  }
  return true;
}

void SharedCollectives::put(const Brought& brought, std::uint64_t round) {
  for (std::size_t r = 0; r < n_ && put_ >= kSlots; ++r) {
    if (r != me_) memory_.wait(static_cast<int>(r), kTaken, put_ + 1 - kSlots, deadline_);
  }
  const bool for_all = brought.parts.size() == 1 && n_ > 1;
  SlotHead head{{}, brought.rounds, brought.parts.size()};
  brought.what.copy(head.what.data(), head.what.size() - 1);
  std::vector<std::uint64_t> sizes;
  std::size_t end = head_bytes();
  for (std::size_t p = 0; p < brought.parts.size(); ++p) {
    sizes.push_back(p == me_ && !for_all ? 0 : brought.parts[p].size());
    end += aligned(share_size(sizes[p], brought.unit, round, brought.rounds));
  }
  if (std::size_t& reserved = reserved_[put_ % kSlots]; end > reserved) {
    const std::size_t wanted =
        std::min(kSlotBytes, (end + kReserveStep - 1) / kReserveStep * kReserveStep);
    memory_.reserve(put_ % kSlots * kSlotBytes + reserved, wanted - reserved);
    reserved = wanted;
  }
  std::byte* slot = slot_of(me_, put_);
  std::memcpy(slot, &head, sizeof(head));
  copy(slot + sizeof(head), reinterpret_cast<const std::byte*>(sizes.data()),
       sizes.size() * sizeof(sizes[0]));
  std::byte* at = slot + head_bytes();
  for (std::size_t p = 0; p < brought.parts.size(); ++p) {
    const std::size_t size = share_size(sizes[p], brought.unit, round, brought.rounds);
    copy(at, brought.parts[p].data() + share_begin(sizes[p], brought.unit, round, brought.rounds),
         size);
    at += aligned(size);
  }
  memory_.signal(kPut, ++put_);
}

SharedCollectives::Arrived SharedCollectives::look(std::size_t from, const Brought& brought,
                                                   std::uint64_t round, std::size_t expected,
                                                   std::uint64_t& rounds) const {
  const std::string& what = brought.what;
  const std::size_t unit = brought.unit;
  memory_.wait(static_cast<int>(from), kPut, taken_ + 1, deadline_);
  const std::byte* slot = slot_of(from, taken_);
  SlotHead head{};
  std::memcpy(&head, slot, sizeof(head));
  if (what.compare(0, head.what.size() - 1, head.what.data()) != 0) {
    fail<WorldError>("shm", "rank ", names_[me_], " called ", what, ", but rank ", names_[from],
                     " called ", head.what.data());
  }
  std::vector<std::uint64_t> sizes(head.parts);
  copy(reinterpret_cast<std::byte*>(sizes.data()), slot + sizeof(head),
       head.parts * sizeof(sizes[0]));
  const std::size_t mine = head.parts <= 1 ? 0 : me_;
  const std::uint64_t size = sizes.empty() ? 0 : sizes[mine];
  if (size != expected) {
    fail<WorldError>("shm", what, ": rank ", names_[from], " brings ", size, " bytes for rank ",
                     names_[me_], ", which expects ", expected);
  }
  rounds = std::max(rounds, head.rounds);
  std::size_t at = head_bytes();
  for (std::size_t p = 0; p < mine; ++p)
    at += aligned(share_size(sizes[p], unit, round, head.rounds));
  return {share_begin(size, unit, round, head.rounds),
          {slot + at, share_size(size, unit, round, head.rounds)}};
}

template <class Take>
void SharedCollectives::run(const Brought& brought, const std::vector<std::size_t>& expected,
                            const Take& take) {
  deadline_ = SymmetricMemory::Clock::now() + timeout_;
  std::vector<Arrived> arrived(n_);
  std::uint64_t rounds = brought.rounds;
  const std::uint64_t before = taken_;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    while (put_ - before <= round || (put_ - before < rounds && has_room())) {
      put(brought, put_ - before);
    }
    for (std::size_t i = 1; i < n_; ++i) {  // not all from the same rank at once
      const std::size_t from = (me_ + i) % n_;
      if (expected[from] == kNothing) continue;
      arrived[from] = look(from, brought, round, expected[from], rounds);
    }
    take(round, arrived);
    memory_.signal(kTaken, ++taken_);
  }
}

// ---- collectives --------------------------------------------------------------------------------

void SharedCollectives::copy_to(const std::vector<Bytes>& out, const Brought& brought) {
  std::vector<std::size_t> expected;
  for (const Bytes& part : out) expected.push_back(part.size());
  run(brought, expected, [&](std::uint64_t, const std::vector<Arrived>& arrived) {
    for (std::size_t i = 1; i < n_; ++i) {
      const std::size_t from = (me_ + i) % n_;
      copy(out[from].data() + arrived[from].begin, arrived[from].bytes.data(),
           arrived[from].bytes.size());
    }
  });
}

void SharedCollectives::all_gather(Bytes out, ConstBytes in) {
  const std::vector<Bytes> parts = equal_parts(out, n_);
  copy(parts[me_].data(), in.data(), in.size());
  copy_to(parts, {"all_gather", {in}, 1, rounds_for(in.size(), 1, 1)});
}

void SharedCollectives::all_to_all(const std::vector<Bytes>& out,
                                   const std::vector<ConstBytes>& in) {
  copy(out[me_].data(), in[me_].data(), in[me_].size());
  copy_to(out, {"all_to_all", in, 1, rounds_for(total(in) - in[me_].size(), n_, 1)});
}

void SharedCollectives::broadcast(Bytes inout, int root) {
  const auto from = static_cast<std::size_t>(root);
  std::vector<std::size_t> expected(n_, kNothing);
  Brought brought{concat("broadcast from ", names_[from]), {}};
  if (me_ == from) {
    brought.parts = {inout};
    brought.rounds = rounds_for(inout.size(), 1, 1);
  } else {
    expected[from] = inout.size();
  }
  run(brought, expected, [&](std::uint64_t, const std::vector<Arrived>& arrived) {
    const auto& [begin, bytes] = arrived[from];
    copy(inout.data() + begin, bytes.data(), bytes.size());
  });
}

void SharedCollectives::reduce(std::string what, std::byte* out,
                               const std::vector<ConstBytes>& parts, at::ScalarType type,
                               const Placement& how) {
  const std::size_t unit = c10::elementSize(type);
  // One part for all when all are to be reduced here.
  const ConstBytes mine = parts.size() == 1 ? parts[0] : parts[me_];
  std::size_t smallest = parts.size() == 1 ? 0 : mine.size();
  for (const ConstBytes& part : parts) smallest = std::min(smallest, part.size());
  // The same on all ranks, so that all split alike.
  const std::uint64_t rounds = rounds_for(total(parts) - smallest, parts.size(), unit);
  std::vector<const std::byte*> partials(n_);
  run({std::move(what), parts, unit, rounds}, std::vector<std::size_t>(n_, mine.size()),
      [&](std::uint64_t round, const std::vector<Arrived>& arrived) {
        const std::size_t begin = share_begin(mine.size(), unit, round, rounds);
        for (std::size_t r = 0; r < n_; ++r) {
          partials[r] = r == me_ ? mine.data() + begin : arrived[r].bytes.data();
        }
        combine_partials(out + begin, share_size(mine.size(), unit, round, rounds) / unit, partials,
                         type, how);
      });
}

void SharedCollectives::reduce_scatter(Bytes out, ConstBytes in, at::ScalarType type,
                                       const Placement& how) {
  reduce(reduction_text("reduce_scatter", in, type, how), out.data(), equal_parts(in, n_), type,
         how);
}

void SharedCollectives::all_reduce(Bytes inout, at::ScalarType type, const Placement& how) {
  const std::string what = reduction_text("all_reduce", inout, type, how);
  if (inout.size() <= kSmallReduction) return reduce(what, inout.data(), {inout}, type, how);
  const std::size_t unit = c10::elementSize(type);
  std::vector<Bytes> parts;
  for (std::size_t r = 0; r < n_; ++r) {
    parts.push_back(inout.subspan(share_begin(inout.size(), unit, r, n_),
                                  share_size(inout.size(), unit, r, n_)));
  }
  reduce(what, parts[me_].data(), {parts.begin(), parts.end()}, type, how);
  copy_to(parts, {what, {parts[me_]}, unit, rounds_for(parts[me_].size(), 1, unit)});
}

void SharedCollectives::barrier() {
  run({"barrier", {}}, std::vector<std::size_t>(n_, 0),
      [](std::uint64_t, const std::vector<Arrived>&) {});
}

}  // namespace intarsia

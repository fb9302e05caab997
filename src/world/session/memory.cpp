#include "intarsia/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/session/memory.h"

namespace intarsia {

struct MemoryMeter::State {
  unsigned devices = 0;    // a bit for each
  std::uint64_t born = 0;  // what was allocated before does not count
  std::int64_t live = 0;
  std::int64_t peak = 0;
};

namespace {

constexpr std::array<c10::DeviceType, 2> kDevices{c10::DeviceType::CPU, c10::DeviceType::Meta};

thread_local int t_uncounted = 0;

/// What all meters of the process share.
class Counts {
 public:
  static Counts& instance() {
    static auto* const counts = new Counts;  // tensors may outlive everything else
    return *counts;
  }

  /// The number of the allocation.
  std::uint64_t allocated(std::size_t device, std::int64_t bytes) {
    const std::scoped_lock lock(mutex_);
    for (MemoryMeter::State* meter : meters_) {
      if ((meter->devices >> device & 1U) == 0) continue;
      meter->live += bytes;
      meter->peak = std::max(meter->peak, meter->live);
    }
    return next_++;
  }

  void freed(std::size_t device, std::int64_t bytes, std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    for (MemoryMeter::State* meter : meters_) {
      if ((meter->devices >> device & 1U) != 0 && number >= meter->born) meter->live -= bytes;
    }
  }

  void join(MemoryMeter::State& meter) {
    const std::scoped_lock lock(mutex_);
    for (std::size_t d = 0; d < kDevices.size(); ++d) {
      if ((meter.devices >> d & 1U) != 0 && !std::exchange(watched_[d], true)) watch(d);
    }
    meter.born = next_;
    meters_.push_back(&meter);
  }

  void leave(MemoryMeter::State& meter) {
    const std::scoped_lock lock(mutex_);
    std::erase(meters_, &meter);
  }

  template <class Read>
  std::int64_t locked(const Read& read) {
    const std::scoped_lock lock(mutex_);
    return read();
  }

 private:
  static void watch(std::size_t device);

  std::mutex mutex_;
  std::array<bool, kDevices.size()> watched_{};
  std::vector<MemoryMeter::State*> meters_;
  std::uint64_t next_ = 0;
};

/// An allocation, and its end.
struct Counted {
  at::DataPtr memory;
  std::size_t device;
  std::int64_t bytes;
  std::uint64_t number;

  static void free(void* counted) {
    auto* const self = static_cast<Counted*>(counted);
    Counts::instance().freed(self->device, self->bytes, self->number);
    delete self;
  }
};

/// Allocations by where they begin. Some kernels of ATen want memory without its owner
/// (`raw_allocate`), and give it back by its address.
class ByAddress {
 public:
  static ByAddress& instance() {
    static auto* const all = new ByAddress;
    return *all;
  }
  void add(void* data, Counted* counted) {
    const std::scoped_lock lock(mutex_);
    counted_.emplace(data, counted);
  }
  /// Frees what begins there, also if it was not counted.
  static void free(void* data) {
    if (Counted* const counted = instance().take(data)) return Counted::free(counted);
    instance().free_uncounted_(data);
  }
  void set_inner(const c10::Allocator& inner) { free_uncounted_ = inner.raw_deleter(); }

 private:
  Counted* take(void* data) {
    const std::scoped_lock lock(mutex_);
    const auto at = counted_.find(data);
    if (at == counted_.end()) return nullptr;
    Counted* const counted = at->second;
    counted_.erase(at);
    return counted;
  }

  std::mutex mutex_;
  std::unordered_map<void*, Counted*> counted_;
  c10::DeleterFnPtr free_uncounted_ = nullptr;
};

class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator(c10::Allocator* inner, std::size_t device) : inner_(inner), device_(device) {}

  at::DataPtr allocate(std::size_t bytes) override {
    at::DataPtr memory = inner_->allocate(bytes);
    if (t_uncounted > 0 || bytes == 0) return memory;
    const bool abstract = memory.device().is_meta();
    if (abstract && !c10::impl::tls_is_dispatch_key_excluded(kPieces)) return memory;
    void* const data = memory.get();
    const c10::Device where = memory.device();
    const auto size = static_cast<std::int64_t>(bytes);
    auto* const counted =
        new Counted{std::move(memory), device_, size, Counts::instance().allocated(device_, size)};
    if (abstract) return {data, counted, &Counted::free, where};
    ByAddress::instance().add(data, counted);
    return {data, data, &ByAddress::free, where};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return kDevices[device_] == c10::DeviceType::CPU ? &ByAddress::free : inner_->raw_deleter();
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* inner_;
  std::size_t device_;
};

void Counts::watch(std::size_t device) {
  constexpr std::uint8_t kPriority = 100;
  c10::Allocator* const inner = c10::GetAllocator(kDevices[device]);
  if (kDevices[device] == c10::DeviceType::CPU) ByAddress::instance().set_inner(*inner);
  c10::SetAllocator(kDevices[device], new CountingAllocator(inner, device), kPriority);
}

}  // namespace

Uncounted::Uncounted() { ++t_uncounted; }
Uncounted::~Uncounted() { --t_uncounted; }

MemoryMeter::MemoryMeter(std::initializer_list<c10::DeviceType> devices)
    : state_(std::make_unique<State>()) {
  for (const c10::DeviceType type : devices) {
    const auto* const known = std::find(kDevices.begin(), kDevices.end(), type);
    if (known == kDevices.end()) {
      fail<UnsupportedError>("MemoryMeter", "cannot count memory of ",
                             c10::DeviceTypeName(type, /*lower_case=*/true),
                             "; cpu and meta can be counted, and accelerators count by themselves");
    }
    state_->devices |= 1U << static_cast<unsigned>(known - kDevices.begin());
  }
  Counts::instance().join(*state_);
}

MemoryMeter::~MemoryMeter() { Counts::instance().leave(*state_); }

std::int64_t MemoryMeter::live() const {
  return Counts::instance().locked([&] { return state_->live; });
}

std::int64_t MemoryMeter::peak() const {
  return Counts::instance().locked([&] { return state_->peak; });
}

void MemoryMeter::reset() {
  Counts::instance().locked([&] { return state_->peak = state_->live; });
}

}  // namespace intarsia

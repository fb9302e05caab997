// MemoryMeter: how many bytes of memory tensors hold, now and at most.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <initializer_list>
#include <memory>

namespace intarsia {

/// Counts the bytes of memory of the tensors that are made in this process while it lives, whoever
/// makes them: this library, another one, or autograd. What no tensor holds, such as the buffers of
/// a network library, is not counted.
///
/// It stands between torch and torch's allocator of the device: from the first meter on, each
/// allocation takes a lock and a few bytes more. Tensors on the meta device have sizes and no
/// memory. There it counts the bytes that the pieces of distributed tensors would take, see
/// simulate.h, and not what a program puts there itself, such as a module that has no values yet.
///
///     MemoryMeter meter;
///     train_step();
///     std::cout << meter.peak();
///
/// THREADS: any.
class MemoryMeter {
 public:
  /// The devices that are counted together: the CPU, meta, or both.
  explicit MemoryMeter(std::initializer_list<c10::DeviceType> devices = {c10::DeviceType::CPU});
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  /// The bytes that are held now by tensors made since the meter was made.
  std::int64_t live() const;
  /// The most since the meter was made or reset.
  std::int64_t peak() const;
  /// Sets the peak to what is live now.
  void reset();

  /// The implementation.
  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace intarsia

// What we ask of any device, without knowing which it is. Streams are not among it: a c10d call of
// an accelerator begins after what its stream has, and waiting for it lets that stream wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace intarsia {

/// UnsupportedError, in one sentence with the way out, where this process cannot use the device:
/// its libtorch was built without it, the machine shows none, or fewer than the number asked for.
/// ValueError where the backend does not move tensors of that device.
void check_device(at::Device device, std::string_view backend);

/// The device of this type that this thread uses: with CUDA the one that torch.cuda.set_device
/// chose.
at::Device current_device(at::DeviceType type);

/// Returns once everything that was started on the device is done.
void synchronize(at::Device device);

/// Memory of the CPU for copies from and to a device: pinned where that is an accelerator.
at::Tensor host_memory(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

/// Copies between devices and the CPU that travel together, and are waited for once.
class Copies {
 public:
  void begin(const at::Tensor& to, const at::Tensor& from);
  /// Returns once all are done. REQUIRES: called, before any of the memory is used or given back.
  void finish();

 private:
  std::vector<at::Device> devices_;
};

}  // namespace intarsia

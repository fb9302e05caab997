#include "world/transport/devices.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

constexpr const char* kOnTheCpu = "; on the CPU, leave out the device and use gloo or shm";

}  // namespace

void check_device(at::Device device, std::string_view backend) {
  if (backend == "nccl" && !device.is_cuda()) {
    fail<ValueError>("World", "the backend nccl moves CUDA tensors, not those of ", device.str(),
                     "; leave out the device, or the backend");
  }
  if (device.is_cpu()) return;
  const std::string type = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    fail<UnsupportedError>("World", device.str(),
                           " cannot be used: this libtorch was built without ", type,
                           "; install a torch that has it", kOnTheCpu);
  }
  const int count = c10::impl::VirtualGuardImpl(device.type()).deviceCount();
  if (count == 0) {
    fail<UnsupportedError>("World", device.str(), " cannot be used: this process sees no ", type,
                           " device (is there one, its driver, and no empty list such as "
                           "CUDA_VISIBLE_DEVICES?)",
                           kOnTheCpu);
  }
  if (device.index() >= count) {
    fail<UnsupportedError>("World", device.str(), " cannot be used: this process sees ", count, ' ',
                           type, " devices, from ", type, ":0 on; start at most ", count,
                           " processes on this machine, or name the device of each");
  }
}

at::Device current_device(at::DeviceType type) {
  return type == at::kCPU ? at::kCPU : c10::impl::VirtualGuardImpl(type).getDevice();
}

void synchronize(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

at::Tensor host_memory(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  const bool is_pinned = !device.is_cpu() && at::accelerator::isAccelerator(device.type());
  return at::empty(sizes, at::TensorOptions(dtype).pinned_memory(is_pinned));
}

void Copies::begin(const at::Tensor& to, const at::Tensor& from) {
  to.copy_(from, /*non_blocking=*/true);
  const at::Device device = to.is_cpu() ? from.device() : to.device();
  if (device.is_cpu()) return;
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
    devices_.push_back(device);
  }
}

void Copies::finish() {
  for (const at::Device device : devices_) synchronize(device);
  devices_.clear();
}

}  // namespace intarsia

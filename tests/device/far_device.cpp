#include "device/far_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

namespace intarsia::testing {
namespace {

constexpr auto kFar = c10::DeviceType::PrivateUse1;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMemory = std::size_t{1} << 30;

struct Counts {
  std::atomic<std::int64_t> kernels{0};
  std::atomic<std::int64_t> copies_in{0};
  std::atomic<std::int64_t> copies_out{0};
  std::atomic<std::int64_t> waits{0};
  std::atomic<std::int64_t> live_bytes{0};
  std::atomic<std::int64_t> pinned_bytes{0};
};
Counts& counts() {
  static Counts all;
  return all;
}

/// All of the device's memory: closed, but for the time of a kernel.
class Memory {
 public:
  static Memory& get() {
    static auto* memory = new Memory;  // as long as the program: tensors may outlive anything else
    return *memory;
  }

  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
    const auto again = free_.find(size);
    if (again != free_.end()) {
      void* out = again->second;
      free_.erase(again);
      return out;
    }
    TORCH_CHECK(used_ + size <= kMemory, "the far device is full");
    used_ += size;
    return begin_ + used_ - size;
  }
  void give(void* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    free_.emplace((bytes + kPage - 1) / kPage * kPage, at);
  }

  void open() {
    const std::lock_guard lock(mutex_);
    if (users_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--users_ == 0) protect(PROT_NONE);
  }

 private:
  Memory()
      : begin_(static_cast<char*>(::mmap(nullptr, kMemory, PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    TORCH_CHECK(begin_ != MAP_FAILED, "there is no memory for the far device");
  }
  void protect(int how) { TORCH_CHECK(::mprotect(begin_, kMemory, how) == 0, "mprotect failed"); }

  char* begin_;
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
  std::size_t used_ = 0;
  int users_ = 0;
};

struct Opened {
  Opened() { Memory::get().open(); }
  ~Opened() { Memory::get().close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

/// What was asked for and is not done yet: copies that nobody waits for. All else comes after them.
class Queue {
 public:
  static Queue& get() {
    static auto* queue = new Queue;
    return *queue;
  }
  void add(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  /// Returns when all is done, also what another thread is doing now.
  void finish() {
    const std::lock_guard lock(mutex_);
    for (const auto& each : work_) each();
    work_.clear();
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> work_;
};

// ---- memory, devices and streams

struct Taken {
  void* at;
  std::size_t bytes;
};

void give_back(void* context) {
  auto* taken = static_cast<Taken*>(context);
  counts().live_bytes -= static_cast<std::int64_t>(taken->bytes);
  Memory::get().give(taken->at, taken->bytes);
  delete taken;
}

thread_local c10::DeviceIndex current_index = 0;

struct FarAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kFar, current_index);
    if (bytes == 0) return {nullptr, device};
    auto* taken = new Taken{Memory::get().take(bytes), bytes};
    counts().live_bytes += static_cast<std::int64_t>(bytes);
    return {taken->at, taken, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const Opened opened;
    default_copy_data(to, from, bytes);
  }
};
FarAllocator far_allocator;
REGISTER_ALLOCATOR(kFar, &far_allocator);

/// Memory of the host that copies may go to without being waited for.
class PinnedAllocator final : public c10::Allocator {
 public:
  static PinnedAllocator& get() {
    static auto* allocator = new PinnedAllocator;
    return *allocator;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* at = std::malloc(std::max<std::size_t>(bytes, 1));
    const std::lock_guard lock(mutex_);
    begins_[static_cast<char*>(at)] = bytes;
    counts().pinned_bytes += static_cast<std::int64_t>(bytes);
    return {at, at, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool has(const void* data) {
    const std::lock_guard lock(mutex_);
    auto after = begins_.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    if (after == begins_.begin()) return false;
    --after;
    return static_cast<const char*>(data) <= after->first + after->second;
  }

 private:
  static void release(void* at) {
    PinnedAllocator& all = get();
    const std::lock_guard lock(all.mutex_);
    all.begins_.erase(static_cast<char*>(at));
    std::free(at);
  }
  std::mutex mutex_;
  std::map<char*, std::size_t> begins_;
};

/// Makes it torch's accelerator.
struct FarHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::get().has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::get(); }
  c10::DeviceIndex deviceCount() const override { return 2; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const auto* generator = new at::Generator(at::detail::createCPUGenerator());
    return *generator;
  }
};
const bool is_registered = [] {
  c10::register_privateuse1_backend("far");
  at::RegisterPrivateUse1HooksInterface(new FarHooks);
  return true;
}();

/// Two devices with one stream each. An event is a place in it, and all is done when one is waited
/// for.
struct FarGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFar; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kFar, current_index}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current_index = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait(); }
  void synchronizeStream(const c10::Stream&) const override { wait(); }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    *event = const_cast<FarGuard*>(this);
  }
  void block(void*, const c10::Stream&) const override {}  // there is one stream
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { wait(); }

 private:
  static void wait() {
    ++counts().waits;
    Queue::get().finish();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FarGuard);

// ---- kernels

/// The CPU's tensor on the same memory. REQUIRES: it is open.
at::Tensor on_host(const at::Tensor& t) {
  if (t.is_cpu()) return t;
  at::Tensor out = at::from_blob(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(),
                                 at::TensorOptions(t.scalar_type()));
  out._set_conj(t.is_conj());
  out._set_neg(t.is_neg());
  return out;
}

void copy_now(const at::Tensor& from, const at::Tensor& to) {
  const Opened opened;
  on_host(to).copy_(on_host(from));
}

bool is_pinned(const at::Tensor& t) {
  return t.is_cpu() && PinnedAllocator::get().has(t.const_data_ptr());
}

/// To and from pinned memory, a copy that need not be waited for is done later; who reads the
/// memory before finds other bytes.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.is_cpu()) ++counts().copies_in;
  if (to.is_cpu()) ++counts().copies_out;
  if (from.numel() == 0) return to;
  if (non_blocking && (is_pinned(from) || is_pinned(to))) {
    if (to.is_cpu() && to.is_contiguous()) std::memset(to.mutable_data_ptr(), 0x5a, to.nbytes());
    Queue::get().add([from, to] { copy_now(from, to); });
    return to;
  }
  Queue::get().finish();
  copy_now(from, to);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

c10::Device device_of(std::optional<at::Device> device) {
  const c10::Device out = device.value_or(c10::Device(kFar));
  return out.has_index() ? out : c10::Device(kFar, current_index);
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device_of(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &far_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &far_allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  const auto wanted = C10_AS_INTARRAYREF_SLOW(sizes);
  const std::size_t bytes = static_cast<std::size_t>(c10::multiply_integers(wanted)) *
                            static_cast<std::size_t>(self.element_size());
  if (self.storage().nbytes() < bytes) {
    self.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(far_allocator.allocate(bytes));
    self.storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(wanted);
  return self;
}

void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++counts().kernels;
  Queue::get().finish();
  at::native::cpu_fallback(op, stack);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  const auto here = bias && bias->defined() ? std::optional(bias->cpu()) : std::nullopt;
  return at::convolution(input.cpu(), weight.cpu(), here, stride, padding, dilation, transposed,
                         output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      grad.cpu(), input.cpu(), weight.cpu(),
      at::IntArrayRef({weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)}), stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  const auto there = [&](const at::Tensor& t) { return t.defined() ? t.to(input.device()) : t; };
  return {there(of_input), there(of_weight), there(of_bias)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

// The bits are looked at there.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("_copy_from_and_resize", &copy_from_and_resize); }

}  // namespace

c10::Device far_device() { return {kFar, 0}; }

FarCalls far_calls() {
  const Counts& now = counts();
  return {now.kernels, now.copies_in, now.copies_out, now.waits, now.live_bytes, now.pinned_bytes};
}

}  // namespace intarsia::testing

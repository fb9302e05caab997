#include "tensor/move/pool.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace intarsia {
namespace {

constexpr std::int64_t kMostIdle = std::int64_t{64} << 20;

std::int64_t bytes_of(const at::Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

}  // namespace

BufferPool::Hold::Hold(std::shared_ptr<BufferPool> pool, std::int64_t bytes)
    : pool_(std::move(pool)), bytes_(bytes) {
  pool_->add(bytes_);
}
BufferPool::Hold::Hold(Hold&& other) noexcept
    : pool_(std::move(other.pool_)), bytes_(std::exchange(other.bytes_, 0)) {}
BufferPool::Hold& BufferPool::Hold::operator=(Hold&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
BufferPool::Hold::~Hold() {
  if (pool_) pool_->add(-bytes_);
}

void BufferPool::add(std::int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  live_ += bytes;
  high_water_ = std::max(high_water_, live_);
}

std::shared_ptr<at::Tensor> BufferPool::lend(std::int64_t elements,
                                             const at::TensorOptions& options) {
  at::Tensor found;
  {
    const std::scoped_lock lock(mutex_);
    const auto fits = std::find_if(idle_.begin(), idle_.end(), [&](const at::Tensor& t) {
      return t.numel() == elements && t.dtype() == options.dtype() &&
             t.device() == options.device();
    });
    if (fits != idle_.end()) {
      found = std::move(*fits);
      idle_bytes_ -= bytes_of(found);
      idle_.erase(fits);
    }
  }
  if (!found.defined()) found = at::empty({elements}, options.requires_grad(false));
  add(bytes_of(found));
  return {new at::Tensor(std::move(found)), [pool = shared_from_this()](at::Tensor* t) {
            pool->give_back(std::move(*t));
            delete t;
          }};
}

void BufferPool::give_back(at::Tensor buffer) {
  std::list<at::Tensor> dropped;  // freed outside the lock
  const std::scoped_lock lock(mutex_);
  const std::int64_t bytes = bytes_of(buffer);
  live_ -= bytes;
  if (bytes > kMostIdle) return;
  idle_bytes_ += bytes;
  idle_.push_front(std::move(buffer));
  while (idle_bytes_ > kMostIdle) {
    idle_bytes_ -= bytes_of(idle_.back());
    dropped.splice(dropped.begin(), idle_, std::prev(idle_.end()));
  }
}

std::int64_t BufferPool::live() const {
  const std::scoped_lock lock(mutex_);
  return live_;
}
std::int64_t BufferPool::high_water() const {
  const std::scoped_lock lock(mutex_);
  return high_water_;
}
std::int64_t BufferPool::idle() const {
  const std::scoped_lock lock(mutex_);
  return idle_bytes_;
}
void BufferPool::reset_high_water() {
  const std::scoped_lock lock(mutex_);
  high_water_ = live_;
}

}  // namespace intarsia

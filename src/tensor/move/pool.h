// Buffers that moves use again and again, and how much memory moves hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

namespace intarsia {

/// Counts the bytes that moves of one world hold, and keeps buffers that they gave back for the
/// next move of the same size. What is kept unused is at most 64 MiB.
/// THREADS: any.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  /// Bytes that count as held as long as it lives.
  class Hold {
   public:
    Hold() = default;
    Hold(std::shared_ptr<BufferPool> pool, std::int64_t bytes);
    Hold(Hold&& other) noexcept;
    Hold& operator=(Hold&& other) noexcept;
    ~Hold();

   private:
    std::shared_ptr<BufferPool> pool_;
    std::int64_t bytes_ = 0;
  };

  /// A flat buffer, counted while it is lent. It comes back when the last of these pointers is
  /// dropped, which must be when no collective uses it any more: what an exception leaves under way
  /// keeps its pointers.
  std::shared_ptr<at::Tensor> lend(std::int64_t elements, const at::TensorOptions& options);
  Hold hold(std::int64_t bytes) { return {shared_from_this(), bytes}; }

  /// Bytes held now, the most since `reset_high_water`, and those kept unused.
  std::int64_t live() const;
  std::int64_t high_water() const;
  std::int64_t idle() const;
  void reset_high_water();

 private:
  void add(std::int64_t bytes);
  void give_back(at::Tensor buffer);

  mutable std::mutex mutex_;
  std::int64_t live_ = 0;
  std::int64_t high_water_ = 0;
  std::int64_t idle_bytes_ = 0;
  std::list<at::Tensor> idle_;  // the last used first
};

}  // namespace intarsia

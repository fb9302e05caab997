// Reading ahead: while one block is used, the next ones travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <span>
#include <vector>

namespace intarsia::checkpoint {

/// Reads of something that answers late. A long read that begins where the last one ended makes
/// those that will follow begin too, each in a thread; others are passed on as they are.
/// THREADS: several may read, one at a time.
class ReadAhead {
 public:
  using Fetch = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;

  /// `bytes`: how long it is. `fetch` may be called by several threads at once.
  ReadAhead(std::uint64_t bytes, Fetch fetch) : bytes_(bytes), fetch_(std::move(fetch)) {}
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void read(std::uint64_t offset, std::span<std::byte> into);

 private:
  struct Block {
    std::uint64_t offset;
    std::vector<std::byte> bytes;
    std::future<void> done;
  };
  void begin_next(std::uint64_t from, std::size_t length);
  void forget();

  std::uint64_t bytes_;
  Fetch fetch_;
  std::mutex mutex_;
  std::uint64_t last_end_ = 0;
  std::deque<Block> ahead_;  // one after the other
};

}  // namespace intarsia::checkpoint

#include "checkpoint/store/read_ahead.h"

#include <algorithm>
#include <cstring>

namespace intarsia::checkpoint {
namespace {

constexpr std::size_t kBlocks = 3;
constexpr std::size_t kLong = std::size_t{1} << 20;

}  // namespace

ReadAhead::~ReadAhead() { forget(); }

void ReadAhead::read(std::uint64_t offset, std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  const bool is_known = !ahead_.empty() && ahead_.front().offset == offset &&
                        ahead_.front().bytes.size() == into.size();
  if (!is_known) forget();
  const bool goes_on = offset == last_end_ && into.size() >= kLong;
  last_end_ = offset + into.size();
  if (!is_known) {
    if (goes_on) begin_next(last_end_, into.size());
    return fetch_(offset, into);
  }
  Block block = std::move(ahead_.front());
  ahead_.pop_front();
  begin_next(ahead_.empty() ? last_end_ : ahead_.back().offset + ahead_.back().bytes.size(),
             into.size());
  block.done.get();
  std::memcpy(into.data(), block.bytes.data(), into.size());
}

void ReadAhead::begin_next(std::uint64_t from, std::size_t length) {
  while (ahead_.size() < kBlocks && from < bytes_) {
    const auto now = static_cast<std::size_t>(std::min<std::uint64_t>(length, bytes_ - from));
    Block& block = ahead_.emplace_back(Block{from, std::vector<std::byte>(now), {}});
    const std::span<std::byte> into = block.bytes;  // its memory stays where it is
    block.done = std::async(std::launch::async, [this, from, into] { fetch_(from, into); });
    from += now;
  }
}

void ReadAhead::forget() {
  for (Block& block : ahead_) {
    if (block.done.valid()) block.done.wait();  // not where no thread could be made for it
  }
  ahead_.clear();
}

}  // namespace intarsia::checkpoint

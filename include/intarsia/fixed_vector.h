// A vector with a fixed capacity that never allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "intarsia/error.h"

namespace intarsia {

/// Up to `N` values of a trivially copyable type, held in place. Used for everything whose length
/// is a number of mesh axes or of tensor dimensions, so that layouts are computed without
/// allocating. Growing beyond `N` is a ValueError. Converts to std::span and to ATen's IntArrayRef.
template <class T, std::size_t N>
class FixedVector {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  FixedVector() = default;
  FixedVector(std::initializer_list<T> values) { assign(values.begin(), values.end()); }
  explicit FixedVector(std::span<const T> values) { assign(values.begin(), values.end()); }
  FixedVector(std::size_t count, const T& value) {
    resize(count);
    std::fill(begin(), end(), value);
  }

  template <class It>
  void assign(It first, It last) {
    size_ = 0;
    for (; first != last; ++first) push_back(*first);
  }

  void push_back(const T& value) {
    if (size_ == N) too_many(N + 1);
    values_[size_++] = value;
  }
  void insert(std::size_t position, const T& value) {
    push_back(value);
    std::rotate(begin() + position, end() - 1, end());
  }
  void erase(std::size_t position) {
    std::copy(begin() + position + 1, end(), begin() + position);
    --size_;
  }
  void resize(std::size_t count) {
    if (count > N) too_many(count);
    for (std::size_t i = size_; i < count; ++i) values_[i] = T{};
    size_ = static_cast<std::uint32_t>(count);
  }
  void clear() { size_ = 0; }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  static constexpr std::size_t capacity() { return N; }

  T& operator[](std::size_t i) { return values_[i]; }
  const T& operator[](std::size_t i) const { return values_[i]; }
  T& back() { return values_[size_ - 1]; }
  const T& back() const { return values_[size_ - 1]; }

  const T* data() const { return values_.data(); }
  iterator begin() { return values_.data(); }
  iterator end() { return values_.data() + size_; }
  const_iterator begin() const { return values_.data(); }
  const_iterator end() const { return values_.data() + size_; }

  operator std::span<const T>() const { return {values_.data(), size_}; }

  friend bool operator==(const FixedVector& a, const FixedVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  [[noreturn]] static void too_many(std::size_t count) {
    throw ValueError("[FixedVector] " + std::to_string(count) + " values where at most " +
                     std::to_string(N) +
                     " fit: tensors have at most 16 dimensions, meshes at most 8 axes");
  }

  std::uint32_t size_ = 0;
  std::array<T, N> values_{};
};

}  // namespace intarsia

// Which members of a group still need it, as they tell each other in the store.
#pragma once

#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

/// A group is made by all members, and closed when all have given it up. Then it can be made again:
/// it has the next number, and nothing in common with the one before. Each function costs one or
/// two round trips to the store, more only where members come at the same time.
class GroupUse {
 public:
  GroupUse(c10::intrusive_ptr<c10d::Store> store, const std::string& name, std::int64_t size,
           std::int64_t rank);

  /// The number of the group that this rank shall take part in now.
  std::int64_t begin();
  /// Says that this rank does not need the group. Whether now no member does.
  bool give_up();
  /// Whether no member needs it. REQUIRES: this rank has given it up.
  bool is_over();
  /// Takes back that it was given up. False: it is over.
  bool take_back();

 private:
  struct State {
    std::int64_t number = 0;
    std::int64_t idle = 0;     // members that have given it up
    std::int64_t writer = -1;  // so that no two ranks write the same text
    std::string text() const;
  };
  State look();
  bool swap(const State& seen, State next);
  bool is_over(const State& now) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
  std::int64_t size_;
  std::int64_t rank_;
  std::int64_t number_ = 0;
};

}  // namespace intarsia

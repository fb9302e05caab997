#include "world/session/group_use.h"

#include <sstream>
#include <vector>

#include "base/text.h"

namespace intarsia {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::string GroupUse::State::text() const { return concat(number, ' ', idle, ' ', writer); }

GroupUse::GroupUse(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                   std::int64_t size, std::int64_t rank)
    : store_(std::move(store)), key_(concat("intarsia/use/", name)), size_(size), rank_(rank) {}

std::int64_t GroupUse::begin() {
  while (true) {
    const State now = look();
    number_ = now.idle < size_ ? now.number : now.number + 1;
    if (number_ == now.number || swap(now, {number_, 0})) return number_;
  }
}

bool GroupUse::give_up() {
  while (true) {
    const State now = look();
    if (swap(now, {now.number, now.idle + 1})) return now.idle + 1 == size_;
  }
}

bool GroupUse::is_over() { return is_over(look()); }

bool GroupUse::take_back() {
  while (true) {
    const State now = look();
    if (is_over(now)) return false;
    if (swap(now, {now.number, now.idle - 1})) return true;
  }
}

bool GroupUse::is_over(const State& now) const {
  return now.number != number_ || now.idle == size_;
}

GroupUse::State GroupUse::look() {
  // Where nothing is written yet, this writes the beginning.
  const Bytes found = store_->compareSet(key_, {}, bytes_of(State{}.text()));
  std::istringstream in(std::string(found.begin(), found.end()));
  State now;
  in >> now.number >> now.idle >> now.writer;
  return now;
}

bool GroupUse::swap(const State& seen, State next) {
  next.writer = rank_;
  const Bytes wanted = bytes_of(next.text());
  return store_->compareSet(key_, bytes_of(seen.text()), wanted) == wanted;
}

}  // namespace intarsia

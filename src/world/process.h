// What a process remembers of its worlds, and whether it is a fork of the one that made them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

class World;

/// How often the process that this one descends from was forked since the library was loaded. What
/// was made under another count belongs to a parent, with its connections and threads: it may be
/// neither used nor destroyed here.
std::uint32_t forks();

/// Refuses the use of what a parent made.
[[noreturn]] void fail_in_fork(std::string_view what);

/// Worlds that are alive: a process that exits with an open Gloo group aborts. A fork begins with
/// none.
class LiveWorlds {
 public:
  static LiveWorlds& instance();

  void add(World* world);
  void remove(World* world);

  /// A rank's store at an address, which is kept until the process exits: a world that is made
  /// after another was closed meets at the same one.
  c10::intrusive_ptr<c10d::Store> store(
      const std::string& key, const std::function<c10::intrusive_ptr<c10d::Store>()>& make);

  /// How often this was asked before for the same key.
  int count(const std::string& key);

 private:
  void close_all();

  std::mutex mutex_;
  bool registered_ = false;
  std::set<World*> worlds_;
  std::map<std::string, c10::intrusive_ptr<c10d::Store>> stores_;
  std::map<std::string, int> counts_;
};

}  // namespace intarsia

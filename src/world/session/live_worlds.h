// What a process remembers of its worlds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

class World;

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

#include "intarsia/in_process.h"

#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/transport/in_process_backend.h"

namespace intarsia {
namespace {

/// The hubs of all groups, each made by whichever rank comes first.
class Hubs {
 public:
  std::shared_ptr<Hub> hub(const std::string& name, const std::vector<std::int64_t>& ranks) {
    const std::scoped_lock lock(mutex_);
    auto& found = hubs_[name];
    if (!found) {
      found = std::make_shared<Hub>(name, ranks);
      if (!error_.empty()) found->abort(error_);
    }
    return found;
  }

  /// Remembers the first error, and ends what others wait for.
  void abort(std::int64_t rank, std::exception_ptr error, const std::string& text) {
    const std::scoped_lock lock(mutex_);
    if (first_) return;
    first_ = std::move(error);
    error_ = concat("[World] rank ", rank, " ended with an error: ", text);
    for (auto& [name, hub] : hubs_) hub->abort(error_);
  }

  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Hub>> hubs_;
  std::exception_ptr first_;
  std::string error_;
};

}  // namespace

void run_in_process(int ranks, const std::function<void(World&)>& body,
                    const InProcessOptions& options) {
  if (ranks < 1) fail<ValueError>("run_in_process", ranks, " ranks were asked for; at least 1");
  Hubs hubs;
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  const auto start = [&](int rank) {
    threads.emplace_back([&, rank] {
      try {
        WorldParts parts;
        parts.shares_process = true;
        parts.hosted = {rank};
        parts.size = ranks;
        parts.local_rank = rank;
        parts.store = store;
        parts.timeout = options.timeout;
        parts.ledger_entries = options.ledger_entries;
        parts.make_backend =
            [&](const std::string& name, int index,
                const std::vector<std::int64_t>& members) -> c10::intrusive_ptr<c10d::Backend> {
          return c10::make_intrusive<InProcessBackend>(hubs.hub(name, members), index, options);
        };
        body(*World::assemble(std::move(parts)));
      } catch (const std::exception& error) {
        hubs.abort(rank, std::current_exception(), error.what());
      } catch (...) {
        hubs.abort(rank, std::current_exception(), "an exception that is no std::exception");
      }
    });
  };
  try {
    for (int rank = 0; rank < ranks; ++rank) start(rank);
  } catch (const std::exception& error) {  // the system has no more threads
    hubs.abort(static_cast<std::int64_t>(threads.size()), std::current_exception(), error.what());
  }
  for (std::thread& t : threads) t.join();
  hubs.rethrow();
}

}  // namespace intarsia

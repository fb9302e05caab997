#include "world/session/meeting.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/session/live_worlds.h"
#include "world/transport/error_text.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Bytes = std::vector<std::uint8_t>;

// ---- the store ----------------------------------------------------------------------------------

/// A socket that listens at one address of this machine. Unset where the name means none of its
/// own, as behind a gateway: then every address must do.
std::optional<int> listen_at(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    const int number = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (number < 0) continue;
    const int yes = 1;
    ::setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (::bind(number, at->ai_addr, at->ai_addrlen) == 0 && ::listen(number, SOMAXCONN) == 0) {
      return number;
    }
    const int reason = errno;
    ::close(number);
    if (reason == EADDRINUSE || reason == EACCES) {
      fail<WorldError>("World", std::strerror(reason));
    }
  }
  return std::nullopt;
}

/// What `make` gives, or an error if that takes longer than `limit`: c10d waits without limit for
/// the first answer of whoever listens at a port.
StorePtr within(milliseconds limit, const std::function<StorePtr()>& make) {
  auto made = std::make_shared<std::promise<StorePtr>>();
  std::future<StorePtr> store = made->get_future();
  std::thread([made, make] {
    try {
      made->set_value(make());
    } catch (...) {
      made->set_exception(std::current_exception());
    }
  }).detach();
  if (store.wait_for(limit) == std::future_status::timeout) {
    fail<WorldError>("World",
                     "something listens there, and does not answer as a store; is the "
                     "port that of another program?");
  }
  return store.get();
}

StorePtr open_store(const Rendezvous& r, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(r.port);
  options.isServer = r.rank == 0 && r.rank0_serves;
  options.numWorkers = static_cast<std::size_t>(r.size);
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) options.masterListenFd = listen_at(r.address, r.port);
  constexpr milliseconds kForItsOwnWords{1000};
  return within(timeout + kForItsOwnWords, [options, address = r.address]() -> StorePtr {
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  });
}

// ---- the register -------------------------------------------------------------------------------

constexpr const char* kFirst = "intarsia/register/first";      // how the first to come says it is
constexpr const char* kCame = "intarsia/register/came";        // how many came, and may
constexpr const char* kVerdict = "intarsia/register/verdict";  // ends the waiting of all
constexpr const char* kRead = "intarsia/register/read";        // how many of these have read it
constexpr const char* kFine = "fine";

std::string key_of(std::int64_t rank) { return concat("intarsia/register/", rank); }

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string words_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

std::string card_of(const Attendance& a) {
  return concat(a.rank, ' ', a.size, ' ', a.process, ' ', a.backend, ' ', a.host);
}

Attendance parse(const std::string& text) {
  std::istringstream in(text);
  Attendance a;
  in >> a.rank >> a.size >> a.process >> a.backend >> a.host;
  return a;
}

/// What two processes contradict each other in; empty: nothing.
std::string contradiction(const Attendance& one, const Attendance& other) {
  if (one.size != other.size) {
    return concat(one.name(), " was started in a world of ", one.size, ", and ", other.name(),
                  " in one of ", other.size,
                  "; give all processes the same WORLD_SIZE, or another MASTER_PORT to each job");
  }
  if (one.backend != other.backend) {
    return concat(one.name(), " uses the backend ", one.backend, ", and ", other.name(), " uses ",
                  other.backend, "; give all the same WorldOptions::backend and INTARSIA_BACKEND");
  }
  return {};
}

/// Enters this process, and says what is wrong with that.
std::string enter(c10d::Store& store, const Attendance& me) {
  const Bytes card = bytes_of(card_of(me));
  const Attendance same = parse(words_of(store.compareSet(key_of(me.rank), {}, card)));
  if (same.process != me.process || same.host != me.host) {
    return concat("two processes were started as rank ", me.rank, ": process ", same.process,
                  " on host ", same.host, ", and process ", me.process, " on host ", me.host,
                  "; give each its own RANK, or another MASTER_PORT to each job");
  }
  const Attendance first = parse(words_of(store.compareSet(kFirst, {}, card)));
  return contradiction(first, me);
}

/// The ranks that have not come, in words.
std::string missing(c10d::Store& store, const Attendance& me) {
  std::vector<std::int64_t> absent;
  for (std::int64_t rank = 0; rank < me.size; ++rank) {
    if (!store.check({key_of(rank)})) absent.push_back(rank);
  }
  constexpr std::size_t kNamed = 16;
  const bool more = absent.size() > kNamed;
  const std::size_t count = absent.size();
  if (more) absent.resize(kNamed);
  return concat(count == 1 ? "rank " : "ranks ", join(absent, ", "),
                more ? concat(" and ", count - kNamed, " more") : "", " of ", me.size);
}

/// Gives the others the time to read a verdict before the store ends with this process.
void let_read(c10d::Store& store) {
  constexpr milliseconds kLimit{2000};
  constexpr milliseconds kBreath{5};
  const std::int64_t came = store.add(kCame, 0);
  const auto begin = std::chrono::steady_clock::now();
  while (store.add(kRead, 0) < came && std::chrono::steady_clock::now() - begin < kLimit) {
    std::this_thread::sleep_for(kBreath);
  }
}

/// Tells those who still wait, whose timeouts end a moment later.
void tell(c10d::Store& store, const std::string& verdict, bool serves) {
  try {
    (void)store.compareSet(kVerdict, {}, bytes_of(verdict));
    (void)store.add(kRead, 1);
    if (serves) let_read(store);
  } catch (const std::exception&) {
    // The store is gone, and with it the others.
  }
}

}  // namespace

StorePtr meet(const Rendezvous& r, milliseconds timeout) {
  try {
    // Keys of the n-th world of a job are kept apart from those of the others.
    const std::string key = concat(r.address, ':', r.port, '#', r.rank);
    const auto store = LiveWorlds::instance().store(key, [&] { return open_store(r, timeout); });
    const int nth = LiveWorlds::instance().count(key);
    return c10::make_intrusive<c10d::PrefixStore>(concat("intarsia/", r.attempt, '/', nth), store);
  } catch (const std::exception& error) {
    fail<WorldError>(
        "World", r, ": ",
        r.rank == 0 && r.rank0_serves
            ? "could not listen there; is the port free, and is this the machine that "
              "MASTER_ADDR names? "
            : "could not reach the store; has rank 0 started, and can this machine reach "
              "that address? ",
        "(", text_of(error), ")");
  }
}

Attendance Attendance::of(const Rendezvous& r, std::string backend) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {r.rank, r.size, std::move(backend), host.data(), ::getpid()};
}

std::string Attendance::name() const {
  return concat("rank ", rank, " (process ", process, " on host ", host, ")");
}

void register_rank(c10d::Store& store, const Attendance& me, bool serves, milliseconds timeout) {
  std::string verdict;
  try {
    verdict = enter(store, me);
    if (!verdict.empty()) {  // also where all had met before this one came
      (void)store.compareSet(kVerdict, {}, bytes_of(verdict));
    } else {
      const bool is_last = store.add(kCame, 1) == me.size;
      if (is_last) (void)store.compareSet(kVerdict, {}, bytes_of(kFine));
      store.wait({kVerdict}, timeout);
      verdict = words_of(store.get(kVerdict));
      if (verdict == kFine) return;
      (void)store.add(kRead, 1);
    }
    if (serves) let_read(store);
  } catch (const std::exception& error) {
    std::string absent;
    try {
      absent = missing(store, me);
    } catch (const std::exception&) {
      fail<WorldError>("World", me.name(),
                       " lost the store while it waited for the others; has "
                       "the process of rank 0 ended? (",
                       text_of(error), ")");
    }
    verdict = concat(me.name(), " waited ", timeout.count(), " ms for ", absent,
                     ", which did not come; were they started, and with the same MASTER_ADDR and "
                     "MASTER_PORT?");
    tell(store, verdict, serves);
  }
  fail<WorldError>("World", verdict);
}

}  // namespace intarsia

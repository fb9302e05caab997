#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/symmetric_memory.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
constexpr std::string_view kWhere = "SymmetricMemory";
constexpr std::string_view kWayOut = "; use the backend gloo, which needs no shared memory";

/// A file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

/// A counter on a cache line of its own. Waiters sleep on its lower half.
struct alignas(64) Counter {
  std::atomic<std::uint64_t> value;
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr int kMapped = SymmetricMemory::kSignals;  // set once the rank has mapped all others

/// What stands before a rank's memory, in pages that start as zeros.
struct Head {
  std::uint64_t token;  // says that this is the memory that the rank told of
  std::atomic<std::uint32_t> closed;
  std::array<char, 1024> why;
  std::array<Counter, SymmetricMemory::kSignals + 1> counters;
};
static_assert(sizeof(Head) <= kBytesBeforeMemory);

// Not the private kind of futex, which std::atomic::wait uses: the word is in several processes.
long futex(const Counter& counter, int operation, std::uint32_t value, const timespec* limit) {
  static_assert(std::endian::native == std::endian::little);
  return ::syscall(SYS_futex, &counter.value, operation, value, limit, nullptr, 0);
}

/// A breath between two looks at a counter.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wake(const Counter& counter) {
  if (counter.sleepers.load() > 0) futex(counter, FUTEX_WAKE, INT_MAX, nullptr);
}

/// Sleeps until the counter changes from `seen`, at most for `limit`.
void sleep_on(Counter& counter, std::uint64_t seen, SymmetricMemory::Clock::duration limit) {
  const auto ns = std::chrono::nanoseconds(limit).count();
  const timespec time{static_cast<time_t>(ns / 1'000'000'000), ns % 1'000'000'000};
  ++counter.sleepers;
  futex(counter, FUTEX_WAIT, static_cast<std::uint32_t>(seen), &time);
  --counter.sleepers;
}

/// What a rank tells the others: which host it is on, and how to reach its memory.
struct Card {
  std::string host;
  pid_t process = 0;
  int descriptor = -1;
  std::uint64_t token = 0;
  std::size_t bytes = 0;

  std::string text() const {
    return concat(process, ' ', descriptor, ' ', token, ' ', bytes, ' ', host);
  }
  static Card parse(const std::vector<std::uint8_t>& text) {
    std::istringstream in(std::string(text.begin(), text.end()));
    Card card;
    in >> card.process >> card.descriptor >> card.token >> card.bytes >> card.host;
    return card;
  }
};

class HostMemory final : public SymmetricMemory {
 public:
  HostMemory(int rank, std::size_t bytes, Descriptor file, std::uint64_t token,
             std::vector<std::int64_t> names)
      : rank_(rank), bytes_(bytes), file_(std::move(file)), names_(std::move(names)) {
    peers_.resize(names_.size());
    map(rank_, file_);
    head(rank_).token = token;
  }

  ~HostMemory() override {
    close("its group was closed");
    for (const Peer& peer : peers_) {
      if (peer.head != nullptr) ::munmap(peer.head, kBytesBeforeMemory + bytes_);
    }
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::size_t bytes() const override { return bytes_; }
  std::byte* at(int rank) const override {
    return reinterpret_cast<std::byte*>(peer(rank).head) + kBytesBeforeMemory;
  }

  void reserve(std::size_t begin, std::size_t bytes) override {
    if (begin > bytes_ || bytes > bytes_ - begin) {
      fail<ValueError>(kWhere, bytes, " bytes at ", begin, " are not within the ", bytes_,
                       " bytes of a rank");
    }
    allocate(file_, begin + kBytesBeforeMemory, bytes);
  }

  void signal(int slot, std::uint64_t value) override {
    Counter& mine = head(rank_).counters[static_cast<std::size_t>(slot)];
    mine.value.store(value);
    wake(mine);
  }

  std::uint64_t value(int rank, int slot) const override {
    return head(rank).counters[static_cast<std::size_t>(slot)].value.load(
        std::memory_order_acquire);
  }

  void wait(int rank, int slot, std::uint64_t at_least, Clock::time_point deadline) override {
    for (int i = 0; i < kSpins; ++i) {
      if (value(rank, slot) >= at_least) return;
      pause();
    }
    const auto begin = Clock::now();
    while (true) {
      // Asked before the value, so that what a rank signalled before it went is not lost.
      const std::string gone = why_gone(rank);
      const std::uint64_t seen = value(rank, slot);
      if (seen >= at_least) return;
      if (!gone.empty()) fail<WorldError>(kWhere, gone);
      const auto now = Clock::now();
      if (now >= deadline) did_not_come(slot, at_least, now - begin);
      sleep_on(head(rank).counters[static_cast<std::size_t>(slot)], seen,
               std::min<Clock::duration>(deadline - now, kSlice));
    }
  }

  std::string why_gone(int rank) const override {
    const Head& theirs = head(rank);
    const Head& mine = head(rank_);
    if (mine.closed.load() != 0) return concat("this rank has closed: ", mine.why.data());
    if (theirs.closed.load() != 0) {
      return concat("rank ", name(rank), " has closed: ", theirs.why.data());
    }
    if (has_died(rank)) {
      return concat("rank ", name(rank), " (process ", peer(rank).process, ") has died");
    }
    return {};
  }

  bool has_died(int rank) const override {
    pollfd life{peer(rank).life.number(), POLLIN, 0};
    return ::poll(&life, 1, 0) > 0 && head(rank).closed.load() == 0;
  }

  void close(std::string_view why) override {
    Head& mine = head(rank_);
    if (closing_.exchange(true)) return;
    why.copy(mine.why.data(), mine.why.size() - 1);
    mine.closed.store(1);
    for (const Peer& peer : peers_) {  // those who wait for this rank, and its own thread
      if (peer.head != nullptr) std::for_each_n(peer.head->counters.begin(), kMapped + 1, wake);
    }
  }

  /// Maps the memory of another rank.
  void reach(int rank, const Card& card) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    peer.process = card.process;
    peer.life = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, card.process, 0)));
    const std::string path = concat("/proc/", card.process, "/fd/", card.descriptor);
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (peer.life.number() < 0 || file.number() < 0) {
      fail<WorldError>(kWhere, "the memory of rank ", name(rank), " (process ", card.process,
                       ") cannot be reached: ", std::strerror(errno), kWayOut);
    }
    map(rank, file);
    if (head(rank).token != card.token) {
      fail<WorldError>(kWhere, "rank ", name(rank), " (process ", card.process,
                       ") is no longer there");
    }
  }

  std::int64_t name(int rank) const { return names_[static_cast<std::size_t>(rank)]; }

  /// Gives a part of a file its memory now: where there is none, writing to it would be the end of
  /// the process.
  static void allocate(const Descriptor& file, std::size_t begin, std::size_t bytes) {
    if (bytes == 0 ||
        ::fallocate(file.number(), 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0) {
      return;
    }
    fail<WorldError>(kWhere, bytes,
                     " bytes of shared memory could not be had: ", std::strerror(errno),
                     "; free some", kWayOut);
  }

 private:
  struct Peer {
    Head* head = nullptr;
    pid_t process = 0;
    Descriptor life;  // readable when the process has ended
  };
  // Machines often have fewer cores than ranks: who spins keeps the other from coming.
  static constexpr int kSpins = 100;
  static constexpr milliseconds kSlice{100};

  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  Head& head(int rank) const { return *peer(rank).head; }

  void map(int rank, const Descriptor& file) {
    void* memory = ::mmap(nullptr, kBytesBeforeMemory + bytes_, PROT_READ | PROT_WRITE, MAP_SHARED,
                          file.number(), 0);
    if (memory == MAP_FAILED) {
      fail<WorldError>(kWhere, bytes_, " bytes of rank ", name(rank),
                       " could not be mapped: ", std::strerror(errno), kWayOut);
    }
    peers_[static_cast<std::size_t>(rank)].head = static_cast<Head*>(memory);
  }

  [[noreturn]] void did_not_come(int slot, std::uint64_t at_least, Clock::duration waited) const {
    std::vector<std::int64_t> absent;
    for (int r = 0; r < size(); ++r) {
      if (r != rank_ && value(r, slot) < at_least) absent.push_back(name(r));
    }
    fail<WorldError>(kWhere, "waited ", std::chrono::duration_cast<milliseconds>(waited).count(),
                     " ms for rank ", join(absent, ", "), ", which did not come");
  }

  int rank_;
  std::size_t bytes_;
  Descriptor file_;
  std::vector<std::int64_t> names_;
  std::vector<Peer> peers_;
  std::atomic<bool> closing_ = false;
};

std::vector<std::int64_t> names_of(const HostMemoryOptions& options, int size) {
  if (options.names.size() == static_cast<std::size_t>(size)) return options.names;
  if (!options.names.empty()) {
    fail<ValueError>(kWhere, options.names.size(), " names were given for ", size, " ranks");
  }
  std::vector<std::int64_t> names;
  for (int r = 0; r < size; ++r) names.push_back(r);
  return names;
}

/// The file that is the memory of a rank. One that is there already may be in use, and is left to
/// its users without its name.
Descriptor open_file(const HostMemoryOptions& options) {
  if (options.file.empty()) return Descriptor(::memfd_create(options.label.c_str(), MFD_CLOEXEC));
  ::unlink(options.file.c_str());
  constexpr int kOwner = 0600;
  Descriptor file(::open(options.file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwner));
  if (file.number() >= 0) return file;
  fail<WorldError>(kWhere, options.file, " cannot be made: ", std::strerror(errno));
}

std::string key_of(int rank) { return concat("memory/", rank); }

Card card_of(c10d::Store& store, int rank, std::int64_t name, milliseconds timeout) {
  try {
    store.wait({key_of(rank)}, timeout);
    return Card::parse(store.get(key_of(rank)));
  } catch (const std::exception& error) {
    fail<WorldError>(kWhere, "waited ", timeout.count(), " ms for rank ", name,
                     ", which did not come to share memory (", error.what(), ")");
  }
}

}  // namespace

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> processes{};
  const auto length = ::readlink("/proc/self/ns/pid", processes.data(), processes.size());
  if (boot.empty() || length <= 0) {
    fail<UnsupportedError>(kWhere, "/proc does not tell which host this is", kWayOut);
  }
  return concat(boot, '/', std::string_view(processes.data(), static_cast<std::size_t>(length)),
                '/', ::geteuid());
}

std::unique_ptr<SymmetricMemory> make_host_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size, std::size_t bytes,
                                                  const HostMemoryOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    fail<ValueError>(kWhere, "there is no rank ", rank, " in a group of ", size);
  }
  const auto deadline = SymmetricMemory::Clock::now() + options.timeout;
  const std::vector<std::int64_t> names = names_of(options, size);
  Descriptor file = open_file(options);
  if (file.number() < 0 ||
      ::ftruncate(file.number(), static_cast<off_t>(kBytesBeforeMemory + bytes)) != 0) {
    fail<WorldError>(kWhere, bytes,
                     " bytes of shared memory cannot be made: ", std::strerror(errno), kWayOut);
  }
  HostMemory::allocate(file, 0, kBytesBeforeMemory);
  std::random_device random;
  Card mine{options.host.empty() ? host_identity() : options.host, ::getpid(), file.number(),
            std::uint64_t{random()} << 32 | random(), bytes};
  auto memory = std::make_unique<HostMemory>(rank, bytes, std::move(file), mine.token, names);

  const std::string text = mine.text();
  store->set(key_of(rank), std::vector<std::uint8_t>(text.begin(), text.end()));
  std::vector<Card> cards;
  for (int r = 0; r < size; ++r) {
    cards.push_back(card_of(*store, r, memory->name(r), options.timeout));
    if (cards.back().bytes == bytes) continue;
    fail<ValueError>(kWhere, "rank ", memory->name(rank), " asks for ", bytes, " bytes, and rank ",
                     memory->name(r), " for ", cards.back().bytes, "; all must ask for the same");
  }
  for (const Card& card : cards) {
    if (card.host != mine.host) return nullptr;
  }
  for (int r = 0; r < size; ++r) {
    if (r != rank) memory->reach(r, cards[static_cast<std::size_t>(r)]);
  }
  // Nobody leaves before all have what they need of it.
  memory->signal(kMapped, 1);
  for (int r = 0; r < size; ++r) {
    if (r != rank) memory->wait(r, kMapped, 1, deadline);
  }
  return memory;
}

}  // namespace intarsia

#include "tools/common/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

#include "base/text.h"

namespace intarsia::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Both ends of a pipe; closed when it goes.
class Pipe {
 public:
  Pipe() { open_ = pipe2(ends_.data(), O_CLOEXEC) == 0; }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  bool is_open() const { return open_; }
  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  void close_writer() { close_end(1); }

 private:
  void close_end(std::size_t end) {
    if (ends_[end] >= 0) close(ends_[end]);
    ends_[end] = -1;
  }

  std::array<int, 2> ends_{-1, -1};
  bool open_ = false;
};

/// Starts the program words[0] with its outputs going to the pipes; returns an error number.
int start(std::vector<std::string>& words, const Pipe& out, const Pipe& err, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.writer(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.writer(), STDERR_FILENO);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int error = posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max(left, milliseconds(0)).count());
}

/// Reads both pipes until the child has closed them or the time is up.
void collect(const Pipe& out, const Pipe& err, Clock::time_point deadline, ChildResult& result) {
  std::array<pollfd, 2> streams{{{out.reader(), POLLIN, 0}, {err.reader(), POLLIN, 0}}};
  const std::array<std::string*, 2> texts{&result.out, &result.err};
  const auto all_closed = [&] {
    return std::ranges::all_of(streams, [](const pollfd& stream) { return stream.fd < 0; });
  };
  while (!all_closed() && Clock::now() < deadline) {
    if (poll(streams.data(), streams.size(), milliseconds_until(deadline)) <= 0) continue;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t got = read(streams[i].fd, buffer.data(), buffer.size());
      if (got > 0) texts[i]->append(buffer.data(), static_cast<std::size_t>(got));
      if (got == 0 || (got < 0 && errno != EINTR)) streams[i].fd = -1;  // poll skips it from now on
    }
  }
}

/// The child's status, once it has ended; nothing when the time is up.
std::optional<int> wait_for(pid_t pid, Clock::time_point deadline) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) != pid) {
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return status;
}

void kill_and_reap(pid_t pid) {
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace

ChildResult run_child(const std::filesystem::path& program, std::vector<std::string> arguments,
                      std::chrono::seconds limit) {
  arguments.insert(arguments.begin(), program.string());
  const auto deadline = Clock::now() + limit;
  ChildResult result;
  Pipe out;
  Pipe err;
  pid_t pid = 0;
  const int error = out.is_open() && err.is_open() ? start(arguments, out, err, pid) : errno;
  if (error != 0) {
    result.problem = concat("could not be started: ", std::strerror(error));
    return result;
  }
  out.close_writer();
  err.close_writer();
  collect(out, err, deadline, result);
  const std::optional<int> status = wait_for(pid, deadline);
  if (!status) {
    kill_and_reap(pid);
    result.problem = concat("did not finish within ", limit.count(), " s");
  } else if (WIFSIGNALED(*status)) {
    result.problem = concat("was ended by signal ", WTERMSIG(*status));
  } else if (WEXITSTATUS(*status) != 0) {
    result.problem = concat("exited with code ", WEXITSTATUS(*status));
  }
  return result;
}

}  // namespace intarsia::tools

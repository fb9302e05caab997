#include "world/guard/report.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/symmetric_memory.h"
#include "intarsia/watch.h"

namespace intarsia {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kWhere = "describe_job";

std::int64_t seconds_between(std::int64_t begin, std::int64_t end) {
  return std::max<std::int64_t>(end - begin, 0) / 1'000'000'000;
}

/// What a rank does beside its calls: `; it is in data since 12 s, at loader.py:17`
std::string doing(const Board& board, std::int64_t now) {
  const std::string phase = board.times().phase();
  const std::string line = board.stayed_at() > board.last_news() ? board.stay() : std::string();
  std::string text;
  if (!phase.empty()) {
    text = concat(" in ", phase, " since ", seconds_between(board.times().since(), now), " s");
  }
  if (!line.empty()) text += concat(text.empty() ? "" : ",", " at ", line);
  return text.empty() ? text : concat("; it is", text);
}

/// Ranks that have the same history.
struct Camp {
  std::vector<std::int64_t> ranks;
  std::string words;
  std::string line;
};

/// Who agrees with whom about a call, the most first. Ranks that did not make it are left out.
std::vector<Camp> camps_in(const NotesByRank& notes, std::uint64_t number) {
  std::map<std::uint64_t, Camp> camps;
  for (const auto& [rank, of_rank] : notes) {
    const Board::Group* group = of_rank.group;
    const auto history = group == nullptr ? std::nullopt : group->history(number);
    if (!history) continue;
    Camp& camp = camps[*history];
    camp.ranks.push_back(rank);
    if (camp.words.empty()) camp.words = of_rank.board->words(*group, number);
    if (camp.line.empty()) camp.line = group->line(number);
  }
  std::vector<Camp> sorted;
  for (auto& [history, camp] : camps) sorted.push_back(std::move(camp));
  std::sort(sorted.begin(), sorted.end(), [](const Camp& a, const Camp& b) {
    return a.ranks.size() != b.ranks.size() ? a.ranks.size() > b.ranks.size() : a.ranks < b.ranks;
  });
  return sorted;
}

// ---- boards of other processes ------------------------------------------------------------------

/// A board that another process writes, or has written. Null if a file is none of this build.
std::shared_ptr<const Board> open_board(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  struct stat status {};
  const std::size_t bytes = kBytesBeforeMemory + sizeof(Board);
  void* memory = MAP_FAILED;
  if (::fstat(descriptor, &status) == 0 && status.st_size == static_cast<off_t>(bytes)) {
    memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  }
  ::close(descriptor);
  if (memory == MAP_FAILED) return nullptr;
  const auto* board =
      reinterpret_cast<const Board*>(static_cast<const std::byte*>(memory) + kBytesBeforeMemory);
  std::shared_ptr<const Board> held(board,
                                    [memory, bytes](const Board*) { ::munmap(memory, bytes); });
  return board->is_signed() ? held : nullptr;
}

using ReadBoards = std::vector<std::shared_ptr<const Board>>;

/// The boards among the open files of a process; none of processes that may not be looked at.
void add_boards_of(const fs::path& process, ReadBoards& boards) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(process / "fd", error)) {
    const std::string name = fs::read_symlink(file.path(), error).string();
    if (name.find("memfd:intarsia-guard") == std::string::npos && !name.ends_with(".board")) {
      continue;
    }
    if (auto board = open_board(file.path())) boards.push_back(std::move(board));
  }
}

/// The boards of all processes that are in a job with this one; unset: of all jobs.
ReadBoards boards_of_job(std::optional<std::int64_t> process) {
  ReadBoards all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (std::all_of(name.begin(), name.end(), ::isdigit)) add_boards_of(entry.path(), all);
  }
  if (!process) return all;
  ReadBoards own;
  add_boards_of(fs::path("/proc") / std::to_string(*process), own);
  std::erase_if(all, [&](const auto& board) {
    return std::none_of(own.begin(), own.end(),
                        [&](const auto& of_process) { return of_process->job() == board->job(); });
  });
  return all;
}

ReadBoards boards_in(const fs::path& folder) {
  ReadBoards boards;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    if (file.path().extension() != ".board") continue;
    if (auto board = open_board(file.path())) boards.push_back(std::move(board));
  }
  return boards;
}

/// `group [dp=4]: ranks 0, 1, 2 are at 183 calls, rank 3 at 182`; empty where all are equally far.
std::string unequal_groups(const ReadBoards& boards) {
  std::map<std::string, std::map<std::uint64_t, std::vector<std::int64_t>>> groups;
  for (const auto& board : boards) {
    for (std::size_t i = 0; i < Board::kGroups; ++i) {
      const Board::Group* group = board->group_at(i);
      if (group != nullptr) groups[group->name()][group->calls()].push_back(board->rank());
    }
  }
  std::string text;
  for (const auto& [name, by_calls] : groups) {
    if (by_calls.size() < 2) continue;
    text += concat("group ", name, ":");
    for (auto it = by_calls.rbegin(); it != by_calls.rend(); ++it) {
      text += concat(it == by_calls.rbegin() ? " " : ", ", ranks_text(it->second),
                     it->second.size() == 1 ? " has" : " have", " made ", it->first,
                     it->first == 1 ? " call" : " calls");
    }
    text += '\n';
  }
  return text;
}

std::string describe(ReadBoards boards, std::int64_t now) {
  std::sort(boards.begin(), boards.end(), [](const auto& a, const auto& b) {
    return std::pair(a->job(), a->rank()) < std::pair(b->job(), b->rank());
  });
  std::string text;
  for (const auto& board : boards) {
    const std::string trouble = board->trouble();
    const std::string error = board->error();
    text += concat("rank ", board->rank(), " of ", board->size(), " (process ", board->process(),
                   "): ", last_call_of(*board, now),
                   error.empty() ? "" : "; its last error was: ", error,
                   trouble.empty() ? "" : "; it was told: ", trouble, '\n');
  }
  return text + unequal_groups(boards);
}

}  // namespace

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  return concat(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "));
}

std::string disagreement_text(const NotesByRank& notes, std::uint64_t number,
                              std::string_view group) {
  const std::vector<Camp> camps = camps_in(notes, number);
  const bool alike = std::all_of(camps.begin(), camps.end(),
                                 [&](const Camp& camp) { return camp.words == camps[0].words; });
  std::string text = concat("ranks disagree about call #", number, " of group ", group,
                            alike ? ", or one long before it" : "", ":");
  for (const Camp& camp : camps) {
    text += concat(&camp == camps.data() ? " " : "; ", ranks_text(camp.ranks),
                   camp.ranks.size() == 1 ? " makes " : " make ",
                   camp.words.empty() ? "a call that is no longer known" : camp.words,
                   camp.line.empty() ? "" : " at ", camp.line);
  }
  return text +
         ". All ranks of a group must make the same calls in the same order, also those that read "
         "a value, such as item(): is something done on one rank only, or with other sizes there?";
}

std::string last_call_of(const Board& board, std::int64_t now) {
  const Board::Group* last = board.last();
  if (last == nullptr || last->calls() == 0) {
    return concat("it has made no call yet", doing(board, now));
  }
  const std::uint64_t number = last->calls() - 1;
  const std::string line = last->line(number);
  return concat("its last call was #", number, " of group ", last->name(), ", ",
                board.words(*last, number), line.empty() ? "" : " at ", line, ", ",
                seconds_between(last->since(), now), " s ago", doing(board, now));
}

std::string describe_job(std::optional<std::int64_t> process) {
  const ReadBoards boards = boards_of_job(process);
  if (boards.empty()) {
    fail<ValueError>(kWhere, process ? concat("process ", *process) : "no process",
                     process ? " has no" : " has a",
                     " guard that this process may read: is it a rank of this user, with "
                     "the same build of Intarsia, and has it met the others?");
  }
  return describe(boards, nanoseconds_now());
}

std::string describe_job(const std::string& folder) {
  const ReadBoards boards = boards_in(folder);
  if (boards.empty()) {
    fail<ValueError>(kWhere, "there are no boards of this build of Intarsia in ", folder,
                     "; ranks keep them in the folder that INTARSIA_GUARD_DIR names");
  }
  // They may have ended long ago: times count back from the last that is known.
  std::int64_t last = 0;
  for (const auto& board : boards) {
    last = std::max({last, board->last_news(), board->stayed_at()});
  }
  return describe(boards, last);
}

}  // namespace intarsia

// What a thread does around the time that it waits for other ranks.
#pragma once

#include <string>
#include <string_view>

namespace intarsia {

/// For interpreters. A lock that this thread may hold must not be kept while it waits, since
/// threads of a backend may want it too. `leave` is called before a wait, and what it returns is
/// passed to `come_back` afterwards. The Python package releases the interpreter's lock so.
struct AroundWaits {
  void* (*leave)() = nullptr;
  void (*come_back)(void* left) = nullptr;
  /// The line of the user's program that this thread runs, such as `train.py:88 in step`; empty
  /// where there is none. Asked for only when something takes long or goes wrong.
  std::string (*line)() = nullptr;
};

/// THREADS: once, before the first world is made.
void set_around_waits(AroundWaits functions);

/// What Phase (phase.h) does, for interpreters, which have scopes of their own.
void begin_phase(std::string_view name);
void end_phase();

/// Tells the other ranks of an error that the program of this process ends with, in its own words:
/// they quote it where they find this rank gone. Errors that C++ ends with are told without this.
void note_error(std::string_view error);

/// How long this process has made no call and begun no phase; 0 where no rank can ask. An
/// interpreter that sees it grow looks where the program is, and notes the line for the errors of
/// other ranks.
double quiet_seconds();
void note_stay(std::string_view line);

}  // namespace intarsia

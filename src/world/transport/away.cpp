#include "world/transport/away.h"

#include "intarsia/waiting.h"

namespace intarsia {
namespace {

AroundWaits g_around_waits;

}  // namespace

Away::Away() : left_(g_around_waits.leave != nullptr ? g_around_waits.leave() : nullptr) {}

Away::~Away() {
  if (g_around_waits.come_back != nullptr) g_around_waits.come_back(left_);
}

std::string current_line() {
  return g_around_waits.line != nullptr ? g_around_waits.line() : std::string();
}

void set_around_waits(AroundWaits functions) { g_around_waits = functions; }

}  // namespace intarsia

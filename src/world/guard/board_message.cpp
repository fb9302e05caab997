#include "world/guard/board_message.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace intarsia {
namespace {

using Json = nlohmann::json;

Json group_to_message(const Board& board, const Board::Group& group, std::uint64_t key,
                      std::int64_t now) {
  const std::uint64_t calls = group.calls();
  Json made = Json::array();
  const auto add = [&](std::uint64_t number) {
    const auto history = group.history(number);
    if (history) made.push_back({number, *history, board.words(group, number)});
  };
  const std::uint64_t recent = calls - std::min<std::uint64_t>(calls, Board::kCalls);
  const std::uint64_t marks = std::min<std::uint64_t>(recent / Board::kCalls, Board::kMarks);
  for (std::uint64_t k = marks; k > 0; --k) add((recent / Board::kCalls - k) * Board::kCalls);
  for (std::uint64_t number = recent; number < calls; ++number) add(number);
  return {{"key", key},
          {"name", group.name()},
          {"calls", made},
          {"line", calls == 0 ? "" : group.line(calls - 1)},
          {"ago", now - group.since()}};
}

void take_group(const Json& message, Board& copy, std::int64_t now) {
  std::size_t place = 0;
  const auto key = message.at("key").get<std::uint64_t>();
  Board::Group* group = copy.find(key, place) != nullptr ? &copy.at(place) : nullptr;
  if (group == nullptr) group = copy.add(key, message.at("name").get<std::string>());
  if (group == nullptr) return;
  for (const Json& call : message.at("calls")) {
    const auto number = call.at(0).get<std::uint64_t>();
    if (number < group->calls()) continue;
    copy.note(*group, number, call.at(1).get<std::uint64_t>(), call.at(2).get<std::string>());
  }
  copy.note_since(*group, now - message.at("ago").get<std::int64_t>());
  const auto line = message.at("line").get<std::string>();
  if (!line.empty()) copy.note_line(*group, group->calls() - 1, line);
}

}  // namespace

std::vector<std::uint8_t> to_message(const Board& board) {
  const std::int64_t now = nanoseconds_now();
  Json groups = Json::array();
  Json last;
  for (std::size_t place = 0; place < Board::kGroups; ++place) {
    const Board::Group* group = board.group_at(place);
    if (group == nullptr) continue;
    Json message = group_to_message(board, *group, board.key_at(place), now);
    // Noted last, it is the last of the copy too.
    if (group == board.last()) {
      last = std::move(message);
    } else {
      groups.push_back(std::move(message));
    }
  }
  if (!last.is_null()) groups.push_back(std::move(last));
  return Json::to_cbor({{"groups", groups},
                        {"trouble", board.trouble()},
                        {"error", board.error()},
                        {"stay", board.stay()},
                        {"stayed", now - board.stayed_at()},
                        {"phase", board.times().phase()},
                        {"phase_since", now - board.times().since()}});
}

void take_message(const std::vector<std::uint8_t>& bytes, Board& copy) {
  const Json message = Json::from_cbor(bytes);
  const std::int64_t now = nanoseconds_now();
  std::vector<std::uint64_t> keys;
  for (const Json& group : message.at("groups")) {
    keys.push_back(group.at("key").get<std::uint64_t>());
  }
  for (std::size_t place = 0; place < Board::kGroups; ++place) {
    const std::uint64_t key = copy.key_at(place);
    const bool is_over = key != 0 && std::find(keys.begin(), keys.end(), key) == keys.end();
    if (is_over) copy.remove(copy.at(place));
  }
  for (const Json& group : message.at("groups")) take_group(group, copy, now);
  const auto text = [&](const char* name) { return message.at(name).get<std::string>(); };
  const auto time = [&](const char* name) { return now - message.at(name).get<std::int64_t>(); };
  if (const std::string trouble = text("trouble"); !trouble.empty()) copy.tell(trouble);
  if (const std::string error = text("error"); !error.empty()) copy.note_error(error);
  if (const std::string stay = text("stay"); !stay.empty()) copy.note_stay(stay, time("stayed"));
  const std::string phase = text("phase");
  copy.times().note_phase(
      phase.empty() ? std::nullopt : std::optional(copy.times().place_of(phase)),
      time("phase_since"));
}

}  // namespace intarsia

#include "checkpoint/session/agree.h"

#include <exception>
#include <optional>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";

/// Why a rank, or rank 0 for all, could not go on.
struct Trouble {
  Failure::Kind kind = Failure::Kind::file;
  std::string text;

  [[noreturn]] void pass_on(std::string_view before) const {
    switch (kind) {
      case Failure::Kind::value:
        fail<ValueError>(kWhere, before, text);
      case Failure::Kind::unsupported:
        fail<UnsupportedError>(kWhere, before, text);
      case Failure::Kind::world:
        fail<WorldError>(kWhere, before, text);
      case Failure::Kind::file:
        break;
    }
    fail<FileError>(kWhere, before, text);
  }
};

/// What a rank says, and what rank 0 answers: a result, or why there is none.
Json attempt(const Work& work) {
  try {
    return {{"result", work()}};
  } catch (const std::exception& error) {
    const auto* failure = dynamic_cast<const Failure*>(&error);
    const auto kind = failure != nullptr ? failure->kind() : Failure::Kind::file;
    const std::string_view text = failure != nullptr ? failure->text() : error.what();
    return {{"trouble", without_function(text)}, {"kind", static_cast<int>(kind)}};
  }
}

/// A message of the system may be in any encoding.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<Trouble> trouble_in(const Json& answer) {
  const auto found = answer.find("trouble");
  if (found == answer.end()) return std::nullopt;
  return Trouble{static_cast<Failure::Kind>(answer["kind"].get<int>()), found->get<std::string>()};
}

/// What the ranks said, unless one of them failed: then an error that names it.
std::vector<Json> results_of(std::span<const std::string> said) {
  std::vector<Json> out;
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    Json answer = Json::parse(said[rank]);
    if (const auto trouble = trouble_in(answer)) trouble->pass_on(concat("rank ", rank, ": "));
    out.push_back(std::move(answer["result"]));
  }
  return out;
}

}  // namespace

std::string_view without_function(std::string_view text) {
  const std::size_t end = text.find("] ");
  return text.starts_with('[') && end != text.npos ? text.substr(end + 2) : text;
}

Json agree(Ranks& ranks, const Work& work, const Decide& decide,
           const std::function<std::string()>& before) {
  const std::string verdict =
      ranks.agree(text_of(attempt(work)), [&](std::span<const std::string> said) {
        return text_of(attempt([&] { return decide(results_of(said)); }));
      });
  const Json answer = Json::parse(verdict);
  if (const auto trouble = trouble_in(answer)) trouble->pass_on(before());
  return answer["result"];
}

}  // namespace intarsia::checkpoint

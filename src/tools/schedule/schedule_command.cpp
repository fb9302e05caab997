#include "tools/schedule/schedule_command.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/schedule.h"
#include "tools/common/arguments.h"

namespace intarsia::tools {
namespace {

constexpr int kNotLegal = 1;
constexpr int kWrongArguments = 2;

struct Arguments {
  std::string kind;
  std::string file;
  bool search = false;
  int ranks = 4;
  int microbatches = 8;
  int chunks = 0;  // those of the kind
  int gathered = 0;
  std::string costs = "1,1,1";
  double transfer = 0;
  bool blocking = false;
  double together = 1;
  double memory = 0;
  std::string format = "text";
  std::string out;
};

ScheduleCosts read_costs(const Arguments& a) {
  Cursor cursor("--costs", a.costs);
  StageCosts stage;
  stage.forward = cursor.number();
  cursor.expect(",");
  stage.input_backward = cursor.number();
  cursor.expect(",");
  stage.weight_backward = cursor.number();
  cursor.end();
  ScheduleCosts out{.stages = {stage}};
  out.transfer = a.transfer;
  out.transfers_overlap = !a.blocking;
  out.together = a.together;
  for (const double cost : {stage.forward, stage.input_backward, stage.weight_backward, a.transfer,
                            a.together, a.memory}) {
    if (!(cost >= 0)) fail<ValueError>("schedule", "no cost is below 0, as ", cost, " is");
  }
  return out;
}

/// What was asked for, and the costs of its stages.
struct Chosen {
  Schedule schedule;
  ScheduleCosts costs;
};

Chosen choose(const Arguments& a) {
  const ScheduleCosts costs = read_costs(a);
  const int ways = (a.kind.empty() ? 0 : 1) + (a.file.empty() ? 0 : 1) + (a.search ? 1 : 0);
  if (ways != 1)
    fail<ValueError>("schedule", "give one of --kind, --file and --search, not ", ways);
  if (!a.file.empty()) return {Schedule::load(a.file), costs};
  if (a.search) {
    auto found = search_schedule({a.ranks, a.microbatches, costs, a.memory});
    if (!found) {
      fail<ValueError>("schedule", "no schedule that was tried keeps activations under ", a.memory,
                       "; a stage's of one microbatch are 1");
    }
    return {std::move(found->schedule), std::move(found->costs)};
  }
  const ScheduleKind kind = parse_schedule_kind(a.kind);
  ScheduleShape shape{a.ranks, a.microbatches, std::max(1, a.chunks)};
  const bool has_chunks = kind == ScheduleKind::interleaved || kind == ScheduleKind::looped_bfs;
  if (a.chunks == 0 && has_chunks) shape.chunks = 2;
  return {make_schedule(kind, shape), costs};
}

/// Without what sums of costs leave behind the point.
std::string tidy(double value) { return concat(std::round(value * 1e6) / 1e6); }

std::string percent(double part) { return concat(std::round(part * 1000) / 10, " %"); }

std::string as_text(const Schedule& s, const ScheduleFacts& facts, const ScheduleTimes& times,
                    double unit) {
  std::string out = concat("schedule   ", s.name, "\nranks      ", s.ranks.size(), ", stages ",
                           s.stages(), ", microbatches ", s.microbatches, "\n");
  out += concat("time       ", tidy(times.total), ", bubble ", percent(times.bubble), "\n");
  out += concat("memory     at most ", *std::ranges::max_element(facts.live),
                " microbatches of stages on a rank: ", join(facts.live, " "), "\n");
  std::vector<std::string> peaks;
  for (const double peak : times.peak) peaks.push_back(tidy(peak));
  out += concat("           activations by rank: ", join(peaks, " "), "\n");
  out += concat("transfers  ", facts.transfers,
                ", into buffers by rank: ", join(facts.buffers, " "), "\n");
  if (*std::ranges::max_element(facts.gathered) > 0) {
    out += concat("gathered   stages at a time, by rank: ", join(facts.gathered, " "), "\n");
  }
  out +=
      concat("channels   one for each direction: no deadlock; one for each pair of ranks: ",
             facts.shared_channel_deadlock.empty() ? "none either" : facts.shared_channel_deadlock,
             "\n\n");
  return out + times_text(times, unit);
}

/// A column of text for each: the shortest of what takes time.
double unit_of(const ScheduleTimes& times) {
  double unit = 0;
  for (const auto& rank : times.ranks) {
    for (const TimedAction& a : rank) {
      const double length = a.end - a.begin;
      if (length > 0 && (unit == 0 || length < unit)) unit = length;
    }
  }
  return unit > 0 ? unit : 1;
}

int run(const Arguments& a) {
  Chosen chosen;
  try {
    chosen = choose(a);
    if (a.gathered > 0) chosen.schedule = with_gathers(std::move(chosen.schedule), a.gathered);
  } catch (const Error& error) {
    std::cerr << "intarsia: " << error.what() << '\n';
    return kWrongArguments;
  }
  const Schedule& s = chosen.schedule;
  ScheduleFacts facts;
  try {
    facts = check(s);
  } catch (const ValueError& error) {
    std::cerr << "intarsia: " << error.what() << '\n';
    return kNotLegal;
  }
  const ScheduleTimes times = simulate(s, chosen.costs);
  std::string text;
  if (a.format == "schedule") {
    text = s.to_string();
  } else if (a.format == "svg") {
    text = times_svg(
        times, concat(s.name, " on ", s.ranks.size(), " ranks, ", s.microbatches, " microbatches"));
  } else if (a.format == "trace") {
    text = times_trace(times, 1000);
  } else {
    text = as_text(s, facts, times, unit_of(times));
  }
  return write_output("schedule", text, a.out);
}

}  // namespace

std::function<int()> add_schedule(CLI::App& command) {
  const auto a = std::make_shared<Arguments>();
  command
      .add_option("--kind", a->kind,
                  "gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-v, v-half or dualpipe-v")
      ->type_name("NAME");
  command.add_option("--file", a->file, "A schedule as --format schedule prints it")
      ->type_name("FILE");
  command.add_flag("--search", a->search, "The fastest by the costs that fits into --memory");
  command.add_option("--ranks", a->ranks, "4 unless told")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  command.add_option("--microbatches", a->microbatches, "8 unless told")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  command
      .add_option("--chunks", a->chunks,
                  "Stages on each rank, where the kind has a choice; 2 unless told")
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  command
      .add_option("--gathered", a->gathered,
                  "Gather parameters on use, of at most so many stages at a time")
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  command
      .add_option("--costs", a->costs,
                  "Of a stage: forward, backward of inputs, of weights; 1,1,1 unless told")
      ->type_name("F,I,W");
  command.add_option("--transfer", a->transfer, "Of an activation between ranks; 0 unless told")
      ->type_name("T");
  command.add_flag("--blocking", a->blocking, "A rank that sends does nothing else");
  command
      .add_option("--together", a->together,
                  "How long two actions at a time take, in parts of their sum; 1 unless told")
      ->type_name("X");
  command
      .add_option("--memory", a->memory,
                  "For --search: activations on a rank, where those of a microbatch of a stage "
                  "are 1 (with one stage on each rank)")
      ->type_name("X");
  command.add_option("--format", a->format, "How to print it; text unless told")
      ->type_name("WORD")
      ->check(CLI::IsMember({"text", "schedule", "svg", "trace"}));
  command.add_option("--out", a->out, "Write there, not to the standard output")->type_name("FILE");
  command.footer(
      "Needs no ranks and no torch.\n"
      "\n"
      "Exit codes: 0 it is legal, 1 it is not or could not be written, 2 wrong arguments.");
  return [a] { return run(*a); };
}

}  // namespace intarsia::tools

#include "tools/ops/ops_check.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "prove/samples.h"
#include "tools/ops/op_table.h"

namespace intarsia::tools {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// What there is to prove of one op.
struct Task {
  std::string op;  ///< `aten::sum.dim_IntList`
  std::vector<std::string> samples;
};

struct Finding {
  Proof proof;
  double seconds = 0;
  /// Why there is no proof: an error, or how the process ended.
  std::string failed;

  bool holds() const { return failed.empty() && proof.holds(); }
};

// ---- as JSON -----------------------------------------------------------------------------------

ordered_json to_json(const Finding& f) {
  ordered_json wrong = ordered_json::array();
  for (const CounterExample& e : f.proof.wrong) {
    wrong.push_back({{"call", e.call}, {"difference", e.difference}});
  }
  ordered_json missing = ordered_json::array();
  for (const MissingRow& m : f.proof.missing) {
    missing.push_back({{"row", m.row}, {"sample", m.sample}});
  }
  ordered_json out{{"op", f.proof.op},       {"samples", f.proof.samples},
                   {"cases", f.proof.cases}, {"gradients", f.proof.gradients},
                   {"seconds", f.seconds},   {"wrong", wrong},
                   {"missing", missing}};
  if (!f.failed.empty()) out["failed"] = f.failed;
  return out;
}

Finding finding_of(const ordered_json& j) {
  Finding f;
  f.proof.op = j.at("op");
  f.proof.samples = j.at("samples");
  f.proof.cases = j.at("cases");
  f.proof.gradients = j.at("gradients");
  f.seconds = j.at("seconds");
  for (const auto& e : j.at("wrong")) f.proof.wrong.push_back({e.at("call"), e.at("difference")});
  for (const auto& m : j.at("missing")) f.proof.missing.push_back({m.at("row"), m.at("sample")});
  f.failed = j.value("failed", "");
  return f;
}

/// Texts of errors may hold anything.
std::string dump(const ordered_json& j, int indent) {
  return j.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

// ---- one op ------------------------------------------------------------------------------------

Finding prove_task(const Task& task, const ProofOptions& options) {
  Finding out;
  const auto begin = Clock::now();
  try {
    out.proof = prove_samples(task.samples, options);
  } catch (const std::exception& error) {
    out.failed = error.what();
  }
  out.proof.op = task.op;
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return out;
}

// ---- many ops, each in a process of its own ----------------------------------------------------

/// A process that proves one op and writes what it found into a pipe: kernels may crash.
class Child {
 public:
  Child(const Task& task, const ProofOptions& options) : op_(task.op) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) fail_now("pipe");
    pid_ = fork();
    if (pid_ < 0) fail_now("fork");
    if (pid_ == 0) {
      close(ends[0]);
      write_all(ends[1], dump(to_json(prove_task(task, options)), -1));
      _exit(0);  // nothing of the parent's is to be cleaned up here
    }
    close(ends[1]);
    reader_ = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int reader() const { return reader_; }

  /// Takes what there is to read; false at the end.
  bool read_some() {
    std::array<char, 65536> buffer;
    const ssize_t got = read(reader_, buffer.data(), buffer.size());
    if (got > 0) text_.append(buffer.data(), static_cast<std::size_t>(got));
    return got > 0 || (got < 0 && errno == EINTR);
  }

  Finding finish() {
    close(reader_);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
    Finding crashed;
    crashed.proof.op = op_;
    if (WIFSIGNALED(status)) {
      crashed.failed = concat("was ended by signal ", WTERMSIG(status), " (",
                              std::string_view(strsignal(WTERMSIG(status))), ")");
      return crashed;
    }
    try {
      return finding_of(ordered_json::parse(text_));
    } catch (const std::exception&) {
      crashed.failed = concat("exited with code ", WEXITSTATUS(status), " and said nothing");
      return crashed;
    }
  }

 private:
  [[noreturn]] static void fail_now(std::string_view what) {
    throw std::runtime_error(concat(what, ": ", std::string_view(std::strerror(errno))));
  }
  static void write_all(int fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t put = write(fd, text.data(), text.size());
      if (put < 0 && errno != EINTR) _exit(1);
      if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
    }
  }

  std::string op_;
  std::string text_;
  pid_t pid_ = 0;
  int reader_ = -1;
};

/// Proves all, at most `jobs` at once; `done` is called for each as it ends.
template <class Done>
void prove_apart(const std::vector<Task>& tasks, const CheckOptions& options, const Done& done) {
  std::vector<std::unique_ptr<Child>> running;
  std::size_t next = 0;
  while (next < tasks.size() || !running.empty()) {
    while (next < tasks.size() && running.size() < options.jobs) {
      std::cout.flush();  // or the child would print it too
      running.push_back(std::make_unique<Child>(tasks[next++], options.proof));
    }
    std::vector<pollfd> streams;
    for (const auto& child : running) streams.push_back({child->reader(), POLLIN, 0});
    if (poll(streams.data(), streams.size(), -1) <= 0) continue;
    for (std::size_t i = streams.size(); i-- > 0;) {
      if (streams[i].revents == 0 || running[i]->read_some()) continue;
      done(running[i]->finish());
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

// ---- what there is to do -----------------------------------------------------------------------

std::vector<std::string> share_of(const std::vector<std::string>& samples, std::size_t first,
                                  const CheckOptions& options) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if ((i + first) % options.shares == options.share) out.push_back(samples[i]);
  }
  return out;
}

std::vector<Task> all_tasks(const CheckOptions& options) {
  std::vector<Task> out;
  std::size_t seen = 0;  // counted on, so that ops with few samples fall to different shares
  for (const std::string& name : provable_ops()) {
    const auto samples = samples_of(op_named(name));
    Task task{name, share_of(samples, seen, options)};
    seen += samples.size();
    if (!task.samples.empty()) out.push_back(std::move(task));
  }
  return out;
}

Task task_of(const CheckOptions& options) {
  if (!options.samples.empty()) {
    const std::string& first = options.samples.front();
    return {options.name.empty() ? first.substr(0, first.find('(')) : options.name,
            options.samples};
  }
  Task task{options.name, {}};
  for (const c10::OperatorHandle& op : find_overloads(options.name)) {
    const auto more = samples_of(op);
    task.samples.insert(task.samples.end(), more.begin(), more.end());
  }
  if (task.samples.empty()) {
    fail<ValueError>("ops check", "there are no samples of ", options.name,
                     "; give yours: --sample '", options.name, "(f64[6, 4])'");
  }
  task.samples = share_of(task.samples, 0, options);
  if (task.samples.empty()) fail<ValueError>("ops check", "there is no sample in that share");
  return task;
}

// ---- what was found ----------------------------------------------------------------------------

std::string line_of(const Finding& f) {
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%.1f s", f.seconds);
  const Proof& p = f.proof;
  if (!f.failed.empty()) return concat("FAILED ", p.op, ' ', f.failed, '\n');
  std::string text = concat(p.holds() ? "holds  " : "WRONG  ", p.op, ": ", p.samples, " samples, ",
                            p.cases, " cases, ", p.gradients, " with gradients, ", p.missing.size(),
                            " missing, ", std::string_view(seconds.data()), '\n');
  for (const CounterExample& e : p.wrong) {
    text += concat("       ", e.call, "\n         ", e.difference, '\n');
  }
  return text;
}

ordered_json summary_of(const std::vector<Finding>& findings) {
  std::size_t samples = 0, cases = 0, gradients = 0, wrong = 0, missing = 0, failed = 0;
  for (const Finding& f : findings) {
    samples += f.proof.samples;
    cases += f.proof.cases;
    gradients += f.proof.gradients;
    wrong += f.proof.holds() ? 0 : 1;
    missing += f.proof.missing.size();
    failed += f.failed.empty() ? 0 : 1;
  }
  return {{"ops", findings.size()}, {"samples", samples}, {"cases", cases},
          {"gradients", gradients}, {"wrong", wrong},     {"missing", missing},
          {"failed", failed}};
}

void write(const std::string& file, const ordered_json& j) {
  std::ofstream out(file);
  out << dump(j, 1) << '\n';
  if (!out.flush()) fail<ValueError>("ops check", "cannot write ", file);
}

void write_report(const std::string& file, const std::vector<Finding>& findings) {
  ordered_json ops = ordered_json::array();
  for (const Finding& f : findings) ops.push_back(to_json(f));
  write(file, {{"summary", summary_of(findings)}, {"ops", ops}});
}

/// The missing rows by op, each with a sample. Ops that were not proven now keep what they had.
void update_missing(const std::string& file, const std::vector<Finding>& findings) {
  std::map<std::string, ordered_json> rows;
  if (std::ifstream before(file); before) {
    const auto written = ordered_json::parse(before);
    for (const auto& [op, had] : written.items()) rows[op] = had;
  }
  for (const Finding& f : findings) {
    if (!f.failed.empty()) continue;
    // Ops of ATen may be named without their namespace.
    const bool full_name = f.proof.op.find("::") != std::string::npos;
    const std::string op = full_name ? f.proof.op : "aten::" + f.proof.op;
    rows.erase(op);
    for (const MissingRow& m : f.proof.missing) rows[op][m.row] = m.sample;
  }
  write(file, rows);
}

}  // namespace

int check_rules(const CheckOptions& options) {
  const bool all = options.name == "all";
  if (all && !options.samples.empty()) {
    fail<ValueError>("ops check", "'all' has samples of its own; name the op of yours");
  }
  std::vector<Finding> findings;
  if (all) {
    prove_apart(all_tasks(options), options, [&](Finding found) {
      std::cout << line_of(found) << std::flush;
      findings.push_back(std::move(found));
    });
    std::sort(findings.begin(), findings.end(),
              [](const Finding& a, const Finding& b) { return a.proof.op < b.proof.op; });
    const ordered_json s = summary_of(findings);
    std::vector<std::string> parts;
    for (const auto& [what, count] : s.items()) {
      parts.push_back(concat(count.get<std::size_t>(), ' ', what));
    }
    std::cout << join(parts, ", ") << '\n';
  } else {
    // Here and not apart: a debugger sees it, and errors are the caller's.
    const Task task = task_of(options);
    const auto begin = Clock::now();
    Finding found{prove_samples(task.samples, options.proof), 0, ""};
    found.proof.op = task.op;
    found.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::cout << found.proof.to_string();
    findings.push_back(std::move(found));
  }
  if (!options.report.empty()) write_report(options.report, findings);
  if (!options.missing.empty()) update_missing(options.missing, findings);
  return std::all_of(findings.begin(), findings.end(), [](const Finding& f) { return f.holds(); })
             ? 0
             : 1;
}

int check_cases(const std::vector<std::string>& cases, const ProofOptions& options) {
  bool same = true;
  for (const std::string& text : cases) {
    const std::string difference = prove_case(text, options);
    same &= difference.empty();
    std::cout << (difference.empty() ? "holds" : "WRONG") << ": " << text << '\n';
    if (!difference.empty()) std::cout << "  " << difference << '\n';
  }
  return same ? 0 : 1;
}

}  // namespace intarsia::tools

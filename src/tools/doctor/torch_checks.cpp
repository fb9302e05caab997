#include <nlohmann/json.hpp>

#include "base/text.h"
#include "tools/common/child_process.h"
#include "tools/common/companion.h"
#include "tools/doctor/checks.h"

namespace intarsia::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::seconds kProbeLimit{30};
constexpr std::string_view kTestedTorch = INTARSIA_TESTED_TORCH;  // such as "2.13, 2.15"

std::string_view trimmed(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \n");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

/// `2.13.0` -> `2.13`.
std::string_view minor_version(std::string_view version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

Check probe_missing(const std::vector<fs::path>& places) {
  return fail("torch", concat("intarsia-probe, which tries libtorch, is not at ", text_of(places)),
              "install all of Intarsia, built with INTARSIA_TORCH=ON, and keep both programs in "
              "their places");
}

Check probe_failed(const fs::path& probe, const ChildResult& child) {
  const std::string_view message = trimmed(child.err);
  const bool not_loaded = message.find("loading shared libraries") != std::string_view::npos ||
                          message.find("symbol lookup") != std::string_view::npos;
  return fail(
      "torch", concat(probe.string(), ' ', child.problem, message.empty() ? "" : ":\n", message),
      not_loaded ? "set LD_LIBRARY_PATH to the lib folder of torch, install with that rpath, "
                   "or rebuild Intarsia against the installed torch"
                 : "run that program by hand; if it does not work there either, rebuild "
                   "Intarsia against the installed torch");
}

Check check_version(const json& torch) {
  const auto built = torch.at("built").get<std::string>();
  const auto loaded = torch.at("loaded").get<std::string>();
  const std::string found = concat("built with ", built, ", loaded ", loaded, " from ",
                                   torch.at("library").get<std::string>());
  const std::string remedy = concat("rebuild Intarsia against torch ", loaded,
                                    ", or let LD_LIBRARY_PATH lead to torch ", built);
  if (minor_version(built) != minor_version(loaded)) return fail("torch", found, remedy);
  if (built != loaded) return warn("torch", found, remedy);
  const std::string tested = concat(", ", kTestedTorch, ',');
  if (tested.find(concat(", ", minor_version(loaded), ',')) == std::string::npos) {
    return warn("torch", found,
                concat("Intarsia is tested with torch ", kTestedTorch,
                       "; use one of them if you meet errors"));
  }
  return ok("torch", found);
}

Check check_backends(const json& backends) {
  std::vector<std::string> entries;
  for (const auto& [name, present] : backends.items()) {
    entries.push_back(concat(name, present.get<bool>() ? ": yes" : ": no"));
  }
  const std::string found = join(entries, ", ");
  if (backends.at("gloo").get<bool>()) return ok("backends", found);
  return fail("backends", found, "use a libtorch that was built with USE_GLOO=1");
}

/// A trial of the probe: an error's text, or how long it took.
Check check_trial(const std::string& name, const json& trial, const std::string& success,
                  const std::string& remedy) {
  const auto error = trial.at("error").get<std::string>();
  if (!error.empty()) return fail(name, error, remedy);
  return ok(name, concat(success, " in ", trial.at("milliseconds").get<std::int64_t>(), " ms"));
}

TorchFindings findings_of(const json& facts) {
  const json& backends = facts.at("backends");
  TorchFindings findings;
  findings.locks_memory = backends.at("nccl").get<bool>() || backends.at("ucc").get<bool>();
  findings.checks = {
      check_version(facts.at("torch")),
      check_backends(backends),
      check_trial("gloo", facts.at("gloo"), "2 processes on 127.0.0.1 reduced a tensor",
                  "let processes on this machine talk over 127.0.0.1: bring up the interface lo, "
                  "and look for a firewall or sandbox that forbids it"),
      check_trial("in_process", facts.at("in_process"), "4 ranks as threads reduced a tensor",
                  "this needs only threads: look at the limits of this user or container (ulimit "
                  "-u), else report it as a bug of Intarsia"),
  };
  return findings;
}

}  // namespace

TorchFindings check_torch(const std::vector<fs::path>& places) {
  const auto probe = first_of(places);
  if (!probe) return {{probe_missing(places)}};
  ChildResult child = run_child(*probe, {}, kProbeLimit);
  if (!child.problem.empty()) return {{probe_failed(*probe, child)}};
  try {
    return findings_of(json::parse(child.out));
  } catch (const json::exception& unreadable) {
    child.problem = concat("printed what cannot be read (", unreadable.what(), ")");
    return {{probe_failed(*probe, child)}};
  }
}

}  // namespace intarsia::tools

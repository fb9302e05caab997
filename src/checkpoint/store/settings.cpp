#include "checkpoint/store/settings.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = variable(name); !value.empty()) return value;
  }
  return {};
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kBlank) - begin + 1));
}

/// The text of a file that a variable names, or one in the home folder; empty where there is none.
std::string settings_file(const char* name, const char* usual) {
  std::string path = variable(name);
  if (path.empty()) path = concat(variable("HOME"), usual);
  std::ifstream file(path);
  std::stringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

void take_number(const char* name, auto& into) {
  const std::string text = variable(name);
  if (text.empty()) return;
  std::istringstream in(text);
  if (!(in >> into) || into <= 0) {
    fail<ValueError>("checkpoint", name, " is '", text, "', which is no number above 0");
  }
}

}  // namespace

std::string value_in_ini(const std::string& text, const std::string& section,
                         const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  bool inside = false;
  while (std::getline(lines, line)) {
    line = trimmed(line);
    if (line.starts_with('[')) inside = line == concat('[', section, ']');
    const std::size_t equals = line.find('=');
    if (!inside || equals == line.npos || line.starts_with('#')) continue;
    if (trimmed(line.substr(0, equals)) == name) return trimmed(line.substr(equals + 1));
  }
  return {};
}

StoreSettings StoreSettings::find() {
  StoreSettings out;
  out.endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  while (out.endpoint.ends_with('/')) out.endpoint.pop_back();
  out.credentials = {variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                     variable("AWS_SESSION_TOKEN")};
  std::string profile = variable("AWS_PROFILE");
  if (profile.empty()) profile = "default";
  const std::string config = settings_file("AWS_CONFIG_FILE", "/.aws/config");
  const std::string in_config = profile == "default" ? profile : "profile " + profile;
  if (out.credentials.key.empty()) {
    const std::string text = settings_file("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
    const auto value = [&](const char* name) {
      std::string found = value_in_ini(text, profile, name);
      return found.empty() ? value_in_ini(config, in_config, name) : found;
    };
    out.credentials = {value("aws_access_key_id"), value("aws_secret_access_key"),
                       value("aws_session_token")};
  }
  if (out.credentials.key.empty() || out.credentials.secret.empty()) {
    fail<FileError>("checkpoint", "no credentials for s3:// in the profile '", profile,
                    "'; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write "
                    "~/.aws/credentials");
  }
  std::string region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (region.empty()) region = value_in_ini(config, in_config, "region");
  if (!region.empty()) out.region = region;
  if (out.endpoint.empty()) out.endpoint = value_in_ini(config, in_config, "endpoint_url");
  take_number("INTARSIA_STORE_STALL_SECONDS", out.stall_seconds);
  take_number("INTARSIA_STORE_TRIES", out.tries);
  take_number("INTARSIA_STORE_PART_MIB", out.part_mebibytes);
  constexpr int kLeastPart = 5;
  if (out.part_mebibytes < kLeastPart) {
    fail<ValueError>("checkpoint", "INTARSIA_STORE_PART_MIB is ", out.part_mebibytes,
                     "; stores take no parts below ", kLeastPart, " MiB");
  }
  return out;
}

}  // namespace intarsia::checkpoint

// Where an object store is and who asks it, from the variables and files that other programs use.
#pragma once

#include <string>

#include "checkpoint/store/signature.h"

namespace intarsia::checkpoint {

struct StoreSettings {
  /// `http://127.0.0.1:8333`; empty: Amazon's, by region.
  std::string endpoint;
  std::string region = "us-east-1";
  Credentials credentials;
  /// A request that moves no byte for so many seconds is given up.
  double stall_seconds = 20;
  /// How often a request is tried.
  int tries = 6;
  /// How long the parts of an upload are, in MiB; stores take none below 5, but for the last.
  int part_mebibytes = 16;

  /// From AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION,
  /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; what they do not say, from the
  /// profile AWS_PROFILE (or `default`) of `~/.aws/credentials` and `~/.aws/config`, or of the
  /// files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name. INTARSIA_STORE_STALL_SECONDS,
  /// INTARSIA_STORE_TRIES and INTARSIA_STORE_PART_MIB change the last three. FileError where there
  /// are no credentials.
  static StoreSettings find();
};

/// The value of a name in a section of such a file's text; empty where there is none.
std::string value_in_ini(const std::string& text, const std::string& section,
                         const std::string& name);

}  // namespace intarsia::checkpoint

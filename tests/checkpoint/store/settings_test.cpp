#include "checkpoint/store/settings.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/text.h"
#include "checkpoint/store/variables.h"
#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::Variables;

const std::map<std::string, std::string> kNone{{"AWS_ENDPOINT_URL_S3", ""},
                                               {"AWS_ENDPOINT_URL", ""},
                                               {"AWS_ACCESS_KEY_ID", ""},
                                               {"AWS_SECRET_ACCESS_KEY", ""},
                                               {"AWS_SESSION_TOKEN", ""},
                                               {"AWS_REGION", ""},
                                               {"AWS_DEFAULT_REGION", ""},
                                               {"AWS_PROFILE", ""},
                                               {"AWS_CONFIG_FILE", "/nowhere/config"},
                                               {"AWS_SHARED_CREDENTIALS_FILE", "/nowhere/c"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> values) {
  values.insert(kNone.begin(), kNone.end());
  return values;
}

TEST(StoreSettings, VariablesComeFirst) {
  const Variables set(with({{"AWS_ENDPOINT_URL", "http://127.0.0.1:1/"},
                            {"AWS_ACCESS_KEY_ID", "k"},
                            {"AWS_SECRET_ACCESS_KEY", "s"},
                            {"AWS_SESSION_TOKEN", "t"},
                            {"AWS_DEFAULT_REGION", "eu-north-1"},
                            {"INTARSIA_STORE_STALL_SECONDS", "1.5"},
                            {"INTARSIA_STORE_TRIES", "2"},
                            {"INTARSIA_STORE_PART_MIB", "7"}}));
  const StoreSettings found = StoreSettings::find();
  EXPECT_EQ(found.endpoint, "http://127.0.0.1:1");
  EXPECT_EQ(found.region, "eu-north-1");
  EXPECT_EQ(found.credentials.key + found.credentials.secret + found.credentials.token, "kst");
  EXPECT_EQ(found.stall_seconds, 1.5);
  EXPECT_EQ(found.tries, 2);
  EXPECT_EQ(found.part_mebibytes, 7);
}

TEST(StoreSettings, FilesSayTheRest) {
  const std::string credentials = ::testing::TempDir() + "credentials";
  const std::string config = ::testing::TempDir() + "config";
  std::ofstream(credentials)
      << "[default]\naws_access_key_id = a\naws_secret_access_key=b\n"
         "[team]\n # no\naws_access_key_id =c\r\naws_secret_access_key = d=\n";
  std::ofstream(config)
      << "[default]\nregion = r1\n[profile team]\nregion=r2\nendpoint_url = http://e\n";
  const std::map<std::string, std::string> files{{"AWS_CONFIG_FILE", config},
                                                 {"AWS_SHARED_CREDENTIALS_FILE", credentials}};
  {
    const Variables set(with(files));
    const StoreSettings found = StoreSettings::find();
    EXPECT_EQ(concat(found.credentials.key, found.credentials.secret, found.region), "abr1");
  }
  auto team = files;
  team["AWS_PROFILE"] = "team";
  const Variables set(with(team));
  const StoreSettings found = StoreSettings::find();
  EXPECT_EQ(concat(found.credentials.key, found.credentials.secret, found.region), "cd=r2");
  EXPECT_EQ(found.endpoint, "http://e");
}

TEST(StoreSettings, WhatIsMissingIsNamed) {
  const Variables set(with({{"AWS_PROFILE", "q"}}));
  expect_error<FileError>([] { StoreSettings::find(); },
                          {"no credentials for s3:// in the profile 'q'", "AWS_ACCESS_KEY_ID"});
}

TEST(StoreSettings, NumbersAreNumbers) {
  {
    const Variables set(with({{"AWS_ACCESS_KEY_ID", "k"},
                              {"AWS_SECRET_ACCESS_KEY", "s"},
                              {"INTARSIA_STORE_TRIES", "many"}}));
    expect_error<ValueError>([] { StoreSettings::find(); }, {"INTARSIA_STORE_TRIES is 'many'"});
  }
  const Variables small(with({{"AWS_ACCESS_KEY_ID", "k"},
                              {"AWS_SECRET_ACCESS_KEY", "s"},
                              {"INTARSIA_STORE_PART_MIB", "4"}}));
  expect_error<ValueError>([] { StoreSettings::find(); },
                           {"INTARSIA_STORE_PART_MIB is 4; stores take no parts below 5 MiB"});
}

}  // namespace
}  // namespace intarsia::checkpoint

// Takes the place of store_files.cpp where libcurl or OpenSSL is missing.
#include "base/text.h"
#include "checkpoint/store/store_files.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {

Files& store_files(const std::string& path) {
  fail<UnsupportedError>(
      "checkpoint", path,
      ": object stores are not built in: build with the headers of libcurl and OpenSSL "
      "(libcurl4-openssl-dev, libssl-dev)");
}

}  // namespace intarsia::checkpoint

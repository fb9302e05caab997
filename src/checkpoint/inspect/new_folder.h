// NewFolder: a folder that is complete or not there, written by one process. In object stores,
// which cannot rename, it is there from its first file on.
#pragma once

#include <string>

#include "checkpoint/files/files.h"

namespace intarsia::checkpoint {

class NewFolder {
 public:
  /// FileError where the folder is there already.
  NewFolder(Files& files, std::string target);
  /// Removes what was written unless it was committed.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where to write.
  const std::string& path() const { return path_; }
  /// Everything is written and synced: gives the folder its name.
  void commit();

 private:
  Files& files_;
  std::string target_;
  std::string path_;
  bool committed_ = false;
};

}  // namespace intarsia::checkpoint

// A folder for checkpoints that goes with the test, and states of known numbers.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace intarsia::testing {

class CheckpointFolder {
 public:
  CheckpointFolder() {
    std::string form = ::testing::TempDir() + "checkpointXXXXXX";
    path_ = std::string(::mkdtemp(form.data())) + "/runs/a";
  }
  ~CheckpointFolder() {
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path().parent_path());
  }
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline at::Tensor numbers(at::IntArrayRef sizes, double from) {
  return at::arange(at::Tensor(at::empty(sizes)).numel(), at::kDouble).reshape(sizes) + from;
}

}  // namespace intarsia::testing

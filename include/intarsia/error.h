// The errors that Intarsia throws.
//
// Every message has one form: `[function] what is wrong, with the values; what would be right`.
// Outcomes that a caller should expect (no such view, not expressible) are not errors: those
// functions return std::optional or a result that says why.
//
// There are two families with the same texts. This library's own functions throw those below, which
// need no torch. What is refused while ATen runs an op, or autograd a gradient, comes as ATen's
// users expect it, and as Python's torch knows it. Each is a Failure:
//
//   try {
//     ... make tensors, run ops, redistribute, backward
//   } catch (const intarsia::Failure& failure) {
//     if (failure.kind() == intarsia::Failure::Kind::world) ...  // other processes; give up
//     std::cerr << failure.text();
//   }
//
//   | kind        | functions        | ops and gradients        | in Python                      |
//   | value       | ValueError       | c10::ValueError          | ValueError                     |
//   | unsupported | UnsupportedError | c10::NotImplementedError | NotImplementedError            |
//   | world       | WorldError       | c10::DistError           | torch.distributed.DistError,   |
//   |             |                  |                          | from functions its WorldError  |
//   | file        | FileError        |                          | OSError                        |
//
// All are std::exceptions too. What ATen itself refuses, such as sizes that do not fit, is a
// c10::Error and no Failure.
#pragma once

#include <stdexcept>

namespace intarsia {

/// An error of this library, of either family.
class Failure {
 public:
  enum class Kind {
    value,        ///< an argument does not make sense; other values may succeed
    unsupported,  ///< the request makes sense but is not built, or the backend at hand cannot do it
    world,        ///< other processes could not be reached, did not come in time, or failed
    file,         ///< a file could not be written or read, or is not what it was when written
  };
  virtual Kind kind() const noexcept = 0;
  /// The message, without a backtrace.
  virtual const char* text() const noexcept = 0;

 protected:
  Failure() = default;
  Failure(const Failure&) = default;
  Failure& operator=(const Failure&) = default;
  ~Failure() = default;
};

/// Base of the family without torch.
class Error : public std::runtime_error, public Failure {
 public:
  const char* text() const noexcept override { return what(); }

 protected:
  using std::runtime_error::runtime_error;
};

/// An argument does not make sense; calling again with other values may succeed.
class ValueError : public Error {
 public:
  using Error::Error;
  Kind kind() const noexcept override { return Kind::value; }
};

/// The request makes sense but is not built, or the backend at hand cannot do it.
class UnsupportedError : public Error {
 public:
  using Error::Error;
  Kind kind() const noexcept override { return Kind::unsupported; }
};

/// Other processes could not be reached, did not answer in time, or reported a failure. The group
/// the call was made on must not be used again.
class WorldError : public Error {
 public:
  using Error::Error;
  Kind kind() const noexcept override { return Kind::world; }
};

/// A file or folder could not be written or read, or what is in it is damaged. The message names
/// it.
class FileError : public Error {
 public:
  using Error::Error;
  Kind kind() const noexcept override { return Kind::file; }
};

}  // namespace intarsia

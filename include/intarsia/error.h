// The errors that Intarsia throws.
//
// Every message has one form: `[function] what is wrong, with the values; what would be right`.
// Outcomes that a caller should expect (no such view, not expressible) are not errors: those
// functions return std::optional or a result that says why.
#pragma once

#include <stdexcept>

namespace intarsia {

/// Base of all errors of this library.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An argument does not make sense; calling again with other values may succeed.
class ValueError : public Error {
  using Error::Error;
};

/// The request makes sense but is not built, or the backend at hand cannot do it.
class UnsupportedError : public Error {
  using Error::Error;
};

/// Other processes could not be reached, did not answer in time, or reported a failure. The group
/// the call was made on must not be used again.
class WorldError : public Error {
  using Error::Error;
};

}  // namespace intarsia

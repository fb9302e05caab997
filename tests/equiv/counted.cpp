// Loaded before Intarsia, with its symbols for all, this library makes the backends of all worlds:
// the real ones, each within one that counts its calls and what it is handed.
#include <dlfcn.h>

#include <stdexcept>

#include "world/counting_backend.h"
#include "world/transport/backends.h"

namespace {

intarsia::testing::Counts counts;

using Maker = intarsia::Backend (*)(const std::string&, const intarsia::BackendRequest&);

/// The function that this library's own stands before.
Maker real_maker() {
  constexpr const char* kName =
      "_ZN8intarsia12make_backendERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKNS_"
      "14BackendRequestE";
  void* library = ::dlopen(INTARSIA_LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
  void* found = library != nullptr ? ::dlsym(library, kName) : nullptr;
  if (found == nullptr) throw std::runtime_error("make_backend is not in " INTARSIA_LIBRARY);
  return reinterpret_cast<Maker>(found);
}

}  // namespace

namespace intarsia {

Backend make_backend(const std::string& name, const BackendRequest& request) {
  return c10::make_intrusive<testing::CountingBackend>(real_maker()(name, request), counts);
}

}  // namespace intarsia

extern "C" {
std::uint64_t counted_calls() { return counts.calls; }
std::uint64_t counted_bytes() { return counts.bytes - counts.received; }
}

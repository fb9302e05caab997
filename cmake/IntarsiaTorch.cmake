# libtorch for this build, and the backends that it has.

include(IntarsiaFindTorch)
find_package(Torch REQUIRED)
if(NOT Torch_VERSION VERSION_EQUAL 2.13.0)
  message(WARNING "Intarsia is built and tested with torch 2.13.0; this is ${Torch_VERSION}.")
endif()

# What is installed finds the libtorch that it was built with. CMake adds it to the path of libraries
# by itself, but not where it stands in the source folder, as in a virtual environment there.
get_filename_component(INTARSIA_TORCH_FOLDER "${TORCH_LIBRARY}" DIRECTORY)

# c10d's Gloo header needs declarations that the wheel does not ship; see the folder's README.
find_path(INTARSIA_GLOO_HEADERS gloo/context.h)

# intarsia_optional_backend(<target> <name> <NAME>): the backend's file where libtorch was built with
# USE_C10D_<NAME>, else a stand-in that says so.
function(intarsia_optional_backend target backend upper)
  get_target_property(definitions torch INTERFACE_COMPILE_DEFINITIONS)
  if("${definitions};${TORCH_CXX_FLAGS}" MATCHES "USE_C10D_${upper}")
    target_sources(${target} PRIVATE src/world/transport/backend_${backend}.cpp)
    target_compile_definitions(${target} PRIVATE INTARSIA_HAS_${upper}=1)
  else()
    configure_file(src/world/transport/backend_absent.cpp.in backend_absent_${backend}.cpp @ONLY)
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/backend_absent_${backend}.cpp)
  endif()
endfunction()

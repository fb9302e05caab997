# Finds libtorch: where CMAKE_PREFIX_PATH says, else in the torch package of the Python at hand.

if(NOT Torch_DIR AND NOT CMAKE_PREFIX_PATH MATCHES "torch")
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_Interpreter_FOUND)
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
                    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
  endif()
endif()
find_package(Torch REQUIRED)

# torch as our targets use it: system headers, so that their warnings are not ours.
add_library(intarsia_torch INTERFACE)
target_link_libraries(intarsia_torch INTERFACE torch)
set_target_properties(torch PROPERTIES SYSTEM ON)

# c10d's Gloo header needs declarations that the wheel does not ship; see the folder's README.
find_path(INTARSIA_GLOO_HEADERS gloo/context.h)

# intarsia_optional_backend(<target> <name> <NAME>): the backend's file where libtorch was built with
# USE_C10D_<NAME>, else a stand-in that says so.
function(intarsia_optional_backend target backend upper)
  get_target_property(definitions torch INTERFACE_COMPILE_DEFINITIONS)
  get_target_property(cpu_definitions torch_cpu INTERFACE_COMPILE_DEFINITIONS)
  if("${definitions};${cpu_definitions};${TORCH_CXX_FLAGS}" MATCHES "USE_C10D_${upper}")
    target_sources(${target} PRIVATE src/world/backend_${backend}.cpp)
    target_compile_definitions(${target} PRIVATE INTARSIA_HAS_${upper}=1)
  else()
    configure_file(src/world/backend_absent.cpp.in backend_absent_${backend}.cpp @ONLY)
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/backend_absent_${backend}.cpp)
  endif()
endfunction()

# libtorch for this build, and the backends that it has.

include(IntarsiaFindTorch)

string(REGEX MATCH "^[0-9]+[.][0-9]+" intarsia_torch_minor ${INTARSIA_TORCH_VERSION})
if(NOT intarsia_torch_minor IN_LIST INTARSIA_TESTED_TORCH)
  message(WARNING "Intarsia was tested with torch ${intarsia_tested}, and this is ${INTARSIA_TORCH_VERSION} in ${INTARSIA_TORCH_FOLDER}. "
    "It may not compile, or give wrong results: install one of those, or run the tests (ctest -LE slow) before you rely on it.")
endif()
message(STATUS "torch ${INTARSIA_TORCH_VERSION} in ${INTARSIA_TORCH_FOLDER}")

# c10d's Gloo header needs declarations that the wheel does not ship; see the folder's README.
find_path(INTARSIA_GLOO_HEADERS gloo/context.h)

# What c10d's NCCL header includes: those of NVIDIA's packages beside torch's, or a toolkit's.
file(GLOB intarsia_nvidia_headers ${INTARSIA_TORCH_FOLDER}/../nvidia/*/include)
find_path(INTARSIA_NCCL_HEADERS nccl.h HINTS ${intarsia_nvidia_headers})
find_path(INTARSIA_CUDA_HEADERS crt/host_config.h HINTS ${intarsia_nvidia_headers}
          ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
find_path(INTARSIA_CCCL_HEADERS nv/target HINTS ${intarsia_nvidia_headers}
          ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include include/cccl)

# intarsia_optional_backend(<target> <name> <NAME> [<folders of headers>...]): the backend's file where
# libtorch was built with USE_C10D_<NAME> and these folders were found, else a stand-in that says so.
function(intarsia_optional_backend target backend upper)
  get_target_property(definitions torch INTERFACE_COMPILE_DEFINITIONS)
  set(source src/world/transport/backend_${backend}.cpp)
  if(NOT "${definitions};${TORCH_CXX_FLAGS}" MATCHES "USE_C10D_${upper}")
    set(why "the libtorch that Intarsia was built with has no ${backend} backend; use gloo, or build against a libtorch that has it")
  elseif("${ARGN}" MATCHES "NOTFOUND")
    set(why "the headers of ${backend} were not found when Intarsia was built; use gloo, or install them (those of CUDA: pip install nvidia-cuda-crt nvidia-cuda-cccl) and build again")
  else()
    target_sources(${target} PRIVATE ${source})
    set_source_files_properties(${source} PROPERTIES INCLUDE_DIRECTORIES "${ARGN}")
    # Of this file alone: other layers share the precompiled header, which must have the same definitions.
    set_property(SOURCE src/world/transport/backends.cpp APPEND PROPERTY
                 COMPILE_DEFINITIONS INTARSIA_HAS_${upper}=1)
    return()
  endif()
  message(STATUS "Without the backend ${backend}: ${why}")
  configure_file(src/world/transport/backend_absent.cpp.in backend_absent_${backend}.cpp @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/backend_absent_${backend}.cpp)
endfunction()

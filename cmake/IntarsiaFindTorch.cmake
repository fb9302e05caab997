# Finds libtorch. Afterwards there are the target `torch`, INTARSIA_TORCH_VERSION and INTARSIA_TORCH_FOLDER.
#
#   the project has called find_package(Torch)      that one
#   Torch_DIR or CMAKE_PREFIX_PATH names a libtorch  that one, by find_package(Torch)
#   else                                             the torch package of the Python at hand
#
# A CUDA build's own find_package(Torch) wants the CUDA toolkit. We compile no kernels, so where there is
# none, and for the package of Python, we take headers and libraries as they stand, as C++ extensions do.

# The folder of a libtorch (with include/ and lib/) that the user named; empty if none was.
function(intarsia_named_torch result)
  set(${result} "" PARENT_SCOPE)
  set(configs ${Torch_DIR})
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND configs ${prefix}/share/cmake/Torch ${prefix}/Torch)
  endforeach()
  foreach(config IN LISTS configs)
    if(EXISTS ${config}/TorchConfig.cmake)
      get_filename_component(folder ${config}/../../.. ABSOLUTE)
      set(${result} ${folder} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# The folder of the torch package of the Python at hand; torch is not imported. Empty if there is none.
function(intarsia_python_torch result)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  set(folder "")
  if(Python3_Interpreter_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c
              "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# The version in the headers of a libtorch.
function(intarsia_torch_version folder result)
  set(text "")
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${folder}/include/${header})
      file(STRINGS ${folder}/include/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(APPEND text "${lines}")
    endif()
  endforeach()
  if(NOT text MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
    message(FATAL_ERROR "${folder}/include does not say which torch it is; name one with CMAKE_PREFIX_PATH")
  endif()
  set(${result} ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3} PARENT_SCOPE)
endfunction()

# The target `torch`, from the headers and libraries in a folder.
function(intarsia_import_torch folder)
  add_library(torch INTERFACE IMPORTED GLOBAL)
  # `libtorch.so` needs the devices' libraries, and nothing of ours refers to it by name.
  target_link_libraries(torch INTERFACE
    -Wl,--push-state,--no-as-needed,${folder}/lib/libtorch.so,--pop-state
    ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so)
  target_include_directories(torch SYSTEM INTERFACE
    ${folder}/include ${folder}/include/torch/csrc/api/include)
  target_compile_definitions(torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
  if(EXISTS ${folder}/lib/libtorch_cuda.so)
    target_link_libraries(torch INTERFACE ${folder}/lib/libtorch_cuda.so ${folder}/lib/libc10_cuda.so)
    target_compile_definitions(torch INTERFACE USE_C10D_NCCL)
  endif()
endfunction()

if(NOT TARGET torch)
  intarsia_named_torch(intarsia_folder)
  set(intarsia_by_package ${intarsia_folder})
  if(EXISTS "${intarsia_folder}/lib/libtorch_cuda.so")
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND)
      message(STATUS "torch in ${intarsia_folder} is a CUDA build, and there is no CUDA toolkit: its headers and libraries are taken as they stand")
      set(intarsia_by_package "")
    endif()
  endif()
  if(NOT intarsia_folder)
    intarsia_python_torch(intarsia_folder)
  endif()
  if(intarsia_by_package)
    find_package(Torch REQUIRED)
  elseif(intarsia_folder)
    intarsia_import_torch(${intarsia_folder})
  else()
    set(intarsia_why "no libtorch was found: `pip install torch` in the environment whose python3 is first in PATH, or name one with CMAKE_PREFIX_PATH")
    if(CMAKE_FIND_PACKAGE_NAME)  # the project asks whether Intarsia is there, and may go on without
      set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
      set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE "${intarsia_why}")
      return()
    endif()
    message(FATAL_ERROR "${intarsia_why}")
  endif()
else()
  get_filename_component(intarsia_folder "${TORCH_INSTALL_PREFIX}" ABSOLUTE)
endif()
intarsia_torch_version(${intarsia_folder} INTARSIA_TORCH_VERSION)
set(INTARSIA_TORCH_FOLDER ${intarsia_folder})

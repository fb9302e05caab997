# Finds libtorch: where CMAKE_PREFIX_PATH says, else in the torch package of the Python at hand.
if(NOT Torch_DIR AND NOT "${CMAKE_PREFIX_PATH}" MATCHES "torch")
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_Interpreter_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE intarsia_torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND CMAKE_PREFIX_PATH ${intarsia_torch_prefix})
  endif()
endif()

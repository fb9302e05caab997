# How this repository builds its targets: one object library per layer, the same flags everywhere.

find_program(INTARSIA_CCACHE ccache)
if(INTARSIA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${INTARSIA_CCACHE})
endif()
find_program(INTARSIA_MOLD mold)
if(INTARSIA_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

set(CMAKE_CXX_VISIBILITY_PRESET default)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(INTARSIA_SANITIZE)
  add_compile_options(-fsanitize=${INTARSIA_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${INTARSIA_SANITIZE})
endif()

# Flags and include paths of every target of ours.
add_library(intarsia_flags INTERFACE)
target_compile_features(intarsia_flags INTERFACE cxx_std_20)
target_compile_options(intarsia_flags INTERFACE -Wall -Wextra -Werror=return-type)
target_include_directories(intarsia_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)

# intarsia_layer(<name> <sources...>): the object library of one folder of src/.
function(intarsia_layer name)
  add_library(intarsia_${name} OBJECT ${ARGN})
  target_link_libraries(intarsia_${name} PUBLIC intarsia_flags)
endfunction()

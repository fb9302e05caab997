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

# Most of the time of a source goes to torch's headers, whatever it has besides: several together are compiled in a third of
# it. When one changes, its neighbours are compiled too.
option(INTARSIA_UNITY "Compile the sources of a layer over torch together: quicker from nothing" OFF)

# The same for one over torch. The first one's precompiled header is that of all.
function(intarsia_torch_layer name)
  intarsia_layer(${name} ${ARGN})
  target_link_libraries(intarsia_${name} PUBLIC torch)
  set_target_properties(intarsia_${name} PROPERTIES UNITY_BUILD ${INTARSIA_UNITY})
  if(INTARSIA_UNITY)  # the compiler inlines as if each source stood alone
    target_compile_options(intarsia_${name} PRIVATE --param=large-unit-insns=100000)
  endif()
  if(name STREQUAL "world")
    target_precompile_headers(intarsia_world PRIVATE src/pch.h)
  else()
    target_precompile_headers(intarsia_${name} REUSE_FROM intarsia_world)
  endif()
endfunction()

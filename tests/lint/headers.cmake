# Compiles headers on their own: one source file each that includes nothing else. Those that come to include torch are left
# out: each costs up to 20 s. So are those of checkpoints: most have a source that includes them first.
# promises/versions/6-alone compiles all.

file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/include/*.h ${PROJECT_SOURCE_DIR}/src/*.h)
list(FILTER headers EXCLUDE REGEX "src/(pch.h|world/|rules/|prove/|tensor/|parallel/|checkpoint/|training/|tools/)")

# Those that include torch, or a header that does.
set(with_torch "(ATen|c10|torch)/")
set(found TRUE)
while(found)
  set(found FALSE)
  foreach(header IN LISTS headers)
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include [<\"](${with_torch})")
    if(lines)
      list(REMOVE_ITEM headers ${header})
      string(REGEX REPLACE "^(include|src)/" "" path ${header})
      string(APPEND with_torch "|${path}\"")
      set(found TRUE)
    endif()
  endforeach()
endwhile()

set(alone)
foreach(header IN LISTS headers)
  string(REGEX REPLACE "[/.]" "_" name ${header})
  string(REGEX REPLACE "^(include|src)/" "" include ${header})
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp CONTENT "#include \"${include}\"\n")
  list(APPEND alone ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
endforeach()
add_library(headers_alone OBJECT ${alone})
target_link_libraries(headers_alone PRIVATE intarsia_flags)

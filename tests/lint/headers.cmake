# Compiles headers on their own: one source file each that includes nothing else. Private headers of the
# layers over torch are left out: each costs up to 20 s, and each has a source of its name. So are those of
# checkpoints: most have a source that includes them first. promises/versions/6-alone compiles all.

file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/include/*.h ${PROJECT_SOURCE_DIR}/src/*.h)
list(FILTER headers EXCLUDE REGEX "src/(pch.h|world/|rules/|prove/|tensor/|parallel/|checkpoint/|training/|tools/)")
set(alone)
foreach(header IN LISTS headers)
  file(READ ${PROJECT_SOURCE_DIR}/${header} text)
  if(NOT INTARSIA_TORCH AND (header MATCHES "intarsia/intarsia.h" OR text MATCHES "(ATen|c10|torch)/|world.h"))
    continue()
  endif()
  string(REGEX REPLACE "[/.]" "_" name ${header})
  string(REGEX REPLACE "^(include|src)/" "" include ${header})
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp CONTENT "#include \"${include}\"\n")
  list(APPEND alone ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
endforeach()
add_library(headers_alone OBJECT ${alone})
target_link_libraries(headers_alone PRIVATE intarsia_flags)
if(INTARSIA_TORCH)
  target_link_libraries(headers_alone PRIVATE torch)
endif()

# Precompiled headers that many targets use (REUSE_FROM): of libraries, and with doctest's of test programs. Made by targets of their own, as a header
# that was compiled with a macro serves only those who define it too.
function(starling_precompiled name)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${name} OBJECT ${source})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_link_libraries(${name} PRIVATE starling_flags fmt::fmt)
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h ${ARGN})
endfunction()
starling_precompiled(starling_precompiled)
if(STARLING_TESTS)
  foreach(level 0 1)  # of optimization
    starling_precompiled(starling_precompiled_tests_O${level} <doctest/doctest.h>)
    set_target_properties(starling_precompiled_tests_O${level} PROPERTIES POSITION_INDEPENDENT_CODE OFF STARLING_OPTIMIZATION -O${level})
    target_compile_options(starling_precompiled_tests_O${level} PRIVATE -fPIE)  # as programs are compiled
  endforeach()
endif()

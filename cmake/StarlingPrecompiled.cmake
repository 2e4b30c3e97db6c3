# Precompiled headers that many targets use (REUSE_FROM): of libraries, with CLI11 of programs, with
# doctest of test programs. Made by targets of their own, as a header that was compiled with a macro
# serves only those who define it too, and one of another optimization level crashes g++ 12.
function(starling_precompiled name level)
  set(name starling_precompiled${name}${level})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${name} OBJECT ${source})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_link_libraries(${name} PRIVATE starling_flags fmt::fmt)
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h ${ARGN})
  set_target_properties(${name} PROPERTIES STARLING_OPTIMIZATION ${level})
  if(ARGN)  # as programs are compiled
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIE)
  endif()
endfunction()
starling_precompiled("" -O1)
starling_precompiled("" -O2)
starling_precompiled(_programs -O1 <CLI/CLI.hpp>)
if(STARLING_TESTS)
  starling_precompiled(_tests -O0 <doctest/doctest.h>)
  starling_precompiled(_tests -O1 <doctest/doctest.h>)
endif()

# starling_add_plugin(NAME SOURCE...): a plug-in library, libNAME.so, in the current build folder. It adds layers, models, topologies,
# optimizers, data sets to the registries of the program that opens it ("plugins": ["./libNAME.so"] in a config). See docs/extending.md.
function(starling_add_plugin name)
  if(NOT ARGN)
    message(FATAL_ERROR "starling_add_plugin(${name}): no source file is given")
  endif()
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE starling::starling_trainer)
  set_target_properties(${name} PROPERTIES PREFIX lib POSITION_INDEPENDENT_CODE ON LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    target_compile_options(${name} PRIVATE -O3)  # without a build type the compiler would not optimise
  endif()
endfunction()

# starling_add_plugin(NAME SOURCE...): a plug-in library, libNAME.so, in the current build folder.
# It adds layers, models, topologies, optimizers, data sets to the registries of the program that
# opens it ("plugins": ["./libNAME.so"] in a config). See docs/extending.md. A .cu source holds an
# optimizer's GPU side; it is compiled where nvcc is (the usual CMAKE_CUDA_ARCHITECTURES says for
# what), and left out with a line elsewhere, or with STARLING_CUDA=OFF: the plug-in then works on
# CPUs.

# What the plug-in was compiled with, by which programs refuse one of other headers.
set(STARLING_PLUGIN_STAMP ${CMAKE_CURRENT_LIST_DIR}/plugin_stamp.cpp)

# Looks for nvcc. A macro: enable_language() must be called where the caller is.
macro(starling_enable_plugin_cuda)
  if(NOT CMAKE_CUDA_COMPILER_LOADED AND NOT "${STARLING_CUDA}" STREQUAL "OFF")
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      find_program(STARLING_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
      mark_as_advanced(STARLING_NVCC)
      if(STARLING_NVCC)
        set(ENV{CUDACXX} ${STARLING_NVCC})
      endif()
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      if(NOT CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # the latter with PTX, for what comes after
      endif()
      enable_language(CUDA)
    endif()
  endif()
  # CMake 3.25 knows no C++20 for nvcc and would leave the option out without a word.
  if(CMAKE_CUDA_COMPILER_LOADED AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
endmacro()

macro(starling_add_plugin name)
  set(starling_gpu_sources ${ARGN})
  list(FILTER starling_gpu_sources INCLUDE REGEX "\\.cu$")
  if(starling_gpu_sources)
    starling_enable_plugin_cuda()
  endif()
  starling_plugin_target(${name} ${ARGN})
endmacro()

function(starling_plugin_target name)
  set(sources ${ARGN})
  set(gpu_sources ${ARGN})
  list(FILTER gpu_sources INCLUDE REGEX "\\.cu$")
  if(gpu_sources AND NOT CMAKE_CUDA_COMPILER_LOADED)
    list(REMOVE_ITEM sources ${gpu_sources})
    list(JOIN gpu_sources ", " left_out)
    set(gpu_sources)
    if("${STARLING_CUDA}" STREQUAL "OFF")
      message(STATUS "Plug-in ${name}: for CPUs alone; ${left_out} left out, as STARLING_CUDA=OFF says")
    else()
      message(STATUS "Plug-in ${name}: for CPUs alone; ${left_out} left out, as no CUDA compiler was found (nvcc in the PATH, or CUDACXX)")
    endif()
  endif()
  if(NOT sources)
    message(FATAL_ERROR "starling_add_plugin(${name}): no source file is given")
  endif()
  add_library(${name} MODULE ${sources} ${STARLING_PLUGIN_STAMP})
  target_link_libraries(${name} PRIVATE starling::starling_trainer)
  # without errno, roots are vectors
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>)
  set_target_properties(${name} PROPERTIES PREFIX lib POSITION_INDEPENDENT_CODE ON LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
                        # the same RUNPATH here and installed: CMake ends one that changes with a
                        # colon, by which the folder is searched that a program is started in
                        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    # without a build type the compiler would not optimise
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O3>)
  endif()
  if(gpu_sources)
    # The static runtime: the plug-in loads where CUDA is not installed. No contraction to fused
    # multiply-add: the bits of the CPU.
    set_target_properties(${name} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF CUDA_RUNTIME_LIBRARY Static)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false> $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
    # fmt 9 does not see that nvcc has constexpr, which its format strings need.
    target_compile_definitions(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  endif()
endfunction()

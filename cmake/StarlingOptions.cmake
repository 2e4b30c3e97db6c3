# Build options and the flags that every target of the project shares.
option(STARLING_TESTS "Build the tests" ON)
option(STARLING_WERROR "Treat warnings as errors" ON)
option(STARLING_OPENMP "Run kernels on several threads (off for the thread sanitizer)" ON)
set(STARLING_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize: address,undefined or thread")
set(STARLING_CUDA AUTO CACHE STRING "The CUDA plug-in: AUTO (where the toolkit is found), ON, OFF")
option(STARLING_GPU_TESTS "Run the tests that need a GPU (label gpu)" OFF)
set_property(CACHE STARLING_CUDA PROPERTY STRINGS AUTO ON OFF)
# CMAKE_UNITY_BUILD=ON, as the scripts configure a new folder: the compiler reads this many files at
# once, and the headers that they share one time. A full build takes half the time, and up to 1.6 GB
# for each compiler; one file's change takes longer. So names in unnamed namespaces are unique in a
# folder.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
# The same RUNPATH in this folder and installed. CMake would end one that changes at installation
# with colons, and each of these has the loader look into the folder that a program is started in.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
file(RELATIVE_PATH starling_libraries_from_programs ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(CMAKE_INSTALL_RPATH "$ORIGIN/${starling_libraries_from_programs}" "$ORIGIN/../lib" "$ORIGIN")
list(REMOVE_DUPLICATES CMAKE_INSTALL_RPATH)
# And of libraries such as MPI's where they are not the system's.
option(CMAKE_INSTALL_RPATH_USE_LINK_PATH "Look for libraries at run time where they were found" ON)

# ccache, where it is installed, with what lets a build in another folder take the results of this
# one: paths below the source folder are made relative, and precompiled headers are looked into.
find_program(STARLING_CCACHE ccache)
mark_as_advanced(STARLING_CCACHE)
if(STARLING_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${STARLING_CCACHE})
  # never by preprocessed text, which lacks device code
  set(CMAKE_CUDA_COMPILER_LAUNCHER env CCACHE_DEPEND=1 ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(starling_flags INTERFACE)
target_compile_options(starling_flags INTERFACE -Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Wno-missing-field-initializers
                       # g++ 12 warns wrongly of strings (PR 105651, 105329)
                       "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>"
                       # g++ collects its garbage less often: a tenth of the time for a tenth more
                       # memory
                       "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>>:--param=ggc-min-expand=300>"
                       # joined files see one another's names, and look to g++ like headers, where a
                       # member of an unnamed namespace's type is a fault
                       $<IF:$<BOOL:${CMAKE_UNITY_BUILD}>,-Wno-subobject-linkage,-Wshadow>
                       "$<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess;-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>"
                       $<$<BOOL:${STARLING_WERROR}>:-Werror>)
# A target's property STARLING_OPTIMIZATION: -O3 of what is compiled for its loops, -O2 of what each
# step runs through. For all else more than -O1 is compile time alone, a quarter of it.
target_compile_options(starling_flags INTERFACE
  $<$<CONFIG:Release>:$<IF:$<BOOL:$<TARGET_PROPERTY:STARLING_OPTIMIZATION>>,$<TARGET_PROPERTY:STARLING_OPTIMIZATION>,-O1>>)
if(STARLING_SANITIZE)
  target_compile_options(starling_flags INTERFACE $<IF:$<STREQUAL:$<TARGET_PROPERTY:STARLING_OPTIMIZATION>,-O0>,-O0,-O1> -g1 -fsanitize=${STARLING_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(starling_flags INTERFACE -fsanitize=${STARLING_SANITIZE})
endif()

# One shared library per folder: a plug-in links the same ones and so adds to the same registries.
function(starling_library name)
  cmake_parse_arguments(arg "" "OPTIMIZATION" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(level -O1)
  if(arg_OPTIMIZATION)
    set(level ${arg_OPTIMIZATION})
  endif()
  add_library(${name} SHARED ${arg_SOURCES})
  add_library(starling::${name} ALIAS ${name})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/starling/detail>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE $<BUILD_INTERFACE:starling_flags> ${arg_PRIVATE})
  if(TARGET starling_precompiled${level})
    target_precompile_headers(${name} REUSE_FROM starling_precompiled${level})
  endif()
  set_target_properties(${name} PROPERTIES STARLING_OPTIMIZATION ${level} VERSION ${PROJECT_VERSION} SOVERSION 0)
endfunction()

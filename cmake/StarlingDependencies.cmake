# Everything comes from Debian's packages (scripts/setup.sh installs them).
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
# mpi.h would pull in the C++ bindings that the MPI standard dropped, and with them a library that
# nothing here links.
target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
# Nor its compiler options: -pthread defines a macro, and precompiled headers were made without.
set_property(TARGET MPI::MPI_C PROPERTY INTERFACE_COMPILE_OPTIONS)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
# Packed files that are read. Without zstd's header, for which the source looks, those of .zst are
# refused by name.
add_library(starling_packing INTERFACE)
target_link_libraries(starling_packing INTERFACE ZLIB::ZLIB)
find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY zstd)
if(ZSTD_INCLUDE_DIR AND ZSTD_LIBRARY)
  target_include_directories(starling_packing SYSTEM INTERFACE ${ZSTD_INCLUDE_DIR})
  target_link_libraries(starling_packing INTERFACE ${ZSTD_LIBRARY})
endif()
find_package(JPEG REQUIRED)  # libjpeg-turbo: cropped and scaled decoding
find_package(PNG REQUIRED)
if(STARLING_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()

# Debian's CMake package of oneDNN asks for OpenCL, which nothing here needs.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(starling_dnnl INTERFACE)
target_include_directories(starling_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(starling_dnnl INTERFACE ${DNNL_LIBRARY})

# The live page of starling-report. Debian's is split into a header and a library, which wants what
# it was built with, as pkg-config says; others have the header alone.
find_package(PkgConfig)
if(PkgConfig_FOUND)
  pkg_check_modules(HTTPLIB IMPORTED_TARGET cpp-httplib)
endif()
if(NOT TARGET PkgConfig::HTTPLIB)
  find_path(HTTPLIB_INCLUDE_DIR httplib.h REQUIRED)
  add_library(PkgConfig::HTTPLIB INTERFACE IMPORTED)
  target_include_directories(PkgConfig::HTTPLIB INTERFACE ${HTTPLIB_INCLUDE_DIR})
  target_link_libraries(PkgConfig::HTTPLIB INTERFACE Threads::Threads)
endif()

# Has no CMake package in Debian.
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(starling_xxhash INTERFACE)
target_include_directories(starling_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_link_libraries(starling_xxhash INTERFACE ${XXHASH_LIBRARY})

# The transport zeromq, which is left out without it. CurveZMQ came with 4.0, the events of a failed
# handshake with 4.3.
find_path(ZMQ_INCLUDE_DIR zmq.h)
find_library(ZMQ_LIBRARY zmq)
if(ZMQ_INCLUDE_DIR AND ZMQ_LIBRARY)
  add_library(starling_zeromq INTERFACE)
  target_include_directories(starling_zeromq SYSTEM INTERFACE ${ZMQ_INCLUDE_DIR})
  target_link_libraries(starling_zeromq INTERFACE ${ZMQ_LIBRARY})
else()
  message(STATUS "ZeroMQ is missing (libzmq3-dev): sync.transport zeromq is left out")
endif()

include(StarlingCuda)

# NCCL 2: a system package, a folder, or the Python wheel nvidia-nccl-cu13
# (<site-packages>/nvidia/nccl/{include,lib}), as the rest of CUDA is looked for
# (cmake/StarlingCuda.cmake). From 2.18 on the CUDA plug-in uses it (comm/nccl/library.cpp).
include(${CMAKE_CURRENT_LIST_DIR}/StarlingFindPair.cmake)

# starling_find_nccl(FOLDER...): looks in these folders first, in order. Sets STARLING_NCCL_LIBRARY
# and STARLING_NCCL_INCLUDE_DIR in the cache, and STARLING_NCCL_VERSION, empty where a part is
# missing.
function(starling_find_nccl)
  starling_find_pair(STARLING_NCCL nccl.h libnccl.so.2 ${ARGN})
  set(version)
  if(STARLING_NCCL_INCLUDE_DIR AND STARLING_NCCL_LIBRARY)
    starling_header_version(version ${STARLING_NCCL_INCLUDE_DIR}/nccl.h NCCL MAJOR MINOR PATCH)
  endif()
  set(STARLING_NCCL_VERSION "${version}" CACHE INTERNAL "The version of NCCL, by its header; empty: none")
  if(version AND version VERSION_LESS 2.18)
    message(STATUS "NCCL: ${version}, ${STARLING_NCCL_LIBRARY}, not used: 2.18 is needed")
  elseif(version)
    message(STATUS "NCCL: ${version}, ${STARLING_NCCL_LIBRARY}")
  else()
    message(STATUS "NCCL: not found (NVIDIA's package libnccl-dev, or the Python wheel nvidia-nccl-cu13)")
  endif()
endfunction()

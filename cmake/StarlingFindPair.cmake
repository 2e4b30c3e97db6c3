# A library of NVIDIA's and its header, taken from one and the same folder: those of two versions
# would not fit together.

# starling_find_pair(PREFIX HEADER LIBRARIES FOLDER...): looks in these folders first, in order, and
# then where CMake does. LIBRARIES is a list of file names, as libcudnn.so.9: a Python wheel has no
# plain link. Sets PREFIX_LIBRARY and PREFIX_INCLUDE_DIR in the cache; where no place has both, at
# most one of them.
function(starling_find_pair prefix header libraries)
  foreach(folder ${ARGN} "")
    set(only NO_DEFAULT_PATH)
    if(NOT folder)
      set(only)
    endif()
    find_path(${prefix}_INCLUDE_DIR ${header} HINTS ${folder} PATH_SUFFIXES include ${only})
    find_library(${prefix}_LIBRARY NAMES ${libraries} HINTS ${folder} PATH_SUFFIXES lib lib64 ${only})
    if(${prefix}_INCLUDE_DIR AND ${prefix}_LIBRARY)
      break()
    elseif(folder)
      unset(${prefix}_INCLUDE_DIR CACHE)
      unset(${prefix}_LIBRARY CACHE)
    endif()
  endforeach()
  mark_as_advanced(${prefix}_INCLUDE_DIR ${prefix}_LIBRARY)
endfunction()

# starling_header_version(RESULT FILE PREFIX PART...): the version that a header defines in macros
# PREFIX_PART, as "2.28.9"; empty: none.
function(starling_header_version result file prefix)
  set(version)
  if(EXISTS "${file}")
    list(JOIN ARGN "|" parts)
    file(STRINGS ${file} lines REGEX "^#define ${prefix}_(${parts}) +[0-9]+")
    foreach(part ${ARGN})
      if(lines MATCHES "${prefix}_${part} +([0-9]+)")
        list(APPEND version ${CMAKE_MATCH_1})
      endif()
    endforeach()
    list(JOIN version "." version)
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

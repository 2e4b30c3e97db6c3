# starling_detail_headers(RESULT SOURCE): what the public headers of SOURCE (apps/starling/*.h) and
# the plug-ins' stamp include, directly or not, as paths below SOURCE, in order. These and no others
# are installed, and a plug-in depends on them alone.
cmake_minimum_required(VERSION 3.25)
function(starling_detail_headers result source)
  file(GLOB public RELATIVE ${source} ${source}/apps/starling/*.h)
  set(found)
  set(waiting ${public} apps/inference/plugin_stamp.h)
  while(waiting)
    list(POP_FRONT waiting header)
    list(APPEND found ${header})
    file(STRINGS ${source}/${header} lines REGEX "^#include \"")
    foreach(line ${lines})
      string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
      # starling_build.h is made by the build
      if(EXISTS ${source}/${included} AND NOT included IN_LIST found AND NOT included IN_LIST waiting)
        list(APPEND waiting ${included})
      endif()
    endforeach()
  endwhile()
  list(REMOVE_ITEM found ${public})
  list(SORT found)
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Run at every build: writes HEADER with VERSION, the commit that SOURCE is a checkout of, "unknown"
# outside one, and a digest of the headers below the public ones, without comments and spaces
# (apps/inference/plugin_stamp.h); leaves the file alone where it says so.
cmake_minimum_required(VERSION 3.25)
set(commit "")
if(EXISTS "${SOURCE}/.git")  # not the repository of somebody who unpacked an archive within it
  set(ENV{GIT_OPTIONAL_LOCKS} 0)
  execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --exclude=* OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit unknown)
endif()
set(ENV{LC_ALL} C)
include(${CMAKE_CURRENT_LIST_DIR}/StarlingHeaders.cmake)
starling_detail_headers(headers ${SOURCE})
execute_process(COMMAND sed s,//.*,, ${headers} COMMAND tr -d "[:space:]" COMMAND sha256sum
                WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE interface COMMAND_ERROR_IS_FATAL ANY)
string(SUBSTRING "${interface}" 0 16 interface)
file(CONFIGURE OUTPUT "${HEADER}" CONTENT "#pragma once

#define STARLING_VERSION \"@VERSION@\"
#define STARLING_COMMIT \"@commit@\"
#define STARLING_INTERFACE \"@interface@\"
" @ONLY)

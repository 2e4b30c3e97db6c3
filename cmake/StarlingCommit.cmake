# Run at every build: writes HEADER with the commit that SOURCE is a checkout of, "unknown" outside one; leaves the file alone where it says so.
cmake_minimum_required(VERSION 3.25)
set(commit "")
if(EXISTS "${SOURCE}/.git")  # not the repository of somebody who unpacked an archive within it
  set(ENV{GIT_OPTIONAL_LOCKS} 0)
  execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --exclude=* OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT "${HEADER}" CONTENT "#pragma once\n\n#define STARLING_COMMIT \"@commit@\"\n" @ONLY)
